#include "client/errors.h"

#include "absl/strings/str_cat.h"
#include "runtime/base/errors/quote.h"

namespace resident::errors {
namespace {

using absl::StrCat;

absl::Status OfCall(const CallRef& call, const std::string& what, const std::string& fix) {
  return absl::InvalidArgumentError(
      StrCat("node ", Quote(call.node), " (", call.operator_name, "): ", what, ". Fix: ", fix));
}

}  // namespace

absl::Status CallOfUnknownOperator(const CallRef& call, const std::string& nearest) {
  return OfCall(call, "the operator does not exist",
                nearest.empty() ? "install it, or declare its signature with GraphBuilder::Operator"
                                : StrCat("did you mean ", Quote(nearest), "?"));
}

absl::Status CallInputCount(const CallRef& call, size_t given, const std::string& names,
                            size_t wanted) {
  return OfCall(call, StrCat(given, given == 1 ? " tensor is" : " tensors are", " given"),
                StrCat("give ", wanted, ", in the order ", names,
                       "; std::nullopt stands for an optional one"));
}

absl::Status CallUnknownParameter(const CallRef& call, const std::string& parameter,
                                  const std::string& names) {
  return OfCall(call, StrCat("there is no parameter ", Quote(parameter)),
                StrCat("use its parameters ", names));
}

absl::Status CallParameterTwice(const CallRef& call, const std::string& parameter) {
  return OfCall(call, StrCat("parameter ", Quote(parameter), " is given twice"), "give it once");
}

absl::Status CallParameterMissing(const CallRef& call, const std::string& parameter,
                                  const std::string& kind) {
  return OfCall(call, StrCat("parameter ", Quote(parameter), " has no value"),
                StrCat("give ", kind, ", as {\"", parameter, "\", VALUE}"));
}

absl::Status CallWrongValue(const CallRef& call, const std::string& parameter,
                            const std::string& value, const std::string& kind) {
  return OfCall(call, StrCat("parameter ", Quote(parameter), " has ", value, " as its value"),
                StrCat("give ", kind));
}

absl::Status CallShapeUnknown(const CallRef& call, const std::string& parameter,
                              const std::string& inputs) {
  return OfCall(call,
                StrCat("the shape of ", Quote(parameter), " does not follow from ",
                       inputs.empty() ? "the arguments" : StrCat("the shapes ", inputs)),
                StrCat("give it, as {\"", parameter,
                       "\", GraphBuilder::New{dtype, shape}}, or "
                       "correct the inputs"));
}

absl::Status CallResultCount(const CallRef& call, size_t results) {
  return OfCall(call, StrCat("the operator has ", results, " results"),
                "use CallAll, which returns all of them");
}

absl::Status BadGraphTensor(const std::string& tensor, const std::string& what,
                            const std::string& fix) {
  return absl::InvalidArgumentError(StrCat("tensor ", Quote(tensor), " ", what, ". Fix: ", fix));
}

absl::Status NotOfThisBuilder(const std::string& place, const std::string& what) {
  return absl::InvalidArgumentError(StrCat(place, ": the ", what,
                                           " was not made by this builder. Fix: use one that "
                                           "this GraphBuilder returned"));
}

absl::Status GraphNameTwice(const std::string& kind, const std::string& name) {
  return absl::InvalidArgumentError(
      StrCat("two ", kind, "s have the name ", Quote(name), ". Fix: rename one of them"));
}

absl::Status DimensionNotAScalar(const std::string& place) {
  return absl::InvalidArgumentError(
      StrCat(place,
             ": a dimension is factor * scalar + addend. Fix: use the scalar itself, with "
             "a range and an update of its own"));
}

absl::Status StreamWithoutRecords(const std::string& stream) {
  return absl::InvalidArgumentError(
      StrCat("stream ", Quote(stream), " has no number of records. Fix: call Loop, or give it"));
}

absl::Status LoopMissing(const std::string& what) {
  return absl::InvalidArgumentError(
      StrCat(what, " has no effect without a loop. Fix: call Loop with the number of steps"));
}

absl::Status GraphNotBuilt(const std::string& graph, absl::Span<const absl::Status> errors,
                           uint64_t omitted) {
  std::string text = StrCat("graph ", Quote(graph), " cannot be built");
  for (const absl::Status& error : errors) absl::StrAppend(&text, "\n  ", error.message());
  if (omitted > 0) {
    absl::StrAppend(&text, "\n  and ", omitted, " more errors. Fix: correct these first");
  }
  return absl::InvalidArgumentError(text);
}

}  // namespace resident::errors
