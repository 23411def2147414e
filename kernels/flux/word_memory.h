// 32-bit words in a block's fast memory and in device memory.
//
// Thread safety: accesses are those of the memory; nothing is synchronized.
#ifndef RESIDENT_KERNELS_FLUX_WORD_MEMORY_H_
#define RESIDENT_KERNELS_FLUX_WORD_MEMORY_H_

#include "kernels/layout/platform.h"

namespace resident::flux {

// Adjacent words: one of each run that a thread executes at a time. Two are accessed together on a
// GPU; scratch memory and block memory have the alignment for it.
template <u32 kCount>
struct alignas(kCount == 2 ? 8 : 4) Several {
  u32 of[kCount];
};

// Words in a block's fast memory. On a GPU this is shared memory, and it is accessed with
// its own instructions, because an access through a generic pointer first has to determine
// the kind of memory. All accesses to a word must use this class.
class FastWords {
 public:
  RESIDENT_HOST_DEVICE explicit FastWords(u32* words)
#if defined(__CUDA_ARCH__)
      : words_(static_cast<u32>(__cvta_generic_to_shared(words))){}
#else
      : words_(words) {
  }
#endif
        RESIDENT_HOST_DEVICE u32 load(u32 i) const {
#if defined(__CUDA_ARCH__)
    u32 value;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(words_ + 4 * i));
    return value;
#else
    return words_[i];
#endif
  }
  RESIDENT_HOST_DEVICE void store(u32 i, u32 value) const {
#if defined(__CUDA_ARCH__)
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(words_ + 4 * i), "r"(value));
#else
    words_[i] = value;
#endif
  }
  // Words i to i + kCount - 1. On a GPU one access, for which i and the address of word 0 must be
  // multiples of kCount words.
  template <u32 kCount>
  RESIDENT_HOST_DEVICE Several<kCount> load_several(u32 i) const {
    Several<kCount> values;
#if defined(__CUDA_ARCH__)
    static_assert(kCount == 2, "");
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
                 : "=r"(values.of[0]), "=r"(values.of[1])
                 : "r"(words_ + 4 * i));
#else
    for (u32 k = 0; k < kCount; ++k) values.of[k] = words_[i + k];
#endif
    return values;
  }
  template <u32 kCount>
  RESIDENT_HOST_DEVICE void store_several(u32 i, const Several<kCount>& values) const {
#if defined(__CUDA_ARCH__)
    static_assert(kCount == 2, "");
    asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(words_ + 4 * i), "r"(values.of[0]),
                 "r"(values.of[1]));
#else
    for (u32 k = 0; k < kCount; ++k) words_[i + k] = values.of[k];
#endif
  }
  RESIDENT_HOST_DEVICE FastWords operator+(u32 i) const {
    FastWords moved = *this;
#if defined(__CUDA_ARCH__)
    moved.words_ += 4 * i;
#else
    moved.words_ += i;
#endif
    return moved;
  }

 private:
#if defined(__CUDA_ARCH__)
  u32 words_;
#else
  u32* words_;
#endif
};

// The same for device memory.
class DeviceWords {
 public:
  RESIDENT_HOST_DEVICE explicit DeviceWords(u32* words) : words_(words) {}
  RESIDENT_HOST_DEVICE u32 load(u32 i) const { return words_[i]; }
  RESIDENT_HOST_DEVICE void store(u32 i, u32 value) const { words_[i] = value; }
  RESIDENT_HOST_DEVICE DeviceWords operator+(u32 i) const { return DeviceWords(words_ + i); }

 private:
  u32* words_;
};

}  // namespace resident::flux

#endif  // RESIDENT_KERNELS_FLUX_WORD_MEMORY_H_
