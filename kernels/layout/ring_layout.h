// This header is the layout of the shared region: the memory that the front end, the engine and
// the device share. docs/ring.md describes it. Nothing in it is allocated after start.
//
//   control | breadcrumbs | submission slots | completion slots | argument blocks | stop words |
//   staging
//
// Sequence numbers are 64 bits and start at 0. Task s uses submission slot,
// completion slot and argument block s % slots, from its reservation until the
// host has consumed its completion.
//
// A slot is four 16-byte chunks, each 12 bytes of payload and a 4-byte stamp. Task
// s is ready when all four stamps equal Stamp(s), so that one read fetches payload
// and readiness together. Completions use the same form.
//
// Memory ordering:
//   * Submission: what the host wrote before it stored the stamps (argument block,
//     staging memory, buffers in host memory) is visible to the device when it has read
//     them: the host stores a chunk's three payload words, then its stamp with release.
//   * Completion: what every thread of every block of a task wrote is visible to
//     the host when it has read four equal stamps: the device executes a system fence
//     before it stores the chunks.
//   * A chunk is 16 bytes, aligned, and the GPU reads and writes it with one instruction.
//     A CPU accesses the stamp separately: it stores it last, with release, and loads
//     it first, with acquire. So a stamp is never visible before its payload. Chunks of
//     one slot may become visible in any order, so each of them has a stamp.
//
// Invariants:
//   1. At most `slots` tasks are in flight; s is reserved only when s - slots was
//      completed and consumed. If the task in a slot is still running when the next lap
//      reaches the slot, the slot is skipped, and the next task uses the slot after it
//      (host_ring.h).
//   2. The device reads submission slots in sequence order.
//   3. The host writes submission slots, argument blocks, stop words and staging memory; the
//      device writes completion slots and breadcrumbs.
#ifndef RESIDENT_KERNELS_LAYOUT_RING_LAYOUT_H_
#define RESIDENT_KERNELS_LAYOUT_RING_LAYOUT_H_

#include "kernels/layout/platform.h"
#include "kernels/layout/task.h"

namespace resident {

inline constexpr u32 kChunksPerSlot = 4;
inline constexpr u32 kChunkPayloadBytes = 12;
inline constexpr u32 kMaxWorkers = 2048;
inline constexpr u32 kMaxOperatorSlots = 2048;
inline constexpr u32 kExitReasonBytes = 512;

struct alignas(16) StampedChunk {
  u32 payload[3];
  u32 stamp;
};
static_assert(sizeof(StampedChunk) == 16, "");
static_assert(__builtin_offsetof(StampedChunk, stamp) == kChunkPayloadBytes, "");

struct alignas(64) RingSlot {
  StampedChunk chunks[kChunksPerSlot];
};
static_assert(sizeof(RingSlot) == 64, "");
static_assert(sizeof(TaskDescriptor) == kChunksPerSlot * kChunkPayloadBytes, "");
static_assert(sizeof(TaskCompletion) == kChunksPerSlot * kChunkPayloadBytes, "");

// The stamp of a sequence number. 0 (new memory) is never a stamp of the first lap.
RESIDENT_HOST_DEVICE constexpr u32 Stamp(u64 sequence) { return static_cast<u32>(sequence) + 1; }

// A stop word, one for each submission slot: the task in flight with this token is to stop. A word
// of another task means nothing, so that none is ever cleared.
RESIDENT_HOST_DEVICE constexpr u64 StopWord(u32 token, StopReason reason) {
  return u64{Stamp(token)} << 32 | static_cast<u32>(reason);
}
RESIDENT_HOST_DEVICE constexpr StopReason StopOf(u64 word, u32 token) {
  return static_cast<u32>(word >> 32) == Stamp(token)
             ? static_cast<StopReason>(static_cast<u32>(word))
             : StopReason::kNone;
}

// The current task of a worker block: written by the device when it takes a task, read by
// the front end when an engine faults or a task runs too long.
struct alignas(16) Breadcrumb {
  // Stamp of the last task that the worker took; 0: none yet, or it has left a range.
  u32 stamp;
  u32 operator_slot;
  // The signal of a fault that the CPU engine's signal handler caught; 0: none.
  u32 fault_signal;
  // Of a range: the index in the batch of a task that the worker started; a later one of the same
  // claim may be running.
  u32 task;
};
static_assert(sizeof(Breadcrumb) == 16, "");
static_assert(__builtin_offsetof(Breadcrumb, stamp) == 0, "");
static_assert(__builtin_offsetof(Breadcrumb, operator_slot) == 4, "");
static_assert(__builtin_offsetof(Breadcrumb, fault_signal) == 8, "");
static_assert(__builtin_offsetof(Breadcrumb, task) == 12, "");

struct alignas(64) ControlBlock {
  u64 magic;
  u64 layout_hash;
  u32 slots;
  u32 worker_count;
  u64 staging_bytes;
  u8 pad0[32];

