#include "server/models/model_rows.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/errors/quote.h"
#include "runtime/graph/values.h"
#include "runtime/model/dtype.h"

namespace resident {
namespace {

using errors::Quote;
using graph::Argument;

// An operator, and the variable of its signature along which it computes independently: element i
// of that dimension of its outputs depends on element i of that dimension of its arguments. "*S":
// any dimension of the spread.
struct RowOperator {
  std::string_view name;
  std::string_view variable;
};

// In addition to the family of operators that compute element by element. Operators that draw
// random numbers are not among them: those depend on the number of the row.
constexpr RowOperator kRowOperators[] = {
    {"attention", "B"},
    {"attention_combine", "B"},
    {"attention_partial", "B"},
    {"embedding", "*S"},
    {"gather", "*S"},
    {"gemm", "M"},
    {"gemm_batched", "B"},
    {"gemv", "*S"},
    {"gemv_quant", "*S"},
    {"gemv_quant_bias", "*S"},
    {"gemv_silu_mul", "*S"},
    {"layernorm", "*S"},
    {"linear", "*S"},
    {"log_softmax", "*S"},
    {"pointwise", "*S"},
    {"rmsnorm", "*S"},
    {"rmsnorm_gemv", "*S"},
    {"rmsnorm_gemv_qkv", "*S"},
    {"rmsnorm_gemv_quant", "*S"},
    {"rmsnorm_gemv_quant_silu_mul", "*S"},
    {"rmsnorm_gemv_silu_mul", "*S"},
    {"rmsnorm_residual", "*S"},
    {"rope", "B"},
    {"softmax", "*S"},
    {"softmax_topk", "R"},
    {"sum_rows", "R"},
};
constexpr std::string_view kElementwise = "elementwise";
constexpr std::string_view kReductions[] = {"argmax", "max", "mean", "min", "sum"};

// A dimension of an argument as its signature names it. The dimensions of a spread, and those that
// broadcast to it, are counted from the last one.
struct NamedDim {
  uint32_t variable = 0;
  uint32_t from_last = 0;

  bool operator==(const NamedDim&) const = default;
};

std::optional<NamedDim> NameDim(const Parameter& parameter, uint32_t rank, uint32_t axis) {
  uint32_t next = 0;
  for (const DimPattern& dim : parameter.dims) {
    const bool many =
        dim.kind == DimPattern::Kind::kSpread || dim.kind == DimPattern::Kind::kBroadcast;
    const uint32_t count =
        many ? rank - static_cast<uint32_t>(parameter.dims.size() - 1) : uint32_t{1};
    if (axis < next + count) {
      if (dim.kind == DimPattern::Kind::kFixed) return std::nullopt;
      return NamedDim{dim.variable, many ? next + count - 1 - axis : 0};
    }
    next += count;
  }
  return std::nullopt;
}

class RowProof {
 public:
  RowProof(const graph::CheckedGraph& checked, uint32_t scalar)
      : checked_(checked), graph_(checked.graph), scalar_(scalar) {}

