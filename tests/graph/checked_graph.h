// Graphs of messages, checked with the built-in operators.
//
// Thread safety: pure functions.
//
//   const auto checked = CheckBuiltinGraph(message);
//   if (checked.has_value()) ...
#ifndef RESIDENT_TESTS_GRAPH_CHECKED_GRAPH_H_
#define RESIDENT_TESTS_GRAPH_CHECKED_GRAPH_H_

#include <optional>

#include "resident/v1/graphs.pb.h"
#include "runtime/graph/check.h"

namespace resident::testing {

// nullopt: the graph has errors.
std::optional<graph::CheckedGraph> CheckBuiltinGraph(const v1::Graph& message);

}  // namespace resident::testing

#endif  // RESIDENT_TESTS_GRAPH_CHECKED_GRAPH_H_
