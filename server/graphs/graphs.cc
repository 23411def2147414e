#include "server/graphs/graphs.h"

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace resident {

QuantumSources MakeQuantumSources(Core& core) {
  return {core.registry, core.buffers, core.admission, core.devices,
          core.planner.task_time_limit()};
}

Graphs::Graphs(Buffers& the_buffers, const GraphsOptions& options)
    : core(the_buffers.core),
      buffers(the_buffers),
      in_engine(options.in_engine),
      traces(options.keep_traces),
      checker(core) {
  core.clients.OnSessionEnd([this](const Client& client) { sessions.CloseAll(client.id()); });
}

void Graphs::Describe(LoadedGraph& graph, const Viewer& viewer, v1::LoadedGraph* out) const {
  out->set_graph_id(graph.id());
  out->set_name(graph.name());
  out->set_state(graph.FindState(core.registry));
  int64_t loaded_ms = INT64_MAX;
  for (const auto& [name, time_ms] : store.Holders(graph.id())) {
    loaded_ms = std::min(loaded_ms, time_ms);
    if (viewer.Sees(name)) out->add_holders(name);
  }
  if (loaded_ms != INT64_MAX) out->set_loaded_ms(loaded_ms);
  out->set_nodes(graph.nodes());
  out->set_size_bytes(graph.content().size());
  out->set_memory_bytes(graph.memory_bytes());
  out->set_runs(graph.runs.load(std::memory_order_relaxed));
  out->set_steps(graph.steps.load(std::memory_order_relaxed));
  out->set_sessions(graph.sessions.load(std::memory_order_relaxed));
}

}  // namespace resident
