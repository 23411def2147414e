// Loads, stores and fences with the orders and scopes that the resident kernel needs,
// as PTX (PTX ISA, "Memory Consistency Model").
#ifndef RESIDENT_KERNELS_RESIDENT_MEMORY_ACCESS_CUH_
#define RESIDENT_KERNELS_RESIDENT_MEMORY_ACCESS_CUH_

#include "kernels/layout/ring_layout.h"

namespace resident {

// 16 bytes in one access: a chunk is never torn.
__device__ __forceinline__ StampedChunk LoadChunkSystem(const StampedChunk* from) {
  StampedChunk chunk;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(chunk.payload[0]), "=r"(chunk.payload[1]), "=r"(chunk.payload[2]),
                 "=r"(chunk.stamp)
               : "l"(from)
               : "memory");
  return chunk;
}

// The same, and acquires: what the writer wrote before is visible from here on. Costs
// less than a load and a fence, which would wait for this warp's other accesses.
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

// Like an acquiring load, a fence also drops what this SM's L1 holds: operators load with
// plain instructions, and a resident kernel would otherwise meet lines of earlier tasks.
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

// Nothing waits for it.
__device__ __forceinline__ void AddDevice(u64* to, u64 value) {
  asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}

__device__ __forceinline__ u64 NanosecondClock() {
  u64 ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}

// Named barriers of a block, of all its threads. (1 is Block::barrier(), of those that run
// operators.) The number is given to both instructions: a GPU takes one that names it and one
// that leaves it out for a mismatch (an illegal instruction).
inline constexpr int kHandOverBarrier = 2;
inline constexpr int kFinishedBarrier = 3;

template <int kBarrier>
__device__ __forceinline__ void BarrierSync() {
  asm volatile("barrier.sync %0, %1;" ::"n"(kBarrier), "r"(blockDim.x) : "memory");
}
template <int kBarrier>
__device__ __forceinline__ void BarrierArrive() {
  asm volatile("barrier.arrive %0, %1;" ::"n"(kBarrier), "r"(blockDim.x) : "memory");
}

}  // namespace resident

#endif  // RESIDENT_KERNELS_RESIDENT_MEMORY_ACCESS_CUH_
