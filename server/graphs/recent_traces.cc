#include "server/graphs/recent_traces.h"

#include <algorithm>

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

}  // namespace resident
