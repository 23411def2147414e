#include "server/graphs/graph_quanta.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "runtime/base/status_macros.h"
#include "runtime/device/errors.h"
#include "runtime/graph/limits.h"
#include "runtime/graph/values.h"
#include "server/graphs/errors.h"
#include "server/workload/work_bound.h"

namespace resident {
namespace {

// Records of one quantum at most, except that there is memory for those of one step.
constexpr uint64_t kMaxRecordBytes = 4u << 20;
// Events of one quantum at most.
constexpr uint64_t kMaxTraceBytes = 1u << 20;
// Of nodes that might not end in time, for one quantum, except for those of its first step.
constexpr size_t kMaxChecks = 4096;
constexpr uint64_t kQuantumNs = graph::kQuantumTime.count();

static_assert(graph::kMaxRuns <= kMaxOpenGraphs, "each run has one quantum at a time");
static_assert(graph::kMaxScalars == kMaxGraphScalars);

}  // namespace

GraphQuanta::GraphQuanta(const QuantumSources& sources, const graph::CheckedGraph& checked,
                         const graph::StreamRecords& records, const graph::Lowering::Gang& gang,
                         const Placement& place)
    : sources_(sources),
      graph_(checked.graph),
      lowering_(std::make_unique<const graph::Lowering>(checked, records, gang)),
      state_offset_(lowering_->image_bytes()),  // A multiple of 64.
      device_(place.device),
      epoch_(place.session->epoch()),
      worker_ns_(kQuantumNs) {}

std::optional<GraphQuanta::Estimate> GraphQuanta::EstimateMemory(
    const QuantumSources& sources, const graph::CheckedGraph& checked,
    const std::vector<uint32_t>& streams) {
  bool any = false;
  uint32_t gang_workers = 0;
  for (const Device* const device : sources.devices) {
    const auto session = device->session();
    if (session == nullptr || !session->info().traits.executes_graphs) continue;
    any = true;
    gang_workers = std::max(gang_workers, session->info().traits.graph_workers);
  }
  if (!any) return std::nullopt;
  if (!graph::Lowering::HasTaskStrides(checked.graph)) return std::nullopt;  // As the planner.
  Estimate estimate{.records = graph::StreamRecords(checked.graph, streams)};
  const std::optional<uint64_t> bytes =
      graph::Lowering::EstimateBytes(checked, estimate.records, gang_workers);
  if (!bytes.has_value()) return std::nullopt;
  // The lowered form, the image, and a message with a part of it or all of it.
  estimate.host_bytes = 4 * *bytes;
  return estimate;
}

std::unique_ptr<GraphQuanta> GraphQuanta::Create(const QuantumSources& sources,
                                                 const graph::CheckedGraph& checked,
                                                 const graph::StreamRecords& records,
                                                 const Placement& place) {
  const EngineTraits& traits = place.session->info().traits;
  if (!traits.executes_graphs) return nullptr;
  graph::Lowering::Gang gang;
  gang.workers = traits.graph_workers;
  if (gang.workers > 0 && !records.streams().empty()) {
    const auto copy = sources.registry.Resolve(graph::Lowering::kCopyOperator, 0);
    if (copy.ok()) gang.copy_split = copy->version->split;
  }
  auto quanta =
      std::unique_ptr<GraphQuanta>(new GraphQuanta(sources, checked, records, gang, place));
  const graph::Lowering& lowering = *quanta->lowering_;
  if (lowering.image_bytes() > kMaxImageBytes) return nullptr;
  const uint64_t record_bytes = lowering.record_bytes();
  if (record_bytes > sources.admission.PieceBytes(place.device, record_bytes)) return nullptr;
  return quanta;
}

absl::Status GraphQuanta::Place(ClientId client, absl::Span<const GraphPlace> places,
                                std::shared_ptr<const Buffer> memory) {
  if (memory->epoch != epoch_) {
    return errors::DeviceUnavailable(device_, "its engine is being replaced");
  }
  absl::flat_hash_map<uint64_t, uint64_t> addresses_of_buffers;
  auto buffers = std::make_shared<Buffers>();
  const auto find = [&](const GraphPlace& place) -> absl::StatusOr<uint64_t> {
    const auto [found, is_new] = addresses_of_buffers.try_emplace(place.buffer);
    if (is_new) {
      ASSIGN_OR_RETURN(const std::shared_ptr<const Buffer> buffer,
                       sources_.buffers.Find(client, place.buffer));
      if (buffer->memory == nullptr) {
        return errors::LostBuffer(buffer->id, buffer->device, buffer->lost_cause);
      }
      if (buffer->epoch != epoch_) {
        return errors::DeviceUnavailable(buffer->device, "its engine is being replaced");
      }
      found->second = buffer->memory->address;
      buffers->push_back(buffer);
    }
    return found->second + place.offset;
  };
  std::vector<uint64_t> addresses(places.size());
  for (size_t i = 0; i < places.size(); ++i) {
    if (graph_.tensors[i].root != i) continue;
    ASSIGN_OR_RETURN(addresses[i], find(places[i]));
  }
  SetMemory(addresses, std::move(buffers), std::move(memory));
  return absl::OkStatus();
}

absl::Status GraphQuanta::PlaceAt(absl::Span<const uint64_t> addresses,
                                  std::shared_ptr<const Buffer> memory) {
  if (memory->epoch != epoch_) {
    return errors::DeviceUnavailable(device_, "its engine is being replaced");
  }
  SetMemory(addresses, std::make_shared<Buffers>(), std::move(memory));
  return absl::OkStatus();
}

void GraphQuanta::SetMemory(absl::Span<const uint64_t> addresses, std::shared_ptr<Buffers> buffers,
                            std::shared_ptr<const Buffer> memory) {
  image_address_ = memory->memory->address;
  buffers->push_back(std::move(memory));
  buffers_ = std::move(buffers);
  image_ = lowering_->Image(addresses);
  streams_ = lowering_->CountStreams(addresses);
}

std::optional<uint32_t> GraphQuanta::failed_node() const {
  if (!failed_row_.has_value()) return failed_node_;
  return static_cast<uint32_t>(std::find(rows().begin(), rows().end(), *failed_row_) -
                               rows().begin());
}

uint64_t GraphQuanta::quantum_bytes() const {
  return sizeof(GraphQuantum) + (lowering_->operator_rows() + 1) * sizeof(GraphOperator) + 64;
}

absl::StatusOr<bool> GraphQuanta::Resolve(bool skip_shadows) {
  std::vector<ResolvedOperator> operators;
  bool shadow = false;
  for (uint32_t row = 0; row < lowering_->operator_rows(); ++row) {
    const bool copy = row == graph_.operators.size();
    failed_row_ = row;
    ASSIGN_OR_RETURN(auto op,
                     sources_.registry.Resolve(
                         copy ? graph::Lowering::kCopyOperator : graph_.operators[row].name,
                         copy ? 0 : graph_.operators[row].wanted_version));
    // The arguments of the image are those of the signature with which the graph was checked.
    if (!copy && !op.version->op->signature().SameAs(graph_.operators[row].signature)) {
      return errors::OperatorChangedInRun(graph_.operators[row].name);
    }
    if (op.shadow != nullptr && skip_shadows) {
      sources_.registry.Withdraw(op);
      op.shadow = nullptr;
    }
    shadow |= op.shadow != nullptr;
    operators.push_back(std::move(op));
  }
  failed_row_.reset();
  operators_ = std::move(operators);
  if (!shadow) return true;
  // The nodes resolve their operators again, and one of them gets the shadow.
  for (uint32_t row = 0; row < graph_.operators.size(); ++row) {
    if (graph_.operators[row].wanted_version == 0) sources_.registry.Withdraw(operators_[row]);
  }
  return false;
}

absl::Status GraphQuanta::CheckNode(uint32_t index, const EngineInfo& engine,
                                    const std::vector<double>* values) {
  const graph::Node& node = graph_.nodes[index];
  const OperatorVersion& version = *operators_[node.op].version;
  const size_t parameters = version.op->signature().parameters().size();
  absl::InlinedVector<Shape, 8> shapes(parameters);
  absl::InlinedVector<Shape, 8> strides(parameters);
  absl::InlinedVector<double, 8> scalars(values == nullptr ? 0 : parameters);
  for (size_t i = 0; i < parameters; ++i) {
    graph::Argument argument;
    if (i < node.argument_count) {
      argument = graph_.ArgumentsOf(node)[i];
    } else {
      graph::SetDefault(version.op->signature().parameters()[i], &argument);
    }
    if (argument.kind == graph::Argument::Kind::kNoTensor) {
      shapes[i] = {0};
    } else if (argument.kind == graph::Argument::Kind::kTensor) {
      const graph::Extents extents = values == nullptr
                                         ? graph::MaxExtents(graph_, argument.view)
                                         : graph::ExtentsAt(graph_, argument.view, *values);
      for (const graph::Extent& extent : extents) {
        shapes[i].push_back(extent.size);
        strides[i].push_back(extent.stride / SizeOf(argument.view.dtype));
      }
    } else if (values != nullptr) {
      scalars[i] = graph::Evaluate(graph::ToExpression(graph_, argument), *values);
    }
  }
  const SplitRule& split = version.split;
  const uint64_t chunks = split.Chunks([&](int parameter) -> absl::Span<const int64_t> {
    return shapes[static_cast<size_t>(parameter)];
  });
  absl::Status status = CheckWork(version, CountWork(version, shapes, strides, scalars), chunks,
                                  {device_, engine, sources_.task_time_limit});
  if (!status.ok()) failed_node_ = index;
  return status;
}

absl::Status GraphQuanta::LimitSteps(const EngineInfo& engine, absl::Span<const double> values,
                                     u32* max_steps) {
  if (!large_nodes_.has_value()) {
    large_nodes_.emplace();
    for (uint32_t node = 0; node < graph_.nodes.size(); ++node) {
      if (!CheckNode(node, engine, nullptr).ok()) large_nodes_->push_back(node);
    }
    failed_node_.reset();
  }
  if (large_nodes_->empty()) return absl::OkStatus();
  const auto max = static_cast<u32>(std::max<size_t>(1, kMaxChecks / large_nodes_->size()));
  *max_steps = std::min(*max_steps, max);
  std::vector<double> of_step(values.begin(), values.end());
  for (u32 step = 0; step < *max_steps; ++step) {
    for (const uint32_t node : *large_nodes_) {
      absl::Status status = CheckNode(node, engine, &of_step);
      if (status.ok()) continue;
      if (step == 0) return status;
      failed_node_.reset();
      *max_steps = step;
      return absl::OkStatus();
    }
    if (!graph_.loop.has_value()) break;
    of_step = graph::NextValues(graph_, of_step);
    // The run ends when a scalar leaves its range.
    for (const graph::Loop::Update& update : graph_.loop->updates) {
      const graph::Scalar& scalar = graph_.scalars[update.scalar];
      const double value = of_step[update.scalar];
      if (!(value >= scalar.min && value <= scalar.max)) return absl::OkStatus();
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<QuantumWorkload>> GraphQuanta::Plan(
    const Steps& steps, absl::Span<const double> values) {
  QuantumWorkload::Plan plan;
  plan.device = device_;
  plan.session = sources_.devices[device_]->session();
  if (plan.session == nullptr || plan.session->epoch() != epoch_) {
    return errors::DeviceUnavailable(device_, "the engine that executed the graph has ended");
  }
  if (!in_step_) {
    ASSIGN_OR_RETURN(const bool resolved, Resolve(steps.skip_shadows));
    if (!resolved) return std::unique_ptr<QuantumWorkload>();
  }
  plan.descriptor.operator_slot = kGraphSlot;
  plan.descriptor.flags = kTaskGraph;
  plan.descriptor.image = image_address_;
  plan.descriptor.state = image_address_ + state_offset_;
  plan.descriptor.gang = lowering_->gang();
  plan.descriptor.streams = streams_;
  GraphQuantum& quantum = plan.quantum;
  quantum.fresh = in_step_ ? 0 : 1;
  quantum.first_step = steps.first_step;
  quantum.last_step = steps.last_step;
  quantum.budget_ns = static_cast<u64>(steps.budget.count());
  quantum.record_bytes = lowering_->record_bytes();
  const uint64_t room = sources_.admission.PieceBytes(device_, kMaxRecordBytes);
  const uint64_t fitting = room / std::max<uint64_t>(quantum.record_bytes, 1);
  quantum.max_steps = static_cast<u32>(
      std::clamp<uint64_t>(std::min(steps.max_steps, fitting), 1, kMaxQuantumSteps));
  RETURN_IF_ERROR(LimitSteps(plan.session->info(), values, &quantum.max_steps));
  if (steps.trace) {
    quantum.trace_capacity = static_cast<u32>(
        sources_.admission.PieceBytes(device_, kMaxTraceBytes) / sizeof(GraphTraceEvent));
    // The number of chunks is known after the first step, and may grow until the next one.
    const uint64_t events = 2 * traced_events_ / std::max<uint64_t>(traced_steps_, 1);
    quantum.max_steps = static_cast<u32>(
        traced_steps_ == 0
            ? 1
            : std::clamp<uint64_t>(quantum.trace_capacity / std::max<uint64_t>(events, 1), 1,
                                   quantum.max_steps));
  }
  std::copy(values.begin(), values.end(), quantum.scalars);
  plan.records = records_;
  plan.nodes.rows = lowering_->rows();
  plan.nodes.worker_ns = worker_ns_;
  plan.nodes.workers = workers_;
  plan.keep_alive.push_back(buffers_);
  for (const ResolvedOperator& op : operators_) {
    const SplitRule& split = op.version->split;
    plan.operators.push_back(
        {.slot = op.version->slot,
         .split_parameter = split.parameter,
         .by_first_dim = split.by_first_dim,
         .starts_early = op.version->early_reads.has_value() ? kStartsEarly | kTakesPages : 0,
         .grain = split.grain,
         .limit = split.limit,
         .other_parameter = split.other_parameter,
         .other_grain = split.other_grain,
         .tasks = 0,
         .ns = 0});
    plan.nodes.slots.push_back(op.version->slot);
    plan.keep_alive.push_back(op.version);
  }
  return std::make_unique<QuantumWorkload>(std::move(plan));
}

void GraphQuanta::Read(const QuantumWorkload& work, const QuantumReport& report,
                       uint64_t duration_ns) {
  const GraphQuantum& planned = work.planned();
  in_step_ = report.in_step && report.end == GraphEnd::kQuantum;
  traced_events_ += report.trace.size() + report.dropped_events;
  traced_steps_ += report.steps;
  records_.clear();
  if (in_step_ && report.steps < planned.max_steps) {
    records_.assign(reinterpret_cast<const char*>(work.records(report.steps)),
                    planned.record_bytes);
  }
  worker_ns_ = 0;
  for (size_t row = 0; row < operators_.size(); ++row) {
    const QuantumReport::Row& op = report.operators[row];
    worker_ns_ += op.ns;
    if (op.tasks == 0) continue;
    OperatorStats* const stats = operators_[row].stats(device_);
    stats->CountTasks(static_cast<int>(TaskStatus::kOk), op.tasks);
    stats->device.Observe(op.ns / op.tasks, op.tasks);
  }
  const uint64_t workers = (worker_ns_ + duration_ns / 2) / std::max<uint64_t>(duration_ns, 1);
  workers_ = static_cast<uint32_t>(std::clamp<uint64_t>(workers, 1, kMaxWorkers));
}

void GraphQuanta::CountFailure(uint32_t node, TaskStatus status) {
  operators_[rows()[node]].stats(device_)->CountTasks(static_cast<int>(status), 1);
}

}  // namespace resident
