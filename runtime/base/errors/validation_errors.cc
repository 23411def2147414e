#include "runtime/base/errors/validation_errors.h"

#include "absl/strings/str_cat.h"

namespace resident::errors {
namespace {

using absl::StrCat;

std::string Text(const ValidationContext& place) {
  return StrCat(place.operator_name, ", ", place.generated ? "generated example " : "example ",
                place.example + 1, " (", place.run, place.shapes.empty() ? "" : "; ", place.shapes,
                "): ");
}

}  // namespace

absl::Status ValidationUnavailable(const absl::Status& why) {
  return absl::UnavailableError(StrCat("the validation's engine cannot be used: ", why.message(),
                                       ". Fix: see the daemon's log, and try again"));
}

absl::Status ValidationLoad(const std::string& operator_name, const std::string& why) {
  return absl::InvalidArgumentError(StrCat(operator_name, ": a validation cannot load it: ", why,
                                           ". Fix: remove static state, and code that runs when "
                                           "the operator is loaded"));
}

absl::Status ValidationFault(const ValidationContext& place, const std::string& cause) {
  return absl::InvalidArgumentError(
      StrCat(Text(place), "it ended the engine: ", cause,
             ". Fix: check its addresses and indices; a validation checks accesses through [] and "
             "at(), but not through data()"));
}

absl::Status ValidationNeverReturned(const ValidationContext& place, int64_t limit_ms) {
  return absl::InvalidArgumentError(StrCat(
      Text(place), "it has not returned within its time limit of ", limit_ms,
      " ms. Fix: make sure that every loop ends and that all threads reach every barrier; if "
      "it only needs more time, raise limits.task_time_ms"));
}

absl::Status ValidationTaskFailed(const ValidationContext& place, const std::string& status,
                                  uint32_t detail) {
  return absl::InvalidArgumentError(StrCat(Text(place), "it ended with ", status, ", detail ",
                                           detail,
                                           ". Fix: check why it calls fail(); the calls of "
                                           "examples must succeed"));
}

absl::Status ValidationOutOfBounds(const ValidationContext& place, const std::string& what) {
  return absl::InvalidArgumentError(StrCat(Text(place), "it ", what));
}

absl::Status ValidationRedZone(const ValidationContext& place, const std::string& parameter,
                               const std::string& where, uint64_t distance) {
  return absl::InvalidArgumentError(StrCat(
      Text(place), "it wrote outside of its tensors, ", distance, " bytes ", where, " '", parameter,
      "'. Fix: check its indices; with [] or at() the message contains the element"));
}

absl::Status ValidationInputWritten(const ValidationContext& place, const std::string& parameter,
                                    uint64_t element) {
  return absl::InvalidArgumentError(
      StrCat(Text(place), "it wrote to element ", element, " of its input '", parameter,
             "'. Fix: take inputs as tensor<const T>, or declare the parameter inout"));
}

absl::Status ValidationUnwritten(const ValidationContext& place, const std::string& parameter,
                                 uint64_t first, uint64_t unwritten, uint64_t elements) {
  return absl::InvalidArgumentError(
      StrCat(Text(place), "it left ", unwritten, " of the ", elements, " elements of '", parameter,
             "' unwritten, the first is element ", first,
             ". Fix: write every element of an output; block.share(n) gives each chunk its part"));
}

absl::Status ValidationDiffers(const ValidationContext& place,
                               const ValidationDifference& difference) {
  return absl::InvalidArgumentError(StrCat(
      Text(place), "'", difference.parameter, "' differs from ", difference.against, ": element ",
      difference.first, " is ", difference.got, ", not ", difference.wanted, "; ",
      difference.differing, " of ", difference.elements, " elements differ, by at most ",
      difference.max_error, ". Fix: correct the operator, or the example and its tolerance"));
}

absl::Status ValidationNoReference(const ValidationContext& place, const absl::Status& why) {
  return absl::InvalidArgumentError(
      StrCat(Text(place), "the active version's outputs are the expected values, but ",
             why.message(), ". Fix: send expected outputs with the example"));
}

}  // namespace resident::errors