  // Incremented while the engine process runs (at least every 500 ms). Written by the engine.
  alignas(64) u64 heartbeat;

  // CPU engine: workers without work sleep on `doorbell` (futex). The front end
  // increments it after a publication, and wakes them, if `sleepers` is not 0.
  alignas(64) u32 doorbell;
  u32 sleepers;

  // The front end sleeps on `completion_event` (futex) for a limited time when there was
  // no progress for a while; the CPU engine increments it after a completion, and wakes the
  // front end, if `completion_waiters` is not 0. A GPU cannot do this, so the time is limited.
  alignas(64) u32 completion_event;
  u32 completion_waiters;

  // CPU engine: the thread that stops tasks sleeps on `stop_event` (futex). The front end
  // increments it after it has written a stop word, and wakes the thread.
  alignas(64) u32 stop_event;

  // Sequence number at which the next kernel starts: every task before it has
  // completed. Written by the kernel when it leaves.
  alignas(64) u64 resume_sequence;

  // Changes of generation are numbered from 1; 0: none yet (runtime/ring/switch_signals.h).
  // The change for which the engine is ready, the last change that it ended (a kernel is
  // on the device again), and the generation that runs since then. Written by the engine.
  alignas(64) u64 switch_armed;
  u64 switch_ended;
  u64 generation;
  // The change for which submission is currently held, or 0, and the last change that was
  // withdrawn. Written by the front end.
  alignas(64) u64 switch_held;
  u64 switch_withdrawn;

