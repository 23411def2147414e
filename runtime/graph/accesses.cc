#include "runtime/graph/accesses.h"

#include <algorithm>
#include <cmath>
#include <string_view>

namespace resident::graph {
namespace {

// The positions of parameters in the signatures (kernels/ops/builtin_operators.inc). Tests compare
// them with the table.
constexpr uint32_t kCacheArgument = 1;
constexpr uint32_t kCacheRowAxis = 2;
constexpr uint32_t kCachePosArgument = 2;
constexpr uint32_t kKeyArgument = 1;
constexpr uint32_t kValueArgument = 2;
constexpr uint32_t kProductArgument = 2;
constexpr uint32_t kProductBetaArgument = 4;

// The position of kv_len; 0: the operator has none.
uint32_t FindKvLen(std::string_view op) {
  if (op == "attention") return 7;
  if (op == "attention_partial") return 9;
  return 0;
}

bool OverwritesProduct(const Graph& graph, const Node& node, std::string_view op) {
  if (op != "gemm" && op != "gemm_batched") return false;
  const absl::Span<const Argument> arguments = graph.ArgumentsOf(node);
  if (arguments.size() <= kProductBetaArgument) return true;  // The default is 0.
  const Argument& beta = arguments[kProductBetaArgument];
  return beta.kind == Argument::Kind::kFloat && beta.number == 0;
}

int64_t Clamp(double value, int64_t low, int64_t high) {
  if (!(value > static_cast<double>(low))) return low;
  if (value >= static_cast<double>(high)) return high;
  return static_cast<int64_t>(value);
}

}  // namespace

std::optional<RowWindow> FindRowWindow(const Graph& graph, const Node& node, uint32_t argument) {
  const OperatorInfo& info = graph.operators[node.op];
  if (!info.builtin) return std::nullopt;
  const absl::Span<const Argument> arguments = graph.ArgumentsOf(node);
  if (info.name == "kv_append") {
    if (argument != kCacheArgument) return std::nullopt;
    const View& rows = arguments[0].view;
    if (rows.rank <= kCacheRowAxis) return std::nullopt;
    const Axis& axis = graph.axes[rows.first_axis + kCacheRowAxis];
    RowWindow window;
    window.axis = kCacheRowAxis;
    window.start = ToExpression(graph, arguments[kCachePosArgument]);
    window.count = axis.scalar == kNone ? ScalarExpression{kNone, 1, static_cast<double>(axis.size)}
                                        : ScalarExpression{axis.scalar, 1, 0};
    return window;
  }
  const uint32_t kv_len = FindKvLen(info.name);
  if (kv_len == 0 || (argument != kKeyArgument && argument != kValueArgument)) return std::nullopt;
  if (arguments.size() <= kv_len) return std::nullopt;  // The default: all rows.
  RowWindow window;
  window.axis = kCacheRowAxis;
  window.count = ToExpression(graph, arguments[kv_len]);
  // -1 stands for all rows.
  if (ComputeRange(graph, window.count).min < 0) return std::nullopt;
  return window;
}

void ListAccesses(const Graph& graph, const Node& node, absl::Span<const double> values,
                  std::vector<Access>* accesses) {
  const OperatorInfo& info = graph.operators[node.op];
  const absl::Span<const Argument> arguments = graph.ArgumentsOf(node);
  for (uint32_t i = 0; i < arguments.size(); ++i) {
    const Argument& argument = arguments[i];
    if (argument.kind != Argument::Kind::kTensor) continue;
    Extents extents =
        values.empty() ? MaxExtents(graph, argument.view) : ExtentsAt(graph, argument.view, values);
    int64_t offset = argument.view.offset;
    const ParameterKind kind = info.signature.parameters()[i].kind;
    bool reads = kind != ParameterKind::kOutput;
    bool writes = kind != ParameterKind::kInput;
    // Whether every element is written.
    bool in_full = kind == ParameterKind::kOutput;
    if (info.builtin && kind == ParameterKind::kInOut && i == kProductArgument &&
        OverwritesProduct(graph, node, info.name)) {
      reads = false;
      in_full = true;
    }
    if (const std::optional<RowWindow> window = FindRowWindow(graph, node, i);
        window.has_value() && window->axis < extents.size()) {
      Extent& rows = extents[window->axis];
      int64_t count = Clamp(
          values.empty() ? ComputeRange(graph, window->count).max : Evaluate(window->count, values),
          0, rows.size);
      if (window->start.has_value()) {
        reads = false;
        // Which rows are written is certain only if nothing depends on a scalar.
        in_full = window->start->scalar == kNone;
        const Range start = ComputeRange(graph, *window->start);
        const int64_t first = Clamp(start.min, 0, rows.size);
        const int64_t last = Clamp(start.max + static_cast<double>(count), first, rows.size);
        offset += first * rows.stride;
        count = last - first;
      }
      if (count == 0) continue;
      rows.size = count;
    }
    Access access;
    access.argument = static_cast<uint16_t>(i);
    access.tensor = argument.tensor;
    access.region = MakeRegion(extents, offset, SizeOf(argument.view.dtype));
    if (reads) accesses->push_back(access);
    if (!writes) continue;
    access.mode = in_full ? Access::Mode::kWrite : Access::Mode::kUpdate;
    access.also_read = reads;
    accesses->push_back(std::move(access));
  }
}

}  // namespace resident::graph
