#include "runtime/graph/calls.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/graph/accesses.h"
#include "runtime/graph/limits.h"
#include "runtime/graph/region.h"
#include "runtime/graph/values.h"
#include "runtime/model/dtype.h"

namespace resident::graph {
namespace {

using absl::StrCat;

class CallChecker {
 public:
  CallChecker(const Graph& graph, Findings& findings, CheckBudget& budget)
      : graph_(graph), findings_(findings), budget_(budget) {}

  void Check(uint32_t index) {
    index_ = index;
    node_ = &graph_.nodes[index];
    info_ = &graph_.operators[node_->op];
    arguments_ = graph_.ArgumentsOf(*node_);
    const uint64_t before = findings_.errors();
    for (uint32_t i = 0; i < arguments_.size(); ++i) {
      if (info_->signature.parameters()[i].scalar()) {
        CheckScalar(i);
      } else if (arguments_[i].kind == Argument::Kind::kTensor) {
        CheckTensor(i);
      }
    }
    if (findings_.errors() != before) return;
    CheckShapes();
    if (findings_.errors() != before) return;
    for (uint32_t i = 0; i < arguments_.size(); ++i) CheckRows(i);
    if (findings_.errors() != before) return;
    CheckMemory();
  }

 private:
  void Add(Code code, uint32_t argument, const std::string& text) {
    if (!findings_.keeps_errors()) return findings_.CountError();
    Findings::Place place{.node = graph_.NodeName(index_)};
    if (arguments_[argument].kind == Argument::Kind::kTensor) {
      place.tensor = graph_.TensorName(arguments_[argument].tensor);
    }
    findings_.Add(code, std::move(place),
                  StrCat("argument ", argument + 1, " '",
                         info_->signature.parameters()[argument].name, "' of ", info_->name, text));
  }

  void CheckScalar(uint32_t i) {
    const DType dtype = info_->signature.parameters()[i].dtypes[0];
    const Argument& argument = arguments_[i];
    const bool floating =
        argument.kind == Argument::Kind::kFloat ||
        (argument.kind == Argument::Kind::kExpression &&
         graph_.scalars[graph_.expressions[argument.expression].scalar].dtype == DType::kF32);
    if (floating != IsFloat(dtype)) {
      return Add(
          Code::kScalarDType, i,
          StrCat(" is a ", DTypeName(dtype), " and got ",
                 floating ? "a floating-point value" : "an integer", ". Fix: give ",
                 floating ? "i64, or a scalar of type i64" : "f64, or a scalar of type f32"));
    }
    if (argument.kind == Argument::Kind::kExpression) return CheckExpression(i, dtype);
    if (floating && std::isnan(argument.number)) {
      return Add(Code::kNotANumber, i, " is NaN. Fix: give a number");
    }
    if (floating ? !ScalarFits(dtype, argument.number) : !ScalarFits(dtype, argument.integer)) {
      Add(Code::kScalarRange, i,
          StrCat(": ", floating ? StrCat(argument.number) : StrCat(argument.integer),
                 " does not fit ", DTypeName(dtype), ". Fix: give a smaller value"));
    }
  }

  void CheckExpression(uint32_t i, DType dtype) {
    const ScalarExpression& expression = graph_.expressions[arguments_[i].expression];
    const Range range = ComputeRange(graph_, arguments_[i]);
    if (IsFloat(dtype)) {
      // A bound that is infinite means that the scalar has none.
      if (std::isfinite(range.min) && std::isfinite(range.max) &&
          !(ScalarFits(dtype, range.min) && ScalarFits(dtype, range.max))) {
        Add(Code::kScalarRange, i,
            StrCat(" may be ", range.min, " to ", range.max, ", which does not fit ",
                   DTypeName(dtype), ". Fix: reduce the scalar's range"));
      }
      return;
    }
    if (std::trunc(expression.factor) != expression.factor ||
        std::trunc(expression.addend) != expression.addend) {
      return Add(Code::kScalarRange, i,
                 StrCat(" is an integer, and factor ", expression.factor, " or addend ",
                        expression.addend, " is not. Fix: give whole numbers"));
    }
    const bool fits = range.min >= -kMaxWhole && range.max <= kMaxWhole &&
                      ScalarFits(dtype, static_cast<int64_t>(range.min)) &&
                      ScalarFits(dtype, static_cast<int64_t>(range.max));
    if (!fits) {
      Add(Code::kScalarRange, i,
          StrCat(" may be ", range.min, " to ", range.max, ", which does not fit ",
                 DTypeName(dtype), ". Fix: set the scalar's least and most"));
    }
  }

