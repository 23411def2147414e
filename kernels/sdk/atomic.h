// Atomic read-modify-write of an element that several threads, or chunks of a wide task, may
// change concurrently.
//
//   resident::atomic_add(&out[bin], 1);   // T: float, double, i32, u32, i64, u64.
//
// Only atomic_arrive orders other memory accesses; the others are relaxed. The sum of floats
// depends on the order of the additions. All of them return the previous value.
#ifndef RESIDENT_KERNELS_SDK_ATOMIC_H_
#define RESIDENT_KERNELS_SDK_ATOMIC_H_

#include "kernels/layout/platform.h"
#include "kernels/sdk/half.h"

namespace resident {
namespace atomic_internal {

// The unsigned integer type of this size.
template <u32 kBytes>
struct Word;
template <>
struct Word<4> {
  using Type = u32;
};
template <>
struct Word<8> {
  using Type = u64;
};

#if defined(__CUDA_ARCH__)
template <typename W>
RESIDENT_DEVICE W Load(W* at) {
  return *const_cast<volatile W*>(at);
}
RESIDENT_DEVICE u32 Exchange(u32* at, u32 expected, u32 desired) {
  return atomicCAS(at, expected, desired);
}
RESIDENT_DEVICE u64 Exchange(u64* at, u64 expected, u64 desired) {
  return atomicCAS(at, expected, desired);
}
#else
template <typename W>
RESIDENT_HOST_DEVICE W Load(W* at) {
  return __atomic_load_n(at, __ATOMIC_RELAXED);
}
template <typename W>
RESIDENT_HOST_DEVICE W Exchange(W* at, W expected, W desired) {
  __atomic_compare_exchange_n(at, &expected, desired, /*weak=*/false, __ATOMIC_RELAXED,
                              __ATOMIC_RELAXED);
  return expected;
}
#endif

}  // namespace atomic_internal

// Performs *at = f(*at) atomically. f may be called more than once.
template <typename T, typename F>
RESIDENT_HOST_DEVICE T atomic_update(T* at, F f) {
  using W = typename atomic_internal::Word<sizeof(T)>::Type;
  W* const word = reinterpret_cast<W*>(at);
  W seen = atomic_internal::Load(word);
  while (true) {
    const T before = bit_cast<T>(seen);
    const W found = atomic_internal::Exchange(word, seen, bit_cast<W>(f(before)));
    if (found == seen) return before;
    seen = found;
  }
}

template <typename T>
RESIDENT_HOST_DEVICE T atomic_add(T* at, T value) {
#if defined(__CUDA_ARCH__)
  if constexpr (static_cast<T>(1) / 2 != 0) {
    return atomicAdd(at, value);  // A floating-point type.
  } else {
    using W = typename atomic_internal::Word<sizeof(T)>::Type;
    return static_cast<T>(atomicAdd(reinterpret_cast<W*>(at), static_cast<W>(value)));
  }
#else
  return atomic_update(at, [value](T before) { return before + value; });
#endif
}

// Adds 1, for chunks that count their arrivals: what other threads wrote before they arrived is
// visible to the thread that counts later, and behind a barrier to its block. REQUIRES: the
// block's own stores are behind a barrier.
RESIDENT_HOST_DEVICE i32 atomic_arrive(i32* at) {
#if defined(__CUDA_ARCH__)
  i32 before;
  asm volatile("atom.acq_rel.gpu.add.s32 %0, [%1], 1;" : "=r"(before) : "l"(at) : "memory");
  return before;
#else
  return __atomic_fetch_add(at, 1, __ATOMIC_ACQ_REL);
#endif
}

template <typename T>
RESIDENT_HOST_DEVICE T atomic_max(T* at, T value) {
  return atomic_update(at, [value](T before) { return before < value ? value : before; });
}

template <typename T>
RESIDENT_HOST_DEVICE T atomic_min(T* at, T value) {
  return atomic_update(at, [value](T before) { return value < before ? value : before; });
}

}  // namespace resident

#endif  // RESIDENT_KERNELS_SDK_ATOMIC_H_
