// GraphModel: a version of a model: its plans, with the contents of its weights. Its requests are
// batches of one task each (model_workload.h): a quantum that executes all nodes, which requests of
// this version may share (model_run.h).
//
// Thread safety: all members may be called from any thread.
//
//   auto model = std::make_shared<GraphModel>(graphs, "ranker", stored, plans, charge);
//   std::unique_ptr<Workload> work = model->MakeWorkload(message, /*version=*/1);
#ifndef RESIDENT_SERVER_MODELS_GRAPH_MODEL_H_
#define RESIDENT_SERVER_MODELS_GRAPH_MODEL_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "resident/v1/models.pb.h"
#include "runtime/state/state_model.h"
#include "server/admission/budget.h"
#include "server/models/model_instances.h"
#include "server/models/model_plans.h"
#include "server/models/model_run.h"
#include "server/models/table/model_table.h"

namespace resident {

class GraphModel final : public ServedModel, public std::enable_shared_from_this<GraphModel> {
 public:
  // `stored`: what a restart restores of it, without the number and who loaded it. `charge`: of the
  // daemon's memory, for the weights.
  GraphModel(Graphs& graphs, std::string name, StoredModel::Version stored,
             std::shared_ptr<ModelPlans> plans, Budget::Charge charge)
      : graphs_(graphs),
        name_(std::move(name)),
        stored_(std::move(stored)),
        plans_(std::move(plans)),
        charge_(std::move(charge)) {}

  const std::string& content_hash() const override { return stored_.content_hash; }
  const StoredModel::Version& stored() const override { return stored_; }
  Counters CountServed(const DurationHistogram::Counts& earlier) const override;
  std::unique_ptr<Workload> MakeWorkload(const v1::Batch& message, uint32_t version) const override;
  void Describe(v1::ModelVersion* out) const override;

  const std::string& name() const { return name_; }
  Graphs& graphs() const { return graphs_; }
  const ModelInterface& interface() const { return plans_->interface(); }
  const std::shared_ptr<ModelPlans>& plans() const { return plans_; }

  // A request has ended. `rows`: 0: they are not independent.
  void CountRequest(bool ok, uint64_t rows) const {
    requests_.fetch_add(1, std::memory_order_relaxed);
    if (!ok) failed_.fetch_add(1, std::memory_order_relaxed);
    if (ok) rows_.fetch_add(std::max<uint64_t>(rows, 1), std::memory_order_relaxed);
  }
  // A quantum of the plan has ended without an error, after this time on the device.
  void CountRun(const ModelInstances& plan, uint64_t rows, uint64_t device_ns) const {
    ModelLine& line = plan.line();
    line.runs.fetch_add(1, std::memory_order_relaxed);
    runs_.fetch_add(1, std::memory_order_relaxed);
    device_times_.Observe(device_ns);
    line.row_limit.store(std::max<uint64_t>(rows * kBatchNs / std::max<uint64_t>(device_ns, 1), 1),
                         std::memory_order_relaxed);
  }

 private:
  Graphs& graphs_;
  const std::string name_;
  const StoredModel::Version stored_;
  const std::shared_ptr<ModelPlans> plans_;
  const Budget::Charge charge_;
  mutable std::atomic<uint64_t> requests_{0};
  mutable std::atomic<uint64_t> failed_{0};
  mutable std::atomic<uint64_t> rows_{0};
  mutable std::atomic<uint64_t> runs_{0};
  mutable DurationHistogram device_times_;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_MODELS_GRAPH_MODEL_H_