  void CheckTensor(uint32_t i) {
    const Parameter& parameter = info_->signature.parameters()[i];
    const View& view = arguments_[i].view;
    if (std::find(parameter.dtypes.begin(), parameter.dtypes.end(), view.dtype) ==
        parameter.dtypes.end()) {
      Add(Code::kDType, i,
          StrCat(": dtype ", DTypeName(view.dtype), " is not accepted. Fix: use ",
                 absl::StrJoin(parameter.dtypes, " or ",
                               [](std::string* out, DType dtype) { *out += DTypeName(dtype); })));
    }
    if (view.rank < parameter.min_rank || view.rank > parameter.max_rank) {
      Add(Code::kRank, i,
          StrCat(": shape ", ShapeText(graph_, view), " has ", view.rank, " dimensions. Fix: use ",
                 parameter.min_rank,
                 parameter.max_rank == parameter.min_rank ? "" : StrCat(" to ", parameter.max_rank),
                 " dimensions"));
    }
  }

  // Whether the elements of the view are adjacent whatever the scalars are.
  bool StaysDense(const View& view) {
    bool outermost = true;
    for (const Axis& axis : graph_.AxesOf(view)) {
      if (axis.scalar != kNone && !outermost) return false;
      if (axis.scalar != kNone || axis.size != 1) outermost = false;
    }
    return IsDense(MaxExtents(graph_, view), SizeOf(view.dtype));
  }

  // Compares the shapes; `symbolic`: a dimension that depends on a scalar equals only one that
  // depends on the same scalar.
  absl::Status MatchShapes(bool symbolic) {
    absl::InlinedVector<Shape, kMaxArguments> shapes(arguments_.size());
    absl::InlinedVector<ArgumentType, kMaxArguments> types;
    for (uint32_t i = 0; i < arguments_.size(); ++i) {
      const Parameter& parameter = info_->signature.parameters()[i];
      const Argument& argument = arguments_[i];
      if (parameter.scalar()) {
        types.push_back(ArgumentType::Scalar(parameter.dtypes[0]));
        continue;
      }
      if (argument.kind == Argument::Kind::kNoTensor) {
        shapes[i] = {0};
        types.push_back(ArgumentType::Tensor(parameter.dtypes[0], shapes[i]));
        continue;
      }
      for (const Axis& axis : graph_.AxesOf(argument.view)) {
        constexpr int64_t kScalarSize = int64_t{1} << 61;  // Larger than any dimension.
        shapes[i].push_back(symbolic && axis.scalar != kNone ? kScalarSize + axis.scalar
                                                             : axis.size);
      }
      types.push_back(
          ArgumentType::Tensor(argument.view.dtype, shapes[i], StaysDense(argument.view)));
    }
    return info_->signature.Match(info_->name, types);
  }

  void CheckShapes() {
    bool dynamic = false;
    for (const Argument& argument : arguments_) {
      if (argument.kind != Argument::Kind::kTensor) continue;
      for (const Axis& axis : graph_.AxesOf(argument.view)) dynamic |= axis.scalar != kNone;
    }
    const absl::Status status = MatchShapes(/*symbolic=*/false);
    if (!status.ok()) {
      if (!findings_.keeps_errors()) return findings_.CountError();
      findings_.Add(Code::kShape, {.node = graph_.NodeName(index_)}, std::string(status.message()));
      return;
    }
    if (!dynamic || MatchShapes(/*symbolic=*/true).ok()) return;
    findings_.Add(Code::kShape, {.node = graph_.NodeName(index_)},
                  StrCat("the shapes of the arguments of ", info_->name,
                         " agree only when the scalars in them have their largest values. Fix: use "
                         "the same scalar in dimensions that must be equal"));
  }

