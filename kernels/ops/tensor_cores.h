// Tensor cores: products of small matrices of Half or BFloat16 that a warp computes, and the copies
// that supply them. The instructions are those of compute capability 8.0, which later GPUs have
// too.
//
//   Accumulator sum = {};
//   LeftFragment a;
//   RightFragment b[2];
//   LoadLeft(a, address_of_my_row_of_a);
//   LoadRightTransposed(b[0], b[1], address_of_my_row_of_b);
//   MultiplyAdd<BFloat16>(sum, a, b[0]);  // sum += a * b[0]
//
// Sizes: the left operand a is 16 x 16 (rows x depth), the right operand b is 16 x 8 (depth x
// columns), the product is 16 x 8. Each lane of the warp has some of the elements. With g = lane /
// 4 and t = lane % 4:
//
//   Accumulator   v[0], v[1]: row g,      columns 2t, 2t + 1
//                 v[2], v[3]: row g + 8,  columns 2t, 2t + 1
//   LeftFragment  two elements in each word, the one of the lower depth in the low half
//                 v[0]: row g,      depth 2t, 2t + 1
//                 v[1]: row g + 8,  depth 2t, 2t + 1
//                 v[2]: row g,      depth 2t + 8, 2t + 9
//                 v[3]: row g + 8,  depth 2t + 8, 2t + 9
//   RightFragment two elements in each word, the one of the lower depth in the low half
//                 v[0]: column g,   depth 2t, 2t + 1
//                 v[1]: column g,   depth 2t + 8, 2t + 9
//
// The layout of two adjacent accumulators (16 x 16) is that of a left fragment, so that a product
// is the left operand of another one without an exchange between lanes: ToLeft().
//
// Matrices in the block's memory consist of rows of 16-byte chunks: 8 elements that are adjacent
// along the operand's depth, or (for the functions with Transposed) along its other dimension. Each
// lane passes the address of one chunk:
//
//   function             chunk: elements along   lane's row of chunks         lane's chunk
//   LoadLeft             depth                   row   lane % 16              depth lane / 16
//   LoadLeftTransposed   rows                    depth lane % 8 + lane/16*8   rows  lane / 8 % 2
//   LoadRight            depth                   column lane % 8 + lane/16*8  depth lane / 8 % 2
//   LoadRightTransposed  columns                 depth lane % 16              columns lane / 16
//
// (LeftRow(lane), LeftChunk(lane) and so on). LoadRight and LoadRightTransposed load the fragments
// of 16 columns. Swizzle() permutes the chunks of a row so that neither these loads nor the copies
// of whole rows have conflicts between the banks of memory.
//
// All threads of a warp must call MultiplyAdd and the Load functions together. What a thread wrote
// into the block's memory may be loaded by others after a barrier (of the block, or SynchronizeWarp
// within a warp). Copies have their own order: see CopyAsync.
//
// In tests of several threads on the host the same functions exchange their data between these
// threads. The CPU engine has none of them (RESIDENT_WARPS, warp.h).
#ifndef RESIDENT_KERNELS_OPS_TENSOR_CORES_H_
#define RESIDENT_KERNELS_OPS_TENSOR_CORES_H_

#include "kernels/ops/matrix_rows.h"
#include "kernels/ops/warp.h"
#include "kernels/sdk/block.h"
#include "kernels/sdk/half.h"

#if RESIDENT_WARPS && !RESIDENT_GPU
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>
#endif

