#include "server/translation/batch_translator.h"

#include <algorithm>
#include <utility>

#include "runtime/base/errors/batch_errors.h"
#include "runtime/base/errors/daemon_errors.h"
#include "runtime/base/errors/flux_errors.h"
#include "runtime/base/errors/operator_errors.h"
#include "runtime/base/status_macros.h"
#include "server/translation/columns.h"
#include "server/translation/flux_programs.h"
#include "server/translation/placement.h"

namespace resident {
namespace {

absl::Status CheckOptions(const v1::BatchOptions& options) {
  if (!v1::BatchOptions::Ordering_IsValid(options.ordering())) {
    return errors::UnknownEnum("BatchOptions.ordering", options.ordering(),
                               "ORDERING_UNORDERED, ORDERING_IN_ORDER");
  }
  return absl::OkStatus();
}

// Of each task beside its descriptor: status, time and detail, once in the batch and once in
// its answer, as a message and as bytes.
constexpr uint64_t kTaskOutcomeBytes = 24;

// Charges what a few bytes of message expand into, before it is made.
absl::Status ChargeTasks(const Caller& caller, uint64_t tasks, uint64_t descriptor_bytes,
                         RequestBatch& batch) {
  if (caller.memory == nullptr) return absl::OkStatus();
  const uint64_t bytes = descriptor_bytes + tasks * kTaskOutcomeBytes;
  auto charge = caller.memory->Share(caller.memory_use, bytes);
  if (!charge.ok()) {
    if (caller.lacking != nullptr) *caller.lacking = bytes;
    return charge.status();
  }
  batch.charge = *std::move(charge);
  return absl::OkStatus();
}

// The same for tasks that a version on trial gets once more (ShadowRunner): the batch, its copy,
// and a task for each output of each task that compares the two. Whether there was room.
bool ChargeTrial(const Caller& caller, uint64_t tasks, uint64_t descriptor_bytes, uint64_t outputs,
                 RequestBatch& batch) {
  // Of a comparison: its descriptor, the two tensors, and which task it is about.
  constexpr uint64_t kComparisonBytes =
      sizeof(TaskDescriptor) + 2 * sizeof(Argument) + sizeof(uint64_t);
  const uint64_t comparisons = tasks * outputs;
  Caller refused = caller;
  refused.lacking = nullptr;
  return ChargeTasks(refused, 2 * tasks + comparisons,
                     2 * descriptor_bytes + comparisons * kComparisonBytes, batch)
      .ok();
}

// Window memory for a batch, kept alive by it; null if it needs none.
absl::StatusOr<std::shared_ptr<const WindowMemory>> TakeWindow(const ServingDevice& device,
                                                               EngineSession& session,
                                                               const Caller& caller, uint64_t bytes,
                                                               RequestBatch& batch) {
  if (bytes == 0) return std::shared_ptr<const WindowMemory>();
  ASSIGN_OR_RETURN(auto window, device.window->Allocate(session, (*caller.window_use)[batch.device],
                                                        bytes, caller.waiter, caller.waits));
  batch.keep_alive.push_back(window);
  batch.window_address = window->address;
  batch.window_bytes = bytes;
  return window;
}

absl::Status TranslateTasks(const BatchTranslator::Sources& sources, const v1::Batch& message,
                            const Caller& caller, RequestBatch& batch) {
  const v1::OperatorTasks& tasks = message.tasks();
  if (tasks.count() == 0) return errors::NoTasks();
  if (tasks.count() > sources.limits->max_batch_tasks) {
    return errors::TooManyTasks(tasks.count(), sources.limits->max_batch_tasks);
  }
  ASSIGN_OR_RETURN(const auto op, sources.registry->Resolve(tasks.operator_(), tasks.version()));
  if (op.op->name() == kFluxRunOperator || op.op->name() == kCompareOperator) {
    return errors::InternalOperator(op.op->name());
  }

  Columns columns(op, tasks);
  absl::Status status = columns.Read(*sources.buffers, caller.id, batch.keep_alive);
  if (!status.ok()) return status;
  std::optional<uint32_t> wanted;
  if (message.options().has_device()) wanted = message.options().device();
  if (wanted.has_value() && *wanted >= sources.devices.size()) {
    return errors::UnknownDevice(*wanted, sources.devices.size());
  }
  status = columns.FindDevice(wanted);
  if (!status.ok()) return status;
  ASSIGN_OR_RETURN(const auto place, Place(sources.devices, wanted));
  status = columns.Place(place.session->epoch());
  if (!status.ok()) return status;
  if (columns.descriptor_bytes() > kMaxBatchDescriptorBytes) {
    return errors::TooManyArguments(columns.descriptor_bytes(), kMaxBatchDescriptorBytes);
  }
  // The client need not know of a trial: its batch runs without one where there is no room for it.
  const bool trial = op.shadow != nullptr && columns.SeparateOutputs(&batch.shadow_outputs) &&
                     ChargeTrial(caller, tasks.count(), columns.descriptor_bytes(),
                                 batch.shadow_outputs.size(), batch);
  if (!trial) {
    status = ChargeTasks(caller, tasks.count(), columns.descriptor_bytes(), batch);
    if (!status.ok()) return status;
  }

  batch.device = place.device;
  batch.epoch = place.session->epoch();
  batch.operator_name = op.op->name();
  batch.version = op.version->version;
  batch.stats = op.stats(place.device);
  batch.keep_alive.push_back(op.version);
  ASSIGN_OR_RETURN(const auto window, TakeWindow(sources.devices[place.device], *place.session,
                                                 caller, columns.window_bytes(), batch));
  columns.Fill(window.get(), batch);
  if (trial) batch.shadow = op.shadow;
  return absl::OkStatus();
}

absl::Status TranslatePrograms(const BatchTranslator::Sources& sources, const v1::Batch& message,
                               const Caller& caller, RequestBatch& batch) {
  // An installed program, if the batch names one.
  const std::string& name = message.programs().operator_();
  ResolvedOperator installed;
  if (!name.empty()) {
    if (!message.programs().bytecode().empty() || message.programs().offsets_size() > 0 ||
        message.programs().program_index_size() > 0) {
      return errors::FluxOperatorAndPrograms(name);
    }
    ASSIGN_OR_RETURN(auto op, sources.registry->ResolveProgram(name, message.programs().version()));
    installed = std::move(op);
  } else if (message.programs().version() != 0) {
    return errors::FluxVersionAlone(message.programs().version());
  }
  FluxPrograms programs(message.programs(),
                        name.empty() ? nullptr : installed.version->spec.bytecode.get());
  absl::Status status = programs.Check(*sources.limits);
  if (!status.ok()) return status;
  std::optional<uint32_t> wanted;
  if (message.options().has_device()) wanted = message.options().device();
  ASSIGN_OR_RETURN(const auto place, Place(sources.devices, wanted));
  ASSIGN_OR_RETURN(const auto flux_run, sources.registry->Resolve(kFluxRunOperator, 0));
  ASSIGN_OR_RETURN(const auto copy_bytes, sources.registry->Resolve(kCopyBytesOperator, 0));

  const FluxSplit split = programs.Split(place.session->info(), sources.task_time_limit);
  status = programs.CheckSplit(split);
  if (!status.ok()) return status;
  status = ChargeTasks(caller, programs.most_tasks(split), programs.descriptor_bytes(split), batch);
  if (!status.ok()) return status;

  batch.device = place.device;
  batch.epoch = place.session->epoch();
  const ResolvedOperator& counted = name.empty() ? flux_run : installed;
  batch.operator_name = counted.op->name();
  batch.version = counted.version->version;
  batch.stats = counted.stats(place.device);
  batch.keep_alive.push_back(counted.version);
  ASSIGN_OR_RETURN(const auto window, TakeWindow(sources.devices[place.device], *place.session,
                                                 caller, programs.window_bytes(), batch));
  // Staging is only for speed: where there is no memory for it, the window does.
  const DeviceMemory* staged = nullptr;
  if (programs.wants_staging()) {
    auto memory = place.session->AllocateMemory(programs.bytecode_bytes());
    if (memory.ok()) {
      staged = memory->get();
      batch.keep_alive.push_back(*std::move(memory));
    }
  }
  programs.Fill(flux_run, copy_bytes, split, *window, staged, batch);
  return absl::OkStatus();
}

}  // namespace

Clock::time_point BatchDeadline(const v1::BatchOptions& options, Clock::time_point call_deadline) {
  if (options.timeout_us() == 0) return call_deadline;
  // A timeout beyond a century is none; adding it must not overflow.
  constexpr uint64_t kMostUs = uint64_t{100} * 365 * 24 * 3600 * 1'000'000;
  return std::min(call_deadline, Clock::now() + std::chrono::microseconds(
                                                    std::min(options.timeout_us(), kMostUs)));
}

absl::StatusOr<std::shared_ptr<RequestBatch>> BatchTranslator::Translate(
    const v1::Batch& message, const Caller& caller) const {
  absl::Status status = CheckOptions(message.options());
  if (!status.ok()) return status;
  auto batch = std::make_shared<RequestBatch>();
  batch->id = message.id();
  batch->deadline = caller.deadline;
  batch->in_order = message.options().ordering() == v1::BatchOptions::ORDERING_IN_ORDER;
  switch (message.work_case()) {
    case v1::Batch::kTasks:
      status = TranslateTasks(sources_, message, caller, *batch);
      break;
    case v1::Batch::kPrograms:
      status = TranslatePrograms(sources_, message, caller, *batch);
      break;
    case v1::Batch::WORK_NOT_SET:
      status = errors::EmptyBatch();
      break;
  }
  if (!status.ok()) return status;
  return batch;
}

}  // namespace resident
