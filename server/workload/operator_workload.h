// OperatorWorkload: a batch of tasks of one operator (workload.h).
//
// Thread safety: one thread at a time.
#ifndef RESIDENT_SERVER_WORKLOAD_OPERATOR_WORKLOAD_H_
#define RESIDENT_SERVER_WORKLOAD_OPERATOR_WORKLOAD_H_

#include <memory>
#include <optional>
#include <vector>

#include "runtime/operators/registry/registry.h"
#include "server/workload/columns.h"
#include "server/workload/placement.h"
#include "server/workload/planner.h"
#include "server/workload/workload.h"

namespace resident {

class OperatorWorkload final : public Workload {
 public:
  OperatorWorkload(const PlanSources& sources, const v1::Batch& message, ClientId client)
      : sources_(sources), message_(message), client_(client) {}

  absl::Status Check() override;
  Needs ResourcesNeeded() const override;
  void Fill(const Ticket& ticket, RequestBatch& batch) override;
  void BuildResult(const RequestBatch& batch, v1::BatchResult* result) const override;

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

}  // namespace resident

#endif  // RESIDENT_SERVER_WORKLOAD_OPERATOR_WORKLOAD_H_
