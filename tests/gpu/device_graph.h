// DeviceGraph: a task graph for benchmarks that use the ring themselves: its memory on the device,
// and quanta of it (kernels/graph/graph_task.h). An error of the graph, and a quantum that does not
// end as it should, end the benchmark.
//
//   DeviceGraph graph(harness, device, message);
//   graph.SetScalar("pos", 159);
//   graph.Prepare(/*steps=*/8);
//   const TaskCompletion completion = graph.Run(*ring);
//
// Thread safety: none.
#ifndef RESIDENT_TESTS_GPU_DEVICE_GRAPH_H_
#define RESIDENT_TESTS_GPU_DEVICE_GRAPH_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/graph/graph_task.h"
#include "kernels/layout/task.h"
#include "resident/v1/graphs.pb.h"
#include "runtime/graph/lowering.h"
#include "runtime/ring/host_ring.h"
#include "tests/gpu/device_tasks.h"
#include "tests/support/engine_harness.h"

namespace resident::testing {

// A node with its arguments at one step, as a task of its own.
struct NodeCall {
  uint32_t operator_slot = 0;
  uint64_t chunks = 1;
  std::vector<Argument> arguments;
  // Nodes that it waits for.
  std::vector<uint32_t> predecessors;
};

class DeviceGraph {
 public:
  // Allocates the memory of all tensors, which is not cleared, and of the graph itself. All streams
  // send records. `max_steps`: of a quantum. The others must outlive this object.
  DeviceGraph(EngineHarness& harness, DeviceTasks& device, const v1::Graph& message,
              uint32_t max_steps);

  const graph::Graph& graph() const { return checked_.graph; }
  // Nodes, with those that copy records.
  uint32_t nodes() const { return static_cast<uint32_t>(lowering_->nodes()); }
  // By node: its operator.
  std::vector<std::string> Operators() const;
  // Members of its gang; 0: the engine has no gangs.
  uint32_t gang() const { return lowering_->gang(); }

  struct Memory {
    uint64_t address;
    uint64_t bytes;
  };
  // That of a tensor which is not an alias.
  Memory MemoryOf(const std::string& tensor) const;
  Memory MemoryOf(uint32_t tensor) const;

  // The scalar's value in the first step of each quantum.
  void SetScalar(const std::string& name, double value);
  // The steps of the following quanta. REQUIRES: 1 <= steps <= max_steps; no quantum is in flight.
  void Prepare(uint32_t steps);
  // Submits a quantum, which begins with the first step; one at a time. Returns its number.
  uint64_t Submit(HostRing& ring);
  // The same; nullopt: the ring has no room.
  std::optional<uint64_t> TrySubmit(HostRing& ring);
  // The quantum has ended: fails unless all its steps have.
  void Check(const TaskCompletion& completion) const;
  // Submits a quantum, waits for it and checks it. REQUIRES: nothing is in flight.
  TaskCompletion Run(HostRing& ring);

  // The records of a step, of all streams.
  uint64_t record_bytes() const { return lowering_->record_bytes(); }
  const uint8_t* records(uint32_t step) const {
    return quantum_.host + records_at_ + step * record_bytes();
  }

  // Runs a quantum with a trace, and returns its events. Empty: the engine traces no graphs.
  std::vector<GraphTraceEvent> Trace(HostRing& ring);

  // All nodes with their arguments in a step of a quantum. `record`: where the step's records go.
  std::vector<NodeCall> Calls(uint32_t step, uint64_t record) const;
  // By node: those that it waits for.
  std::vector<std::vector<uint32_t>> Predecessors() const;

 private:
  GraphQuantum& quantum() const { return *quantum_.as<GraphQuantum>(); }
  const GraphImage& image() const { return *reinterpret_cast<const GraphImage*>(image_.data()); }

  DeviceTasks& device_;
  const uint64_t workers_;
  const uint32_t max_steps_;
  graph::CheckedGraph checked_;
  std::optional<graph::Lowering> lowering_;
  // By tensor.
  std::vector<uint64_t> addresses_;
  std::string image_;
  GraphDescriptor descriptor_{};
  std::vector<GraphOperator> operators_;
  std::vector<double> scalars_;
  // The quantum, the operators and the records.
  EngineHarness::Span quantum_{};
  uint64_t records_at_ = 0;
};

}  // namespace resident::testing

#endif  // RESIDENT_TESTS_GPU_DEVICE_GRAPH_H_
