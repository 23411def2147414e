// This header is the form in which a task is submitted: the 48 bytes of a submission slot, and its
// argument block. Host and device share the header; sizes and offsets are asserted here and are
// part of LayoutHash (ring_layout.h).
//
// A task calls one operator. Its arguments come in one of two forms:
//
//   compact          All tensors are dense float32 vectors of one length n; the arguments
//                    fit in the slot itself: n and, for each argument, a device address or
//                    a scalar's bits. A lone small task then needs only one read of host
//                    memory.
//   argument-block   The task's argument block (kArgumentBlockBytes, one for each slot)
//                    has a TensorArgument or a scalar for each argument. The slot has their
//                    number, the number of chunks of a wide task, the number of blocks that
//                    may work on it, and the address of a CheckContext (kernels/sdk/checks.h)
//                    or 0.
//
// A range (kTaskRange) is one slot for many tasks of one operator whose arguments differ only in
// addresses and scalars: see RangeDescriptor.
//
// Memory ordering: the stamps of the slot publish the slot; the argument block is
// written before the slot is published (see ring_layout.h).
#ifndef RESIDENT_KERNELS_LAYOUT_TASK_H_
#define RESIDENT_KERNELS_LAYOUT_TASK_H_

#include "kernels/layout/platform.h"

namespace resident {

enum class DType : u8 {
  kInvalid = 0,
  kF32 = 1,
  kF16 = 2,
  kBF16 = 3,
  kF64 = 4,
  kI32 = 5,
  kI64 = 6,
  kU8 = 7,
  kI8 = 8,
  kU32 = 9,
};

// Bytes of one element; 0 for kInvalid.
RESIDENT_HOST_DEVICE constexpr u32 SizeOf(DType dtype) {
  switch (dtype) {
    case DType::kF64:
    case DType::kI64:
      return 8;
    case DType::kF32:
    case DType::kI32:
    case DType::kU32:
      return 4;
    case DType::kF16:
    case DType::kBF16:
      return 2;
    case DType::kU8:
    case DType::kI8:
      return 1;
    case DType::kInvalid:
      break;
  }
  return 0;
}

inline constexpr u32 kMaxRank = 8;
inline constexpr u32 kMaxArguments = 14;
inline constexpr u32 kTaskWords = 5;
inline constexpr u32 kCompactArguments = kTaskWords - 1;
// Chunks of a wide task. An engine ends a task with more as kInvalidArgument: the counter of
// chunks has 32 bits, and each block increments it once beyond the last chunk.
inline constexpr u64 kMaxTaskChunks = u64{1} << 31;
// Blocks that work on one wide task.
inline constexpr u64 kMaxTaskBlocks = 65535;

enum TaskFlags : u8 {
  // Arguments are in the slot (compact form); otherwise in the argument block.
  kTaskCompact = 1,
  // Not a task: the poller skips this slot.
  kTaskSkip = 2,
  // Not a task: the kernel finishes what was submitted before and leaves.
  kTaskPark = 4,
  // The task writes only to device memory, so only later tasks can read it, and its
  // stores cannot fault: its completion need not wait for them. It must not be set for a
  // task that writes to staging memory or to a client's shared memory, or whose operator
  // may write outside of its tensors.
  kTaskDeviceOutputs = 8,
  // The payload is a RangeDescriptor.
  kTaskRange = 16,
  // 32 is kTaskGraph (kernels/graph/graph_task.h).
  // Not a task: the task in flight whose token is the first word is to stop, for the StopReason in
  // the second one. It has no completion, and none is expected of a task
  // that has ended.
  kTaskStop = 64,
  // Of a task in compact form: when it is completed, a client process has to see that in a local
  // lane before it submits the next task, which takes longer than an answer by the host's own
  // thread. The poller of a GPU waits accordingly before it looks for that task; the flag has no
  // other effect.
  kTaskSlowAnswer = 128,
};

struct TaskDescriptor {
  // Low 32 bits of the task's sequence number.
  u32 token;
  // Jump-table slot of the operator's version.
  u16 operator_slot;
  u8 flags;
  u8 reserved;
  // The meaning depends on the form. The resident kernel accesses the words directly; other code,
  // except tests, uses the members below.
  u64 words[kTaskWords];

  // Compact form: n, and the arguments. REQUIRES: i < kCompactArguments.
  RESIDENT_HOST_DEVICE constexpr u64 elements() const { return words[0]; }
  RESIDENT_HOST_DEVICE constexpr void set_elements(u64 n) { words[0] = n; }
  RESIDENT_HOST_DEVICE constexpr u64 compact_argument(u32 i) const { return words[1 + i]; }
  RESIDENT_HOST_DEVICE constexpr void set_compact_argument(u32 i, u64 bits) { words[1 + i] = bits; }