  void CheckRows(uint32_t i) {
    if (arguments_[i].kind != Argument::Kind::kTensor) return;
    const std::optional<RowWindow> window = FindRowWindow(graph_, *node_, i);
    if (!window.has_value()) return;
    const View& view = arguments_[i].view;
    const Axis& rows = graph_.axes[view.first_axis + window->axis];
    const Range count = ComputeRange(graph_, window->count);
    const Range start = window->start.has_value() ? ComputeRange(graph_, *window->start) : Range{};
    if (start.min >= 0 && start.max + count.max <= static_cast<double>(rows.size)) return;
    Add(Code::kOutsideBuffer, i,
        StrCat(": rows ", start.min, " to ", start.max + count.max - 1,
               " may be accessed, and it has ", rows.size,
               " rows. Fix: reduce the range of the position or length, or give it more rows"));
  }

  void CheckMemory() {
    accesses_.clear();
    ListAccesses(graph_, *node_, {}, &accesses_);
    for (const Access& write : accesses_) {
      if (write.mode == Access::Mode::kRead) continue;
      const Tensor& tensor = graph_.tensors[write.tensor];
      if (IsReadOnly(tensor.kind)) {
        Add(Code::kReadOnly, write.argument,
            StrCat(" is written, and the tensor is ", KindText(tensor.kind),
                   ". Fix: write to an activation, a state or an output"));
      }
      const View& view = arguments_[write.argument].view;
      for (const Axis& axis : graph_.AxesOf(view)) {
        if (axis.stride >= 0) continue;
        Add(Code::kNegativeStride, write.argument,
            StrCat(" is written, and has the stride ", axis.stride / SizeOf(view.dtype),
                   ". Fix: use positive strides, and reverse the inputs"));
        break;
      }
      if (ElementsMayCoincide(MaxExtents(graph_, view), SizeOf(view.dtype))) {
        Add(Code::kElementsCoincide, write.argument,
            ": its strides interleave, so that several elements may have the same memory. Fix: use "
            "strides that are larger than what is inside of them, and no stride 0");
      }
    }
    // Arguments are few: all pairs.
    for (size_t a = 0; a < accesses_.size(); ++a) {
      for (size_t b = 0; b < accesses_.size(); ++b) {
        if (!budget_.Take()) return;
        const Access& write = accesses_[a];
        const Access& other = accesses_[b];
        if (write.argument == other.argument || write.mode == Access::Mode::kRead) continue;
        const bool both_write = other.mode != Access::Mode::kRead;
        if (both_write && b < a) continue;  // Reported once.
        if (graph_.tensors[write.tensor].root != graph_.tensors[other.tensor].root) continue;
        const std::optional<bool> overlap = RegionsOverlap(write.region, other.region, budget_);
        if (budget_.ended()) return;
        const std::string name = info_->signature.parameters()[other.argument].name;
        if (!overlap.has_value()) {
          Add(Code::kOverLimit, write.argument,
              StrCat(" may overlap '", name,
                     "': their strides interleave, and the exact answer takes more than ",
                     kMaxOverlapSteps, " steps. Fix: use tensors of their own"));
        } else if (*overlap && both_write) {
          Add(Code::kWrittenTwice, write.argument,
              StrCat(" and '", name,
                     "' write the same memory. Fix: give each output memory of its own"));
        } else if (*overlap && !ReadsAndWrites(other.argument)) {
          Add(Code::kInPlace, write.argument,
              StrCat(" overlaps '", name,
                     "', and the operator does not work in place. Fix: write to another tensor"));
        }
      }
    }
  }

  // Whether the argument is reported as a pair of writes already.
  bool ReadsAndWrites(uint32_t argument) const {
    return info_->signature.parameters()[argument].kind == ParameterKind::kInOut;
  }

  const Graph& graph_;
  Findings& findings_;
  uint32_t index_ = 0;
  const Node* node_ = nullptr;
  const OperatorInfo* info_ = nullptr;
  absl::Span<const Argument> arguments_;
  std::vector<Access> accesses_;
  CheckBudget& budget_;
};

}  // namespace

void CheckCalls(const Graph& graph, Findings* findings, CheckBudget& budget) {
  CallChecker checker(graph, *findings, budget);
  for (uint32_t i = 0; i < graph.nodes.size(); ++i) {
    if (!budget.BeginNode(i, 1 + graph.nodes[i].argument_count)) return;
    if (graph.nodes[i].op != kNone) checker.Check(i);
  }
}

void CheckCall(const Graph& graph, uint32_t node, Findings* findings, CheckBudget& budget) {
  CallChecker(graph, *findings, budget).Check(node);
}

}  // namespace resident::graph
