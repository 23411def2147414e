// GraphQuanta: what a run needs to let an engine execute its steps (kernels/graph/graph_task.h), a
// quantum at a time: the image of the graph, and for each quantum the versions of the operators,
// memory for records, and what the engine reports.
//
//   Create ──▶ (image() is written to the device) ──▶ Plan ──▶ (the quantum ends) ──▶ Read ─┐
//                                                       ▲────────────────────────────────────┘
//
// The versions are resolved when a step begins with a quantum. A step that needs several quanta
// ends on the versions with which it began.
//
// Thread safety: one thread at a time.
//
//   auto work = quanta->Plan({.first_step = 0, .last_step = 8, .max_steps = 8}, values);
//   ... admit and run it, as any work ...
//   quanta->Read(work, work.ReadReport(), batch.device_ns[0]);
#ifndef RESIDENT_SERVER_GRAPHS_GRAPH_QUANTA_H_
#define RESIDENT_SERVER_GRAPHS_GRAPH_QUANTA_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "runtime/device/buffer_table.h"
#include "runtime/device/device.h"
#include "runtime/graph/check.h"
#include "runtime/graph/limits.h"
#include "runtime/graph/lowering.h"
#include "runtime/operators/registry/registry.h"
#include "server/admission/admission.h"
#include "server/graphs/graph_tasks.h"
#include "server/graphs/quantum_workload.h"
#include "server/workload/placement.h"

namespace resident {

// What graphs are planned with. All of it must outlive the quanta.
struct QuantumSources {
  const Registry& registry;
  const BufferTable& buffers;
  const Admission& admission;
  const std::vector<Device*>& devices;  // By index.
  // --task_time_limit; 0: none.
  std::chrono::milliseconds task_time_limit{10'000};
};

class GraphQuanta {
 public:
  struct Estimate {
    graph::StreamRecords records;
    // Bytes of the daemon's memory that Create takes, about, on any device.
    uint64_t host_bytes = 0;
  };
  // Nullopt: no engine executes graphs, or the graph has to be executed node by node. `streams`:
  // the tensors whose records are sent.
  static std::optional<Estimate> EstimateMemory(const QuantumSources& sources,
                                                const graph::CheckedGraph& checked,
                                                const std::vector<uint32_t>& streams);
  // `records`: those of EstimateMemory. `place`: the device and the engine that are to execute the
  // graph. Null: they have to execute it node by node.
  static std::unique_ptr<GraphQuanta> Create(const QuantumSources& sources,
                                             const graph::CheckedGraph& checked,
                                             const graph::StreamRecords& records,
                                             const Placement& place);

  // Bytes of device memory: the image and the state.
  uint64_t device_bytes() const { return state_offset_ + lowering_->state_bytes(); }

  // Sets the memory. `places`: by tensor; `memory`: device_bytes() bytes on the device, internal.
  // FAILED_PRECONDITION: a buffer was lost. UNAVAILABLE: the engine was replaced.
  absl::Status Place(ClientId client, absl::Span<const GraphPlace> places,
                     std::shared_ptr<const Buffer> memory);
  // The same for memory that the caller keeps. `addresses`: by tensor; those of aliases are not
  // used.
  absl::Status PlaceAt(absl::Span<const uint64_t> addresses, std::shared_ptr<const Buffer> memory);
  // What is to be written to the memory.
  uint64_t image_bytes() const { return lowering_->image_bytes(); }
  // A part of it. Each part may be taken once.
  std::string TakeImage(uint64_t at, uint64_t bytes) {
    if (at == 0 && bytes >= image_.size()) return std::move(image_);
    return image_.substr(at, bytes);
  }
  void ReleaseImage() { image_ = std::string(); }

