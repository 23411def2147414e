#include "tests/gpu/graph_breakdown.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/support/bench_report.h"

namespace resident::testing {
namespace {

constexpr size_t kPrintedRows = 10;

double Micros(u64 ns) { return static_cast<double>(ns) / 1e3; }

}  // namespace

GraphBreakdown BreakDown(const std::vector<std::string>& operators,
                         const std::vector<std::vector<uint32_t>>& predecessors,
                         absl::Span<const GraphTraceEvent> events, uint32_t step) {
  GraphBreakdown breakdown;
  std::map<std::string, GraphBreakdown::Row> rows;
  std::map<std::pair<std::string, uint32_t>, double> work_of_member;
  std::set<uint32_t> members;
  std::vector<u64> ends(operators.size());
  // The step begins when the one before it ends.
  u64 begin = 0;
  for (const GraphTraceEvent& event : events) {
    if (event.step + 1 == step) begin = std::max(begin, event.end_ns);
  }
  for (const GraphTraceEvent& event : events) {
    if (event.step != step) continue;
    GraphBreakdown::Row& row = rows[operators[event.node]];
    row.work_us += Micros(event.end_ns - event.begin_ns);
    const u64 waits_from = std::max(begin, event.wait_ns);
    // The clocks of two SMs may differ by some nanoseconds.
    if (event.begin_ns > waits_from) row.wait_us += Micros(event.begin_ns - waits_from);
    work_of_member[{operators[event.node], event.worker}] += Micros(event.end_ns - event.begin_ns);
    members.insert(event.worker);
    ends[event.node] = std::max(ends[event.node], event.end_ns);
  }
  for (const auto& [key, work] : work_of_member) {
    double& longest = rows[key.first].longest_us;
    longest = std::max(longest, work);
  }

  std::vector<uint32_t> last(operators.size(), ~uint32_t{0});
  std::vector<double> critical(operators.size());
  uint32_t final_node = 0;
  for (uint32_t node = 0; node < operators.size(); ++node) {
    if (ends[node] == 0) {
      Fail(absl::StrCat("the trace has no event of node ", node, " (", operators[node],
                        ") in step ", step));
    }
    u64 from = begin;
    for (const uint32_t before : predecessors[node]) {
      if (ends[before] < from) continue;
      from = ends[before];
      last[node] = before;
    }
    // The clocks of two SMs may differ by some nanoseconds.
    critical[node] = ends[node] > from ? Micros(ends[node] - from) : 0;
    GraphBreakdown::Row& row = rows[operators[node]];
    ++row.nodes;
    row.critical_us += critical[node];
    if (ends[node] > ends[final_node]) final_node = node;
  }
  for (uint32_t node = final_node; node != ~uint32_t{0}; node = last[node]) {
    GraphBreakdown::Row& row = rows[operators[node]];
    row.path_us += critical[node];
    ++row.path_nodes;
  }

  breakdown.step_us = Micros(ends[final_node] - begin);
  breakdown.members = static_cast<uint32_t>(members.size());
  for (auto& [op, row] : rows) {
    row.op = op;
    breakdown.work_us += row.work_us;
    breakdown.wait_us += row.wait_us;
    breakdown.rows.push_back(std::move(row));
  }
  std::stable_sort(breakdown.rows.begin(), breakdown.rows.end(),
                   [](const auto& a, const auto& b) { return a.path_us > b.path_us; });
  return breakdown;
}

void GraphBreakdown::Print() const {
  const double all = std::max(work_us + wait_us, 1e-9);
  std::printf(
      "  one traced step: %.1f us; %u members: %.1f %% of their time in operators, %.1f %% "
      "waiting\n",
      step_us, members, 100 * work_us / all, 100 * wait_us / all);
  std::printf("  %-20s %6s %10s %10s %12s %12s %12s %14s\n", "operator", "nodes", "path, us",
              "of nodes", "critical, us", "longest, us", "all work, us", "all waits, us");
  for (size_t i = 0; i < std::min(rows.size(), kPrintedRows); ++i) {
    const Row& row = rows[i];
    std::printf("  %-20s %6u %10.1f %10u %12.1f %12.1f %12.1f %14.1f\n", row.op.c_str(), row.nodes,
                row.path_us, row.path_nodes, row.critical_us, row.longest_us, row.work_us,
                row.wait_us);
  }
  std::fflush(stdout);
}

nlohmann::ordered_json GraphBreakdown::ToJson() const {
  nlohmann::ordered_json operators = nlohmann::ordered_json::array();
  for (const Row& row : rows) {
    operators.push_back({{"operator", row.op},
                         {"nodes", row.nodes},
                         {"path_us", row.path_us},
                         {"path_nodes", row.path_nodes},
                         {"critical_us", row.critical_us},
                         {"longest_us", row.longest_us},
                         {"work_us", row.work_us},
                         {"wait_us", row.wait_us}});
  }
  return {{"step_us", step_us},
          {"members", members},
          {"work_us", work_us},
          {"wait_us", wait_us},
          {"operators", std::move(operators)}};
}

}  // namespace resident::testing
