// OperatorWorkload: a batch of tasks of one operator (workload.h).
//
// Thread safety: one thread at a time.
#include "server/workload/operator_workload.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/base/isolation.h"
#include "runtime/base/status_macros.h"
#include "runtime/operators/registry/registry.h"
#include "server/workload/columns.h"
#include "server/workload/errors.h"
#include "server/workload/placement.h"
#include "server/workload/planner.h"
#include "server/workload/result_builder.h"
#include "server/workload/workload.h"

namespace resident {
namespace {

// What is built in is as its compiler made it.
Isolation FindLevel(const OperatorVersion& version) {
  return std::max(version.spec.isolation, Isolation::kTrusted);
}

class OperatorWorkload final : public Workload {
 public:
  OperatorWorkload(const PlanSources& sources, const v1::Batch& message, ClientId client)
      : sources_(sources), message_(message), client_(client) {}

  absl::Status Check() override {
    const v1::OperatorTasks& tasks = message_.tasks();
    if (tasks.count() == 0) return errors::NoTasks();
    if (tasks.count() > sources_.limits->max_batch_tasks) {
      return errors::TooManyTasks(tasks.count(), sources_.limits->max_batch_tasks);
    }
    ASSIGN_OR_RETURN(const VersionRef version, ReadVersion(tasks));
    ASSIGN_OR_RETURN(auto op, sources_.registry->Resolve(tasks.operator_(), version));
    op_ = std::move(op);
    if (op_.op->name() == kFluxRunOperator || op_.op->name() == kCompareOperator) {
      return errors::InternalOperator(op_.op->name());
    }

    const auto required = static_cast<Isolation>(message_.options().require_isolation());
    if (FindLevel(*op_.version) < required) {
      return errors::IsolationTooLow(op_.op->name(), op_.version->version,
                                     IsolationName(FindLevel(*op_.version)),
                                     IsolationName(required));
    }
    if (op_.shadow != nullptr && FindLevel(*op_.shadow) < required) op_.shadow = nullptr;

    columns_.emplace(op_, tasks);
    absl::Status status = columns_->Read(*sources_.buffers, client_, hold_);
    if (!status.ok()) return status;
    std::optional<uint32_t> wanted;
    if (message_.options().has_device()) wanted = message_.options().device();
    if (wanted.has_value() && *wanted >= sources_.devices.size()) {
      return errors::UnknownDevice(*wanted, sources_.devices.size());
    }
    status = columns_->FindDevice(wanted);
    if (!status.ok()) return status;
    ASSIGN_OR_RETURN(auto place, Place(sources_.devices, wanted));
    place_ = std::move(place);
    trial_ = op_.shadow != nullptr && columns_->SeparateOutputs(&outputs_);
    const v1::BatchOptions& options = message_.options();
    if (!trial_ && options.ordering() == v1::BatchOptions::ORDERING_UNORDERED) {
      columns_->AllowRange(sources_.staging_bytes, options.task_times());
    }
    status = columns_->Place(place_.session->epoch(), place_.session->info().workers);
    if (!status.ok()) return status;
    RETURN_IF_ERROR(
        columns_->CheckWork({place_.device, place_.session->info(), sources_.task_time_limit}));
    if (columns_->descriptor_bytes() > kMaxBatchDescriptorBytes) {
      return errors::TooManyArguments(columns_->descriptor_bytes(), kMaxBatchDescriptorBytes);
    }
    return absl::OkStatus();
  }

  Needs ResourcesNeeded() const override {
    const uint64_t tasks = message_.tasks().count();
    const uint64_t batch_bytes = columns_->descriptor_bytes() + tasks * kTaskOutcomeBytes;
    Needs needs;
    needs.device = place_.device;
    needs.session = place_.session;
    needs.tasks = tasks;
    needs.staging_bytes = columns_->staging_bytes();
    needs.host_bytes = batch_bytes + columns_->returned_bytes();
    if (trial_) {
      // The trial needs a copy of the batch with an index for each task, and a comparison task for
      // each output of each task: its descriptor, the two tensors, and the index of the compared
      // task.
      constexpr uint64_t kComparisonBytes =
          sizeof(TaskDescriptor) + 2 * sizeof(Argument) + sizeof(uint64_t) + kTaskOutcomeBytes;
      needs.trial_bytes =
          batch_bytes + tasks * (sizeof(uint64_t) + outputs_.size() * kComparisonBytes);
    }
    return needs;
  }