  // Why the engine exits: zero-terminated text that it writes directly before it exits
  // because of a fault. Empty if it was killed.
  alignas(64) char exit_reason[kExitReasonBytes];
};
static_assert(sizeof(ControlBlock) == 8 * 64 + kExitReasonBytes, "");
static_assert(__builtin_offsetof(ControlBlock, magic) == 0, "");
static_assert(__builtin_offsetof(ControlBlock, layout_hash) == 8, "");
static_assert(__builtin_offsetof(ControlBlock, slots) == 16, "");
static_assert(__builtin_offsetof(ControlBlock, worker_count) == 20, "");
static_assert(__builtin_offsetof(ControlBlock, staging_bytes) == 24, "");
static_assert(__builtin_offsetof(ControlBlock, heartbeat) == 64, "");
static_assert(__builtin_offsetof(ControlBlock, doorbell) == 128, "");
static_assert(__builtin_offsetof(ControlBlock, sleepers) == 132, "");
static_assert(__builtin_offsetof(ControlBlock, completion_event) == 192, "");
static_assert(__builtin_offsetof(ControlBlock, completion_waiters) == 196, "");
static_assert(__builtin_offsetof(ControlBlock, stop_event) == 256, "");
static_assert(__builtin_offsetof(ControlBlock, resume_sequence) == 320, "");
static_assert(__builtin_offsetof(ControlBlock, switch_armed) == 384, "");
static_assert(__builtin_offsetof(ControlBlock, switch_ended) == 392, "");
static_assert(__builtin_offsetof(ControlBlock, generation) == 400, "");
static_assert(__builtin_offsetof(ControlBlock, switch_held) == 448, "");
static_assert(__builtin_offsetof(ControlBlock, switch_withdrawn) == 456, "");
static_assert(__builtin_offsetof(ControlBlock, exit_reason) == 512, "");

inline constexpr u64 kRegionMagic = 0x31676e6952736552;  // "ResRing1", little-endian.

// Offsets of the parts of a region, in bytes from its start.
struct RegionLayout {
  u64 control;
  u64 breadcrumbs;
  u64 submissions;
  u64 completions;
  u64 argument_blocks;
  u64 stop_words;
  u64 staging;
  u64 staging_bytes;
  u64 total_bytes;
  u32 slots;
};

RESIDENT_HOST_DEVICE constexpr RegionLayout LayOutRegion(u32 slots, u64 staging_bytes) {
  RegionLayout layout{};
  layout.slots = slots;
  layout.control = 0;
  layout.breadcrumbs = 4096;
  layout.submissions = layout.breadcrumbs + kMaxWorkers * sizeof(Breadcrumb);
  layout.completions = layout.submissions + u64{slots} * sizeof(RingSlot);
  layout.argument_blocks = layout.completions + u64{slots} * sizeof(RingSlot);
  layout.stop_words = layout.argument_blocks + u64{slots} * sizeof(ArgumentBlock);
  const u64 staging = layout.stop_words + u64{slots} * sizeof(u64);
  layout.staging = (staging + 4095) / 4096 * 4096;
  layout.staging_bytes = staging_bytes;
  layout.total_bytes = layout.staging + staging_bytes;
  return layout;
}

// The offsets in docs/ring.md.
static_assert(LayOutRegion(8192, u64{256} << 20).control == 0, "");
static_assert(LayOutRegion(8192, u64{256} << 20).breadcrumbs == 4096, "");
static_assert(LayOutRegion(8192, u64{256} << 20).submissions == 36864, "");
static_assert(LayOutRegion(8192, u64{256} << 20).completions == 561152, "");
static_assert(LayOutRegion(8192, u64{256} << 20).argument_blocks == 1085440, "");
static_assert(LayOutRegion(8192, u64{256} << 20).stop_words == 17862656, "");
static_assert(LayOutRegion(8192, u64{256} << 20).staging == 17928192, "");
static_assert(LayOutRegion(8192, u64{256} << 20).total_bytes == 286363648, "");

// A hash of the region's layout. It differs if two builds could interpret the region
// differently. The engine compares it with that of the front end when it starts.
RESIDENT_HOST_DEVICE constexpr u64 LayoutHash() {
  constexpr u64 kFields[] = {
      7,  // Version: increment it if the meaning of a field changes, but no size and no offset.
      sizeof(RingSlot),
      sizeof(TaskDescriptor),
      sizeof(TensorArgument),
      sizeof(ArgumentBlock),
      sizeof(TaskCompletion),
      sizeof(ControlBlock),
      sizeof(Breadcrumb),
      sizeof(RangeDescriptor),
      sizeof(RangeColumn),
      sizeof(RangeOutcome),
      kMaxRank,
      kMaxArguments,
      kMaxRangeArguments,
      kMaxRangeClaim,
      kTaskWords,
      kMaxWorkers,
      kMaxOperatorSlots,
      __builtin_offsetof(TaskDescriptor, operator_slot),
      __builtin_offsetof(TaskDescriptor, flags),
      __builtin_offsetof(TaskDescriptor, words),
      __builtin_offsetof(TensorArgument, dtype),
      __builtin_offsetof(TensorArgument, rank),
      __builtin_offsetof(TensorArgument, shape),
      __builtin_offsetof(TensorArgument, strides),
      __builtin_offsetof(TaskCompletion, duration_ns),
      __builtin_offsetof(TaskCompletion, status),
      __builtin_offsetof(TaskCompletion, detail),
      __builtin_offsetof(TaskCompletion, result),
      __builtin_offsetof(StampedChunk, stamp),
      __builtin_offsetof(Breadcrumb, operator_slot),
      __builtin_offsetof(Breadcrumb, fault_signal),
      __builtin_offsetof(Breadcrumb, task),
      __builtin_offsetof(RangeDescriptor, operator_slot),
      __builtin_offsetof(RangeDescriptor, flags),
      __builtin_offsetof(RangeDescriptor, arguments),
      __builtin_offsetof(RangeDescriptor, elements),
      __builtin_offsetof(RangeDescriptor, first),
      __builtin_offsetof(RangeDescriptor, count),
      __builtin_offsetof(RangeDescriptor, claim),
      __builtin_offsetof(RangeDescriptor, max_blocks),
      __builtin_offsetof(RangeDescriptor, outcomes),
      __builtin_offsetof(RangeDescriptor, options),
      __builtin_offsetof(RangeDescriptor, inputs),
      __builtin_offsetof(RangeColumn, stride),
      __builtin_offsetof(RangeColumn, values),
      __builtin_offsetof(RangeOutcome, duration_ns),
      __builtin_offsetof(ControlBlock, layout_hash),
      __builtin_offsetof(ControlBlock, slots),
      __builtin_offsetof(ControlBlock, worker_count),
      __builtin_offsetof(ControlBlock, staging_bytes),
      __builtin_offsetof(ControlBlock, heartbeat),
      __builtin_offsetof(ControlBlock, doorbell),
      __builtin_offsetof(ControlBlock, sleepers),
      __builtin_offsetof(ControlBlock, completion_event),
      __builtin_offsetof(ControlBlock, completion_waiters),
      __builtin_offsetof(ControlBlock, stop_event),
      __builtin_offsetof(ControlBlock, resume_sequence),
      __builtin_offsetof(ControlBlock, switch_armed),
      __builtin_offsetof(ControlBlock, switch_ended),
      __builtin_offsetof(ControlBlock, generation),
      __builtin_offsetof(ControlBlock, switch_held),
      __builtin_offsetof(ControlBlock, switch_withdrawn),
      __builtin_offsetof(ControlBlock, exit_reason),
  };
  u64 hash = 14695981039346656037ULL;  // FNV-1a.
  for (u64 field : kFields) {
    hash = (hash ^ field) * 1099511628211ULL;
  }
  return hash;
}

}  // namespace resident

#endif  // RESIDENT_KERNELS_LAYOUT_RING_LAYOUT_H_
