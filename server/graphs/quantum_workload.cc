#include "server/graphs/quantum_workload.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cassert>
#include <cstring>
#include <utility>

#include "server/workload/result_builder.h"

namespace resident {
namespace {

uint64_t RoundUp(uint64_t bytes) {
  constexpr uint64_t kAlignment = 64;
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

uint64_t QuantumWorkload::records_at() const {
  return RoundUp(operators_at() + plan_.operators.size() * sizeof(GraphOperator));
}

uint64_t QuantumWorkload::trace_at() const {
  const uint64_t end = records_at() + plan_.quantum.max_steps * plan_.quantum.record_bytes;
  return plan_.quantum.trace_capacity == 0 ? end : RoundUp(end);
}

Needs QuantumWorkload::ResourcesNeeded() const {
  Needs needs;
  needs.device = plan_.device;
  needs.session = plan_.session;
  needs.tasks = 1;
  needs.staging_bytes = trace_at() + plan_.quantum.trace_capacity * sizeof(GraphTraceEvent);
  needs.host_bytes = sizeof(TaskDescriptor) + kTaskOutcomeBytes +
                     plan_.operators.size() * (sizeof(GraphOperator) + sizeof(uint32_t));
  return needs;
}

void QuantumWorkload::Fill(const Ticket& ticket, RequestBatch& batch) {
  FillAt(*ticket.staging(), batch);
}

void QuantumWorkload::FillAt(const StagingMemory& staging, RequestBatch& batch) {
  assert(staging.size_bytes >= ResourcesNeeded().staging_bytes && staging.address % 64 == 0);
  host_ = new (staging.host) GraphQuantum(plan_.quantum);
  host_->operators = staging.address + operators_at();
  host_->records = staging.address + records_at();
  if (plan_.quantum.trace_capacity != 0) host_->trace = staging.address + trace_at();
  std::memcpy(staging.host + operators_at(), plan_.operators.data(),
              plan_.operators.size() * sizeof(GraphOperator));
  std::memcpy(staging.host + records_at(), plan_.records.data(), plan_.records.size());
  GraphDescriptor descriptor = plan_.descriptor;
  descriptor.quantum = staging.address;
  batch.device = plan_.device;
  batch.epoch = plan_.session->epoch();
  batch.tasks.push_back(std::bit_cast<TaskDescriptor>(descriptor));
  nodes_ = plan_.nodes.rows->size();
  batch.graph = std::make_unique<const GraphNodes>(std::move(plan_.nodes));
  batch.keep_alive = std::move(plan_.keep_alive);
  plan_.session = nullptr;
}

void QuantumWorkload::BuildResult(const RequestBatch& batch, v1::BatchResult* result) const {
  AddOutcome(batch, result);
}

void QuantumWorkload::Abort() const {
  assert(host_ != nullptr);
  std::atomic_ref<u32>(host_->abort).store(1, std::memory_order_release);
}

QuantumReport QuantumWorkload::ReadReport() const {
  assert(host_ != nullptr);
  GraphQuantum quantum;
  std::vector<GraphOperator> operators(plan_.operators.size());
  const auto* const staging = reinterpret_cast<const uint8_t*>(host_);
  std::memcpy(&quantum, staging, sizeof(quantum));
  std::memcpy(operators.data(), staging + operators_at(), operators.size() * sizeof(GraphOperator));
  // The compiler must not read a value again after it was checked.
  std::atomic_signal_fence(std::memory_order_seq_cst);

  QuantumReport report;
  report.end = static_cast<GraphEnd>(quantum.end);
  const uint64_t max_steps = std::min<uint64_t>(plan_.quantum.max_steps,
                                                plan_.quantum.last_step - plan_.quantum.first_step);
  report.steps = static_cast<uint32_t>(std::min<uint64_t>(quantum.steps, max_steps));
  report.in_step = quantum.in_step != 0;
  if (report.end == GraphEnd::kFailed && quantum.failed_node < nodes_) {
    report.failed_node = quantum.failed_node;
    report.failed_step = std::clamp<uint64_t>(quantum.failed_step, plan_.quantum.first_step,
                                              plan_.quantum.last_step - 1);
  }
  for (const GraphOperator& op : operators) report.operators.push_back({op.tasks, op.ns});
  ReadTrace(quantum.trace_events, max_steps, &report);
  return report;
}

void QuantumWorkload::ReadTrace(uint32_t events, uint64_t steps, QuantumReport* report) const {
  const uint32_t capacity = plan_.quantum.trace_capacity;
  if (capacity == 0) return;
  std::vector<GraphTraceEvent>& trace = report->trace;
  trace.resize(std::min(events, capacity));
  std::memcpy(trace.data(), reinterpret_cast<const uint8_t*>(host_) + trace_at(),
              trace.size() * sizeof(GraphTraceEvent));
  std::atomic_signal_fence(std::memory_order_seq_cst);  // As in ReadReport.
  std::erase_if(trace, [&](const GraphTraceEvent& event) {
    return event.node >= nodes_ || event.step >= steps || event.worker >= kMaxWorkers ||
           event.wait_ns > event.begin_ns || event.begin_ns > event.end_ns;
  });
  report->dropped_events = events - trace.size();
}

const uint8_t* QuantumWorkload::records(uint32_t step) const {
  assert(host_ != nullptr && step < planned().max_steps);
  const uint64_t offset = step * plan_.quantum.record_bytes;
  return reinterpret_cast<const uint8_t*>(host_) + records_at() + offset;
}

}  // namespace resident
