// Planner: which kind of work a message asks for (workload.h), checked.
//
// Everything a client sends is checked here, before anything reaches a ring: names,
// counts, dtypes, shapes, and every offset and length against the bytes that are
// there. The work for each task is a few stores; all that is the same for all tasks of a
// column (lookups, signature, sizes) is done once.
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
#include "server/workload/request_batch.h"
#include "server/workload/workload.h"

namespace resident {

// What plans are made from.
struct PlanSources {
  const Limits* limits;
  const Registry* registry;
  const BufferTable* buffers;
  std::vector<Device*> devices;  // By index.
  // --task_time_limit; 0: none.
  std::chrono::milliseconds task_time_limit{10'000};
};

// Until when a batch with these options waits that has arrived now.
Clock::time_point BatchDeadline(const v1::BatchOptions& options, Clock::time_point call_deadline);

// The operator that a message asks for.
std::string FindOperatorName(const v1::Batch& message);

class Planner {
 public:
  explicit Planner(PlanSources sources) : sources_(std::move(sources)) {}

  // Errors: as Executor.Run documents. The message must not change or go until Fill.
  absl::StatusOr<std::unique_ptr<Workload>> Plan(const v1::Batch& message, ClientId client) const;

  static std::shared_ptr<RequestBatch> Fill(const v1::Batch& message, Clock::time_point deadline,
                                            std::unique_ptr<Workload> work, Ticket ticket);

 private:
  const PlanSources sources_;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_WORKLOAD_PLANNER_H_
