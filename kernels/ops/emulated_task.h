// Runs tasks of operators in blocks of emulated threads, for tests (kernels/sdk/emulated_block.h).
//
//   EXPECT_EQ(RunEmulated(resident_operator_softmax, {DenseArgument(x, DType::kF32, {3, 1024}),
//                                                     DenseArgument(out, DType::kF32, {3, 1024})}),
//             0u);
//
// Thread safety: one task at a time in a process.
#ifndef RESIDENT_KERNELS_OPS_EMULATED_TASK_H_
#define RESIDENT_KERNELS_OPS_EMULATED_TASK_H_

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

#include "kernels/sdk/operator.h"

namespace resident {

inline Argument DenseArgument(const void* data, DType dtype, const std::vector<i64>& shape) {
  Argument argument{};
  argument.tensor.address = reinterpret_cast<u64>(data);
  argument.tensor.dtype = dtype;
  argument.tensor.rank = static_cast<u8>(shape.size());
  i64 stride = 1;
  for (size_t d = shape.size(); d-- > 0;) {
    argument.tensor.shape[d] = shape[d];
    argument.tensor.strides[d] = stride;
    stride *= shape[d];
  }
  return argument;
}

inline Argument ScalarArgument(u64 bits) {
  Argument argument{};
  argument.scalar_bits = bits;
  return argument;
}

// How the chunks of a task are run.
struct EmulatedChunks {
  // Their numbers, one after the other; empty: in ascending order.
  std::vector<u64> order;
  // Whether they share memory (Block::task_memory), as those of a wide task of the ring.
  bool share_memory = true;
};

// Runs all chunks, one after the other, in a block of Block::kMaxThreads threads. Returns the
// task's CompletionStatus | detail << 16. What a chunk reads from the block's memory without having
// written it is NaN. `checks`: for the checked build of the operator, with a Violation for each
// chunk; null: arguments are not checked.
inline u32 RunEmulated(OperatorFunction function, const std::vector<Argument>& arguments,
                       u64 chunks = 1, const CheckContext* checks = nullptr,
                       const EmulatedChunks& how = {}) {
  const auto state = std::make_unique<BlockState>();
  const std::unique_ptr<unsigned char[]> scratch(new unsigned char[kScratchBytes]);
  // Not on the stack, where AddressSanitizer does not keep its alignment.
  const auto task_memory = std::make_unique<TaskMemory>();
  std::memset(task_memory.get(), 0xff, sizeof(TaskMemory));
  task_memory->arrived = 0;
  state->scratch = scratch.get();
  state->descriptor = {};
  state->descriptor.set_argument_count(static_cast<u32>(arguments.size()));
  state->descriptor.set_check_context(reinterpret_cast<u64>(checks));
  for (size_t i = 0; i < arguments.size(); ++i) state->arguments.arguments[i] = arguments[i];
  state->chunk_count = chunks;
  state->status_and_detail = 0;
  if (how.share_memory) state->task_memory = task_memory.get();
  std::vector<u64> order = how.order;
  if (order.empty()) {
    order.resize(chunks);
    std::iota(order.begin(), order.end(), u64{0});
  }
  for (const u64 chunk : order) {
    state->chunk = chunk;
    std::memset(state->memory, 0xff, sizeof(state->memory));
    emulated::RunBlock(Block::kMaxThreads, [&] { function(state.get()); });
  }
  if (state->status_and_detail == 0 && task_memory->arrived != 0) {
    std::fprintf(stderr, "the chunks have left the counter of arrivals at %u\n",
                 task_memory->arrived);
    std::abort();
  }
  return state->status_and_detail;
}

}  // namespace resident

#endif  // RESIDENT_KERNELS_OPS_EMULATED_TASK_H_
