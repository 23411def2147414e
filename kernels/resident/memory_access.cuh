// Loads, stores and fences in PTX with the orders and scopes that the resident kernel needs
// (PTX ISA, "Memory Consistency Model").
#ifndef RESIDENT_KERNELS_RESIDENT_MEMORY_ACCESS_CUH_
#define RESIDENT_KERNELS_RESIDENT_MEMORY_ACCESS_CUH_

#include "kernels/layout/ring_layout.h"

namespace resident {

// Accesses 16 bytes at once, so that a chunk is never torn.
__device__ __forceinline__ StampedChunk LoadChunkSystem(const StampedChunk* from) {
  StampedChunk chunk;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(chunk.payload[0]), "=r"(chunk.payload[1]), "=r"(chunk.payload[2]),
                 "=r"(chunk.stamp)
               : "l"(from)
               : "memory");
  return chunk;
}

// The same with acquire: what the writer wrote before is visible afterwards. It costs less
// than a load and a fence, because a fence would wait for this warp's other accesses.
__device__ __forceinline__ StampedChunk AcquireChunkSystem(const StampedChunk* from) {
  StampedChunk chunk;
  asm volatile("ld.acquire.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(chunk.payload[0]), "=r"(chunk.payload[1]), "=r"(chunk.payload[2]),
                 "=r"(chunk.stamp)
               : "l"(from)
               : "memory");
  return chunk;
}

__device__ __forceinline__ StampedChunk LoadChunkDevice(const StampedChunk* from) {
  StampedChunk chunk;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(chunk.payload[0]), "=r"(chunk.payload[1]), "=r"(chunk.payload[2]),
                 "=r"(chunk.stamp)
               : "l"(from)
               : "memory");
  return chunk;
}

__device__ __forceinline__ void StoreChunkSystem(StampedChunk* to, const StampedChunk& chunk) {
  asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to),
               "r"(chunk.payload[0]), "r"(chunk.payload[1]), "r"(chunk.payload[2]), "r"(chunk.stamp)
               : "memory");
}

__device__ __forceinline__ void StoreChunkDevice(StampedChunk* to, const StampedChunk& chunk) {
  asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to),
               "r"(chunk.payload[0]), "r"(chunk.payload[1]), "r"(chunk.payload[2]), "r"(chunk.stamp)
               : "memory");
}

__device__ __forceinline__ u64 LoadSystem(const u64* from) {
  u64 value;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
  return value;
}

__device__ __forceinline__ u32 LoadSystem(const u32* from) {
  u32 value;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}

__device__ __forceinline__ void StoreSystem(RangeOutcome* to, const RangeOutcome& outcome) {
  asm volatile("st.relaxed.sys.global.v2.u32 [%0], {%1, %2};" ::"l"(to),
               "r"(outcome.status_and_detail), "r"(outcome.duration_ns)
               : "memory");
}

// Brings the line of 128 bytes with this address to the L2 cache.
__device__ __forceinline__ void PrefetchLine(u64 address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address) : "memory");
}

// Like an acquiring load, a fence also invalidates this SM's L1 cache: operators use plain
// loads, and in a resident kernel these would otherwise return cache lines of earlier tasks.
__device__ __forceinline__ void FenceDevice() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
__device__ __forceinline__ void FenceBlock() { asm volatile("fence.acq_rel.cta;" ::: "memory"); }
__device__ __forceinline__ void FenceSystem() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

__device__ __forceinline__ u64 LoadDevice(const u64* from) {
  u64 value;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
  return value;
}

__device__ __forceinline__ u32 LoadDevice(const u32* from) {
  u32 value;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}

__device__ __forceinline__ void StoreDevice(u32* to, u32 value) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}

__device__ __forceinline__ void StoreDevice(u64* to, u64 value) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}

__device__ __forceinline__ u32 AcquireDevice(const u32* from) {
  u32 value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}

__device__ __forceinline__ void ReleaseDevice(u32* to, u32 value) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}

// `to`: shared memory.
template <typename T>
__device__ __forceinline__ void ReleaseBlock(T* to, T value) {
  static_assert(sizeof(T) == sizeof(u32), "");
  asm volatile(
      "st.release.cta.shared.u32 [%0], %1;" ::"r"(static_cast<u32>(__cvta_generic_to_shared(to))),
      "r"(static_cast<u32>(value))
      : "memory");
}

// With acquire and release, which takes less than an addition between two fences.
__device__ __forceinline__ u32 FetchAddDevice(u32* to, u32 value) {
  u32 before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(to), "r"(value)
               : "memory");
  return before;
}

// Neither waits for the addition.
__device__ __forceinline__ void AddReleaseDevice(u32* to, u32 value) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}
__device__ __forceinline__ void AddDevice(u64* to, u64 value) {
  asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}

__device__ __forceinline__ u64 NanosecondClock() {
  u64 ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}

// Named barriers for all threads of a block. (1 is Block::barrier(), for the threads that run
// operators.) Both instructions specify the number of threads: if only one of them does, a GPU
// reports a mismatch (an illegal instruction).
inline constexpr int kHandOverBarrier = 2;
inline constexpr int kFinishedBarrier = 3;

template <int kBarrier>
__device__ __forceinline__ void BarrierSync(u32 block_threads = blockDim.x) {
  asm volatile("barrier.sync %0, %1;" ::"n"(kBarrier), "r"(block_threads) : "memory");
}
template <int kBarrier>
__device__ __forceinline__ void BarrierArrive(u32 block_threads) {
  asm volatile("barrier.arrive %0, %1;" ::"n"(kBarrier), "r"(block_threads) : "memory");
}

}  // namespace resident

#endif  // RESIDENT_KERNELS_RESIDENT_MEMORY_ACCESS_CUH_
