#include "runtime/model/errors.h"

#include "absl/strings/str_cat.h"
#include "kernels/layout/task.h"
#include "runtime/base/errors/quote.h"
#include "runtime/base/errors/reason.h"

namespace resident::errors {

using absl::StrCat;

namespace {

struct Mismatch {
  const char* reason;
  std::string got;
  std::string expected;  // Empty: not a single value.
};

// INVALID_ARGUMENT for one argument. `text` follows its description in the message.
absl::Status Refuse(const ArgumentRef& place, const Mismatch& mismatch, const std::string& text) {
  ErrorReason reason{mismatch.reason,
                     {{"operator", place.operator_name},
                      {"argument", place.parameter},
                      {"index", StrCat(place.index)}}};
  if (!mismatch.got.empty()) reason.details.emplace_back("got", mismatch.got);
  if (!mismatch.expected.empty()) reason.details.emplace_back("expected", mismatch.expected);
  return WithReason(absl::InvalidArgumentError(StrCat(ArgumentText(place), text)), reason);
}

// "2", or "2 to 4".
std::string RangeText(size_t min, size_t max) {
  return min == max ? StrCat(min) : StrCat(min, " to ", max);
}

}  // namespace

std::string ArgumentText(const ArgumentRef& place) {
  return StrCat("argument ", place.index + 1, " '", place.parameter, "' of ", place.operator_name);
}

absl::Status BadSignature(const std::string& text, size_t position, const std::string& what) {
  if (text.empty()) {
    return absl::InvalidArgumentError(
        "there is no signature: the text ends at byte 0. Fix: give one as docs/operators.md "
        "describes, such as \"x: in "
        "f32[*S], out: out f32[*S]\"");
  }
  return absl::InvalidArgumentError(
      StrCat("signature ", QuoteAt(text, position), ", at byte ", position, ": ", what,
             ". Fix: write it as docs/operators.md describes, such as \"x: in f32[*S], out: out "
             "f32[*S]\""));
}

absl::Status BadSplit(const std::string& text, const std::string& what) {
  return absl::InvalidArgumentError(
      StrCat("split ", Quote(text), ": ", what,
             ". Fix: write \"parameter[/1] grain [limit][, parameter grain]\" "
             "(docs/operators.md)"));
}

absl::Status BadCost(const std::string& text, const std::string& what) {
  return absl::InvalidArgumentError(StrCat("cost ", Quote(text), ": ", what,
                                           ". Fix: write \"2 M N K + 3 S\" with variables of the "
                                           "signature (runtime/model/cost_rule.h)"));
}

absl::Status ArgumentCount(const std::string& operator_name, size_t got, size_t min_count,
                           size_t max_count, const std::string& names) {
  const std::string wanted = RangeText(min_count, max_count);
  return WithReason(
      absl::InvalidArgumentError(StrCat(operator_name, " takes ", wanted, " arguments and got ",
                                        got, ". Fix: send one column for each of: ", names)),
      {"ARGUMENT_COUNT",
       {{"operator", operator_name}, {"got", StrCat(got)}, {"expected", wanted}}});
}

absl::Status ArgumentKind(const ArgumentRef& place, const std::string& is, const std::string& got,
                          const std::string& takes) {
  return Refuse(place, {"ARGUMENT_KIND", got, takes},
                StrCat(" is ", is, " and got ", got, ". Fix: send ", takes));
}

absl::Status ArgumentDType(const ArgumentRef& place, const std::string& got,
                           const std::string& accepted) {
  return Refuse(place, {"DTYPE_MISMATCH", got, accepted},
                StrCat(": dtype ", got, " is not accepted. Fix: send ", accepted));
}

absl::Status ArgumentRank(const ArgumentRef& place, const std::string& shape, uint32_t min_rank,
                          uint32_t max_rank) {
  const std::string wanted = RangeText(min_rank, max_rank);
  return Refuse(place, {"RANK_MISMATCH", shape, StrCat(wanted, " dimensions")},
                StrCat(": shape ", shape, " does not have ", wanted, " dimensions. Fix: give it ",
                       wanted, " dimensions"));
}

absl::Status ArgumentFixedDim(const ArgumentRef& place, const std::string& shape, size_t dim,
                              int64_t wanted) {
  return Refuse(place, {"SHAPE_MISMATCH", shape, StrCat("dimension ", dim, " = ", wanted)},
                StrCat(": dimension ", dim, " of shape ", shape, " must be ", wanted,
                       ". Fix: send a tensor with ", wanted, " in this dimension"));
}

absl::Status ArgumentShape(const ArgumentRef& place, const std::string& shape,
                           const std::string& variable, const std::string& bound,
                           const std::string& binder) {
  return Refuse(
      place, {"SHAPE_MISMATCH", shape, StrCat(variable, " = ", bound)},
      StrCat(": shape ", shape, " does not match ", variable, " = ", bound, " bound by '", binder,
             "'. Fix: make '", place.parameter, "' and '", binder, "' agree in ", variable));
}

absl::Status ArgumentBroadcast(const ArgumentRef& place, const std::string& shape,
                               const std::string& variable, const std::string& bound,
                               const std::string& binder) {
  return Refuse(place, {"SHAPE_MISMATCH", shape, StrCat(variable, " = ", bound)},
                StrCat(": shape ", shape, " does not broadcast to ", variable, " = ", bound,
                       " of '", binder, "'. Fix: make each dimension of '", place.parameter,
                       "', counted from the last, 1 or equal to that of '", binder, "'"));
}

absl::Status OutputShapeUnknown(const ArgumentRef& place, const std::string& variable) {
  return Refuse(place, {"OUTPUT_SHAPE_UNKNOWN", "", variable},
                StrCat(": its shape cannot be inferred, because no tensor of the request has the "
                       "dimension ",
                       variable, ". Fix: send the output's shape in place of infer_shape"));
}

absl::Status ArgumentStrided(const ArgumentRef& place) {
  return Refuse(place, {"NOT_DENSE", "", ""},
                " is a strided view, but the operator accepts only dense tensors for it. Fix: "
                "leave BufferColumn.strides empty, and copy the elements to a dense "
                "buffer first");
}

absl::Status ShapeTooLarge(const ArgumentRef& place) {
  return Refuse(place, {"SHAPE_TOO_LARGE", "", ""},
                ": the tensors' sizes overflow 64 bits. Fix: send the shape of one task's "
                "tensor, in elements");
}

absl::Status StrideTooLarge(const ArgumentRef& place, size_t dim, int64_t stride) {
  return absl::InvalidArgumentError(StrCat(ArgumentText(place), ": stride ", stride,
                                           " of dimension ", dim,
                                           " is larger than any memory. Fix: send "
                                           "strides in elements that stay in the buffer"));
}

absl::Status NegativeStride(const ArgumentRef& place, size_t dim, int64_t stride) {
  return absl::InvalidArgumentError(StrCat(ArgumentText(place), ": stride ", stride,
                                           " of dimension ", dim,
                                           " is negative, but an output needs positive strides. "
                                           "Fix: send positive strides, and reverse the inputs"));
}

absl::Status OverlappingStrides(const ArgumentRef& place, const std::string& shape,
                                const std::string& strides) {
  return absl::InvalidArgumentError(
      StrCat(ArgumentText(place), ": elements of shape ", shape, " with strides ", strides,
             " may overlap, and they are written. Fix: make each stride larger than the range that "
             "all dimensions with smaller strides cover together"));
}

absl::Status OutputShapeTwice(const ArgumentRef& place) {
  return Refuse(place, {"OUTPUT_SHAPE_TWICE", "", ""},
                ": the column has a shape and also infer_shape. Fix: send one of them");
}

absl::Status ShapeOfScalar(const ArgumentRef& place) {
  return Refuse(place, {"SHAPE_OF_SCALAR", "", ""},
                ": the column has a shape and also scalar_shape. Fix: send one of them");
}

}  // namespace resident::errors
