// Violations that the checked build of an operator (RESIDENT_CHECKED=1) records. New
// versions are validated with the checked build before they serve; the build that serves
// contains no code and no data of the checks.
//
// Checked: elements and indices of tensors, element types by size, the kind and number
// of arguments, offsets into block memory, scratch memory and results, and that all
// threads of a block reach each barrier. Not checked: accesses through data() or another
// raw pointer.
//
// A refused access is redirected to memory where it does no harm. The task ends with
// CompletionStatus::kOutOfBounds, and the first violation of each block is written to the
// task's CheckContext, where it is kept even if a fault follows.
//
// Memory ordering: a Violation is visible to the host with the task's completion. If the
// engine ends instead, the violation may be visible or not.
#ifndef RESIDENT_KERNELS_SDK_CHECKS_H_
#define RESIDENT_KERNELS_SDK_CHECKS_H_

#include "kernels/layout/platform.h"
#include "kernels/layout/task.h"

#ifndef RESIDENT_CHECKED
#define RESIDENT_CHECKED 0
#endif

// The two builds of an operator may be in the same generation, so everything that differs
// between them has different names.
#if RESIDENT_CHECKED
#define RESIDENT_SDK_BEGIN inline namespace checked {
#define RESIDENT_SDK_END }
#else
#define RESIDENT_SDK_BEGIN
#define RESIDENT_SDK_END
#endif

namespace resident {

// The kind of violation, and the meaning of `index` and `limit` in Violation.
enum class ViolationKind : u8 {
  kNone = 0,
  // Tensor::operator[]: element `index` of `limit`.
  kElement = 1,
  // Tensor::at: index `index` in a dimension of `limit`.
  kIndex = 2,
  // Tensor::at: `index` indices for `limit` dimensions.
  kRank = 3,
  // A tensor was accessed with elements of `index` bytes; they have `limit` bytes.
  kElementSize = 4,
  // Argument `index` of `limit`.
  kArgument = 5,
  // A scalar was accessed as a tensor, or (`index` 1) a tensor as a scalar.
  kArgumentKind = 6,
  // A scalar was accessed with `index` bytes; it has `limit` bytes.
  kScalarSize = 7,
  // An access up to byte `index` of the `limit` bytes of block memory, scratch memory, results.
  kBlockMemory = 8,
  kScratch = 9,
  kResult = 10,
  // Only `index` of `limit` threads reached a barrier in time.
  kBarrier = 11,
  // As kBlockMemory, of the memory of a task.
  kTaskMemory = 12,
};

struct Violation {
  ViolationKind kind;
  u8 argument;
  u8 dimension;
  u8 reserved[5];
  i64 index;
  i64 limit;
};
static_assert(sizeof(Violation) == 24, "");

// The input and the output of the checks of a task in argument-block form; check_context() is its
// address. One Violation for each chunk follows it.
struct alignas(64) CheckContext {
  // After this time at a barrier, a thread reports that others are missing.
  u64 barrier_limit_ns;
  u32 argument_count;
  // The type of each argument, and whether it is a scalar.
  DType dtypes[kMaxArguments];
  u8 scalar[kMaxArguments];
  u8 reserved[24];

  RESIDENT_HOST_DEVICE Violation* violations() { return reinterpret_cast<Violation*>(this + 1); }
};
static_assert(sizeof(CheckContext) == 64, "");

struct BlockState;

#if RESIDENT_CHECKED
RESIDENT_SDK_BEGIN

#if defined(__CUDACC__)
#define RESIDENT_COLD [[maybe_unused]] static __host__ __device__ __noinline__
#else
#define RESIDENT_COLD [[maybe_unused]] static
#endif

// Records the violation, sets the task's status, and returns `bytes` bytes of memory that may be
// read and written without harm. They are initially 0. `element_bytes`: bytes of an element of the
// tensor. If they differ from `bytes`, the violation is a kElementSize.
//
// It takes values, and does not take a Violation, so that each of the many accesses of an operator
// compiles to little code.
RESIDENT_COLD void* Refuse(BlockState* state, ViolationKind kind, u32 argument, u32 dimension,
                           i64 index, i64 limit, u32 bytes, u32 element_bytes);

// Returns the context of the block's task; null if it has none.
RESIDENT_HOST_DEVICE CheckContext* FindContext(const BlockState* state);

RESIDENT_SDK_END
#endif

}  // namespace resident

#endif  // RESIDENT_KERNELS_SDK_CHECKS_H_