namespace resident {

inline constexpr u32 kChunkBytes = 16;

// The place of a chunk in its row, in a matrix of rows of kChunks chunks each, whose first row
// starts at a multiple of 128 bytes. 8 adjacent rows then have the same chunk in 8 different groups
// of banks. kChunks: 1, 2, 4, or a multiple of 8. The result differs from `chunk` only in its
// lowest three bits, and Swizzle(row, chunk ^ bits) is Swizzle(row, chunk) ^ bits.
template <u32 kChunks>
RESIDENT_HOST_DEVICE constexpr u32 Swizzle(u32 row, u32 chunk) {
  static_assert(kChunks == 1 || kChunks == 2 || kChunks == 4 || kChunks % 8 == 0, "");
  if constexpr (kChunks >= 8) {
    return chunk ^ (row & 7);
  } else {
    return chunk ^ (row / (8 / kChunks) & (kChunks - 1));
  }
}

#if RESIDENT_WARPS

struct alignas(16) Accumulator {
  float v[4];
};
struct LeftFragment {
  u32 v[4];
};
struct RightFragment {
  u32 v[2];
};

// An address in the block's memory.
#if RESIDENT_GPU
using MemoryAddress = u32;
#else
using MemoryAddress = u64;
#endif

#if !RESIDENT_GPU
// The state of the emulation.
namespace emulated {

// Calls of MultiplyAdd by warps, for tests.
struct Products {
  static inline std::atomic<u64> count = 0;
};

// The calling thread's copies that are not complete. They are made when the thread waits for them;
// until then their destination has a pattern, a NaN.
struct Copies {
  struct Copy {
    void* to;
    const void* from;
    u32 bytes;
    u32 group;
  };
  std::vector<Copy> pending;
  u32 group = 0;
  ~Copies() {
    if (pending.empty()) return;
    std::fprintf(stderr, "an operator returned before its copies were complete\n");
    std::abort();
  }
  static Copies& Mine() { return State::threads.Local<Copies>(); }
};

inline void CheckAligned(u64 address) {
  if (address % kChunkBytes == 0) return;
  std::fprintf(stderr, "address %llx is not a multiple of 16\n", address);
  std::abort();
}

}  // namespace emulated
#endif

RESIDENT_DEVICE MemoryAddress AddressInMemory(const void* memory) {
#if RESIDENT_GPU
  return static_cast<u32>(__cvta_generic_to_shared(memory));
#else
  return reinterpret_cast<u64>(memory);
#endif
}

// The pointer of an address.
template <typename T>
RESIDENT_DEVICE T* PointerInMemory(MemoryAddress address) {
#if RESIDENT_GPU
  return static_cast<T*>(__cvta_shared_to_generic(address));
#else
  return reinterpret_cast<T*>(address);
#endif
}

// --- Copies from device memory into the block's memory ------------------------------------------

// Starts a copy of `bytes` bytes, 0 to 16, to the chunk at `to`; the rest of the chunk becomes 0.
// Both addresses are multiples of 16. The chunk may be read after the thread that started the copy
// has waited for it, and then a barrier.
RESIDENT_DEVICE void CopyAsync(MemoryAddress to, u64 from, u32 bytes) {
#if RESIDENT_GPU
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
               :
               : "r"(to), "l"(__cvta_generic_to_global(reinterpret_cast<const void*>(from))),
                 "r"(bytes)
               : "memory");
#else
  emulated::CheckAligned(to);
  emulated::CheckAligned(from);
  emulated::Copies& copies = emulated::Copies::Mine();
  std::memset(reinterpret_cast<void*>(to), 0xff, kChunkBytes);
  copies.pending.push_back(
      {reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes, copies.group});
#endif
}

// The same for a whole chunk, which takes fewer instructions.
RESIDENT_DEVICE void CopyAsync(MemoryAddress to, u64 from) {
#if RESIDENT_GPU
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;"
               :
               : "r"(to), "l"(__cvta_generic_to_global(reinterpret_cast<const void*>(from)))
               : "memory");
#else
  CopyAsync(to, from, kChunkBytes);
#endif
}

// CopyAsync for lines that the L2 cache treats as `use` says: LastUse() or NotLastUse().
RESIDENT_DEVICE void CopyAsyncFor([[maybe_unused]] u64 use, MemoryAddress to, u64 from) {
#if RESIDENT_GPU
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;"
               :
               : "r"(to), "l"(__cvta_generic_to_global(reinterpret_cast<const void*>(from))),
                 "l"(use)
               : "memory");
#else
  CopyAsync(to, from);
#endif
}
RESIDENT_DEVICE void CopyAsyncFor([[maybe_unused]] u64 use, MemoryAddress to, u64 from, u32 bytes) {
#if RESIDENT_GPU
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;"
               :
               : "r"(to), "l"(__cvta_generic_to_global(reinterpret_cast<const void*>(from))),
                 "r"(bytes), "l"(use)
               : "memory");
#else
  CopyAsync(to, from, bytes);
#endif
}

// The same; the L2 cache reads the 128 bytes around the chunk, which other copies need soon.
RESIDENT_DEVICE void CopyAsyncOfLineFor([[maybe_unused]] u64 use, MemoryAddress to, u64 from,
                                        u32 bytes) {
#if RESIDENT_GPU
  asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2, %3;"
               :
               : "r"(to), "l"(__cvta_generic_to_global(reinterpret_cast<const void*>(from))),
                 "r"(bytes), "l"(use)
               : "memory");
