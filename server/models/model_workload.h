// ModelWorkload: the work of a request to a model (server/workload/workload.h).
//
//   Check ──▶ (a ticket, with a seat in a run: model_run.h)
//     ──▶ Prepare: the operators that serve now
//     ──▶ Fill: inputs to staging memory ──▶ (the quantum ends) ──▶ BuildResult: outputs
//
// Thread safety: as for Workload.
#ifndef RESIDENT_SERVER_MODELS_MODEL_WORKLOAD_H_
#define RESIDENT_SERVER_MODELS_MODEL_WORKLOAD_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "resident/v1/executor.pb.h"
#include "server/graphs/quantum_workload.h"
#include "server/models/graph_model.h"
#include "server/models/model_instances.h"
#include "server/workload/workload.h"

namespace resident {

class ModelWorkload final : public Workload {
 public:
  ModelWorkload(std::shared_ptr<const GraphModel> model, const v1::Batch& message, uint32_t version)
      : model_(std::move(model)),
        message_(message),
        version_(version),
        inputs_(interface().inputs.size()),
        plan_sizes_(interface().dimensions.size()) {}

  absl::Status Check() override;
  Needs ResourcesNeeded() const override;
  absl::Status Prepare(const Ticket& ticket) override;
  void Fill(const Ticket& ticket, RequestBatch& batch) override;
  bool WantsShadow(const RequestBatch&) const override { return false; }
  void BuildResult(const RequestBatch& batch, v1::BatchResult* result) const override;

  // The size of the outermost dimensions, if all have the same scalar (ModelRows); 0: they do not.
  uint64_t rows() const;
  // Of the graph, by index.
  const std::vector<double>& scalars() const { return scalars_; }
  // Of a request that shares a run (model_run.h): keeps what BuildResult will return, from the task
  // that ran, or for one that did not run. `first_row`: where the outputs begin. An empty message:
  // that of the batch's status.
  void SetResult(const RequestBatch& ended, const QuantumReport& report,
                 const ModelInstance& instance, uint64_t first_row) const {
    ReadResult(ended, report, instance, first_row, &result_);
  }
  void SetError(const RequestBatch& batch, const std::string& message) const;

 private:
  // Of the largest sizes.
  const ModelInterface& interface() const { return model_->interface(); }
  std::string ScalarName(uint32_t scalar) const { return interface().scalar_names[scalar]; }
  // The size of the outermost dimension, if it is dynamic.
  uint64_t Rows(const ModelPort& port) const {
    return port.scalar == graph::kNone ? 0 : static_cast<uint64_t>(scalars_[port.scalar]);
  }
  // At most: sizes that are computed from several others may be smaller.
  uint64_t OutputBytes() const;

  absl::Status CheckInputs();
  // Also sets the sizes of the input in `sizes_` and `plan_sizes_`.
  absl::Status CheckInput(const ModelPort& port, const v1::ModelTensor& tensor);
  absl::Status CheckOutputs();
  absl::Status SetScalars();

  // Counts the request, too.
  void ReadResult(const RequestBatch& ended, const QuantumReport& report,
                  const ModelInstance& instance, uint64_t first_row, v1::BatchResult* result) const;
  // The error of the node that failed, or of the request as a whole.
  static void AddNodeError(const RequestBatch& ended, const QuantumReport& report,
                           const ModelInstance& instance, v1::BatchResult* result);

  const std::shared_ptr<const GraphModel> model_;
  const v1::Batch& message_;
  const uint32_t version_;
  // By index in ModelInterface::inputs; until Fill.
  std::vector<const v1::ModelTensor*> inputs_;
  std::vector<size_t> wanted_;            // Indices in ModelInterface::outputs.
  std::map<uint32_t, uint64_t> sizes_;    // By scalar.
  PlanSizes plan_sizes_;                  // 0: not known yet.
  std::shared_ptr<ModelInstances> plan_;  // Set by Check.
  std::vector<double> scalars_;
  // Of a request that is alone in its run.
  std::unique_ptr<QuantumWorkload> quantum_;
  ModelInstance* instance_ = nullptr;  // On loan to the batch's ticket.
  // Of one that is not.
  mutable v1::BatchResult result_;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_MODELS_MODEL_WORKLOAD_H_