  // Argument-block form. A task with more than one chunk is wide: up to max_blocks() blocks share
  // it.
  RESIDENT_HOST_DEVICE constexpr u64 argument_count() const { return words[0]; }
  RESIDENT_HOST_DEVICE constexpr void set_argument_count(u64 count) { words[0] = count; }
  // 0 or 1: not wide; up to kMaxTaskChunks.
  RESIDENT_HOST_DEVICE constexpr u64 chunks() const { return words[1]; }
  RESIDENT_HOST_DEVICE constexpr u64 max_blocks() const { return words[2]; }
  RESIDENT_HOST_DEVICE constexpr void set_chunks(u64 chunks) {
    words[1] = chunks > 1 ? chunks : 0;
    words[2] = chunks < kMaxTaskBlocks ? chunks : kMaxTaskBlocks;
  }
  RESIDENT_HOST_DEVICE constexpr u64 check_context() const { return words[3]; }
  RESIDENT_HOST_DEVICE constexpr void set_check_context(u64 address) { words[3] = address; }
};
static_assert(sizeof(TaskDescriptor) == 48, "a descriptor is the payload of one slot");
static_assert(__builtin_offsetof(TaskDescriptor, token) == 0, "");
static_assert(__builtin_offsetof(TaskDescriptor, operator_slot) == 4, "");
static_assert(__builtin_offsetof(TaskDescriptor, flags) == 6, "");
static_assert(__builtin_offsetof(TaskDescriptor, words) == 8, "");

// A range: tasks [first, first + count) of a batch, in place of a TaskDescriptor. The argument
// block has, for each of the `arguments` arguments, first the Argument (for tasks in compact form
// only its bits matter), and behind all of these the RangeColumn, which has its address or bits for
// each task. Blocks claim `claim` tasks at a time.
//
// Outcomes: record i of the memory at `outcomes` belongs to task i of the batch. The host clears
// them. A RangeOutcome is written for a task that did not end OK; with kRangeTimes for every task.
// The slot's completion is OK; its result starts with the number of tasks that did not end OK
// (u32).
struct RangeDescriptor {
  // As in TaskDescriptor. With kTaskCompact, each task is in compact form.
  u32 token;
  u16 operator_slot;
  u8 flags;
  u8 arguments;
  // Elements of each tensor, for tasks in compact form.
  u64 elements;
  u32 first;
  u32 count;
  u32 claim;
  // Blocks that may work on it.
  u32 max_blocks;
  // Address of the RangeOutcome of task 0 of the batch.
  u64 outcomes;
  u32 options;
  // Bit a: argument a is an input in device memory, for tasks in compact form. The device may read
  // it ahead.
  u32 inputs;
};
static_assert(sizeof(RangeDescriptor) == sizeof(TaskDescriptor), "");
static_assert(__builtin_offsetof(RangeDescriptor, token) == 0, "");
static_assert(__builtin_offsetof(RangeDescriptor, operator_slot) == 4, "");
static_assert(__builtin_offsetof(RangeDescriptor, flags) == 6, "");
static_assert(__builtin_offsetof(RangeDescriptor, arguments) == 7, "");
static_assert(__builtin_offsetof(RangeDescriptor, elements) == 8, "");
static_assert(__builtin_offsetof(RangeDescriptor, first) == 16, "");
static_assert(__builtin_offsetof(RangeDescriptor, count) == 20, "");
static_assert(__builtin_offsetof(RangeDescriptor, claim) == 24, "");
static_assert(__builtin_offsetof(RangeDescriptor, max_blocks) == 28, "");
static_assert(__builtin_offsetof(RangeDescriptor, outcomes) == 32, "");
static_assert(__builtin_offsetof(RangeDescriptor, options) == 40, "");
static_assert(__builtin_offsetof(RangeDescriptor, inputs) == 44, "");

enum RangeOptions : u32 {
  kRangeTimes = 1,
};

// Limits of a range: its argument block has space for kMaxRangeArguments arguments.
inline constexpr u32 kMaxRangeArguments = 11;
inline constexpr u32 kMaxRangeClaim = 32;

// The address of an argument, or its bits, for each task i of a batch: values[i], or
// base + i * stride if `values` is 0.
struct RangeColumn {
  u64 base;
  u64 stride;
  // Address of one u64 for each task of the batch.
  u64 values;
  u64 reserved;
};
static_assert(sizeof(RangeColumn) == 32, "");
static_assert(__builtin_offsetof(RangeColumn, base) == 0, "");
static_assert(__builtin_offsetof(RangeColumn, stride) == 8, "");
static_assert(__builtin_offsetof(RangeColumn, values) == 16, "");

struct RangeOutcome {
  // CompletionStatus in the low half, the operator's detail in the high half.
  u32 status_and_detail;
  // Time on the device in nanoseconds, with kRangeTimes.
  u32 duration_ns;
};
static_assert(sizeof(RangeOutcome) == 8, "");
static_assert(__builtin_offsetof(RangeOutcome, status_and_detail) == 0, "");
static_assert(__builtin_offsetof(RangeOutcome, duration_ns) == 4, "");

// One tensor in an argument block. Shape and strides in elements, outermost
// first; entries past `rank` are unused.
struct TensorArgument {
  u64 address;
  DType dtype;
  u8 rank;
  u8 reserved[6];
  i64 shape[kMaxRank];
  i64 strides[kMaxRank];
};
static_assert(sizeof(TensorArgument) == 144, "");
static_assert(__builtin_offsetof(TensorArgument, address) == 0, "");
static_assert(__builtin_offsetof(TensorArgument, dtype) == 8, "");
static_assert(__builtin_offsetof(TensorArgument, rank) == 9, "");
static_assert(__builtin_offsetof(TensorArgument, shape) == 16, "");
static_assert(__builtin_offsetof(TensorArgument, strides) == 80, "");

// A tensor or a scalar. The bits of a scalar are in the low bytes of `scalar_bits`, at the
// offset of a tensor's address.
union Argument {
  TensorArgument tensor;
  u64 scalar_bits;
};
static_assert(sizeof(Argument) == 144, "");
static_assert(__builtin_offsetof(Argument, tensor) == 0, "");
static_assert(__builtin_offsetof(Argument, scalar_bits) ==
                  __builtin_offsetof(TensorArgument, address),
              "");

inline constexpr u32 kArgumentBlockBytes = 2048;

struct alignas(64) ArgumentBlock {
  Argument arguments[kMaxArguments];
  u8 reserved[kArgumentBlockBytes - kMaxArguments * sizeof(Argument)];
};
static_assert(sizeof(ArgumentBlock) == kArgumentBlockBytes, "");
static_assert(__builtin_offsetof(ArgumentBlock, arguments) == 0, "");
static_assert(kMaxRangeArguments * (sizeof(Argument) + sizeof(RangeColumn)) <= kArgumentBlockBytes,
              "");

// The columns of a range with this number of arguments, in its argument block.
RESIDENT_HOST_DEVICE RangeColumn* ColumnsOf(ArgumentBlock* block, u32 arguments) {
  return reinterpret_cast<RangeColumn*>(block->arguments + arguments);
}

// How a task ended, as the device reports it.
enum class CompletionStatus : u16 {
  kOk = 0,
  kInvalidArgument = 1,
  kInternal = 2,
  // No operator is in the task's slot.
  kNoOperator = 3,
  // The checked build of an operator refused an access (kernels/sdk/checks.h). The
  // detail is the ViolationKind in the low byte and the argument in the high byte.
  kOutOfBounds = 4,
  // The task was stopped, or stands behind one that was. The detail is the StopReason. What it has
  // written is incomplete.
  kStopped = 5,
};

// Why a task was stopped; the detail of CompletionStatus::kStopped.
enum class StopReason : u32 {
  kNone = 0,
  // It ran longer than its operator may.
  kTimeLimit = 1,
  // The deadline of its batch passed.
  kDeadline = 2,
  // Its batch was cancelled.
  kCancelled = 3,
  // Lanes of a warp waited at different operations, each for the others.
  kLanesApart = 4,
};
inline constexpr u32 kStopReasons = 5;

// CompletionStatus | detail << 16 of a task that was stopped.
RESIDENT_HOST_DEVICE constexpr u32 PackStopped(StopReason reason) {
  return static_cast<u32>(CompletionStatus::kStopped) | static_cast<u32>(reason) << 16;
}

inline constexpr u32 kResultBytes = 32;

// The payload of a completion record.
struct TaskCompletion {
  // Device clock when a block took the task, in nanoseconds.
  u64 start_ns;
  // Time from then until its last block finished.
  u32 duration_ns;
  CompletionStatus status;
  // Detail that the operator set: e.g. the refused argument or index.
  u16 detail;
  // The value that the operator returned.
  u8 result[kResultBytes];
};
static_assert(sizeof(TaskCompletion) == 48, "a completion is the payload of one record");
static_assert(__builtin_offsetof(TaskCompletion, start_ns) == 0, "");
static_assert(__builtin_offsetof(TaskCompletion, duration_ns) == 8, "");
static_assert(__builtin_offsetof(TaskCompletion, status) == 12, "");
static_assert(__builtin_offsetof(TaskCompletion, detail) == 14, "");
static_assert(__builtin_offsetof(TaskCompletion, result) == 16, "");

}  // namespace resident

#endif  // RESIDENT_KERNELS_LAYOUT_TASK_H_