  struct Steps {
    // Steps that the run has executed, and will have executed at its end.
    uint64_t first_step = 0;
    uint64_t last_step = 1;
    // Steps that this quantum may execute.
    uint64_t max_steps = 1;
    // Whether there is memory for a trace. Fewer steps are planned then if their events would not
    // fit.
    bool trace = false;
    // How long the quantum takes, about.
    std::chrono::nanoseconds budget = graph::kQuantumTime;
    // Whether a version on trial beside the active one is not to run, rather than node by node.
    bool skip_shadows = false;
  };
  // Bytes of staging memory that a quantum without records and trace takes.
  uint64_t quantum_bytes() const;
  // The next quantum. `values`: of the scalars. Null: the next step has to be executed node by
  // node, because a version of one of its operators is on trial beside the active one. Errors:
  // those of Registry::Resolve, FAILED_PRECONDITION (an operator has another signature),
  // INVALID_ARGUMENT (a node of the next step cannot end within its time limit), all three with
  // failed_node(); UNAVAILABLE (the engine was replaced).
  absl::StatusOr<std::unique_ptr<QuantumWorkload>> Plan(const Steps& steps,
                                                        absl::Span<const double> values);
  // A node of the image.
  std::optional<uint32_t> failed_node() const;
  // Takes what the next quantum needs to know of one that has ended, and counts its tasks.
  // `duration_ns`: from its begin to its end.
  void Read(const QuantumWorkload& work, const QuantumReport& report, uint64_t duration_ns);
  // No quantum is planned for some time: versions that are not in use by a step may be removed.
  void Pause() {
    if (!in_step_) operators_.clear();
  }
  // Whether the last quantum that ended has begun a step that has not ended.
  bool in_step() const { return in_step_; }

  // The operators of the last quantum, by row of the table. The last row may be that of the copies
  // of records.
  const std::vector<ResolvedOperator>& operators() const { return operators_; }
  const std::vector<uint32_t>& rows() const { return *lowering_->rows(); }
  const std::vector<uint64_t>& record_offsets() const { return lowering_->record_offsets(); }
  void CountFailure(uint32_t node, TaskStatus status);
  // The version that executed a node of the image in the last quantum.
  uint32_t version(uint32_t node) const { return operators_[rows()[node]].version->version; }

 private:
  GraphQuanta(const QuantumSources& sources, const graph::CheckedGraph& checked,
              const graph::StreamRecords& records, const graph::Lowering::Gang& gang,
              const Placement& place);
  // Whether all were found, and none has a shadow that is to run.
  absl::StatusOr<bool> Resolve(bool skip_shadows);
  // Keeps the memory of all tensors and the run's own, and writes the image.
  using Buffers = std::vector<std::shared_ptr<const Buffer>>;
  void SetMemory(absl::Span<const uint64_t> addresses, std::shared_ptr<Buffers> buffers,
                 std::shared_ptr<const Buffer> memory);
  // Whether a node can end within its time limit; `values`: null: with sizes as large as they can
  // be.
  absl::Status CheckNode(uint32_t node, const EngineInfo& engine,
                         const std::vector<double>* values);
  // Ends the quantum before the first step of which a node cannot end in time. INVALID_ARGUMENT:
  // that is the next one.
  absl::Status LimitSteps(const EngineInfo& engine, absl::Span<const double> values,
                          u32* max_steps);

  const QuantumSources sources_;
  const graph::Graph& graph_;
  const std::unique_ptr<const graph::Lowering> lowering_;
  const uint64_t state_offset_;
  std::string image_;
  // The engine that executes the graph.
  const uint32_t device_;
  const uint64_t epoch_;
  uint64_t image_address_ = 0;
  u32 streams_ = 0;  // GraphImage::streams.
  // The buffers of all tensors, and the run's own.
  std::shared_ptr<const Buffers> buffers_;
  std::vector<ResolvedOperator> operators_;
  // Why Plan failed: a row of the table, or a node.
  std::optional<uint32_t> failed_row_;
  std::optional<uint32_t> failed_node_;
  // The nodes that cannot end in time if their sizes are as large as they can be.
  std::optional<std::vector<uint32_t>> large_nodes_;
  // Whether the last quantum ended within a step, and the records of that step so far.
  bool in_step_ = false;
  std::string records_;
  // Worker time of the last quantum, and the workers that it occupied.
  uint64_t worker_ns_;
  uint32_t workers_ = 1;
  // The events of all quanta that were traced, and their steps that have ended.
  uint64_t traced_events_ = 0;
  uint64_t traced_steps_ = 0;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_GRAPHS_GRAPH_QUANTA_H_
