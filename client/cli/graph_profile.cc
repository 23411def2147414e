#include "client/cli/graph_profile.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/graph_file.h"
#include "client/cli/proto_json.h"

namespace resident::cli {
namespace {

// What executes the copies of records.
constexpr char kRecordOperator[] = "copy";

std::string Quoted(const std::string& text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

// Perfetto's unit.
std::string Microseconds(uint64_t ns) { return absl::StrFormat("%d.%03d", ns / 1000, ns % 1000); }

}  // namespace

GraphProfile::GraphProfile(const v1::Graph& graph, const v1::GraphReport& report) : graph_(graph) {
  absl::flat_hash_map<std::string, std::string> alias_of;
  for (const v1::GraphTensor& tensor : graph.tensors()) {
    if (tensor.kind() == v1::GraphTensor::KIND_STREAM) streams_.push_back(tensor.name());
    if (!tensor.alias_of().empty()) alias_of[tensor.name()] = tensor.alias_of();
  }
  const auto find_root = [&](std::string name) {
    // An accepted graph has no circle of aliases.
    for (size_t i = 0; i <= alias_of.size(); ++i) {
      const auto found = alias_of.find(name);
      if (found == alias_of.end()) break;
      name = found->second;
    }
    return name;
  };
  const auto nodes = static_cast<size_t>(graph.nodes_size());
  for (const v1::GraphNode& node : graph.nodes()) operators_.push_back(node.operator_());
  operators_.resize(nodes + streams_.size(), kRecordOperator);
  waits_for_.resize(nodes + streams_.size());
  for (const v1::GraphDependency& each : report.dependencies()) {
    if (each.node() < nodes) waits_for_[each.node()].push_back(each.after());
  }
  // A record is copied after the nodes that write its stream. Nodes that only read it are taken for
  // writers here, because which of the two they do is in the signatures of their operators.
  absl::flat_hash_map<std::string, std::vector<size_t>> copies;
  for (size_t i = 0; i < streams_.size(); ++i) copies[find_root(streams_[i])].push_back(nodes + i);
  for (uint32_t node = 0; node < nodes && !copies.empty(); ++node) {
    for (const v1::GraphArgument& argument : graph.nodes(static_cast<int>(node)).arguments()) {
      if (!argument.has_tensor()) continue;
      const auto found = copies.find(find_root(argument.tensor().name()));
      if (found == copies.end()) continue;
      for (const size_t copy : found->second) waits_for_[copy].push_back(node);
    }
  }
  Fuse(report);
}

void GraphProfile::Fuse(const v1::GraphReport& report) {
  // By node that is executed with others: the last ones of these.
  absl::flat_hash_map<uint32_t, std::vector<uint32_t>> executed_as;
  const auto nodes = static_cast<uint32_t>(graph_.nodes_size());
  for (const v1::GraphFusion& fusion : report.fusions()) {
    const std::set<uint32_t> together(fusion.nodes().begin(), fusion.nodes().end());
    if (together.empty() || *together.rbegin() >= nodes) continue;
    const uint32_t last = *together.rbegin();
    operators_[last] = fusion.operator_();
    std::vector<uint32_t> waits;
    for (const uint32_t node : together) {
      if (node != last) executed_as[node].push_back(last);
      for (const uint32_t after : waits_for_[node]) {
        if (!together.contains(after)) waits.push_back(after);
      }
    }
    waits_for_[last] = std::move(waits);
  }
  if (executed_as.empty()) return;
  for (std::vector<uint32_t>& waits : waits_for_) {
    const std::vector<uint32_t> written = std::exchange(waits, {});
    for (const uint32_t node : written) {
      const auto found = executed_as.find(node);
      if (found == executed_as.end()) {
        waits.push_back(node);
      } else {
        waits.insert(waits.end(), found->second.begin(), found->second.end());
      }
    }
  }
}

void GraphProfile::Add(const v1::GraphTrace& trace) {
  for (const v1::GraphTraceEvent& event : trace.events()) {
    if (event.node() < waits_for_.size()) events_.push_back(event);
  }
}

size_t GraphProfile::CountWorkers() const {
  std::set<uint32_t> workers;
  for (const v1::GraphTraceEvent& event : events_) workers.insert(event.worker());
  return workers.size();
}

std::string GraphProfile::NodeName(uint32_t node) const {
  const auto nodes = static_cast<uint32_t>(graph_.nodes_size());
  return node < nodes ? GraphNodeName(graph_, node)
                      : absl::StrCat("record of ", streams_[node - nodes]);
}

const std::string& GraphProfile::OperatorName(uint32_t node) const { return operators_[node]; }

std::vector<GraphProfile::PathPart> GraphProfile::CriticalPath() const {
  std::vector<uint32_t> order(events_.size());
  std::iota(order.begin(), order.end(), 0);
  const auto key = [&](uint32_t index) {
    const v1::GraphTraceEvent& event = events_[index];
    return std::tuple(event.step(), event.begin_ns(), event.end_ns(), event.node(), event.chunk());
  };
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return key(a) < key(b); });

