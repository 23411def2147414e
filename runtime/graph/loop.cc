#include "runtime/graph/loop.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/graph/accesses.h"
#include "runtime/model/dtype.h"

namespace resident::graph {
namespace {

using absl::StrCat;

// An update costs less than other steps of the check.
constexpr uint64_t kUpdatesInAStep = 8;

void CheckStop(const Graph& graph, Findings& findings, CheckBudget& budget) {
  const Loop& loop = *graph.loop;
  if (loop.stop_tensor == kNone) return;
  const Tensor& tensor = graph.tensors[loop.stop_tensor];
  const Findings::Place place{.tensor = std::string(tensor.name)};
  for (const Axis& axis : graph.AxesOf(tensor.view)) {
    if (axis.size == 1) continue;
    findings.Add(Code::kStop, place,
                 "the loop stops on a tensor with several elements. Fix: name a tensor with one");
    return;
  }
  if (tensor.view.dtype != DType::kI64 && tensor.view.dtype != DType::kI32) {
    findings.Add(Code::kStop, place,
                 StrCat("the loop stops on a tensor of dtype ", DTypeName(tensor.view.dtype),
                        ". Fix: name one of dtype i64 or i32"));
    return;
  }
  std::vector<Access> accesses;
  for (uint32_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    if (!budget.BeginNode(n, 1 + node.argument_count) || node.op == kNone) return;
    accesses.clear();
    ListAccesses(graph, node, {}, &accesses);
    for (const Access& access : accesses) {
      if (access.mode != Access::Mode::kRead && graph.tensors[access.tensor].root == tensor.root) {
        return;
      }
    }
  }
  findings.Add(
      Code::kStop, place,
      "the loop stops on a tensor that no node writes. Fix: name one that the step writes");
}

// The update can be applied max_steps - 1 times without leaving the range for at least one first
// value: after k steps the value is a * first + b, which limits `first` to an interval.
void CheckUpdate(const Graph& graph, const Loop::Update& update, Findings& findings,
                 CheckBudget& budget) {
  const Scalar& scalar = graph.scalars[update.scalar];
  const std::string name(scalar.name);
  if (scalar.dtype == DType::kI64 &&
      (std::trunc(update.factor) != update.factor || std::trunc(update.addend) != update.addend)) {
    findings.Add(Code::kUpdate, {},
                 StrCat("scalar '", name, "' is an i64, and its update has factor ", update.factor,
                        " and addend ", update.addend, ". Fix: use whole numbers"));
    return;
  }
  double low = scalar.initial.value_or(scalar.min);
  double high = scalar.initial.value_or(scalar.max);
  double a = 1;
  double b = 0;
  for (uint64_t step = 1; step < graph.loop->max_steps; ++step) {
    if (step % kUpdatesInAStep == 0 && !budget.Take()) return;
    const double next_a = update.factor * a;
    const double next_b = update.factor * b + update.addend;
    if (next_a == a && next_b == b) return;  // It does not change any more.
    a = next_a;
    b = next_b;
    if (a == 0) {
      if (b < scalar.min || b > scalar.max) high = low - 1;
    } else {
      const double from_min = (scalar.min - b) / a;
      const double from_max = (scalar.max - b) / a;
      // Beyond the range of a double every value but 0 leaves the range.
      low = std::max(low, std::min(from_min, from_max));
      high = std::min(high, std::max(from_min, from_max));
    }
    if (!(low <= high)) {
      findings.Add(Code::kUpdate, {},
                   StrCat("scalar '", name, "' leaves its range [", scalar.min, ", ", scalar.max,
                          "] after ", step, " updates",
                          scalar.initial.has_value() ? StrCat(" from ", *scalar.initial)
                                                     : " whatever its first value is",
                          ", and the loop has up to ", graph.loop->max_steps,
                          " steps. Fix: reduce max_steps, or extend the range"));
      return;
    }
  }
}

}  // namespace

void CheckLoop(const Graph& graph, Findings* findings, CheckBudget& budget) {
  const uint64_t steps = graph.loop.has_value() ? graph.loop->max_steps : 1;
  for (const Tensor& tensor : graph.tensors) {
    if (!budget.Take()) return;
    if (tensor.kind != TensorKind::kStream || tensor.view.first_axis == 0) continue;
    // EndTensors has removed the first axis from the view.
    const int64_t records = graph.axes[tensor.view.first_axis - 1].size;
    if (steps <= static_cast<uint64_t>(records)) continue;
    findings->Add(Code::kStreamRecords, {.tensor = std::string(tensor.name)},
                  StrCat("the stream has ", records, " records, and the loop has up to ", steps,
                         " steps. Fix: give the stream a first dimension of ", steps));
  }
  if (!graph.loop.has_value()) return;
  CheckStop(graph, *findings, budget);
  for (const Loop::Update& update : graph.loop->updates) {
    CheckUpdate(graph, update, *findings, budget);
  }
}

}  // namespace resident::graph