  // Why the rows of a node are not independent; empty: they are.
  std::string FindFault(uint32_t index) const {
    const graph::Node& node = graph_.nodes[index];
    const graph::OperatorInfo& op = graph_.operators[node.op];
    const auto& parameters = op.signature.parameters();
    const auto arguments = graph_.ArgumentsOf(node);
    const auto fault = [&](const std::string& what) {
      return absl::StrCat("node ", checked_.WrittenName(index), " (", op.name, ") ", what);
    };
    // The dimension with the rows of each argument that has rows.
    std::vector<std::optional<uint32_t>> axes(arguments.size());
    bool any = false, all_outputs = true;
    size_t output = 0;
    for (size_t i = 0; i < arguments.size(); ++i) {
      const Argument& argument = arguments[i];
      if (argument.kind == Argument::Kind::kExpression &&
          graph_.expressions[argument.expression].scalar == scalar_) {
        return fault(
            absl::StrCat("uses the number of rows as the value of ", Quote(parameters[i].name)));
      }
      if (argument.kind != Argument::Kind::kTensor) continue;
      if (!FindRowAxis(argument, &axes[i])) {
        return fault(absl::StrCat("mixes rows: its argument ", Quote(parameters[i].name),
                                  " is not row by row in its tensor"));
      }
      any |= axes[i].has_value();
      if (parameters[i].kind == ParameterKind::kInput) continue;
      all_outputs &= axes[i].has_value();
      output = i;
    }
    if (!any) return "";
    if (!all_outputs) return fault("mixes rows: an output of it has none");
    if (!op.builtin) return fault("is not known to compute each row by itself");
    if (std::ranges::find(kReductions, op.name) != std::end(kReductions)) {
      return ReducesRows(node, axes) ? fault("mixes rows: it reduces their dimension") : "";
    }
    const std::string_view variable = FindVariable(op);
    if (variable.empty()) return fault("is not known to compute each row by itself");
    const std::optional<NamedDim> rows = FindRowsOfOutputs(op, arguments, axes, variable);
    const auto from_end = [&](size_t i) { return arguments[i].view.rank - *axes[i]; };
    for (size_t i = 0; rows.has_value() && i < arguments.size(); ++i) {
      if (!axes[i].has_value()) {
        if (!HasRowsOfItsOwn(op, parameters[i], arguments, i, from_end(output))) continue;
        return fault(absl::StrCat("mixes rows: its argument ", Quote(parameters[i].name),
                                  " has another number of them"));
      }
      const uint32_t rank = arguments[i].view.rank;
      if (NameDim(parameters[i], rank, *axes[i]) == rows) continue;
      if (IsMaskOfRows(op, parameters[i], rank, *axes[i])) continue;
      const bool follows = FollowsOutput(op, parameters[i]) ||
                           IsGatheredWithin(op, parameters[i], arguments, *axes[i]);
      if (follows && from_end(i) == from_end(output)) continue;
      return fault(absl::StrCat("mixes rows: those of ", Quote(parameters[i].name),
                                " are in another dimension than those of its output"));
    }
    return rows.has_value() ? "" : fault("mixes rows along their dimension");
  }

 private:
  static std::string_view FindVariable(const graph::OperatorInfo& op) {
    if (op.family == kElementwise) return "*S";
    for (const RowOperator& row : kRowOperators) {
      if (row.name == op.name) return row.variable;
    }
    return "";
  }

  // The dimension of all outputs that has the rows, if it is that of `variable`.
  static std::optional<NamedDim> FindRowsOfOutputs(const graph::OperatorInfo& op,
                                                   absl::Span<const Argument> arguments,
                                                   const std::vector<std::optional<uint32_t>>& axes,
                                                   std::string_view variable) {
    std::optional<NamedDim> rows;
    for (size_t i = 0; i < arguments.size(); ++i) {
      const Parameter& parameter = op.signature.parameters()[i];
      if (!axes[i].has_value() || parameter.kind == ParameterKind::kInput) continue;
      const auto dim = NameDim(parameter, arguments[i].view.rank, *axes[i]);
      if (!dim.has_value() || op.signature.variables()[dim->variable] != variable) return {};
      if (rows.has_value() && rows != dim) return {};
      rows = dim;
    }
    return rows;
  }

  // The mask of attention broadcasts to [B, N, S, L].
  static bool IsMaskOfRows(const graph::OperatorInfo& op, const Parameter& parameter, uint32_t rank,
                           uint32_t axis) {
    return parameter.name == "mask" && rank == 4 && axis == 0 &&
           (op.name == "attention" || op.name == "attention_partial");
  }

  // Arguments that have the output's shape or broadcast to it, by the operator's own rules: their
  // dimensions have names of their own in the signature.
  static bool FollowsOutput(const graph::OperatorInfo& op, const Parameter& parameter) {
    return (op.name == "linear" && parameter.name == "residual") || parameter.name == "bias" ||
           (op.name == "pointwise" && parameter.name != "program");
  }
  // x of a gather has the dimensions of the output, but for the size of the axis.
  static bool IsGatheredWithin(const graph::OperatorInfo& op, const Parameter& parameter,
                               absl::Span<const Argument> arguments, uint32_t rows) {
    return op.name == "gather" && parameter.name == "x" && arguments.size() > 3 &&
           arguments[3].kind == Argument::Kind::kInteger && arguments[3].integer >= 0 &&
           arguments[3].integer != static_cast<int64_t>(rows);
  }
  // Whether an argument without rows has as many elements as there are rows in the dimension of the
  // output's rows: only the operator itself would notice that they are others.
  bool HasRowsOfItsOwn(const graph::OperatorInfo& op, const Parameter& parameter,
                       absl::Span<const Argument> arguments, size_t index,
                       uint32_t from_end) const {
    const Argument& argument = arguments[index];
    const bool of_gather = op.name == "gather" && parameter.name == "x";
    if (argument.kind != Argument::Kind::kTensor || argument.view.rank < from_end) return false;
    if (!of_gather && parameter.name != "mask" && !FollowsOutput(op, parameter)) return false;
    if (parameter.name == "bias" && argument.view.rank == 1) return false;
    const uint32_t axis = argument.view.rank - from_end;
    // Along the axis of a gather, x has any number of elements.
    const bool along = of_gather && arguments.size() > 3 &&
                       arguments[3].kind == Argument::Kind::kInteger &&
                       arguments[3].integer == static_cast<int64_t>(axis);
    return !along && graph_.AxesOf(argument.view)[axis].size != 1;
  }

