#include "server/graphs/graphs.h"

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "absl/time/clock.h"

namespace resident {
namespace {

std::string Shorten(std::string_view name) {
  return std::string(name.substr(0, RecentTraces::kMaxNameBytes));
}

RecentTraces::Node Describe(const graph::Graph& graph, uint32_t index) {
  // The copies of the records of streams follow the nodes.
  if (index >= graph.nodes.size()) return {"record", "copy"};
  const graph::Node& node = graph.nodes[index];
  return {Shorten(node.name),
          node.op < graph.operators.size() ? Shorten(graph.operators[node.op].name) : ""};
}

}  // namespace

void RecentTraces::Add(const graph::Graph& graph, const std::vector<GraphTraceEvent>& events,
                       uint64_t* number) {
  if (!keep_) return;
  absl::MutexLock lock(&mu_);
  if (*number == 0) {
    *number = ++last_number_;
    traces_.push_back({.number = *number,
                       .time_ms = absl::ToUnixMillis(absl::Now()),
                       .graph = Shorten(graph.name)});
    if (traces_.size() > kMaxTraces) traces_.pop_front();
  }
  const auto found = std::find_if(traces_.begin(), traces_.end(),
                                  [&](const Trace& trace) { return trace.number == *number; });
  if (found == traces_.end()) return;  // Newer runs have replaced it.
  const size_t kept = std::min(events.size(), kMaxEvents - found->events.size());
  found->events.insert(found->events.end(), events.begin(),
                       events.begin() + static_cast<ptrdiff_t>(kept));
  found->dropped += events.size() - kept;
  for (size_t i = 0; i < kept; ++i) {
    const uint32_t node = events[i].node;
    if (!found->nodes.contains(node)) found->nodes[node] = Describe(graph, node);
  }
}

std::vector<RecentTraces::Trace> RecentTraces::List() const {
  absl::MutexLock lock(&mu_);
  return {traces_.rbegin(), traces_.rend()};
}

QuantumSources MakeQuantumSources(Core& core) {
  return {core.registry, core.buffers, core.admission, core.devices,
          core.planner.sources().task_time_limit};
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
