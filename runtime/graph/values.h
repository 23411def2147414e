// Views and scalars at run time: sizes for given values of the scalars, and the range of a
// scalar argument.
//
// Thread safety: pure functions.
#ifndef RESIDENT_RUNTIME_GRAPH_VALUES_H_
#define RESIDENT_RUNTIME_GRAPH_VALUES_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "runtime/graph/graph.h"
#include "runtime/graph/region.h"

namespace resident::graph {

using Extents = absl::InlinedVector<Extent, kMaxRank>;

// The dimensions of a view, as large as they can be.
Extents MaxExtents(const Graph& graph, const View& view);
// The same for values of all scalars, by index. REQUIRES: values are within the ranges.
Extents ExtentsAt(const Graph& graph, const View& view, absl::Span<const double> values);

// "[4, pos (at most 128)]".
std::string ShapeText(const Graph& graph, const View& view);

// Sets an argument to the default of its parameter. REQUIRES: it has one.
void SetDefault(const Parameter& parameter, Argument* argument);

// The smallest and the largest value of a scalar argument.
struct Range {
  double min = 0;
  double max = 0;
};
Range ComputeRange(const Graph& graph, const ScalarExpression& expression);
Range ComputeRange(const Graph& graph, const Argument& argument);

// A scalar argument as an expression; a constant has no scalar.
ScalarExpression ToExpression(const Graph& graph, const Argument& argument);

// `values`: of all scalars, by index.
double Evaluate(const ScalarExpression& expression, absl::Span<const double> values);
// The values of the next step of a graph with a loop; they may be outside of the scalars' ranges.
std::vector<double> NextValues(const Graph& graph, absl::Span<const double> values);

// Whether a is greater than b whatever the scalars are; nullopt: it depends on them.
std::optional<bool> IsGreater(const Graph& graph, const ScalarExpression& a,
                              const ScalarExpression& b);

}  // namespace resident::graph

#endif  // RESIDENT_RUNTIME_GRAPH_VALUES_H_