  // x, out, axes.
  bool ReducesRows(const graph::Node& node,
                   const std::vector<std::optional<uint32_t>>& axes) const {
    const auto arguments = graph_.ArgumentsOf(node);
    if (arguments.size() < 3 || arguments[2].kind != Argument::Kind::kInteger) return true;
    if (!axes[0].has_value()) return true;
    const auto reduced = static_cast<uint32_t>(arguments[2].integer);
    const uint32_t rows = *axes[0];
    if ((reduced >> rows & 1) != 0) return true;
    const bool keeps = arguments[0].view.rank == arguments[1].view.rank;
    const uint32_t before = keeps ? 0 : std::popcount(reduced & ((1u << rows) - 1));
    return axes[1] != rows - before;
  }

  // Sets the argument's dimension with the rows; nullopt: it is the same for all rows. Returns
  // false if row i of the argument is not in row i of its tensor.
  bool FindRowAxis(const Argument& argument, std::optional<uint32_t>* axis) const {
    const auto dims = graph_.AxesOf(argument.view);
    for (uint32_t d = 0; d < dims.size(); ++d) {
      if (dims[d].scalar != scalar_) continue;
      if (axis->has_value()) return false;
      *axis = d;
    }
    const graph::Tensor& root = graph_.tensors[graph_.tensors[argument.tensor].root];
    const auto root_dims = graph_.AxesOf(root.view);
    if (root_dims.empty() || root_dims[0].scalar != scalar_) {
      // Rows of a tensor without rows: only if all are the same.
      return !axis->has_value() || dims[**axis].stride == 0;
    }
    const int64_t row = root_dims[0].stride;
    if (!axis->has_value() || dims[**axis].stride != row || row <= 0) return false;
    int64_t low = argument.view.offset - root.view.offset;
    int64_t high = low + static_cast<int64_t>(SizeOf(argument.view.dtype));
    for (uint32_t d = 0; d < dims.size(); ++d) {
      if (d == **axis) continue;
      const int64_t reach = (dims[d].size - 1) * dims[d].stride;
      (reach < 0 ? low : high) += reach;
    }
    return low >= 0 && high <= row;
  }

  const graph::CheckedGraph& checked_;
  const graph::Graph& graph_;
  const uint32_t scalar_;
};

}  // namespace

ModelRows FindRows(const graph::CheckedGraph& checked, const ModelInterface& interface) {
  ModelRows rows;
  if (interface.inputs.empty()) {
    rows.reason = "the model has no input";
    return rows;
  }
  const uint32_t scalar = interface.inputs[0].scalar;
  for (const auto* const ports : {&interface.inputs, &interface.outputs}) {
    for (const ModelPort& port : *ports) {
      if (port.scalar != graph::kNone && port.scalar == scalar) continue;
      rows.reason =
          port.scalar == graph::kNone
              ? absl::StrCat("tensor ", Quote(port.name), " has no dynamic outermost dimension")
              : absl::StrCat("tensor ", Quote(port.name), " and tensor ",
                             Quote(interface.inputs[0].name), " have different dynamic dimensions");
      return rows;
    }
  }
  const RowProof proof(checked, scalar);
  for (uint32_t node = 0; node < checked.graph.nodes.size(); ++node) {
    rows.reason = proof.FindFault(node);
    if (!rows.reason.empty()) return rows;
  }
  rows.scalar = scalar;
  rows.max = static_cast<uint64_t>(interface.inputs[0].shape[0]);
  return rows;
}

}  // namespace resident
