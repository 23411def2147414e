// QuantumWorkload: a quantum of a graph that an engine executes, as a batch of one task
// (workload.h). server/graphs/graph_quanta.h plans it.
//
// Thread safety: one thread at a time, but for Abort.
#ifndef RESIDENT_SERVER_GRAPHS_QUANTUM_WORKLOAD_H_
#define RESIDENT_SERVER_GRAPHS_QUANTUM_WORKLOAD_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "kernels/graph/graph_task.h"
#include "server/workload/workload.h"

namespace resident {

// What an engine reports of a quantum that has ended: a copy, in which all numbers of nodes and
// steps are within the quantum's bounds. The counts of tasks and the times are those that it
// reports. The engine's process, in which installed operators run, can write any values, at any
// time.
struct QuantumReport {
  struct Row {
    uint64_t tasks = 0;
    uint64_t ns = 0;
  };

  GraphEnd end = GraphEnd::kNone;
  uint32_t steps = 0;
  bool in_step = false;
  // The node of the image that failed, for kFailed.
  std::optional<uint32_t> failed_node;
  uint64_t failed_step = 0;  // Of the run.
  // What each row of the table of operators executed.
  std::vector<Row> operators;
  // Filled for a run that is traced: the nodes are those of the image, steps those of the quantum.
  std::vector<GraphTraceEvent> trace;
  // Events that are missing: there was no room for them, or the engine wrote invalid values.
  uint64_t dropped_events = 0;
};

class QuantumWorkload final : public Workload {
 public:
  struct Plan {
    uint32_t device = 0;
    std::shared_ptr<EngineSession> session;
    GraphDescriptor descriptor{};
    // Without addresses in staging memory.
    GraphQuantum quantum{};
    std::vector<GraphOperator> operators;
    GraphNodes nodes;
    // Records of the step in which the last quantum ended.
    std::string records;
    KeptAlive keep_alive;
  };

  explicit QuantumWorkload(Plan plan) : plan_(std::move(plan)) {}

  absl::Status Check() override { return absl::OkStatus(); }
  Needs ResourcesNeeded() const override;
  void Fill(const Ticket& ticket, RequestBatch& batch) override;
  // The same in staging memory that the caller has. REQUIRES: it has
  // ResourcesNeeded().staging_bytes bytes, aligned to 64.
  void FillAt(const StagingMemory& staging, RequestBatch& batch);
  void BuildResult(const RequestBatch& batch, v1::BatchResult* result) const override;

  // Ends the quantum as soon as the nodes that are running have ended. REQUIRES: Fill was called,
  // and the batch has its ticket.
  void Abort() const;
  // What the engine reports. REQUIRES: as for Abort; the quantum has ended.
  QuantumReport ReadReport() const;
  // The quantum of the Plan, in the daemon's own memory.
  const GraphQuantum& planned() const { return plan_.quantum; }
  // The records of a step of the quantum. REQUIRES: step < planned().max_steps.
  const uint8_t* records(uint32_t step) const;

 private:
  uint64_t operators_at() const { return sizeof(GraphQuantum); }
  uint64_t records_at() const;
  uint64_t trace_at() const;
  // The events that are valid, and the number of the others.
  void ReadTrace(uint32_t events, uint64_t steps, QuantumReport* report) const;

  Plan plan_;
  GraphQuantum* host_ = nullptr;
  size_t nodes_ = 0;  // Of the image.
};

}  // namespace resident

#endif  // RESIDENT_SERVER_GRAPHS_QUANTUM_WORKLOAD_H_
