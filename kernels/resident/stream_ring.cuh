// StreamRing: pages of the matrices of the next nodes, which one warp of a graph worker, the
// *loader*, copies to shared memory ahead of the nodes that multiply by them
// (kernels/graph/graph_stream.h).
//
//   loader ──bulk copies──▶ ring of pages ──PageReader──▶ registers of the warps that run operators
//
// The loader follows the streams of the graph in their order, from step to step, and waits only for
// pages to become free: no node writes what it copies. So the memory is busy also while nodes wait
// for each other. Each warp that runs operators takes its part of each page; a page is free when
// all of them have.
//
// A quantum begins with an empty ring. When it ends, the loader waits for the copies that are on
// their way, and what is in the pages is lost.
//
// Memory ordering: a wait for a page makes it visible, and the copy that replaces it begins behind
// the arrival of all that have read it. What other tasks wrote before the quantum is visible to the
// copies because of the fence between the two kinds of access (proxies) with which the loader
// begins.
#ifndef RESIDENT_KERNELS_RESIDENT_STREAM_RING_CUH_
#define RESIDENT_KERNELS_RESIDENT_STREAM_RING_CUH_

#include "kernels/graph/graph_stream.h"
#include "kernels/resident/block_shared.cuh"
#include "kernels/resident/kernel_parameters.h"
#include "kernels/resident/phase_barrier.cuh"