#else
  CopyAsync(to, from, bytes);
#endif
}

// Ends a group: the copies that the thread started since the last group, possibly none.
RESIDENT_DEVICE void CommitCopies() {
#if RESIDENT_GPU
  asm volatile("cp.async.commit_group;" ::: "memory");
#else
  ++emulated::Copies::Mine().group;
#endif
}

// Waits until all of the thread's groups but the last kGroups ones are complete.
template <u32 kGroups>
RESIDENT_DEVICE void WaitForCopies() {
#if RESIDENT_GPU
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
#else
  emulated::Copies& copies = emulated::Copies::Mine();
  std::vector<emulated::Copies::Copy> later;
  for (const emulated::Copies::Copy& copy : copies.pending) {
    if (copy.group + kGroups >= copies.group) {
      later.push_back(copy);
      continue;
    }
    std::memset(copy.to, 0, kChunkBytes);
    // The address of a chunk that is not read may be that of an empty tensor, which is null.
    if (copy.bytes > 0) std::memcpy(copy.to, copy.from, copy.bytes);
  }
  copies.pending = std::move(later);
#endif
}

// --- Loads of a thread's own chunks --------------------------------------------------------------

// 8 or 16 bytes of the block's memory, such as a chunk that the calling thread has copied: after
// WaitForCopies it may read its own chunks without a barrier.
RESIDENT_DEVICE Bytes16 Load16(MemoryAddress address) {
#if RESIDENT_GPU
  Bytes16 bytes;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(bytes.words[0]), "=r"(bytes.words[1]), "=r"(bytes.words[2]),
                 "=r"(bytes.words[3])
               : "r"(address));
  return bytes;
#else
  return *reinterpret_cast<const Bytes16*>(address);
#endif
}
RESIDENT_DEVICE Bytes8 Load8(MemoryAddress address) {
#if RESIDENT_GPU
  Bytes8 bytes;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
               : "=r"(bytes.words[0]), "=r"(bytes.words[1])
               : "r"(address));
  return bytes;
#else
  return *reinterpret_cast<const Bytes8*>(address);
#endif
}

// --- Loads of fragments --------------------------------------------------------------------------

// The row and the chunk that a lane addresses, relative to the fragments' first ones.
RESIDENT_DEVICE u32 LeftRow(u32 lane) { return lane % 16; }
RESIDENT_DEVICE u32 LeftChunk(u32 lane) { return lane / 16; }
RESIDENT_DEVICE u32 LeftTransposedRow(u32 lane) { return lane % 8 + lane / 16 * 8; }
RESIDENT_DEVICE u32 LeftTransposedChunk(u32 lane) { return lane / 8 % 2; }
RESIDENT_DEVICE u32 RightRow(u32 lane) { return lane % 8 + lane / 16 * 8; }
RESIDENT_DEVICE u32 RightChunk(u32 lane) { return lane / 8 % 2; }
RESIDENT_DEVICE u32 RightTransposedRow(u32 lane) { return lane % 16; }
RESIDENT_DEVICE u32 RightTransposedChunk(u32 lane) { return lane / 16; }

// Loads four matrices of 8 rows of a chunk each: lanes 8 i to 8 i + 7 have the addresses of the
// rows of matrix i, whose elements are loaded to the i-th word. A lane gets the elements 2t and 2t
// + 1 of row g; kTransposed: the elements g of the rows 2t and 2t + 1.
template <bool kTransposed>
RESIDENT_DEVICE void LoadMatrices(MemoryAddress address, u32& v0, u32& v1, u32& v2, u32& v3) {
#if RESIDENT_GPU
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v0), "=r"(v1), "=r"(v2), "=r"(v3)
                 : "r"(address));
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v0), "=r"(v1), "=r"(v2), "=r"(v3)
                 : "r"(address));
  }
#else
  emulated::CheckAligned(address);
  const u64 mine = address;
  const auto* const all = emulated::Exchange::All(&mine, 1);
  const u32 lane = emulated::CurrentThread() % kWarpThreads;
  const u32 g = lane / 4;
  const u32 t = lane % 4;
  u32* const words[] = {&v0, &v1, &v2, &v3};
  for (u32 i = 0; i < 4; ++i) {
    u32 word = 0;
    for (u32 half = 0; half < 2; ++half) {
      const u32 row = kTransposed ? 2 * t + half : g;
      const u32 element = kTransposed ? g : 2 * t + half;
      word |= u32{reinterpret_cast<const u16*>(all[8 * i + row][0])[element]} << (16 * half);
    }
    *words[i] = word;
  }
