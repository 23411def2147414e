#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/operators/validation/compare.h"

namespace resident {
namespace {

using absl::StrCat;

std::string ParameterList(const Signature& signature) {
  return absl::StrJoin(
      signature.parameters(), ", ",
      [](std::string* out, const Parameter& parameter) { absl::StrAppend(out, parameter.name); });
}

std::string MemoryText(const char* call, const Violation& violation) {
  return StrCat("requested ", call, " up to byte ", violation.index, ", but there are ",
                violation.limit, ". Fix: request less, or process the data in parts");
}

}  // namespace

std::string ViolationText(const Violation& violation, const Signature& signature,
                          const Example& example) {
  const size_t i = violation.argument;
  const bool known = i < signature.parameters().size();
  const std::string name = known ? StrCat("'", signature.parameters()[i].name, "'") : "";
  const bool has_value = known && i < example.values.size();
  const std::string shape = has_value ? ShapeText(example.values[i].shape) : "";
  const std::string dtype = has_value ? DTypeName(example.values[i].dtype)
                            : known   ? DTypeName(signature.parameters()[i].dtypes[0])
                                      : "";
  switch (violation.kind) {
    case ViolationKind::kElement:
      return StrCat("touched element ", violation.index, " of ", name, ", which has ",
                    violation.limit, " elements. Fix: keep indices from 0 to size() - 1");
    case ViolationKind::kIndex:
      return StrCat("touched index ", violation.index, " in dimension ", violation.dimension,
                    " of ", name, ", whose shape is ", shape,
                    ". Fix: keep each index below its shape(d)");
    case ViolationKind::kRank:
      return StrCat("passed ", violation.index, " indices to at() of ", name, ", whose shape is ",
                    shape, ". Fix: pass one for each of its ", violation.limit, " dimensions");
    case ViolationKind::kElementSize:
      return StrCat("read ", name, " as elements of ", violation.index, " bytes, but its type is ",
                    dtype, " (", violation.limit,
                    " bytes). Fix: use the signature's type in tensor<T>");
    case ViolationKind::kArgument:
      return StrCat("requested argument ", violation.index, ", but its signature has ",
                    violation.limit, " (", ParameterList(signature),
                    "), counted from 0. Fix: correct the code or the signature");
    case ViolationKind::kArgumentKind:
      return StrCat(
          "read argument ", i, " ", name, " as a ",
          violation.index != 0 ? "scalar, and it is a tensor" : "tensor, and it is a scalar",
          ". Fix: correct the code or the signature");
    case ViolationKind::kScalarSize:
      return StrCat("read scalar ", name, " as ", violation.index, " bytes, but its type is ",
                    dtype, " (", violation.limit,
                    " bytes). Fix: use the signature's type in scalar<T>");
    case ViolationKind::kBlockMemory:
      return MemoryText("memory()", violation);
    case ViolationKind::kScratch:
      return MemoryText("scratch()", violation);
    case ViolationKind::kTaskMemory:
      return MemoryText("task_memory()", violation);
    case ViolationKind::kResult:
      return MemoryText("set_result()", violation);
    case ViolationKind::kBarrier:
      return StrCat("reached a barrier with ", violation.index, " of ", violation.limit,
                    " threads; the others returned or took another branch. Fix: make all threads "
                    "reach every collective call");
    case ViolationKind::kNone:
      break;
  }
  return "accessed memory outside of its tensors. Fix: check its indices";
}

}  // namespace resident
