// JoinChains: element-wise calls in a row become one call of pointwise.
//
// This is done here and not by the graphs' own pass (runtime/graph/fuse.h), because a program is a
// weight of the graph: the pass has no weights to add, and would have to be repeated whenever an
// operator changes.
//
// A call is absorbed by a later one, the root, if calls of the root's group alone read what it
// writes, all of that in the shape of the root's result, and what it reads is not overwritten
// before the root. Values of 16 bits are not joined, so that they are rounded as the model says. A
// sum with a product stays by itself, because the graphs' pass makes one call of both.
#include <algorithm>
#include <cmath>
#include <functional>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "google/protobuf/util/message_differencer.h"
#include "server/onnx/nodes/graph_writer.h"

namespace resident::onnx {

namespace {

using google::protobuf::util::MessageDifferencer;
using pointwise::Op;

// What a built-in operator computes. `x`: its inputs; `s`: its scalars, in front of defaults.
using Scalars = std::vector<double>;
using Build = Term (*)(Expression& e, const std::vector<Term>& x, const Scalars& s,
                       ElementType out);

double At(const Scalars& s, size_t i, double otherwise) { return i < s.size() ? s[i] : otherwise; }

Term Scaled(Expression& e, Term x, double factor) {
  return factor == 1 ? x : e.Mul(x, e.Number(factor, x.type));
}

template <Op op>
Term Function(Expression& e, const std::vector<Term>& x, const Scalars&, ElementType) {
  return e.Function(op, x[0]);
}

struct Row {
  size_t inputs;
  Build build;
};

// The function is long because it is the table of all operators.
const absl::flat_hash_map<std::string_view, Row>& Rows() {
  using Terms = const std::vector<Term>&;
  static const auto* const rows = new absl::flat_hash_map<std::string_view, Row>{
      {"add",
       {2, [](Expression& e, Terms x, const Scalars& s,
              ElementType) { return e.Add(x[0], Scaled(e, x[1], At(s, 0, 1))); }}},
      {"sub",
       {2, [](Expression& e, Terms x, const Scalars& s,
              ElementType) { return e.Sub(x[0], Scaled(e, x[1], At(s, 0, 1))); }}},
      {"mul",
       {2, [](Expression& e, Terms x, const Scalars&, ElementType) { return e.Mul(x[0], x[1]); }}},
      {"div",
       {2, [](Expression& e, Terms x, const Scalars&, ElementType) { return e.Div(x[0], x[1]); }}},
      {"maximum",
       {2, [](Expression& e, Terms x, const Scalars&, ElementType) { return e.Max(x[0], x[1]); }}},
      {"minimum",
       {2, [](Expression& e, Terms x, const Scalars&, ElementType) { return e.Min(x[0], x[1]); }}},
      {"pow",
       {2, [](Expression& e, Terms x, const Scalars&, ElementType) { return e.Pow(x[0], x[1]); }}},
      {"copy",
       {1,
        [](Expression& e, Terms x, const Scalars&, ElementType out) { return e.Cast(x[0], out); }}},
      {"neg", {1, [](Expression& e, Terms x, const Scalars&, ElementType) { return e.Neg(x[0]); }}},
      {"abs", {1, [](Expression& e, Terms x, const Scalars&, ElementType) { return e.Abs(x[0]); }}},
      {"exp", {1, Function<Op::kExp>}},
      {"log", {1, Function<Op::kLog>}},
      {"sqrt", {1, Function<Op::kSqrt>}},
      {"rsqrt", {1, Function<Op::kRsqrt>}},
      {"sin", {1, Function<Op::kSin>}},
      {"cos", {1, Function<Op::kCos>}},
      {"tanh", {1, Function<Op::kTanh>}},
      {"sigmoid", {1, Function<Op::kSigmoid>}},
      {"relu",
       {1, [](Expression& e, Terms x, const Scalars&,
              ElementType) { return e.Max(x[0], e.Number(0, x[0].type)); }}},
      {"scale",
       {1, [](Expression& e, Terms x, const Scalars& s,
              ElementType) { return Scaled(e, x[0], At(s, 0, 1)); }}},
      {"leaky_relu",
       {1,
        [](Expression& e, Terms x, const Scalars& s, ElementType) {
          const Term positive = e.Less(e.Number(0, x[0].type), x[0]);
          return e.Select(positive, x[0], Scaled(e, x[0], At(s, 0, 0.01)));
        }}},
      {"hardswish",
       {1,
        [](Expression& e, Terms x, const Scalars&, ElementType type) {
          Term gate = e.Add(x[0], e.Number(3, type));
          gate = e.Min(e.Max(gate, e.Number(0, type)), e.Number(6, type));
          return e.Mul(x[0], e.Div(gate, e.Number(6, type)));
        }}},
      {"elu",
       {1,
        [](Expression& e, Terms x, const Scalars& s, ElementType type) {
          const Term negative = e.Less(x[0], e.Number(0, type));
          const Term rest = e.Function(Op::kExpm1, Scaled(e, x[0], At(s, 2, 1)));
          const double scale = At(s, 1, 1);
          return e.Select(negative, Scaled(e, Scaled(e, rest, At(s, 0, 1)), scale),
                          Scaled(e, x[0], scale));
        }}},
      {"clamp",
       {1,
        [](Expression& e, Terms x, const Scalars& s, ElementType type) {
          return e.Min(e.Max(x[0], e.Number(s[0], type)), e.Number(s[1], type));
        }}},
  };
  return *rows;
}

bool SameView(const GraphWriter::Argument& a, const GraphWriter::Argument& b) {
  return a.tensor == b.tensor && MessageDifferencer::Equals(a.message, b.message);
}

// Whether a view is the whole tensor, as View() writes it.
bool IsWhole(const GraphWriter::Argument& argument) {
  const v1::GraphView& view = argument.message.tensor();
  return view.shape_size() == 0 && view.strides_size() == 0 && !view.scalar_shape() &&
         view.offset() == 0;
}

// Whether a call is a product with a weight, or may be one.
bool IsProduct(std::string_view op) {
  return op == "gemv" || op == "gemm" || op == "gemm_batched" || op == "linear";
}

// Readers of one tensor that are looked at.
constexpr size_t kMaxReaders = 64;

}  // namespace

Sizes64 GraphWriter::ShapeOf(const Argument& argument) const {
  if (IsWhole(argument)) return Whole(argument.tensor).shape;
  Sizes64 shape;
  for (const v1::GraphDim& dim : argument.message.tensor().shape()) shape.push_back(dim.size());
  return shape;
}

std::optional<Term> GraphWriter::ReadNumber(const Argument& argument,
                                            Expression* expression) const {
  const auto weight = weights_.find(argument.tensor);
  if (weight == weights_.end() || CountElements(weight->second.shape) != 1) return std::nullopt;
  const ElementType type = element_type(argument);
  const Constant constant = {type, {}, weight->second.bytes, ""};
  return IsFloatType(type) ? expression->Number(constant.Real(0), type)
                           : expression->Whole(constant.Integer(0), type);
}

std::optional<GraphWriter::Elementwise> GraphWriter::AsElementwise(const Record& call) const {
  Elementwise result;
  if (call.expression.has_value()) {
    result = {*call.expression, call.arguments, call.arguments.back()};
    result.inputs.pop_back();
    return result;
  }
  const auto row = Rows().find(call.op);
  if (row == Rows().end()) return std::nullopt;
  const size_t inputs = row->second.inputs;
  result.out = call.arguments[inputs];
  const ElementType type = element_type(result.out);
  std::vector<Term> terms;
  for (size_t i = 0; i < inputs; ++i) {
    const Argument& argument = call.arguments[i];
    const ElementType in = element_type(argument);
    // A copy of one type changes the layout only.
    if (!Expression::Takes(in) || (in == type) == (row->first == "copy")) return std::nullopt;
    // At least one input is no number.
    if (inputs > 1 && (i == 0 || !result.inputs.empty())) {
      const std::optional<Term> number = ReadNumber(argument, &result.expression);
      if (number.has_value()) {
        terms.push_back(*number);
        continue;
      }
    }
    terms.push_back(result.expression.Input(in));
    result.inputs.push_back(argument);
  }
  if (!Expression::Takes(type)) return std::nullopt;
  Scalars scalars;
  for (size_t i = inputs + 1; i < call.arguments.size(); ++i) {
    const v1::GraphArgument& scalar = call.arguments[i].message;
    scalars.push_back(scalar.has_i64() ? static_cast<double>(scalar.i64()) : scalar.f64());
    if (!IsFloatType(type) && scalars.back() != std::floor(scalars.back())) return std::nullopt;
  }
  if (row->first == "clamp" && scalars.size() != 2) return std::nullopt;
  result.expression.SetResult(row->second.build(result.expression, terms, scalars, type));
  return result;
}

bool GraphWriter::Absorb(const Uses& uses, const std::vector<std::optional<Elementwise>>& calls,
                         size_t root, size_t i, MappingChoices* choices,
                         std::vector<bool>* absorbed, Elementwise* whole,
                         std::vector<size_t>* members) const {
  const int tensor = whole->inputs[i].tensor;
  const auto at = static_cast<size_t>(tensor);
  const ElementType type = types_[at];
  if (tensors_[at].kind() != v1::GraphTensor::KIND_ACTIVATION || uses.writers[at].size() != 1 ||
      uses.readers[at].size() > kMaxReaders || (IsFloatType(type) && type != ElementType::kFloat)) {
    return false;
  }
  const size_t writer = uses.writers[at][0];
  if (writer >= root || (*absorbed)[writer] || !calls[writer].has_value()) return false;
  for (const size_t reader : uses.readers[at]) {
    if (std::find(members->begin(), members->end(), reader) == members->end()) return false;
  }
  // What it reads is still there when the root runs.
  const Elementwise& call = *calls[writer];
  for (const Argument& input : call.inputs) {
    for (const size_t other : uses.writers[static_cast<size_t>(input.tensor)]) {
      if (other > writer && other <= root) return false;
    }
  }
  bool fits = IsWhole(call.out) && ShapeOf(call.out) == ShapeOf(whole->out);
  for (size_t k = 0; k < whole->inputs.size(); ++k) {
    if (whole->inputs[k].tensor == tensor) fits = fits && IsWhole(whole->inputs[k]);
  }
  if (!choices->Choose(fits)) return false;

  Elementwise joined;
  joined.expression = whole->expression.Substitute(i, call.expression);
  joined.out = whole->out;
  joined.inputs = whole->inputs;
  joined.inputs.erase(joined.inputs.begin() + static_cast<int64_t>(i));
  joined.inputs.insert(joined.inputs.end(), call.inputs.begin(), call.inputs.end());
  for (size_t first = 0; first < joined.inputs.size(); ++first) {
    for (size_t second = joined.inputs.size() - 1; second > first; --second) {
      if (joined.inputs[first].tensor != joined.inputs[second].tensor) continue;
      if (!choices->Choose(SameView(joined.inputs[first], joined.inputs[second]))) continue;
      joined.expression = joined.expression.MergeInputs(first, second);
      joined.inputs.erase(joined.inputs.begin() + static_cast<int64_t>(second));
    }
  }
  if (joined.inputs.empty() || !joined.expression.Assemble().has_value()) return false;
  *whole = std::move(joined);
  members->push_back(writer);
  (*absorbed)[writer] = true;
  return true;
}

void GraphWriter::JoinChains(MappingChoices* choices) {
  std::vector<bool> needed_tensors;
  const std::vector<bool> needed = FindNeededCalls(&needed_tensors);
  Uses uses;
  uses.readers.resize(tensors_.size());
  uses.writers.resize(tensors_.size());
  for (size_t call = 0; call < calls_.size(); ++call) {
    if (!needed[call]) continue;
    for (const Argument& argument : calls_[call].arguments) {
      if (argument.tensor < 0) continue;
      std::vector<size_t>& of =
          (argument.written ? uses.writers : uses.readers)[static_cast<size_t>(argument.tensor)];
      if (of.empty() || of.back() != call) of.push_back(call);
    }
  }
  const auto adds_to_product = [&](const Record& call) {
    if (std::string_view(call.op) != "add") return false;
    return std::any_of(call.arguments.begin(), call.arguments.begin() + 2, [&](const Argument& x) {
      const std::vector<size_t>& writers = uses.writers[static_cast<size_t>(x.tensor)];
      return !writers.empty() && IsProduct(calls_[writers[0]].op);
    });
  };
  std::vector<std::optional<Elementwise>> calls(calls_.size());
  for (size_t call = 0; call < calls_.size(); ++call) {
    if (needed[call] && !adds_to_product(calls_[call])) calls[call] = AsElementwise(calls_[call]);
  }
  std::vector<bool> absorbed(calls_.size());
  for (size_t root = calls_.size(); root-- > 0;) {
    if (!calls[root].has_value() || absorbed[root]) continue;
    Elementwise whole = *calls[root];
    std::vector<size_t> members = {root};
    absl::flat_hash_set<int> tried;
    for (size_t i = 0; i < whole.inputs.size();) {
      // An absorbed call changes the inputs, and lets others be absorbed.
      if (!tried.contains(whole.inputs[i].tensor) &&
          Absorb(uses, calls, root, i, choices, &absorbed, &whole, &members)) {
        tried.clear();
        i = 0;
        continue;
      }
      tried.insert(whole.inputs[i].tensor);
      ++i;
    }
    if (members.size() == 1) continue;
    Record& record = calls_[root];
    record.op = "pointwise";
    record.arguments = std::move(whole.inputs);
    record.arguments.push_back(std::move(whole.out));
    record.expression = std::move(whole.expression);
  }
}

}  // namespace resident::onnx
