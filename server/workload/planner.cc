#include "server/workload/planner.h"

#include <algorithm>
#include <utility>

#include "runtime/base/status_macros.h"
#include "runtime/operators/errors.h"
#include "server/workload/errors.h"
#include "server/workload/flux_workload.h"
#include "server/workload/operator_workload.h"

namespace resident {
namespace {

absl::StatusOr<std::unique_ptr<Workload>> MakeWorkload(const PlanSources& sources,
                                                       const v1::Batch& message, ClientId client) {
  switch (message.work_case()) {
    case v1::Batch::kTasks:
      return MakeOperatorWorkload(sources, message, client);
    case v1::Batch::kPrograms:
      return MakeFluxWorkload(sources, message);
    case v1::Batch::kModel: {
      if (sources.models == nullptr) break;
      ASSIGN_OR_RETURN(const ModelTable::Found found,
                       sources.models->Find(message.model().model(), message.model().version()));
      return found.served->MakeWorkload(message, found.version);
    }
    case v1::Batch::WORK_NOT_SET:
      break;
  }
  return errors::EmptyBatch();
}

template <typename Work>
absl::StatusOr<VersionRef> ReadVersionField(const Work& work) {
  VersionRef version(work.version());
  if (work.content_hash().empty() && work.label().empty()) return version;
  if (version.number != 0 || (!work.content_hash().empty() && !work.label().empty())) {
    return errors::SeveralVersionNames(work.operator_());
  }
  version.content_hash = work.content_hash();
  version.label = work.label();
  if (work.label().empty() && !IsContentHash(version.content_hash)) {
    return errors::BadContentHash(work.content_hash());
  }
  return version;
}

std::shared_ptr<RequestBatch> MakeBatch(uint64_t id, bool in_order, Clock::time_point deadline,
                                        std::unique_ptr<Workload> work, Ticket ticket) {
  auto batch = std::make_shared<RequestBatch>();
  batch->id = id;
  batch->deadline = deadline;
  batch->in_order = in_order;
  work->Fill(ticket, *batch);
  batch->ticket = std::move(ticket);
  batch->work = std::move(work);
  return batch;
}

}  // namespace

Clock::time_point BatchDeadline(const v1::BatchOptions& options, Clock::time_point call_deadline,
                                Clock::time_point now) {
  if (options.timeout_us() == 0) return call_deadline;
  // A timeout over a century counts as none, so that the addition cannot overflow.
  constexpr uint64_t kMaxUs = uint64_t{100} * 365 * 24 * 3600 * 1'000'000;
  return std::min(call_deadline,
                  now + std::chrono::microseconds(std::min(options.timeout_us(), kMaxUs)));
}

std::string FindOperatorName(const v1::Batch& message) {
  if (message.has_tasks()) return message.tasks().operator_();
  if (message.has_model()) return message.model().model();
  return FindFluxOperatorName(message.programs());
}

absl::StatusOr<VersionRef> ReadVersion(const v1::OperatorTasks& tasks) {
  return ReadVersionField(tasks);
}

absl::StatusOr<VersionRef> ReadVersion(const v1::FluxPrograms& programs) {
  return ReadVersionField(programs);
}

absl::StatusOr<std::unique_ptr<Workload>> Planner::Plan(const v1::Batch& message,
                                                        ClientId client) const {
  if (!v1::BatchOptions::Ordering_IsValid(message.options().ordering())) {
    return errors::UnknownEnum("BatchOptions.ordering", message.options().ordering(),
                               "ORDERING_UNORDERED, ORDERING_IN_ORDER");
  }
  if (!v1::Isolation_IsValid(message.options().require_isolation())) {
    return errors::UnknownEnum(
        "BatchOptions.require_isolation", message.options().require_isolation(),
        "ISOLATION_UNSPECIFIED, ISOLATION_TRUSTED, ISOLATION_STOPPABLE, ISOLATION_CONFINED");
  }
  if (message.options().require_isolation() != v1::ISOLATION_UNSPECIFIED && !message.has_tasks()) {
    return errors::IsolationOfOtherWork();
  }
  ASSIGN_OR_RETURN(std::unique_ptr<Workload> work, MakeWorkload(sources_, message, client));
  RETURN_IF_ERROR(work->Check());
  return work;
}

std::shared_ptr<RequestBatch> Planner::Fill(const v1::Batch& message, Clock::time_point deadline,
                                            std::unique_ptr<Workload> work, Ticket ticket) {
  const bool in_order = message.options().ordering() == v1::BatchOptions::ORDERING_IN_ORDER;
  return MakeBatch(message.id(), in_order, deadline, std::move(work), std::move(ticket));
}

std::shared_ptr<RequestBatch> Planner::Fill(Clock::time_point deadline,
                                            std::unique_ptr<Workload> work, Ticket ticket) {
  return MakeBatch(/*id=*/0, /*in_order=*/false, deadline, std::move(work), std::move(ticket));
}

}  // namespace resident
