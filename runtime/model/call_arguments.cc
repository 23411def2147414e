#include "runtime/model/call_arguments.h"

#include <algorithm>
#include <cassert>

#include "absl/container/inlined_vector.h"
#include "runtime/base/status_macros.h"
#include "runtime/model/dtype.h"
#include "runtime/model/errors.h"

namespace resident {

MatchedArguments MatchArguments(const Signature& signature,
                                absl::Span<const std::string_view> names) {
  const std::vector<Parameter>& parameters = signature.parameters();
  assert(names.size() <= parameters.size());
  MatchedArguments matched;
  matched.by_parameter.resize(parameters.size());
  for (size_t i = 0; i < names.size(); ++i) {
    size_t to = i;
    if (!names[i].empty()) {
      matched.named = true;
      to = 0;
      while (to < parameters.size() && parameters[to].name != names[i]) ++to;
    } else if (matched.named) {
      matched.refused.push_back({MatchedArguments::Problem::kUnnamedAfterNamed, i});
      continue;
    }
    if (to == parameters.size()) {
      matched.refused.push_back({MatchedArguments::Problem::kUnknownName, i});
    } else if (matched.by_parameter[to].has_value()) {
      matched.refused.push_back({MatchedArguments::Problem::kTwice, i});
    } else {
      matched.by_parameter[to] = i;
    }
  }
  size_t count = parameters.size();
  while (count > 0 && !matched.by_parameter[count - 1].has_value() &&
         parameters[count - 1].default_bits.has_value()) {
    --count;
  }
  matched.by_parameter.resize(count);
  for (size_t p = 0; p < count; ++p) {
    if (!matched.by_parameter[p].has_value() && !parameters[p].default_bits.has_value()) {
      matched.missing.push_back(p);
    }
  }
  return matched;
}

namespace {

using Kind = DimPattern::Kind;

// Broadcasts `to` and `part` to one shape. False: they have different sizes in a dimension.
bool Broadcast(absl::Span<const int64_t> part, Shape& to) {
  if (part.size() > to.size()) to.insert(to.begin(), part.size() - to.size(), 1);
  const size_t skipped = to.size() - part.size();
  for (size_t i = 0; i < part.size(); ++i) {
    int64_t& size = to[skipped + i];
    if (size == part[i] || part[i] == 1) continue;
    if (size != 1) return false;
    size = part[i];
  }
  return true;
}

// A variable of the signature.
struct Variable {
  std::optional<Shape> bound;
  // What the inputs that broadcast to it require, and the argument that required it last.
  std::optional<Shape> broadcast;
  size_t broadcaster = 0;
};
using Variables = absl::InlinedVector<Variable, 4>;

bool IsSpread(const DimPattern& dim) {
  return dim.kind == Kind::kSpread || dim.kind == Kind::kBroadcast;
}

// Binds the variables of an argument's dimensions. A second value for a variable is ignored.
absl::Status Bind(const Signature& signature, const std::string& operator_name, size_t index,
                  absl::Span<const int64_t> shape, Variables& variables) {
  const Parameter& parameter = signature.parameters()[index];
  if (shape.size() < parameter.min_rank || shape.size() > parameter.max_rank) {
    return errors::ArgumentRank({operator_name, index, parameter.name}, ShapeText(shape),
                                parameter.min_rank, parameter.max_rank);
  }
  size_t at = 0;
  for (const DimPattern& dim : parameter.dims) {
    const size_t width = IsSpread(dim) ? shape.size() - parameter.min_rank : 1;
    const absl::Span<const int64_t> part = shape.subspan(at, width);
    at += width;
    if (dim.kind == Kind::kFixed) continue;
    Variable& variable = variables[dim.variable];
    if (dim.kind != Kind::kBroadcast) {
      if (!variable.bound) variable.bound.emplace(part.begin(), part.end());
      continue;
    }
    if (!variable.broadcast) variable.broadcast.emplace();
    const Shape before = *variable.broadcast;
    if (!Broadcast(part, *variable.broadcast)) {
      return errors::ArgumentBroadcast({operator_name, index, parameter.name}, ShapeText(shape),
                                       signature.variables()[dim.variable].substr(1),
                                       ShapeText(before),
                                       signature.parameters()[variable.broadcaster].name);
    }
    variable.broadcaster = index;
  }
  return absl::OkStatus();
}

// As torch.promote_types; both are floating point, or both are integers.
DType Promote(DType a, DType b) {
  if (a == b) return a;
  const uint32_t a_bytes = SizeOf(a);
  const uint32_t b_bytes = SizeOf(b);
  if (IsFloat(a) != IsFloat(b)) return IsFloat(a) ? a : b;
  if (IsFloat(a) && a_bytes == b_bytes) return DType::kF32;  // f16 and bf16.
  return a_bytes >= b_bytes ? a : b;
}

bool Accepts(const Parameter& parameter, DType dtype) {
  return std::find(parameter.dtypes.begin(), parameter.dtypes.end(), dtype) !=
         parameter.dtypes.end();
}

DType InferDType(const Parameter& parameter, SentArguments sent) {
  if (parameter.dtypes.size() == 1) return parameter.dtypes[0];
  DType promoted = DType::kInvalid;
  for (const std::optional<ArgumentType>& argument : sent) {
    if (!argument || argument->scalar || !Accepts(parameter, argument->dtype)) continue;
    promoted = promoted == DType::kInvalid ? argument->dtype : Promote(promoted, argument->dtype);
  }
  return Accepts(parameter, promoted) ? promoted : parameter.dtypes[0];
}

}  // namespace

absl::StatusOr<OutputType> InferOutput(const Signature& signature, const std::string& operator_name,
                                       SentArguments sent, size_t index) {
  Variables variables(signature.variables().size());
  const size_t count = std::min(sent.size(), signature.parameters().size());
  for (size_t a = 0; a < count; ++a) {
    if (a == index || !sent[a] || sent[a]->scalar || signature.parameters()[a].scalar()) continue;
    RETURN_IF_ERROR(Bind(signature, operator_name, a, sent[a]->shape, variables));
  }
  const Parameter& parameter = signature.parameters()[index];
  OutputType output;
  output.dtype = InferDType(parameter, sent);
  for (const DimPattern& dim : parameter.dims) {
    if (dim.kind == Kind::kFixed) {
      output.shape.push_back(dim.size);
      continue;
    }
    const Variable& variable = variables[dim.variable];
    const std::optional<Shape>& part = variable.bound ? variable.bound : variable.broadcast;
    if (!part) {
      return errors::OutputShapeUnknown({operator_name, index, parameter.name},
                                        signature.variables()[dim.variable]);
    }
    output.shape.insert(output.shape.end(), part->begin(), part->end());
  }
  return output;
}

DType InferOutputDType(const Signature& signature, SentArguments sent, size_t index) {
  return InferDType(signature.parameters()[index], sent);
}

}  // namespace resident
