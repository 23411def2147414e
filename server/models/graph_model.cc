#include "server/models/graph_model.h"

#include <algorithm>
#include <vector>

#include "server/models/model_workload.h"

namespace resident {
namespace {

void FillPort(const ModelPort& port, v1::ModelTensorInfo* out) {
  out->set_name(port.name);
  out->set_dtype(static_cast<v1::DType>(port.dtype));
  for (size_t d = 0; d < port.shape.size(); ++d) {
    const bool of_scalar = d == 0 && port.scalar != graph::kNone;
    if (of_scalar) out->set_max(static_cast<uint64_t>(port.shape[0]));
    out->add_shape(of_scalar || port.AxisOf(d) != ModelPort::kFixedAxis ? -1 : port.shape[d]);
    out->add_most(static_cast<uint64_t>(port.shape[d]));
  }
}

}  // namespace

std::unique_ptr<Workload> GraphModel::MakeWorkload(const v1::Batch& message,
                                                   uint32_t version) const {
  return std::make_unique<ModelWorkload>(shared_from_this(), message, version);
}

ServedModel::Counters GraphModel::CountServed(const DurationHistogram::Counts& earlier) const {
  Counters counters;
  // First: a request counts before it fails.
  counters.failed = failed_.load();
  counters.requests = requests_.load();
  counters.device_times = device_times_.counts();
  counters.p99_ns = device_times_.Percentile(0.99, earlier);
  return counters;
}

void GraphModel::Describe(v1::ModelVersion* out) const {
  const ModelParts& parts = plans_->parts();
  out->set_content_hash(content_hash());
  out->set_device(parts.device);
  out->set_nodes(parts.largest->graph->nodes());
  out->set_weight_bytes(parts.weights->bytes());
  out->set_instances(plans_->count());
  out->set_max_instances(parts.max_instances);
  for (const ModelPort& port : interface().inputs) FillPort(port, out->add_inputs());
  for (const ModelPort& port : interface().outputs) FillPort(port, out->add_outputs());
  const graph::Graph& graph = parts.checked->graph;
  for (uint32_t i = 0; i < graph.scalars.size(); ++i) {
    const bool is_size = std::any_of(interface().inputs.begin(), interface().inputs.end(),
                                     [&](const ModelPort& port) { return port.scalar == i; });
    if (is_size) continue;
    const graph::Scalar& scalar = graph.scalars[i];
    v1::GraphScalar* const to = out->add_scalars();
    to->set_name(interface().scalar_names[i]);
    to->set_dtype(static_cast<v1::DType>(scalar.dtype));
    to->set_least(scalar.min);
    to->set_most(scalar.max);
    if (scalar.initial.has_value()) to->set_initial(*scalar.initial);
  }
  out->set_requests(requests_.load(std::memory_order_relaxed));
  out->set_device_ns(device_times_.sum_ns());
  out->set_failed(failed_.load(std::memory_order_relaxed));
  out->set_rows(rows_.load(std::memory_order_relaxed));
  out->set_executions(runs_.load(std::memory_order_relaxed));
  for (const ModelDimension& dimension : interface().dimensions) {
    v1::ModelDimension* const to = out->add_dimensions();
    to->set_name(dimension.name);
    to->set_most(static_cast<uint64_t>(dimension.max));
  }
  if (parts.source != nullptr) {
    for (const auto& plan : plans_->List()) {
      v1::ModelPlan* const to = out->add_plans();
      plan->Describe(to);
      to->set_executions(plan->line().runs.load(std::memory_order_relaxed));
    }
  }
  out->set_plan_misses(plans_->misses.load(std::memory_order_relaxed));
  out->set_max_batch(plans_->max_batch());
  if (out->max_batch() != 0) return;
  const ModelRows& rows = plans_->rows();
  out->set_not_batched(!rows.independent() ? rows.reason
                       : rows.max == 1     ? "a request has one row"
                                           : "the load has turned it off");
}

}  // namespace resident
