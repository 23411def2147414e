// Runs of graphs by a client, for tests with a real daemon.
//
// Thread safety: functions without state.
//
//   v1::RunGraphRequest request = RunOf(maker);
//   Bind(request, "x").set_data(ToBytes<float>({1, 2, 3, 4}));
//   const GraphOutcome outcome = RunGraph(daemon, client, request);
//   EXPECT_EQ(outcome.floats(), (std::vector<float>{2, 4, 6, 8}));
#ifndef RESIDENT_TESTS_GRAPH_GRAPH_RUNS_H_
#define RESIDENT_TESTS_GRAPH_GRAPH_RUNS_H_

#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "resident/v1/graphs.grpc.pb.h"
#include "tests/daemon/client.h"
#include "tests/graph/graph_maker.h"

namespace resident::testing {

template <typename T>
std::string ToBytes(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

template <typename T>
std::vector<T> FromBytes(const std::string& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  return values;
}

v1::RunGraphRequest RunOf(const GraphMaker& maker);

// Adds a binding of the tensor to a request for a run or for a session.
template <typename Request>
v1::GraphBinding& Bind(Request& request, const std::string& tensor) {
  v1::GraphBinding& binding = *request.add_bindings();
  binding.set_tensor(tensor);
  return binding;
}

// What a run sent.
struct GraphOutcome {
  grpc::Status status;
  std::vector<v1::GraphStep> steps;
  std::vector<v1::GraphTrace> traces;
  v1::GraphResult result;

  // Output `i`, empty if there is none.
  const v1::GraphValue& output(int i) const;
  std::vector<float> floats(int i = 0) const { return FromBytes<float>(output(i).data()); }
  // The record of the first stream in each step: its first element.
  template <typename T = double>
  std::vector<T> stream() const;
  // Of all traces.
  std::vector<v1::GraphTraceEvent> events() const;
};

// Called for each step as it arrives; it may end the run by cancelling the context.
using OnGraphStep = std::function<void(const v1::GraphStep& step, grpc::ClientContext& context)>;

GraphOutcome RunGraph(const Daemon& daemon, const Client& client,
                      const v1::RunGraphRequest& request, const OnGraphStep& on_step = nullptr);
// Over a connection that exists.
GraphOutcome RunGraph(v1::Graphs::Stub& stub, const Client& client,
                      const v1::RunGraphRequest& request, const OnGraphStep& on_step = nullptr);
// With the deadline of this context.
GraphOutcome RunGraph(v1::Graphs::Stub& stub, grpc::ClientContext& context,
                      const v1::RunGraphRequest& request, const OnGraphStep& on_step = nullptr);

// A loop of nodes that do nothing but take `ns` nanoseconds each, one after the other, and return a
// record in each step.
GraphMaker SpinningLoop(int nodes, int64_t ns, uint64_t steps);

// Implementation details follow.

template <typename T>
std::vector<T> GraphOutcome::stream() const {
  std::vector<T> values;
  for (const v1::GraphStep& step : steps) {
    values.push_back(FromBytes<T>(step.records(0).data()).at(0));
  }
  return values;
}

}  // namespace resident::testing

#endif  // RESIDENT_TESTS_GRAPH_GRAPH_RUNS_H_
