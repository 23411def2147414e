#include "runtime/graph/values.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/graph/scalar_bits.h"
#include "runtime/model/dtype.h"

namespace resident::graph {

Extents MaxExtents(const Graph& graph, const View& view) {
  Extents extents;
  for (const Axis& axis : graph.AxesOf(view)) extents.push_back({axis.size, axis.stride});
  return extents;
}

Extents ExtentsAt(const Graph& graph, const View& view, absl::Span<const double> values) {
  Extents extents;
  for (const Axis& axis : graph.AxesOf(view)) {
    assert(axis.scalar == kNone || (values[axis.scalar] >= graph.scalars[axis.scalar].min &&
                                    values[axis.scalar] <= graph.scalars[axis.scalar].max));
    extents.push_back({axis.scalar == kNone ? axis.size : static_cast<int64_t>(values[axis.scalar]),
                       axis.stride});
  }
  return extents;
}

std::string ShapeText(const Graph& graph, const View& view) {
  std::string text = "[";
  for (const Axis& axis : graph.AxesOf(view)) {
    if (text.size() > 1) text += ", ";
    if (axis.scalar == kNone) {
      absl::StrAppend(&text, axis.size);
    } else {
      absl::StrAppend(&text, std::string(graph.scalars[axis.scalar].name), " (at most ", axis.size,
                      ")");
    }
  }
  return text + "]";
}

void SetDefault(const Parameter& parameter, Argument* argument) {
  assert(parameter.default_bits.has_value());
  const uint64_t bits = *parameter.default_bits;
  const Element element = ReadElement(parameter.dtypes[0], &bits);
  argument->kind = element.floating ? Argument::Kind::kFloat : Argument::Kind::kInteger;
  argument->number = element.real;
  argument->integer = element.integer;
}

ScalarExpression ToExpression(const Graph& graph, const Argument& argument) {
  switch (argument.kind) {
    case Argument::Kind::kInteger:
      return {kNone, 1, static_cast<double>(argument.integer)};
    case Argument::Kind::kFloat:
      return {kNone, 1, argument.number};
    case Argument::Kind::kExpression:
      return graph.expressions[argument.expression];
    default:
      return {};
  }
}

Range ComputeRange(const Graph& graph, const ScalarExpression& expression) {
  if (expression.scalar == kNone) return {expression.addend, expression.addend};
  const Scalar& scalar = graph.scalars[expression.scalar];
  // 0 times an infinite bound is 0.
  if (expression.factor == 0) return {expression.addend, expression.addend};
  Range range{ScaleScalar(expression.factor, scalar.min, expression.addend),
              ScaleScalar(expression.factor, scalar.max, expression.addend)};
  if (range.min > range.max) std::swap(range.min, range.max);
  return range;
}

Range ComputeRange(const Graph& graph, const Argument& argument) {
  return ComputeRange(graph, ToExpression(graph, argument));
}

double Evaluate(const ScalarExpression& expression, absl::Span<const double> values) {
  if (expression.scalar == kNone) return expression.addend;
  return ScaleScalar(expression.factor, values[expression.scalar], expression.addend);
}

std::vector<double> NextValues(const Graph& graph, absl::Span<const double> values) {
  std::vector<double> next(values.begin(), values.end());
  for (const Loop::Update& update : graph.loop->updates) {
    next[update.scalar] = ScaleScalar(update.factor, values[update.scalar], update.addend);
  }
  return next;
}

std::optional<bool> IsGreater(const Graph& graph, const ScalarExpression& a,
                              const ScalarExpression& b) {
  if (a.scalar == b.scalar && (a.scalar == kNone || a.factor == b.factor)) {
    return a.addend > b.addend;
  }
  const Range of_a = ComputeRange(graph, a);
  const Range of_b = ComputeRange(graph, b);
  if (of_a.min > of_b.max) return true;
  if (of_a.max <= of_b.min) return false;
  return std::nullopt;
}

}  // namespace resident::graph
