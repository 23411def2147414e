// The launch parameters of the resident kernel and the graph kernel, and what they exchange with
// each other and with the engine. Shared by host and device.
#ifndef RESIDENT_KERNELS_RESIDENT_LAUNCH_PARAMETERS_H_
#define RESIDENT_KERNELS_RESIDENT_LAUNCH_PARAMETERS_H_

#include "kernels/layout/ring_layout.h"
#include "kernels/resident/kernel_parameters.h"
#include "kernels/sdk/block.h"

namespace resident {

// Slots of a graph worker's mailbox: more than quanta can be in flight (kMaxOpenGraphs), because
// the one to leave is behind them.
inline constexpr u32 kMailboxSlots = 128;

// In device memory, zero at each launch: what the poller mails to the graph workers
// (mailboxes.cuh).
struct Mailboxes {
  // By graph worker: slots that the poller has written to its mailbox.
  alignas(128) u32 mailed[kMaxGraphWorkers];
  RingSlot slots[kMaxGraphWorkers][kMailboxSlots];
};

// If there has been no quantum for this time, the kernels leave, and the resident one is launched
// without the graph kernel.
inline constexpr u64 kGraphsIdleNs = 600'000'000'000;

// A graph kernel that takes pages leaves for one that does not, which executes other graphs faster,
// when there is a quantum for it, and has been none for the first one for this time.
inline constexpr u64 kStreamsIdleNs = 100'000'000;

// Which kernels there are.
enum class LaunchKind : u32 {
  kTasks = 0,         // Only the resident kernel.
  kGraphs = 1,        // And the graph kernel that takes no pages.
  kGraphStreams = 2,  // And the one that does.
};

// Why the resident kernel has left.
enum class LeaveReason : u32 {
  kNone = 0,  // It has not.
  // It has read a park marker.
  kPark = 1,
  // It is to be launched again at once, with another kind.
  kOtherKind = 2,
};

// In host memory, written by the poller when it leaves.
struct LeaveReport {
  LeaveReason reason;
  LaunchKind kind;  // For kOtherKind: the one that it is to be launched with.
  // Time since the last quantum, or since the launch if there was none.
  u64 mail_idle_ns;
};
static_assert(sizeof(LeaveReport) == 16, "");
static_assert(__builtin_offsetof(LeaveReport, reason) == 0, "");
static_assert(__builtin_offsetof(LeaveReport, kind) == 4, "");
static_assert(__builtin_offsetof(LeaveReport, mail_idle_ns) == 8, "");

struct LaunchParameters {
  // Device addresses of host memory.
  ControlBlock* control;
  LeaveReport* report;
  Breadcrumb* breadcrumbs;
  const RingSlot* submissions;
  RingSlot* completions;
  const ArgumentBlock* argument_blocks;
  const u64* host_stop_words;
  // In device memory.
  KernelState* state;
  RingSlot* device_ring;          // kDeviceRingSlots.
  WideProgress* wide;             // One for each submission slot.
  ArgumentBlock* wide_arguments;  // One for each submission slot.
  TaskMemory* task_memories;      // One for each submission slot; for wide tasks.
  unsigned char* scratch;         // kScratchBytes for each block of either kernel.
  Mailboxes* mailboxes;
  u64* stop_words;  // One for each submission slot: StopWord.
  u64 first_sequence;
  u32 slot_mask;  // Submission slots - 1.
  // Blocks of the graph kernel, at most kMaxGraphWorkers; 0: it is not there.
  u32 graph_workers;
  // Blocks of the resident kernel. The graph workers' numbers, for breadcrumbs and scratch memory,
  // follow theirs.
  u32 resident_blocks;
  // Blocks of the resident kernel when it is alone, on which the chunks of a node depend.
  u32 workers;
  LaunchKind kind;
  // The kind for graphs that have streams: kGraphs if no graph kernel can take pages.
  LaunchKind kind_for_streams;
};

}  // namespace resident

#endif  // RESIDENT_KERNELS_RESIDENT_LAUNCH_PARAMETERS_H_
