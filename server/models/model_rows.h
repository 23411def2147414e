// The graphs whose rows are independent of each other: each row of an output depends on the same
// row of the inputs, on weights and on scalars only. Rows of several requests can then lie one
// after the other, and one run computes all of them.
//
// It is proved for the checked graph, node by node:
//
//   1. All inputs and outputs have one scalar as the size of their outermost dimension. A tensor
//      with this outermost dimension has rows; all others are the same for all rows.
//   2. Row i of an argument lies in row i of its tensor, for each i: the argument has exactly one
//      dimension of this size, with the stride of the tensor's rows, and no element outside of
//      its row.
//   3. The operator is built in, and known to compute each row of its outputs from the same row of
//      its arguments (the table in model_rows.cc). An operator that is not known mixes rows.
//   4. No argument has the number of rows as its value.
//
// Thread safety: a pure function.
//
//   const ModelRows rows = FindRows(*checked, interface);
//   if (rows.independent()) ...
#ifndef RESIDENT_SERVER_MODELS_MODEL_ROWS_H_
#define RESIDENT_SERVER_MODELS_MODEL_ROWS_H_

#include <cstdint>
#include <string>

#include "runtime/graph/check.h"
#include "runtime/graph/graph.h"
#include "server/models/model_graph.h"

namespace resident {

struct ModelRows {
  // The number of rows; kNone: rows are not independent.
  uint32_t scalar = graph::kNone;
  // Its largest value.
  uint64_t max = 0;
  // Why rows are not independent: a whole sentence that names the tensor or the node.
  std::string reason;

  bool independent() const { return scalar != graph::kNone; }
};

ModelRows FindRows(const graph::CheckedGraph& checked, const ModelInterface& interface);

}  // namespace resident

#endif  // RESIDENT_SERVER_MODELS_MODEL_ROWS_H_
