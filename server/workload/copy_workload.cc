#include "server/workload/copy_workload.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "absl/container/inlined_vector.h"
#include "absl/memory/memory.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "runtime/base/errors/daemon_errors.h"
#include "runtime/base/status_macros.h"
#include "runtime/device/errors.h"
#include "server/workload/errors.h"
#include "server/workload/result_builder.h"

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

namespace {

constexpr char kZeroOperator[] = "zero";
constexpr absl::Duration kMaxForAPiece = absl::Seconds(30);

// The only task of a batch.
void FillTask(const ResolvedOperator& op, absl::Span<const uint64_t> addresses, uint64_t bytes,
              uint64_t workers, Batch& batch) {
  batch.tasks.resize(1);
  batch.arguments_per_task = static_cast<uint32_t>(addresses.size());
  batch.arguments.resize(addresses.size());
  FillBytesTask(op, addresses, bytes, workers, batch.tasks[0], batch.arguments.data());
}

}  // namespace

std::unique_ptr<CopyWorkload> CopyWorkload::Write(const PlanSources& sources, Part to,
                                                  uint64_t bytes) {
  return absl::WrapUnique(
      new CopyWorkload(sources, Source::kStaging, std::nullopt, std::move(to), bytes));
}

std::unique_ptr<CopyWorkload> CopyWorkload::WriteData(const PlanSources& sources, Part to,
                                                      std::string data) {
  auto copy = Write(sources, std::move(to), data.size());
  copy->data_ = std::move(data);
  return copy;
}

std::unique_ptr<CopyWorkload> CopyWorkload::Read(const PlanSources& sources, Part from,
                                                 uint64_t bytes) {
  return absl::WrapUnique(
      new CopyWorkload(sources, Source::kBuffer, std::move(from), std::nullopt, bytes));
}

std::unique_ptr<CopyWorkload> CopyWorkload::Copy(const PlanSources& sources, Part from, Part to,
                                                 uint64_t bytes) {
  return absl::WrapUnique(
      new CopyWorkload(sources, Source::kBuffer, std::move(from), std::move(to), bytes));
}

std::unique_ptr<CopyWorkload> CopyWorkload::Clear(const PlanSources& sources, Part to,
                                                  uint64_t bytes) {
  return absl::WrapUnique(
      new CopyWorkload(sources, Source::kZeros, std::nullopt, std::move(to), bytes));
}

absl::Status CopyWorkload::Check() {
  if (from_.has_value()) RETURN_IF_ERROR(CheckPart(*from_));
  if (to_.has_value()) RETURN_IF_ERROR(CheckPart(*to_));
  const char* const name = source_ == Source::kZeros ? kZeroOperator : kCopyBytesOperator;
  ASSIGN_OR_RETURN(op_, sources_.registry->Resolve(name, 0));
  if (op_.shadow != nullptr) sources_.registry->Withdraw(op_);
  return absl::OkStatus();
}

absl::Status CopyWorkload::CheckPart(Part& part) {
  if (part.buffer == nullptr) {
    ASSIGN_OR_RETURN(part.buffer, sources_.buffers->Find(part.client, part.id));
  }
  const Buffer& buffer = *part.buffer;
  if (part.offset > buffer.size_bytes || bytes_ > buffer.size_bytes - part.offset) {
    return errors::BeyondBufferEnd(buffer.id, part.offset, bytes_, buffer.size_bytes);
  }
  if (session_ != nullptr && buffer.device != device_) {
    return errors::BufferOnOtherDevice(buffer.id, buffer.device, device_);
  }
  if (buffer.memory == nullptr) {
    return errors::LostBuffer(buffer.id, buffer.device, buffer.lost_cause);
  }
  device_ = buffer.device;
  session_ = sources_.devices[device_]->session();
  if (session_ == nullptr || session_->epoch() != buffer.epoch) {
    return errors::DeviceUnavailable(device_, "its engine is being replaced");
  }
  return absl::OkStatus();
}

Needs CopyWorkload::TransferNeeds() const {
  assert(session_ != nullptr);
  Needs needs;
  needs.device = device_;
  needs.session = session_;
  if (source_ == Source::kStaging || !to_.has_value()) needs.staging_bytes = bytes_;
  return needs;
}

Needs CopyWorkload::ResourcesNeeded() const {
  Needs needs = TransferNeeds();
  needs.tasks = 1;
  needs.host_bytes = sizeof(TaskDescriptor) + 2 * sizeof(Argument) + kTaskOutcomeBytes;
  return needs;
}

void CopyWorkload::Fill(const Ticket& ticket, RequestBatch& batch) {
  assert(session_ != nullptr);
  const StagingMemory* const staging = ticket.staging();  // Null for 0 bytes.
  const auto address = [&](const std::optional<Part>& part) {
    if (part.has_value()) return part->buffer->memory->address + part->offset;
    return staging == nullptr ? 0 : staging->address;
  };
  absl::InlinedVector<uint64_t, 2> addresses;
  if (source_ != Source::kZeros) addresses.push_back(address(from_));
  addresses.push_back(address(to_));
  FillTask(op_, addresses, bytes_, session_->info().workers, batch);
  if (op_.version->trusted && to_.has_value() && to_->buffer->place == Buffer::Place::kDevice) {
    batch.tasks[0].flags |= kTaskDeviceOutputs;
  }
  if (!data_.empty()) std::memcpy(staging->host, data_.data(), data_.size());
  data_ = std::string();
  batch.device = device_;
  batch.epoch = session_->epoch();
  batch.operator_name = op_.op->name();
  batch.version = op_.version->version;
  batch.stats = op_.stats(device_);
  batch.keep_alive.push_back(op_.version);
  if (from_.has_value()) batch.keep_alive.push_back(std::move(from_->buffer));
  if (to_.has_value()) batch.keep_alive.push_back(std::move(to_->buffer));
  session_ = nullptr;
  op_ = {};
}

void CopyWorkload::BuildResult(const RequestBatch& batch, v1::BatchResult* result) const {
  AddOutcome(batch, result);
}

absl::Status WriteAndWait(
    const ResolvedOperator& copy_bytes, Device& device, ClientId client, EngineSession& session,
    uint64_t address, uint64_t bytes,
    const std::function<absl::Status(uint64_t offset, absl::Span<uint8_t> to)>& fill) {
  for (uint64_t offset = 0; offset < bytes; offset += kCopyPieceBytes) {
    const uint64_t size = std::min<uint64_t>(kCopyPieceBytes, bytes - offset);
    ASSIGN_OR_RETURN(auto staging, session.AllocateStaging(size));
    RETURN_IF_ERROR(fill(offset, {staging->host, size}));
    auto batch = std::make_shared<Batch>();
    FillTask(copy_bytes, {staging->address, address + offset}, size, session.info().workers,
             *batch);
    batch->epoch = session.epoch();
    batch->stats = copy_bytes.stats(device.index());
    batch->keep_alive = {copy_bytes.version, staging};
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
