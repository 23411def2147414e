#include "library/errors.h"

#include "absl/strings/str_cat.h"
#include "runtime/base/errors/quote.h"
#include "runtime/model/errors.h"
#include "runtime/model/operator_details.h"

namespace resident::errors {

using absl::InvalidArgumentError;
using absl::StrCat;

namespace {

// "call 7 (gather)", or "call 7".
std::string CallText(const std::string& operator_name, uint64_t call) {
  return operator_name.empty() ? StrCat("call ", call)
                               : StrCat("call ", call, " (", operator_name, ")");
}

}  // namespace

absl::Status NullParameter(const std::string& function, const std::string& parameter) {
  return InvalidArgumentError(
      StrCat(function, ": ", parameter, " is null. Fix: pass a valid pointer"));
}

absl::Status UnknownLibraryOperator(const std::string& name, const std::string& nearest) {
  return InvalidArgumentError(
      StrCat("there is no operator ", Quote(name), ". Fix: ",
             nearest.empty() ? "use a name of docs/operator_reference.md"
                             : StrCat("use '", nearest, "', which has a similar name")));
}

absl::Status CallArgumentCount(const std::string& operator_name, size_t got, size_t min_count,
                               size_t max_count, const std::string& names) {
  return InvalidArgumentError(StrCat(
      operator_name, " takes ", min_count, min_count == max_count ? "" : StrCat(" to ", max_count),
      " arguments and got ", got, ". Fix: pass one argument for each of: ", names));
}

absl::Status CallArgumentKind(const ArgumentRef& place, int32_t got, const std::string& wanted) {
  return InvalidArgumentError(StrCat(ArgumentText(place), ": kind ", got,
                                     " does not fit the parameter. Fix: pass ", wanted));
}

absl::Status CallDType(const ArgumentRef& place, int32_t dtype, const std::string& accepted) {
  return InvalidArgumentError(
      StrCat(ArgumentText(place), ": ", dtype, " is not a dtype. Fix: pass one of ", accepted));
}

absl::Status CallRank(const ArgumentRef& place, int32_t rank, uint32_t limit) {
  return InvalidArgumentError(StrCat(ArgumentText(place), ": rank ", rank, " is not in 0 to ",
                                     limit, ". Fix: pass at most ", limit, " dimensions"));
}

absl::Status CallSize(const ArgumentRef& place, int32_t dim, int64_t size) {
  return InvalidArgumentError(StrCat(ArgumentText(place), ": size ", size, " of dimension ", dim,
                                     size < 0 ? " is negative" : " is larger than any memory",
                                     ". Fix: pass the number of elements"));
}

absl::Status CallReserved(const ArgumentRef& place, int32_t value) {
  return InvalidArgumentError(StrCat(ArgumentText(place), ": the reserved field is ", value,
                                     ". Fix: initialize the whole argument with zeros"));
}

absl::Status CallNullData(const ArgumentRef& place, const std::string& shape) {
  return InvalidArgumentError(StrCat(ArgumentText(place), ": the address is null, and shape ",
                                     shape, " has elements. Fix: pass the address of the tensor"));
}

absl::Status CallMisaligned(const ArgumentRef& place, uint64_t address, uint32_t alignment) {
  return InvalidArgumentError(StrCat(ArgumentText(place), ": address 0x", absl::Hex(address),
                                     " is not a multiple of ", alignment,
                                     ". Fix: align tensors to their elements"));
}

absl::Status CallBeyondMemory(const ArgumentRef& place) {
  return InvalidArgumentError(StrCat(ArgumentText(place),
                                     ": the elements exceed the 64-bit addresses. Fix: pass the "
                                     "tensor's sizes and strides, in elements"));
}

absl::Status CallStrided(const ArgumentRef& place, const std::string& shape,
                         const std::string& strides) {
  return InvalidArgumentError(StrCat(ArgumentText(place), ": strides ", strides, " of shape ",
                                     shape,
                                     " are not dense, but the operator accepts only dense tensors "
                                     "for it. Fix: copy the elements to a dense tensor first"));
}

absl::Status CallScalarRange(const ArgumentRef& place, const std::string& value,
                             const std::string& dtype) {
  return InvalidArgumentError(StrCat(ArgumentText(place), ": value ", value, " does not fit ",
                                     dtype, ". Fix: pass a value in its range"));
}

absl::Status CallOverlap(const ArgumentRef& place, const std::string& other, bool may_be_equal) {
  return InvalidArgumentError(StrCat(
      ArgumentText(place), " is written and overlaps '", other, "'. Fix: use separate memory",
      may_be_equal ? ", or exactly the same tensor (address, dtype, shape and strides)" : ""));
}

absl::Status CallStreamOnCpu() {
  return InvalidArgumentError(
      "the stream must be null for the CPU, which runs the operator on the calling thread. Fix: "
      "pass null");
}

absl::Status NoSuchDevice(int32_t device) {
  return InvalidArgumentError(StrCat("device ", device,
                                     " is neither a GPU's number nor RESIDENT_OPS_CPU (-1). Fix: "
                                     "pass 0 for the first GPU"));
}

absl::Status OperatorRefused(const std::string& operator_name, uint64_t call, uint32_t detail) {
  return InvalidArgumentError(
      StrCat(CallText(operator_name, call),
             ": the operator refused its arguments: ", DetailText(operator_name, detail)));
}

absl::Status OperatorFailed(const std::string& operator_name, uint64_t call, uint32_t status) {
  return absl::InternalError(StrCat(CallText(operator_name, call),
                                    ": the operator ended with status ", status,
                                    ". Fix: report this with the call's arguments"));
}

}  // namespace resident::errors
