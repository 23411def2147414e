// What the checked build of an operator (RESIDENT_CHECKED=1) records when the operator
// goes wrong. New versions are tried with it before they serve; the build that serves
// has none of it, in code or in data.
//
// Checked: elements and indices of tensors, element types by size, the kind and number
// of arguments, offsets into block memory, scratch memory and results, and that all
// threads of a block come to each barrier. Not checked: what goes through data() or
// another raw pointer.
//
// What is refused is not done: the access goes to a place where it does no harm, the
// task ends with CompletionStatus::kOutOfBounds, and the first violation of each block
// is written to the task's CheckContext, where it outlives a fault that follows.
//
// Memory ordering: a Violation is visible to the host with the task's completion. When
// the engine ends instead, it may have arrived or not.
#ifndef RESIDENT_KERNELS_SDK_CHECKS_H_
#define RESIDENT_KERNELS_SDK_CHECKS_H_

#include "kernels/layout/platform.h"
#include "kernels/layout/task.h"

#ifndef RESIDENT_CHECKED
#define RESIDENT_CHECKED 0
#endif

// The two builds of an operator may stand in one generation: what differs between them
// has different names.
#if RESIDENT_CHECKED
#define RESIDENT_SDK_BEGIN inline namespace checked {
#define RESIDENT_SDK_END }
#else
#define RESIDENT_SDK_BEGIN
#define RESIDENT_SDK_END
#endif

namespace resident {

// What was refused, and what `index` and `limit` of the Violation mean.
enum class ViolationKind : u8 {
  kNone = 0,
  // Tensor::operator[]: element `index` of `limit`.
  kElement = 1,
  // Tensor::at: index `index` in a dimension of `limit`.
  kIndex = 2,
  // Tensor::at: `index` indices for `limit` dimensions.
  kRank = 3,
  // A tensor taken as elements of `index` bytes; they have `limit`.
  kElementSize = 4,
  // Argument `index` of `limit`.
  kArgument = 5,
  // A scalar taken as a tensor, or (`index` 1) a tensor as a scalar.
  kArgumentKind = 6,
  // A scalar taken as `index` bytes; it has `limit`.
  kScalarSize = 7,
  // Bytes up to `index` of the `limit` of block memory, scratch memory, results.
  kBlockMemory = 8,
  kScratch = 9,
  kResult = 10,
  // `index` of `limit` threads came to a barrier in time.
  kBarrier = 11,
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

// Beside a task in arena form whose check_context() is its address: what the checks need to
// know, and where they write. One Violation for each chunk follows.
struct alignas(64) CheckContext {
  // A thread that has waited this long at a barrier finds the others missing.
  u64 barrier_limit_ns;
  u32 argument_count;
  // Of each argument: its type, and whether it is a scalar.
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

// Notes the violation, ends the task, and returns memory for `bytes` bytes that anything
// may be done with; it reads as zeros at first.
RESIDENT_COLD void* Refuse(BlockState* state, const Violation& violation, u32 bytes);

// The context of the block's task; null if it has none.
RESIDENT_COLD CheckContext* ContextOf(const BlockState* state);

RESIDENT_SDK_END
#endif

}  // namespace resident

#endif  // RESIDENT_KERNELS_SDK_CHECKS_H_