  std::vector<PathPart> path;
  for (size_t first = 0; first < order.size();) {
    // Positions in `order` of the step's chunks.
    size_t end = first;
    size_t last = first;
    absl::flat_hash_map<uint32_t, size_t> last_of_node;
    absl::flat_hash_map<uint32_t, size_t> last_of_worker;
    std::vector<std::optional<size_t>> before_on_worker;
    const auto ends = [&](size_t position) { return events_[order[position]].end_ns(); };
    for (; end < order.size() && events_[order[end]].step() == events_[order[first]].step();
         ++end) {
      const v1::GraphTraceEvent& event = events_[order[end]];
      if (ends(end) >= ends(last)) last = end;
      const auto [of_node, is_first] = last_of_node.try_emplace(event.node(), end);
      if (!is_first && ends(end) >= ends(of_node->second)) of_node->second = end;
      const auto [of_worker, begins] = last_of_worker.try_emplace(event.worker(), end);
      before_on_worker.push_back(begins ? std::nullopt : std::optional(of_worker->second));
      of_worker->second = end;
    }
    const size_t path_begin = path.size();
    for (std::optional<size_t> at = last; at.has_value();) {
      const v1::GraphTraceEvent& event = events_[order[*at]];
      std::optional<size_t> before;
      const auto consider = [&](size_t position) {
        // So that the path goes back in time whatever the clocks of the workers show.
        if (position >= *at || ends(position) > event.end_ns()) return;
        if (!before.has_value() || ends(position) > ends(*before)) before = position;
      };
      if (before_on_worker[*at - first].has_value()) consider(*before_on_worker[*at - first]);
      for (const uint32_t node : waits_for_[event.node()]) {
        const auto found = last_of_node.find(node);
        if (found != last_of_node.end()) consider(found->second);
      }
      const uint64_t free = before.has_value() ? ends(*before) : event.begin_ns();
      const uint64_t begin = std::max(event.begin_ns(), free);
      path.push_back({order[*at], begin - free, event.end_ns() - begin});
      at = before;
    }
    std::reverse(path.begin() + static_cast<std::ptrdiff_t>(path_begin), path.end());
    first = end;
  }
  return path;
}

std::vector<GraphProfile::Operator> GraphProfile::Operators(
    const std::vector<PathPart>& path) const {
  absl::flat_hash_map<std::string, Operator> by_name;
  for (const v1::GraphTraceEvent& event : events_) {
    Operator& op = by_name[OperatorName(event.node())];
    ++op.chunks;
    op.work_ns += event.end_ns() - event.begin_ns();
    op.wait_ns += event.begin_ns() - event.wait_ns();
  }
  for (const PathPart& part : path) {
    by_name[OperatorName(events_[part.event].node())].critical_ns += part.work_ns;
  }
  std::vector<Operator> operators;
  for (auto& [name, op] : by_name) {
    op.name = name;
    operators.push_back(std::move(op));
  }
  std::sort(operators.begin(), operators.end(), [](const Operator& a, const Operator& b) {
    return std::tie(b.work_ns, a.name) < std::tie(a.work_ns, b.name);
  });
  return operators;
}

std::string GraphProfile::PerfettoJson(const std::vector<PathPart>& path) const {
  std::vector<bool> critical(events_.size());
  for (const PathPart& part : path) critical[part.event] = true;
  std::set<uint32_t> workers;
  uint64_t start_ns = UINT64_MAX;
  for (const v1::GraphTraceEvent& event : events_) {
    workers.insert(event.worker());
    start_ns = std::min(start_ns, event.begin_ns());
  }
  std::string json = absl::StrCat(
      "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n"
      "{\"ph\":\"M\",\"pid\":1,\"name\":\"process_name\",\"args\":{\"name\":",
      Quoted(graph_.name().empty() ? "graph" : absl::StrCat("graph ", graph_.name())), "}}");
  for (const uint32_t worker : workers) {
    absl::StrAppend(&json, ",\n{\"ph\":\"M\",\"pid\":1,\"tid\":", worker,
                    ",\"name\":\"thread_name\",\"args\":{\"name\":\"worker ", worker, "\"}}");
  }
  for (size_t i = 0; i < events_.size(); ++i) {
    const v1::GraphTraceEvent& event = events_[i];
    absl::StrAppend(&json, ",\n{\"ph\":\"X\",\"pid\":1,\"tid\":", event.worker(),
                    ",\"ts\":", Microseconds(event.begin_ns() - start_ns),
                    ",\"dur\":", Microseconds(event.end_ns() - event.begin_ns()),
                    ",\"name\":", Quoted(NodeName(event.node())),
                    ",\"cat\":", Quoted(OperatorName(event.node())),
                    ",\"args\":{\"node\":", event.node(),
                    ",\"operator\":", Quoted(OperatorName(event.node())));
    absl::StrAppend(&json, ",\"version\":", event.version(), ",\"step\":", event.step(),
                    ",\"chunk\":", event.chunk(),
                    ",\"waiting_ns\":", event.begin_ns() - event.wait_ns(),
                    ",\"critical_path\":", critical[i] ? "true" : "false", "}}");
  }
  return json + "\n]}\n";
}

}  // namespace resident::cli