namespace resident {
namespace {

// Pages that are on their way at a time. 3, 4 and 6 make no difference on an H200, and neither do
// four, six or eight pages in the ring; with fewer the SM has a larger L1 cache.
constexpr u32 kPagesOnWay = 4;
static_assert(kRingBytes == kRingPages * kStreamPageBytes + kRingAlignment, "");
static_assert(kPagesOnWay <= kRingPages, "");
// Warps that take pages: a worker with a loader has as many threads as there can be.
constexpr u32 kPageWarps = kMaxComputeThreads / kWarp;

struct StreamRing {
  // By page: it has been copied, and it is free again.
  u64 full[kRingPages];
  u64 empty[kRingPages];
  // What the loader follows: the streams, their number, the next one, and whose share.
  const GraphStream* streams;
  u32 count;
  u32 next;
  u32 rank;
  u32 gang;
  // Not 0: the loader ends.
  volatile u32 stop;
  // Shared address of the pages.
  u32 pages;
};
__shared__ StreamRing ring;
extern __shared__ unsigned char ring_memory[];

constexpr u32 kEmptyAfterFull = __builtin_offsetof(StreamRing, empty);
static_assert(__builtin_offsetof(StreamRing, full) == 0, "");

// The value, which the compiler does not compute again where it is used.
__device__ __forceinline__ u32 InRegister(u32 value) {
  asm volatile("mov.b32 %0, %0;" : "+r"(value));
  return value;
}

__device__ __forceinline__ u32 FullBarrier(u32 barriers, u32 page) {
  return barriers + page % kRingPages * sizeof(u64);
}
__device__ __forceinline__ u32 EmptyBarrier(u32 barriers, u32 page) {
  return FullBarrier(barriers, page) + kEmptyAfterFull;
}
// Of the page with this number in the quantum.
__device__ __forceinline__ u32 ParityOf(u32 page) { return page / kRingPages & 1; }

// (one thread) Makes the ring empty. `again`: not for the first time.
__device__ __forceinline__ void ClearRing(bool again) {
  const u32 barriers = SharedAddress(&ring);
  for (u32 page = 0; page < kRingPages; ++page) {
    if (again) {
      InvalidatePhases(FullBarrier(barriers, page));
      InvalidatePhases(EmptyBarrier(barriers, page));
    }
    InitializePhases(FullBarrier(barriers, page), 1);
    InitializePhases(EmptyBarrier(barriers, page), kPageWarps);
  }
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

// (one thread, before a barrier of the block)
__device__ __forceinline__ void InitializeRing() {
  // The beginning of the dynamic shared memory is not aligned.
  ring.pages = (SharedAddress(ring_memory) + kRingAlignment - 1) / kRingAlignment * kRingAlignment;
  ClearRing(/*again=*/false);
}

#if __CUDA_ARCH__ >= 900

// The weights are read once in a step: they leave the L2 cache before its other contents.
__device__ __forceinline__ void CopyBulk(u32 to, u64 from, u32 bytes, u32 barrier, u64 policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1], %2, [%3], %4;" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}

// (loader, one lane) Copies pages until it must end; then no copy is on its way.
__device__ __forceinline__ void FollowStreams() {
  u64 policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  asm volatile("fence.proxy.async;" ::: "memory");
  const GraphStream* const streams = ring.streams;
  const u32 count = ring.count;
  const u32 rank = ring.rank;
  const u32 gang = ring.gang;
  const u32 pages = InRegister(ring.pages);
  const u32 barriers = InRegister(SharedAddress(&ring));
  u32 index = ring.next;
  u32 copied = 0;
  bool stopped = false;
  GraphStream ahead = streams[index];
#pragma unroll 1
  while (!stopped) {
    const GraphStream stream = ahead;
    if (++index == count) index = 0;
    ahead = streams[index];
    const StreamShare share = ShareOf(stream, rank, gang);
    u32 page = share.first;
#pragma unroll 1
    for (u32 left = share.count; left > 0; --left, page += gang, ++copied) {
      if (copied >= kRingPages) {
        const u32 parity = ParityOf(copied) ^ 1;
        while (!stopped && !TestPhase(EmptyBarrier(barriers, copied), parity)) {
          stopped = ring.stop != 0;
        }
        if (stopped) break;
      }
      if (copied >= kPagesOnWay) {
        const u32 old = copied - kPagesOnWay;
        AwaitPhase(FullBarrier(barriers, old), ParityOf(old));
      }
      const u32 barrier = FullBarrier(barriers, copied);
      const u32 to = pages + copied % kRingPages * kStreamPageBytes;
      asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier),
                   "n"(kStreamPageBytes)
                   : "memory");
      if (stream.form == StreamForm::kGated) {
        constexpr u32 kHalf = kStreamPageBytes / 2;
        CopyBulk(to, stream.matrices[0] + u64{page} * kHalf, kHalf, barrier, policy);
        CopyBulk(to + kHalf, stream.matrices[1] + u64{page} * kHalf, kHalf, barrier, policy);
        continue;
      }
      u64 matrix = stream.matrices[0];
      u32 first = 0;
      if (stream.form == StreamForm::kStacked && page >= stream.ends[0]) {
        matrix = page < stream.ends[1] ? stream.matrices[1] : stream.matrices[2];
        first = page < stream.ends[1] ? stream.ends[0] : stream.ends[1];
      }
      CopyBulk(to, matrix + u64{page - first} * kStreamPageBytes, kStreamPageBytes, barrier,
               policy);
    }
    stopped = stopped || ring.stop != 0;
  }
  for (u32 old = copied < kRingPages ? 0 : copied - kRingPages; old < copied; ++old) {
    AwaitPhase(FullBarrier(barriers, old), ParityOf(old));
  }
}

#else

// Pages are copied on later GPUs only.
__device__ __forceinline__ void FollowStreams() {}

#endif

// Named barrier of the control warp and the loader.
constexpr int kLoaderBarrier = 4;
__device__ __forceinline__ void LoaderBarrier() {
  asm volatile("barrier.sync %0, %1;" ::"n"(kLoaderBarrier), "n"(kControlThreads + kLoaderThreads)
               : "memory");
}

// (loader) Copies pages for each quantum, until the block leaves.
__device__ __forceinline__ void RunLoader() {
  while (true) {
    LoaderBarrier();
    if (own.handover.leave) return;
    if (LaneId() == 0) {
      FollowStreams();
      ClearRing(/*again=*/true);
    }
    __syncwarp();
    LoaderBarrier();
  }
}

// (control warp) Lets the loader follow the streams of a member.
__device__ __forceinline__ void StartLoader(const GraphStream* streams, u32 count, u32 next,
                                            u32 rank, u32 gang) {
  if (LaneId() == 0) {
    ring.streams = streams;
    ring.count = count;
    ring.next = next;
    ring.rank = rank;
    ring.gang = gang;
    ring.stop = 0;
  }
  __syncwarp();
  LoaderBarrier();
}

// (control warp) Ends that. REQUIRES: no operator takes pages.
__device__ __forceinline__ void StopLoader() {
  if (LaneId() == 0) ring.stop = 1;
  __syncwarp();
  LoaderBarrier();
}

// (control warp) Lets the loader leave with the block; own.handover.leave is set.
__device__ __forceinline__ void EndLoader() { LoaderBarrier(); }

}  // namespace
}  // namespace resident

#endif  // RESIDENT_KERNELS_RESIDENT_STREAM_RING_CUH_
