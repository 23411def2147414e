#include "tests/graph/graph_runs.h"

namespace resident::testing {

v1::RunGraphRequest RunOf(const GraphMaker& maker) {
  v1::RunGraphRequest request;
  *request.mutable_graph() = maker.graph;
  return request;
}

const v1::GraphValue& GraphOutcome::output(int i) const {
  return i < result.outputs_size() ? result.outputs(i) : v1::GraphValue::default_instance();
}

std::vector<v1::GraphTraceEvent> GraphOutcome::events() const {
  std::vector<v1::GraphTraceEvent> all;
  for (const v1::GraphTrace& trace : traces) {
    all.insert(all.end(), trace.events().begin(), trace.events().end());
  }
  return all;
}

GraphOutcome RunGraph(const Daemon& daemon, const Client& client,
                      const v1::RunGraphRequest& request, const OnGraphStep& on_step) {
  return RunGraph(*v1::Graphs::NewStub(daemon.Connect()), client, request, on_step);
}

GraphOutcome RunGraph(v1::Graphs::Stub& stub, const Client& client,
                      const v1::RunGraphRequest& request, const OnGraphStep& on_step) {
  return RunGraph(stub, *client.Context(), request, on_step);
}

GraphOutcome RunGraph(v1::Graphs::Stub& stub, grpc::ClientContext& context,
                      const v1::RunGraphRequest& request, const OnGraphStep& on_step) {
  const auto stream = stub.Run(&context, request);
  GraphOutcome outcome;
  v1::RunGraphResponse response;
  while (stream->Read(&response)) {
    if (response.has_result()) outcome.result = response.result();
    if (response.has_trace()) outcome.traces.push_back(response.trace());
    if (!response.has_step()) continue;
    outcome.steps.push_back(response.step());
    if (on_step) on_step(response.step(), context);
  }
  outcome.status = stream->Finish();
  return outcome;
}

GraphMaker SpinningLoop(int nodes, int64_t ns, uint64_t steps) {
  GraphMaker maker;
  maker.Tensor(v1::GraphTensor::KIND_STREAM, "done", {D(static_cast<int64_t>(steps)), D(1)});
  maker.Activation("a", {1});
  for (int i = 1; i < nodes; ++i) maker.Call("test.spin", {"a", I(ns)});
  maker.Call("test.spin", {"done", I(ns)});
  maker.graph.mutable_loop()->set_max_steps(steps);
  return maker;
}

}  // namespace resident::testing
