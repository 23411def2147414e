// Mailboxes: how the poller passes quanta of graphs to the blocks of the graph kernel
// (graph_kernel.cu).
//
// Each graph worker has a ring of kMailboxSlots slots in device memory, in the format of the
// ring's.
//
// Invariant: at most kMailboxSlots quanta are in flight, so that a mailbox has room for all of
// them.
//
// Memory ordering: the caller has read the slot with a fence; a graph worker executes a fence after
// it has read its mail.
#ifndef RESIDENT_KERNELS_RESIDENT_MAILBOXES_CUH_
#define RESIDENT_KERNELS_RESIDENT_MAILBOXES_CUH_

#include "kernels/graph/graph_task.h"
#include "kernels/resident/block_shared.cuh"
#include "kernels/resident/launch_parameters.h"
#include "kernels/resident/memory_access.cuh"

namespace resident {
namespace {

static_assert(kMailboxSlots > kMaxOpenGraphs,
              "each quantum in flight has a place in each mailbox, and so has the slot to leave");

// Of block 0: the graph worker that the next quantum's rank 0 is, and when the last quantum was
// mailed, and the last one with streams.
__shared__ u32 next_graph_worker;
__shared__ u64 last_mail_ns;
__shared__ u64 last_streams_ns;

// (one thread of block 0) At the beginning of the kernel.
__device__ __forceinline__ void InitializeMail() {
  next_graph_worker = 0;
  last_mail_ns = last_streams_ns = NanosecondClock();
}

// (warp of block 0) GraphDescriptor::streams of a slot, payload word 10.
__device__ __forceinline__ u32 StreamsOf(const StampedChunk& chunk) {
  return __shfl_sync(kAllLanes, chunk.payload[1], 3);
}

// (warp of block 0) The kind of launch that the quantum in a slot is to be executed by.
__device__ __noinline__ LaunchKind KindFor(const LaunchParameters& p, const StampedChunk& chunk) {
  const LaunchKind kind = StreamsOf(chunk) != 0 ? p.kind_for_streams : LaunchKind::kGraphs;
  // A change takes time in which nothing is executed.
  const u64 idle_ns = __shfl_sync(kAllLanes, NanosecondClock() - last_streams_ns, 0);
  return kind < p.kind && idle_ns < kStreamsIdleNs ? p.kind : kind;
}

// (warp of block 0) Writes a slot to the mailboxes of `count` graph workers, from `first` on. Lane
// l has chunk l % 4 of the slot. The rank of each worker is written to payload word 9.
__device__ __forceinline__ void WriteMail(const LaunchParameters& p, StampedChunk chunk, u32 first,
                                          u32 count) {
  const u32 part = LaneId() % kChunksPerSlot;
  for (u32 base = 0; base < count; base += kWarp / kChunksPerSlot) {
    const u32 rank = base + LaneId() / kChunksPerSlot;
    const u32 worker = (first + rank) % p.graph_workers;
    if (rank < count) {
      const u32 index = p.mailboxes->mailed[worker];
      if (part == 3) chunk.payload[0] = rank;
      chunk.stamp = Stamp(index);
      StoreChunkDevice(p.mailboxes->slots[worker][index % kMailboxSlots].chunks + part, chunk);
    }
    __syncwarp();  // All lanes have read the index.
    if (rank < count && part == 0) ++p.mailboxes->mailed[worker];
  }
  __syncwarp();
}

// (warp of block 0) Sends a quantum to the members of its gang. Lane l has chunk l % 4 of the slot.
__device__ __noinline__ void MailQuantum(const LaunchParameters& p, StampedChunk chunk) {
  const u32 next = next_graph_worker;
  const u32 streams = StreamsOf(chunk);
  // GraphDescriptor::gang is payload word 8, the member's rank is written to word 9.
  const u32 wanted = __shfl_sync(kAllLanes, chunk.payload[2], 2);
  // One member refuses what has no gang, or one that is too large.
  const u32 gang = wanted == 0 || wanted > p.graph_workers ? 1 : wanted;
  if (gang != wanted && LaneId() % kChunksPerSlot == 2) chunk.payload[2] = gang;
  WriteMail(p, chunk, next, gang);
  if (LaneId() == 0) {
    next_graph_worker = (next + gang) % p.graph_workers;
    last_mail_ns = NanosecondClock();
    if (streams != 0) last_streams_ns = last_mail_ns;
  }
  __syncwarp();
}

// (warp of block 0) Lets all graph workers leave when they have executed what was mailed before.
__device__ __noinline__ void MailLeave(const LaunchParameters& p) {
  StampedChunk leave{};
  if (LaneId() % kChunksPerSlot == 0) leave.payload[1] = kLeave << 16;
  WriteMail(p, leave, 0, p.graph_workers);
}

}  // namespace
}  // namespace resident

#endif  // RESIDENT_KERNELS_RESIDENT_MAILBOXES_CUH_
