// Planner: creates the kind of work that a message requests (workload.h), and checks it.
//
// All data from a client is checked here, before anything reaches a ring: names, counts, dtypes,
// shapes, and every offset and length against the available bytes. The work for each task is a few
// stores; checks that are the same for all tasks of a column (lookups, signature, sizes) are done
// once.
//
// Thread safety: all members may be called from any thread at once.
//
//   Planner planner({&limits, &registry, &buffers, devices});
//   ASSIGN_OR_RETURN(auto work, planner.Plan(message, client));
//   ... a ticket for work->ResourcesNeeded() ...
//   auto batch = Planner::Fill(message, deadline, std::move(work), std::move(ticket));
#ifndef RESIDENT_SERVER_WORKLOAD_PLANNER_H_
#define RESIDENT_SERVER_WORKLOAD_PLANNER_H_

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "resident/v1/executor.pb.h"
#include "runtime/base/limits.h"
#include "runtime/device/buffer_table.h"
#include "runtime/device/device.h"
#include "runtime/operators/registry/registry.h"
#include "server/models/table/model_table.h"
#include "server/workload/workload.h"

namespace resident {

// The inputs of a plan.
struct PlanSources {
  const Limits* limits;
  const Registry* registry;
  const BufferTable* buffers;
  std::vector<Device*> devices;  // By index.
  // --task_time_limit; 0: none.
  std::chrono::milliseconds task_time_limit{10'000};
  // Staging memory of a device. A regular batch that would need more with its ranges, or more than
  // a kRangeStagingShare'th of it for these alone, runs task by task.
  uint64_t staging_bytes = 0;
  // Null: there are no models.
  const ModelTable* models = nullptr;
};

// The deadline of a batch with these options that arrives at the time `now`.
Clock::time_point BatchDeadline(const v1::BatchOptions& options, Clock::time_point call_deadline,
                                Clock::time_point now);

// The name of the operator or model that a message requests.
std::string FindOperatorName(const v1::Batch& message);

// The version that a batch names, as views of the message. INVALID_ARGUMENT: it names several, or
// what cannot be a content hash.
absl::StatusOr<VersionRef> ReadVersion(const v1::OperatorTasks& tasks);
absl::StatusOr<VersionRef> ReadVersion(const v1::FluxPrograms& programs);

// BatchResult.content_hash of a batch that `version` serves: empty unless the batch named a content
// hash or a label.
template <typename Work>
std::string ContentHashFor(const Work& work, const OperatorVersion& version) {
  return work.content_hash().empty() && work.label().empty() ? std::string()
                                                             : version.spec.content_hash;
}

class Planner {
 public:
  explicit Planner(PlanSources sources) : sources_(std::move(sources)) {}

  // Errors: see Executor.Run. The message must stay valid and unchanged until Fill.
  absl::StatusOr<std::unique_ptr<Workload>> Plan(const v1::Batch& message, ClientId client) const;

  const PlanSources& sources() const { return sources_; }

  static std::shared_ptr<RequestBatch> Fill(const v1::Batch& message, Clock::time_point deadline,
                                            std::unique_ptr<Workload> work, Ticket ticket);
  // The same for work of the daemon, which has no message. REQUIRES: Check has returned OK.
  static std::shared_ptr<RequestBatch> Fill(Clock::time_point deadline,
                                            std::unique_ptr<Workload> work, Ticket ticket);

 private:
  const PlanSources sources_;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_WORKLOAD_PLANNER_H_
