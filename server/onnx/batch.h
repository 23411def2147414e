// SpecializeBatch: a graph in which the batch remains a dynamic dimension.
//
// The graphs of several batch sizes are made with the same choices and compared. If they are equal
// except that some outermost dimensions of tensors, and some dimensions of views, are the batch
// size in each of them, these become a scalar. Otherwise the model is refused, so that no knowledge
// of single operators is needed. The sizes that are compared are the largest one, its neighbours, 2
// and 3; of the graph for 1, the nodes, scalars, offsets and weights.
//
// Thread safety: a pure function.
//
//   ASSIGN_OR_RETURN(const ImportedModel imported, SpecializeBatch(model, {{{"batch", 64}},
//   "batch"}));
#ifndef RESIDENT_SERVER_ONNX_BATCH_H_
#define RESIDENT_SERVER_ONNX_BATCH_H_

#include "absl/status/statusor.h"
#include "server/onnx/import.h"

namespace resident::onnx {

// REQUIRES: the sizes are checked. E302: the batch is not only an outermost dimension; the message
// names the node or tensor.
absl::StatusOr<ImportedModel> SpecializeBatch(const CheckedModel& model, const Sizes& sizes);

}  // namespace resident::onnx

#endif  // RESIDENT_SERVER_ONNX_BATCH_H_
