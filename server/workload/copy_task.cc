#include "server/workload/copy_task.h"

#include <cstring>

namespace resident {

Argument VectorArgument(DType dtype, uint64_t address, int64_t elements) {
  Argument argument;
  std::memset(&argument, 0, sizeof(argument));
  argument.tensor.address = address;
  argument.tensor.dtype = dtype;
  argument.tensor.rank = 1;
  argument.tensor.shape[0] = elements;
  argument.tensor.strides[0] = 1;
  return argument;
}

void FillBytesTask(const ResolvedOperator& op, absl::Span<const uint64_t> addresses, uint64_t bytes,
                   uint64_t workers, TaskDescriptor& task, Argument* arguments) {
  const auto elements = static_cast<int64_t>(bytes);
  for (size_t i = 0; i < addresses.size(); ++i) {
    arguments[i] = VectorArgument(DType::kU8, addresses[i], elements);
  }
  task = TaskDescriptor{};
  task.operator_slot = static_cast<u16>(op.version->slot);
  task.set_argument_count(addresses.size());
  task.set_chunks(op.version->split.Chunks({elements}, workers));
}

}  // namespace resident
