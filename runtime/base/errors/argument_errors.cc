#include "runtime/base/errors/argument_errors.h"

#include "absl/strings/str_cat.h"
#include "runtime/base/errors/quote.h"

namespace resident::errors {

using absl::StrCat;

std::string ArgumentText(const ArgumentRef& place) {
  return StrCat("argument ", place.index + 1, " '", place.parameter, "' of ", place.operator_name);
}

absl::Status BadSignature(const std::string& text, size_t position, const std::string& what) {
  return absl::InvalidArgumentError(StrCat("signature ", QuoteAt(text, position), ", at byte ",
                                           position, ": ", what,
                                           ". Fix: see runtime/model/signature.h for the "
                                           "grammar"));
}

absl::Status BadSplit(const std::string& text, const std::string& what) {
  return absl::InvalidArgumentError(StrCat("split ", Quote(text), ": ", what,
                                           ". Fix: write \"parameter[/1] grain\" "
                                           "(kernels/ops/builtin.h)"));
}

absl::Status ArgumentCount(const std::string& operator_name, size_t got, size_t min_count,
                           size_t max_count, const std::string& names) {
  const std::string wanted =
      min_count == max_count ? StrCat(min_count) : StrCat(min_count, " to ", max_count);
  return absl::InvalidArgumentError(StrCat(operator_name, " takes ", wanted, " arguments and got ",
                                           got, ". Fix: send one column for each of: ", names));
}

absl::Status ArgumentKind(const ArgumentRef& place, const std::string& is, const std::string& got,
                          const std::string& takes) {
  return absl::InvalidArgumentError(
      StrCat(ArgumentText(place), " is ", is, " and got ", got, ". Fix: send ", takes));
}

absl::Status ArgumentDType(const ArgumentRef& place, const std::string& got,
                           const std::string& accepted) {
  return absl::InvalidArgumentError(
      StrCat(ArgumentText(place), ": dtype ", got, " is not accepted. Fix: send ", accepted));
}

absl::Status ArgumentRank(const ArgumentRef& place, const std::string& shape, uint32_t min_rank,
                          uint32_t max_rank) {
  const std::string wanted =
      min_rank == max_rank ? StrCat(min_rank) : StrCat(min_rank, " to ", max_rank);
  return absl::InvalidArgumentError(StrCat(ArgumentText(place), ": shape ", shape,
                                           " does not have ", wanted, " dimensions. Fix: give it ",
                                           wanted, " dimensions"));
}

absl::Status ArgumentFixedDim(const ArgumentRef& place, const std::string& shape, size_t dim,
                              int64_t wanted) {
  return absl::InvalidArgumentError(StrCat(ArgumentText(place), ": dimension ", dim, " of shape ",
                                           shape, " must be ", wanted, ". Fix: send a tensor with ",
                                           wanted, " in this dimension"));
}

absl::Status ArgumentShape(const ArgumentRef& place, const std::string& shape,
                           const std::string& variable, const std::string& bound,
                           const std::string& binder) {
  return absl::InvalidArgumentError(StrCat(ArgumentText(place), ": shape ", shape,
                                           " does not match ", variable, " = ", bound,
                                           " bound by '", binder, "'. Fix: make '", place.parameter,
                                           "' and '", binder, "' agree in ", variable));
}

absl::Status ArgumentBroadcast(const ArgumentRef& place, const std::string& shape,
                               const std::string& variable, const std::string& bound,
                               const std::string& binder) {
  return absl::InvalidArgumentError(
      StrCat(ArgumentText(place), ": shape ", shape, " does not broadcast to ", variable, " = ",
             bound, " of '", binder, "'. Fix: make each dimension of '", place.parameter,
             "', counted from the last, 1 or equal to that of '", binder, "'"));
}

absl::Status ArgumentStrided(const ArgumentRef& place) {
  return absl::InvalidArgumentError(
      StrCat(ArgumentText(place),
             " is a strided view, but the operator accepts only dense tensors for it. Fix: "
             "leave BufferColumn.strides empty, and copy the elements to a dense "
             "buffer first"));
}

absl::Status ShapeTooLarge(const ArgumentRef& place) {
  return absl::InvalidArgumentError(
      StrCat(ArgumentText(place),
             ": the tensors' sizes overflow 64 bits. Fix: send the shape of one task's "
             "tensor, in elements"));
}

}  // namespace resident::errors
