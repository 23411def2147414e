// Fuse: lets one built-in operator execute several nodes of a checked graph. The graph computes the
// same, and the tensors between these nodes are not written.
//
//   written                                              executed
//   silu, mul                                            silu_mul
//   gemv, gemv, silu_mul of one vector                   gemv_silu_mul
//   gemv or gemv_quant, add of a bias or a residual      gemv or gemv_quant_bias
//   gemv or linear of float32; add of a bias, or an      linear
//     activation; add of a residual
//   add, rmsnorm                                         rmsnorm_residual
//   rmsnorm, gemv_quant, gemv_quant, silu_mul            rmsnorm_gemv_quant_silu_mul
//   rmsnorm, gemv or one of its relatives                rmsnorm_gemv or one of its relatives
//   rmsnorm_gemv, three of one norm                      rmsnorm_gemv_qkv
//
// They are tried in this order, and what one of them makes is a node for the next ones. A norm that
// several products read is computed again in each of them. A pattern is one function of fuse.cc.
//
// Invariants:
//   1. A tensor that is not written any more is an activation of float32, is not the stop tensor,
//      and is read by nodes only with which its writer is fused. All other tensors have the same
//      elements at the end of each step; rounding in float32 may differ.
//   2. A node is fused only if it names no version, has no waits, signals or block, and the
//      built-in version of its operator serves (OperatorInfo::builtin_serves). So must that of the
//      operator in its place.
//   3. The operator in its place is not slower: kernels/ops/fused_operators.h. One breaks this:
//      rmsnorm_gemv_qkv takes about 1 us more on the path of a step than its three nodes side by
//      side (docs/benchmarks/experiments.md).
//   4. The fused graph is checked as the written one was. If it is refused, the graph stays as it
//      was.
//
// Thread safety: pure functions.
//
//   CheckedGraph checked = {graph, order};
//   Fuse(catalog, &checked, &budget);
//   for (const Fusion::Fused& each : checked.fusion.fused) ...
#ifndef RESIDENT_RUNTIME_GRAPH_FUSE_H_
#define RESIDENT_RUNTIME_GRAPH_FUSE_H_

#include <cstdint>
#include <string_view>

#include "absl/types/span.h"
#include "runtime/graph/check.h"
#include "runtime/graph/check_budget.h"
#include "runtime/graph/operator_catalog.h"

namespace resident::graph {

// The operators on which the result of Fuse may depend.
absl::Span<const std::string_view> FusionOperators();
// Whether Fuse would make the same of the graph now. It would not after a newer version of one of
// these operators became active or came on trial, or when it has gone.
bool StaysFused(const Fusion& fusion, const OperatorCatalog& catalog);

// `checked`: not fused yet. It stays as it is if Graph::fuse is false, if it has more nodes than
// can run, or if `budget` (of its check; null: one of its own) ends meanwhile.
void Fuse(const OperatorCatalog& catalog, CheckedGraph* checked, CheckBudget* budget = nullptr);

}  // namespace resident::graph

#endif  // RESIDENT_RUNTIME_GRAPH_FUSE_H_
