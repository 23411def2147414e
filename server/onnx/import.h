// ONNX models to task graphs.
//
//   bytes ──CheckModel──▶ CheckedModel ──Specialize(sizes)──▶ v1::Graph and its weights
//
// CheckModel reads a file of an untrusted client: it checks every limit, replaces calls of local
// functions by their nodes, makes fixed inputs constants, and then makes the graph of the largest
// sizes once, to find every node that the built-in operators cannot compute. Nodes that depend only
// on constants and shapes are computed here and are not in a graph. Specialize makes the graph for
// one set of sizes. A graph never computes something else than the model: a node whose form is not
// known exactly is refused.
//
// Codes of findings and errors. The message names the node and ends with "Fix: " where there is
// one:
//
//   MODEL_E101  the bytes are not an ONNX model, or end early
//   MODEL_E102  the model has no graph or no usable version of the operator set
//   MODEL_E103  a limit is exceeded
//   MODEL_E104  two values have one name
//   MODEL_E105  a value is used before it is computed, or never computed
//   MODEL_E106  the data of a tensor do not fit its shape and type
//   MODEL_E107  a data file was not sent along, or a tensor lies outside of it
//   MODEL_E108  an option names nothing of the model, or has a value that does not fit
//   MODEL_E109  a node or function is malformed
//   MODEL_E201  the daemon has no such type of elements, or the operator does not take it
//   MODEL_E202  sequences, maps, optional values and sparse tensors
//   MODEL_E203  products of integers
//   MODEL_E301  no operator computes the node
//   MODEL_E302  an operator computes such nodes, but not in this form
//   MODEL_E401  the shape of an output depends on values
//   MODEL_E402  something that must be constant is computed or an input
//   MODEL_E403  loops
//   MODEL_E404  an empty tensor, or a dynamic dimension without a bound or above it
//   MODEL_E501  constants that are computed at import, or the graph, are too large
//
// Thread safety: pure functions. A CheckedModel may be used by several threads.
//
//   ASSIGN_OR_RETURN(const CheckedModel model, CheckModel(bytes, files, options));
//   if (!model.report.findings.empty()) ... not accepted
//   ASSIGN_OR_RETURN(const ImportedModel imported, Specialize(model, {.sizes = {{"batch", 4}}}));
#ifndef RESIDENT_SERVER_ONNX_IMPORT_H_
#define RESIDENT_SERVER_ONNX_IMPORT_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "resident/v1/graphs.pb.h"
#include "server/onnx/nodes/limits.h"
#include "server/onnx/onnx.pb.h"
#include "server/onnx/values/constant.h"
#include "server/onnx/values/constant_cache.h"

namespace resident::onnx {

// Data files that were sent along, by their names in the model, which are plain names without a
// folder. The bytes must live as long as the call.
using Files = std::map<std::string, std::string_view>;

struct Options {
  // Inputs that become constants: numbers separated by commas, such as "16000" or "1,32".
  std::map<std::string, std::string> fixed_inputs;
  // The largest sizes of dynamic dimensions, by their names in the model. A dimension without a
  // name is INPUT.AXIS, such as "x.0". One that only inputs have, as their outermost dimension,
  // needs none: it is max_batch.
  std::map<std::string, int64_t> max_sizes;
  int64_t max_batch = 64;
  // Whether the model was accepted before, with these options: no graph is made on trial, and the
  // checked model has no outputs.
  bool accepted = false;
  // Whether graphs of several sizes share the weights: what form a weight has then does not depend
  // on the number of rows.
  bool shares_weights = false;
};

struct Finding {
  std::string code;       // "MODEL_E302".
  std::string node;       // Its name, or that of its first output; empty: it concerns no node.
  std::string operator_;  // The ONNX operator.
  std::string input;      // E402: the input of the model that Options::fixed_inputs could fix.
  std::string message;
};

struct Report {
  // Why the model is not accepted, in the order of the nodes; empty: it is. At most kMaxFindings.
  std::vector<Finding> findings;
  uint64_t finding_count = 0;
  // How often the model has each operator that is not supported (E301).
  std::map<std::string, uint64_t> unsupported;
  // Nodes of the model with those of functions, and of the graph of the largest sizes.
  uint64_t model_nodes = 0;
  uint64_t graph_nodes = 0;
};

// A dynamic dimension.
struct Symbol {
  std::string name;
  int64_t max_size = 0;
  // Whether it is only the outermost dimension of inputs.
  bool outermost = true;
};

struct TensorSpec {
  std::string name;    // In the model.
  std::string tensor;  // In the graph; differs if the name is longer than a graph's may be.
  ElementType type = ElementType::kUndefined;
  struct Dim {
    // 0: dynamic.
    int64_t size = 0;
    // Of a dynamic one; empty: it is computed from some.
    std::string symbol;
  };
  std::vector<Dim> shape;
};

struct CheckedModel {
  std::string name;
  Report report;
  // Without fixed inputs and those without elements, which are constants, too. Complete only if
  // there are no findings.
  std::vector<TensorSpec> inputs;
  std::vector<TensorSpec> outputs;
  std::vector<Symbol> symbols;

  // The checked form: functions are inlined, initializers are in `constants`.
  int64_t opset = 0;
  bool shares_weights = false;  // As in Options.
  std::shared_ptr<const GraphProto> graph;
  absl::flat_hash_map<std::string, Constant> constants;
  // Of all graphs that are made from the model and its copies.
  std::shared_ptr<ConstantCache> cache = std::make_shared<ConstantCache>();
};

struct Sizes {
  // Of each dynamic dimension, by its name.
  std::map<std::string, int64_t> sizes;
  // The name of a dynamic dimension that remains one: the graph has a scalar with the range 1 to
  // its entry in `sizes`, which is the outermost dimension of all tensors that have it. Empty:
  // none.
  std::string batch;
};

struct ImportedModel {
  v1::Graph graph;
  std::vector<Weight> weights;
  // The scalar of Sizes::batch; empty: none was asked for, or the batch is 1.
  std::string batch_scalar;
  std::vector<TensorSpec> inputs;
  std::vector<TensorSpec> outputs;
};

// INVALID_ARGUMENT: the bytes are not a model, or it exceeds a limit (E1xx); the message begins
// with the code. What refuses single nodes is in the report instead.
absl::StatusOr<CheckedModel> CheckModel(std::string_view bytes, const Files& files,
                                        const Options& options);

// INVALID_ARGUMENT: the model has findings, a size is missing or above its bound, or a node cannot
// be computed for these sizes, or the batch is not only an outermost dimension (E302); the message
// begins with the code of the first finding.
absl::StatusOr<ImportedModel> Specialize(const CheckedModel& model, const Sizes& sizes);

}  // namespace resident::onnx

#endif  // RESIDENT_SERVER_ONNX_IMPORT_H_