#endif
}

// `address`: of the lane's chunk; see the table above.
RESIDENT_DEVICE void LoadLeft(LeftFragment& a, MemoryAddress address) {
  LoadMatrices<false>(address, a.v[0], a.v[1], a.v[2], a.v[3]);
}
RESIDENT_DEVICE void LoadLeftTransposed(LeftFragment& a, MemoryAddress address) {
  LoadMatrices<true>(address, a.v[0], a.v[1], a.v[2], a.v[3]);
}
RESIDENT_DEVICE void LoadRight(RightFragment& first, RightFragment& second, MemoryAddress address) {
  LoadMatrices<false>(address, first.v[0], first.v[1], second.v[0], second.v[1]);
}
RESIDENT_DEVICE void LoadRightTransposed(RightFragment& first, RightFragment& second,
                                         MemoryAddress address) {
  LoadMatrices<true>(address, first.v[0], first.v[1], second.v[0], second.v[1]);
}

// --- Products ------------------------------------------------------------------------------------

// Two values as elements of type T, rounded to nearest even; `low` in the low half.
template <typename T>
RESIDENT_DEVICE u32 Pack(float low, float high) {
  static_assert(sizeof(T) == 2, "Half or BFloat16");
#if RESIDENT_GPU
  u32 both;
  if constexpr (__is_same(T, Half)) {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  }
  return both;
#else
  return u32{T(low).bits} | u32{T(high).bits} << 16;
#endif
}

// The left operand whose columns are those of `first`, then those of `second`.
template <typename T>
RESIDENT_DEVICE LeftFragment ToLeft(const Accumulator& first, const Accumulator& second) {
  return {{Pack<T>(first.v[0], first.v[1]), Pack<T>(first.v[2], first.v[3]),
           Pack<T>(second.v[0], second.v[1]), Pack<T>(second.v[2], second.v[3])}};
}

// sum += a * b. T: Half or BFloat16. A GPU adds the products and the sum at once and drops the low
// bits of the smaller terms, towards zero. The error of a sum of many terms of one sign therefore
// grows with their number; where this matters, add partial sums.
template <typename T>
RESIDENT_DEVICE void MultiplyAdd(Accumulator& sum, const LeftFragment& a, const RightFragment& b) {
#if RESIDENT_GPU
  if constexpr (__is_same(T, Half)) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum.v[0]), "+f"(sum.v[1]), "+f"(sum.v[2]), "+f"(sum.v[3])
        : "r"(a.v[0]), "r"(a.v[1]), "r"(a.v[2]), "r"(a.v[3]), "r"(b.v[0]), "r"(b.v[1]));
  } else {
    static_assert(__is_same(T, BFloat16), "");
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum.v[0]), "+f"(sum.v[1]), "+f"(sum.v[2]), "+f"(sum.v[3])
        : "r"(a.v[0]), "r"(a.v[1]), "r"(a.v[2]), "r"(a.v[3]), "r"(b.v[0]), "r"(b.v[1]));
  }
#else
  const u64 mine[] = {a.v[0], a.v[1], a.v[2], a.v[3], b.v[0], b.v[1]};
  const auto* const all = emulated::Exchange::All(mine, 6);
  const u32 lane = emulated::CurrentThread() % kWarpThreads;
  if (lane == 0) ++emulated::Products::count;
  const u32 g = lane / 4;
  const u32 t = lane % 4;
  const auto element = [](u64 word, u32 k) {
    T value;
    value.bits = static_cast<u16>(word >> (k % 2 * 16));
    return static_cast<float>(value);
  };
  for (u32 i = 0; i < 4; ++i) {
    const u32 row = g + i / 2 * 8;
    const u32 column = 2 * t + i % 2;
    // Products of Half or BFloat16 are exact in double.
    double total = sum.v[i];
    for (u32 k = 0; k < 16; ++k) {
      const u64 left = all[row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2];
      const u64 right = all[column * 4 + k % 8 / 2][4 + k / 8];
      total += static_cast<double>(element(left, k)) * static_cast<double>(element(right, k));
    }
    sum.v[i] = static_cast<float>(total);
  }
#endif
}

#endif  // RESIDENT_WARPS

}  // namespace resident

#endif  // RESIDENT_KERNELS_OPS_TENSOR_CORES_H_
