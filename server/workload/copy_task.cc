#include "server/workload/copy_task.h"

#include <algorithm>
#include <cstring>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "runtime/base/status_macros.h"
#include "server/workload/errors.h"

namespace resident {
namespace {

constexpr absl::Duration kMaxForAPiece = absl::Seconds(30);

}  // namespace

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

void FillCopyTask(const ResolvedOperator& copy_bytes, uint64_t from, uint64_t to, uint64_t bytes,
                  TaskDescriptor& task, Argument* arguments) {
  arguments[0] = VectorArgument(DType::kU8, from, static_cast<int64_t>(bytes));
  arguments[1] = VectorArgument(DType::kU8, to, static_cast<int64_t>(bytes));
  const uint64_t chunks = copy_bytes.version->split.Chunks({static_cast<int64_t>(bytes)});
  task = TaskDescriptor{};
  task.operator_slot = static_cast<u16>(copy_bytes.version->slot);
  task.set_argument_count(2);
  task.set_chunks(chunks);
}

std::shared_ptr<Batch> MakeCopyBatch(const ResolvedOperator& copy_bytes, uint32_t device,
                                     const EngineSession& session, uint64_t from, uint64_t to,
                                     uint64_t bytes) {
  auto batch = std::make_shared<Batch>();
  batch->tasks.resize(1);
  batch->arguments_per_task = 2;
  batch->arguments.resize(2);
  FillCopyTask(copy_bytes, from, to, bytes, batch->tasks[0], batch->arguments.data());
  batch->epoch = session.epoch();
  batch->stats = copy_bytes.stats(device);
  return batch;
}

absl::Status WriteAndWait(
    const ResolvedOperator& copy_bytes, Device& device, ClientId client, EngineSession& session,
    uint64_t address, uint64_t bytes,
    const std::function<absl::Status(uint64_t offset, absl::Span<uint8_t> to)>& fill) {
  for (uint64_t offset = 0; offset < bytes; offset += kCopyPieceBytes) {
    const uint64_t size = std::min<uint64_t>(kCopyPieceBytes, bytes - offset);
    ASSIGN_OR_RETURN(auto staging, session.AllocateStaging(size));
    RETURN_IF_ERROR(fill(offset, {staging->host, size}));
    auto batch = MakeCopyBatch(copy_bytes, device.index(), session, staging->address,
                               address + offset, size);
    batch->keep_alive.push_back(staging);
    // Shared with `done`, which may be called after this function has timed out.
    auto done = std::make_shared<absl::Notification>();
    batch->done = [done](Batch&) { done->Notify(); };
    RETURN_IF_ERROR(device.queue().Enqueue(client, batch));
    if (!done->WaitForNotificationWithTimeout(kMaxForAPiece)) {
      batch->cancelled = true;
      device.queue().NoteCancelled();
      return errors::TransferFailed("the copy", "the device did not finish it in time");
    }
    if (batch->status[0] != TaskStatus::kOk) {
      return errors::TransferFailed("the copy", batch->cause);
    }
  }
  return absl::OkStatus();
}

}  // namespace resident
