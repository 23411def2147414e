// The memory that a node reads and writes: its footprint.
//
// It follows from the signature: an `in` parameter is read in full, an `out` parameter is written
// in full, an `inout` parameter is read in full and written in part. Three groups of built-in
// operators access less, and the difference matters to real graphs:
//
//   kv_append                     writes rows pos to pos + S - 1 of `cache`, and reads nothing of
//   it attention, attention_partial  read rows 0 to kv_len - 1 of `k` and `v` gemm, gemm_batched do
//   not read `c` if beta is 0
//
// Thread safety: pure functions.
#ifndef RESIDENT_RUNTIME_GRAPH_ACCESSES_H_
#define RESIDENT_RUNTIME_GRAPH_ACCESSES_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "runtime/graph/graph.h"
#include "runtime/graph/region.h"
#include "runtime/graph/values.h"

namespace resident::graph {

// Rows of one dimension that an argument's footprint is limited to.
struct RowWindow {
  uint32_t axis = 0;
  // Below `count` rows if `start` is absent; otherwise `count` rows from `start` on.
  std::optional<ScalarExpression> start;
  ScalarExpression count;
};
// Nullopt: the footprint is the whole argument.
std::optional<RowWindow> FindRowWindow(const Graph& graph, const Node& node, uint32_t argument);

struct Access {
  // kUpdate: may write some of the elements and keeps the others.
  enum class Mode : uint8_t { kRead, kWrite, kUpdate };
  Mode mode = Mode::kRead;
  // kUpdate: whether the node reads the same elements.
  bool also_read = false;
  // Position in the node's arguments.
  uint16_t argument = 0;
  uint32_t tensor = kNone;
  Region region;
};

// Appends the accesses of a node, in the order of its arguments. `values` of all scalars, by index;
// empty: everything that the node may access, whatever the scalars are.
void ListAccesses(const Graph& graph, const Node& node, absl::Span<const double> values,
                  std::vector<Access>* accesses);

}  // namespace resident::graph

#endif  // RESIDENT_RUNTIME_GRAPH_ACCESSES_H_