  void Fill(const Ticket& ticket, RequestBatch& batch) override {
    assert(place_.session != nullptr);  // Check has returned OK.
    batch.device = place_.device;
    batch.epoch = place_.session->epoch();
    batch.operator_name = op_.op->name();
    batch.version = op_.version->version;
    batch.content_hash = ContentHashFor(message_.tasks(), *op_.version);
    batch.stats = op_.stats(place_.device);
    batch.keep_alive = std::move(hold_);
    batch.keep_alive.push_back(op_.version);
    columns_->Fill(ticket.staging(), batch, &returned_);
    if (trial_ && ticket.trial()) {
      batch.shadow = op_.shadow;
      batch.shadow_outputs = std::move(outputs_);
      batch.shadow_buffers = columns_->UsesBuffers();
    }
    columns_.reset();
    place_.session = nullptr;
    op_ = {};
  }

  void BuildResult(const RequestBatch& batch, v1::BatchResult* result) const override {
    const size_t count = batch.count();
    if (batch.range && !batch.range->times()) {
      result->add_device_ns(static_cast<uint32_t>(std::min<uint64_t>(batch.range_ns, UINT32_MAX)));
    } else {
      result->mutable_device_ns()->Resize(static_cast<int>(count), 0);
      std::memcpy(result->mutable_device_ns()->mutable_data(), batch.device_ns.data(),
                  count * sizeof(uint32_t));
    }
    for (const ReturnedColumn& returned : returned_) {
      if (returned.type.has_value()) {
        v1::TensorType* const type = result->add_output_types();
        type->set_dtype(static_cast<v1::DType>(returned.type->dtype));
        for (const int64_t size : returned.type->shape)
          type->add_shape(static_cast<uint64_t>(size));
      }
      std::string* output = result->add_outputs();
      if (returned.host == nullptr) continue;
      output->assign(reinterpret_cast<const char*>(returned.host), count * returned.task_bytes);
    }
    if (batch.failed == 0) return;

    result->mutable_status()->Resize(static_cast<int>(count), 0);
    for (size_t i = 0; i < count; ++i) {
      if (batch.status[i] == TaskStatus::kOk) continue;
      result->set_status(static_cast<int>(i), static_cast<v1::TaskStatus>(batch.status[i]));
      if (result->errors_size() < static_cast<int>(kMaxTaskErrors)) {
        AddTaskError(batch, static_cast<uint32_t>(i), i, result);
      }
      // Clear the outputs of failed tasks, because staging memory that was not written may contain
      // another client's data.
      for (size_t c = 0; c < returned_.size(); ++c) {
        const uint64_t bytes = returned_[c].task_bytes;
        if (bytes == 0) continue;
        std::memset(result->mutable_outputs(static_cast<int>(c))->data() + i * bytes, 0, bytes);
      }
    }
  }

 private:
  const PlanSources& sources_;
  const v1::Batch& message_;  // Until Fill.
  const ClientId client_;
  ResolvedOperator op_;
  std::optional<Columns> columns_;  // Until Fill.
  Placement place_;
  // Buffers, until Fill moves them to the batch.
  KeptAlive hold_;
  bool trial_ = false;  // A version on trial may run the tasks once more.
  std::vector<uint32_t> outputs_;
  std::vector<ReturnedColumn> returned_;
};

}  // namespace

std::unique_ptr<Workload> MakeOperatorWorkload(const PlanSources& sources, const v1::Batch& message,
                                               ClientId client) {
  return std::make_unique<OperatorWorkload>(sources, message, client);
}

}  // namespace resident
