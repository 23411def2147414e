#include "runtime/operators/errors.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/base/errors/quote.h"
#include "runtime/model/errors.h"

namespace resident::errors {

using absl::StrCat;

namespace {

std::string Text(const ValidationContext& place) {
  return StrCat(place.operator_name, ", ", place.generated ? "generated example " : "example ",
                place.example + 1, " (", place.run, place.shapes.empty() ? "" : "; ", place.shapes,
                "): ");
}

std::string DescribeValue(size_t example, size_t value) {
  return StrCat("example ", example + 1, ", value ", value + 1);
}

}  // namespace

absl::Status ExampleTolerance(size_t example) {
  return absl::InvalidArgumentError(
      StrCat("example ", example + 1,
             ": a tolerance is negative or not a number. Fix: send 0 or more, such as 1e-5"));
}

absl::Status ExampleTolerance(double relative, double absolute) {
  return absl::InvalidArgumentError(
      StrCat("tolerances ", relative, " (relative) and ", absolute,
             " (absolute): both must be finite and not negative. Fix: send 0 and 0 for the "
             "defaults of the dtypes"));
}

absl::Status ExampleTooLarge(size_t example, size_t value, uint64_t limit) {
  return absl::InvalidArgumentError(StrCat(DescribeValue(example, value), " exceeds the limit of ",
                                           limit,
                                           " bytes for all examples of one install, including "
                                           "outputs. Fix: send smaller tensors"));
}

absl::Status ExampleTooLarge(uint64_t bytes, uint64_t limit) {
  return absl::InvalidArgumentError(StrCat("its tensors have ", bytes,
                                           " bytes, which is more than the limit of ", limit,
                                           ". Fix: send smaller tensors"));
}

absl::Status ExampleTooManyValues(size_t example, size_t values, size_t limit) {
  return absl::InvalidArgumentError(StrCat("example ", example + 1, " has ", values,
                                           " values, but an operator has at most ", limit,
                                           " parameters. Fix: send one for each parameter"));
}

absl::Status ExampleDType(size_t example, size_t value, int dtype) {
  return absl::InvalidArgumentError(StrCat(DescribeValue(example, value), ": dtype ", dtype,
                                           " is unknown. Fix: set a value of resident.v1.DType"));
}

absl::Status ExampleRank(size_t example, size_t value, size_t rank, size_t limit) {
  return absl::InvalidArgumentError(StrCat(DescribeValue(example, value), ": ", rank,
                                           " dimensions are over the limit of ", limit,
                                           ". Fix: give a shape that the signature takes"));
}

absl::Status ExampleSize(size_t example, size_t value, uint64_t got, uint64_t wanted) {
  return absl::InvalidArgumentError(StrCat(
      DescribeValue(example, value), ": data has ", got, " bytes, but dtype and shape require ",
      wanted,
      ". Fix: send dense elements; twice as many for an inout with expected values; none for an "
      "output that is compared with the active version's"));
}

absl::Status TooManyExamples(uint64_t count, uint64_t limit) {
  return absl::InvalidArgumentError(StrCat(count, " examples are more than the limit of ", limit,
                                           " for one install. Fix: send at most ", limit,
                                           " examples"));
}

absl::Status InExample(size_t example, const absl::Status& why) {
  return absl::Status(why.code(), StrCat("example ", example + 1, ": ", why.message()));
}

absl::Status ExampleData(const ArgumentRef& place, uint64_t got, const std::string& takes) {
  return absl::InvalidArgumentError(StrCat(ArgumentText(place), ": the example has ", got,
                                           " bytes of data for it, but it takes ", takes,
                                           ". Fix: send dense elements of its dtype and shape"));
}

absl::Status ExampleScalarShape(const ArgumentRef& place, const std::string& shape) {
  return absl::InvalidArgumentError(StrCat(ArgumentText(place), ": a scalar has no shape, but ",
                                           shape,
                                           " was sent. Fix: leave the shape of scalars empty"));
}

absl::Status ExampleExpectations(const std::string& with, const std::string& without) {
  return absl::InvalidArgumentError(
      StrCat("output '", with, "' has expected data and output '", without,
             "' has none. Fix: send data for all outputs, or for none to compare with the active "
             "version"));
}

absl::Status ExpressionSignature(const std::string& given, const std::string& derived) {
  return absl::InvalidArgumentError(StrCat("the signature ", Quote(given),
                                           " differs from the expression's signature ",
                                           Quote(derived), ". Fix: leave it out"));
}

absl::Status ObjectsNotAllowed() {
  return absl::FailedPreconditionError(
      "this daemon does not accept compiled objects. Fix: install source, or start the daemon with "
      "--allow_objects");
}

absl::Status TaskTimeAboveLimit(std::chrono::milliseconds asked, std::chrono::milliseconds limit) {
  return absl::InvalidArgumentError(StrCat("a task time of ", asked.count(),
                                           " ms is above --task_time_limit, ", limit.count(),
                                           " ms. Fix: request less, or raise the flag"));
}

absl::Status BytecodeSize(size_t bytes, size_t limit) {
  return absl::InvalidArgumentError(
      StrCat("a program of ", bytes, " bytes. Fix: send 1 to ", limit, " bytes"));
}

absl::Status BytecodeExample(size_t example) {
  return absl::InvalidArgumentError(
      StrCat("example ", example,
             " does not have two values, i32[W] (initial registers) and i32[K] (registers at the "
             "end), W and K from 1 to 16. Fix: send these two"));
}

absl::Status BytecodeError(size_t example, uint32_t error, uint32_t cycles) {
  return absl::InvalidArgumentError(
      StrCat(example == 0 ? std::string("a run with all registers 0") : StrCat("example ", example),
             " ended with error ", error, " after ", cycles,
             " instructions (docs/flux.md lists the errors). Fix: correct the program"));
}

absl::Status BytecodeResult(size_t example, size_t reg, int32_t got, int32_t expected) {
  return absl::InvalidArgumentError(StrCat("example ", example, ": R", reg, " is ", got, ", not ",
                                           expected, ". Fix: correct the program or the example"));
}

absl::Status UnknownOperator(const std::string& name, const std::string& nearest) {
  return absl::NotFoundError(StrCat("no operator ", Quote(name), ". ",
                                    nearest.empty() ? "Fix: see Operators.List for all operators"
                                                    : StrCat("Fix: did you mean '", nearest,
                                                             "'? Operators.List lists all "
                                                             "operators")));
}

absl::Status UnknownVersion(const std::string& name, uint32_t version, uint32_t active) {
  return absl::NotFoundError(StrCat("operator '", name, "' has no version ", version,
                                    ". Fix: send version 0 for the active one (",
                                    active == 0 ? "none" : StrCat(active),
                                    " now), or one that Operators.Describe lists in a slot"));
}

absl::Status UnknownVersionName(const std::string& name, const VersionRef& version,
                                const std::vector<VersionInKernel>& present) {
  const bool by_label = version.content_hash.empty();
  const std::string what = by_label
                               ? StrCat("the label ", Quote(std::string(version.label)))
                               : StrCat("the content hash ", std::string(version.content_hash));
  const std::string in_kernel =
      present.empty()
          ? "none"
          : absl::StrJoin(present, ", ", [](std::string* out, const VersionInKernel& one) {
              absl::StrAppend(out, "version ", one.version, " (", one.state,
                              one.label.empty() ? "" : StrCat(", label ", Quote(one.label)), ")");
            });
  return absl::NotFoundError(StrCat("operator '", name, "' has no version with ", what,
                                    " in the kernel, which has ", in_kernel,
                                    ". Fix: name one of these, or install that version again; the "
                                    "kernel keeps two versions of an operator"));
}

absl::Status AmbiguousContentHash(const std::string& name, const std::string& digits) {
  return absl::InvalidArgumentError(StrCat("two versions of operator '", name,
                                           "' have a content hash that begins with ", digits,
                                           ". Fix: send more of its 64 digits"));
}

absl::Status BadContentHash(const std::string& digits) {
  return absl::InvalidArgumentError(
      StrCat(Quote(digits),
             " is not a content hash. Fix: send its first 12 to 64 digits, 0 to 9 and a to f, as "
             "residentctl ops show prints them"));
}

absl::Status BadVersionLabel(const std::string& label) {
  return absl::InvalidArgumentError(
      StrCat("label ", Quote(label),
             " is not valid. Fix: use at most 64 bytes: a letter or digit, then letters, digits, "
             "'_', '.' and '-'"));
}

absl::Status SeveralVersionNames(const std::string& name) {
  return absl::InvalidArgumentError(
      StrCat("the batch names a version of operator ", Quote(name),
             " in several ways. Fix: send only one of version, content_hash and label"));
}

absl::Status BadOperatorName(const std::string& name) {
  return absl::InvalidArgumentError(StrCat(
      "operator name ", Quote(name),
      " is not valid. Fix: use at most 64 bytes: a letter, then letters, digits, '_', '.' and "
      "'-'"));
}

absl::Status BuiltinName(const std::string& name) {
  return absl::AlreadyExistsError(StrCat("operator '", name,
                                         "' is built in and cannot be replaced. Fix: install "
                                         "under another name"));
}

absl::Status NameOfModel(const std::string& name) {
  return absl::AlreadyExistsError(StrCat("there is a model ", Quote(name),
                                         ", and models and operators share their names. Fix: use "
                                         "another name, or remove the model"));
}

absl::Status BuiltinOperator(const std::string& name) {
  return absl::FailedPreconditionError(StrCat("operator '", name,
                                              "' is built in and cannot be changed. Fix: name an "
                                              "operator that was installed"));
}

absl::Status CalledWithTasks(const std::string& name) {
  return absl::InvalidArgumentError(StrCat("operator '", name,
                                           "' is bytecode and is not called with tasks. Fix: send "
                                           "Batch.programs with its name in `operator`"));
}

absl::Status CalledWithPrograms(const std::string& name) {
  return absl::InvalidArgumentError(StrCat("operator '", name,
                                           "' is native code and not a FLUX program. Fix: send "
                                           "Batch.tasks with its name in `operator`"));
}

absl::Status NoActiveVersion(const std::string& name, uint32_t standby,
                             const std::string& quarantine_reason) {
  if (!quarantine_reason.empty()) {
    return absl::UnavailableError(StrCat("operator '", name, "' has no active version: version ",
                                         standby, " was quarantined (", quarantine_reason,
                                         "). Fix: install a version that works and activate it"));
  }
  if (standby == 0) {
    return absl::UnavailableError(StrCat("operator '", name,
                                         "' has no active version. Fix: install one and "
                                         "activate it"));
  }
  return absl::UnavailableError(StrCat("operator '", name, "' has no active version: version ",
                                       standby, " is loaded. Fix: activate it"));
}

absl::Status VersionQuarantined(const std::string& name, uint32_t version,
                                const std::string& reason) {
  return absl::FailedPreconditionError(
      StrCat("version ", version, " of operator '", name, "' is quarantined: ", reason,
             ". Fix: install a version that works; or activate this one with force"));
}

absl::Status StaleRevision(const std::string& name, uint64_t expected, uint64_t revision) {
  const std::string is =
      revision == 0 ? "it is not installed" : StrCat("it is at revision ", revision);
  return absl::AbortedError(StrCat(
      "operator ", Quote(name), " was expected ",
      expected == 0 ? std::string("not to be installed") : StrCat("at revision ", expected),
      " and ", is,
      ": another caller has changed it. Fix: read its state again, then repeat the call with "
      "its revision"));
}

namespace {

std::string ClaimText(const std::string& set, const std::string& plan, const std::string& holder,
                      absl::Duration age) {
  return StrCat(Quote(holder), " for plan ", plan.substr(0, kMinHashDigits), " of set ", Quote(set),
                ", which began ", absl::FormatDuration(absl::Trunc(age, absl::Seconds(1))), " ago");
}

}  // namespace

absl::Status ClaimHeld(const std::string& set, const std::string& plan, const std::string& holder,
                       absl::Duration age) {
  return absl::AbortedError(StrCat(
      "this daemon's operators are claimed by ", ClaimText(set, plan, holder, age),
      ". Fix: wait until that roll-out has ended; if nobody continues it, its claim runs out "
      "by itself; or end it with residentctl apply --steal"));
}

absl::Status NameClaimed(const std::string& name, const std::string& set, const std::string& plan,
                         const std::string& holder, absl::Duration age) {
  return absl::AbortedError(
      StrCat("operator ", Quote(name), " is claimed by ", ClaimText(set, plan, holder, age),
             ". Fix: repeat the change when that roll-out has ended; if nobody continues it, its "
             "claim runs out by itself"));
}

absl::Status ListedInFolder(const std::string& name, const std::string& set) {
  return absl::FailedPreconditionError(
      StrCat("operator ", Quote(name), " is in the set ", Quote(set),
             " of --operators_dir, from which this daemon would differ. Fix: change the set in the "
             "folder, or roll it out with residentctl apply; --force (ChangeContext.drift) changes "
             "the operator nevertheless"));
}

absl::Status ClaimLost(const std::string& plan) {
  return absl::AbortedError(
      StrCat("the claim of plan ", plan.substr(0, kMinHashDigits),
             " has run out, was released, or was taken over by another run. Fix: look which plan "
             "has the claim now (residentctl ops summary), and run the command again"));
}

absl::Status OtherKind(const std::string& name, bool bytecode) {
  return absl::FailedPreconditionError(
      StrCat("operator '", name, "' is ", bytecode ? "bytecode" : "native code",
             ", and a version of the other kind is called in a different way. Fix: install under "
             "another name, or remove it first"));
}

absl::Status OtherSignature(const std::string& name, const std::string& signature,
                            const std::string& installed) {
  return absl::FailedPreconditionError(StrCat(
      "signature \"", signature, "\" differs from that of the installed versions of operator '",
      name, "', \"", installed, "\". Fix: keep the signature, or install under another name"));
}

absl::Status OnTrial(const std::string& name, uint32_t version) {
  return absl::FailedPreconditionError(
      StrCat("version ", version, " of operator '", name,
             "' is on trial, and another version would replace it. Fix: end the trial first "
             "(Activate, Rollback, or Promote with 0 percent)"));
}

absl::Status TooManyOperators(uint64_t limit, bool bytecode) {
  return absl::ResourceExhaustedError(StrCat("there are ", limit,
                                             bytecode ? " operators of bytecode" : " operators",
                                             " installed, the limit. Fix: remove one that is not "
                                             "used"));
}

absl::Status NoFreeSlot(uint64_t slots) {
  return absl::DeadlineExceededError(
      StrCat("all ", slots,
             " slots of the kernel are in use, some by versions whose last tasks still run. Fix: "
             "try again, or remove an operator that is not used"));
}

absl::Status AlreadyActive(const std::string& name, uint32_t version) {
  return absl::FailedPreconditionError(StrCat("version ", version, " of operator '", name,
                                              "' is already active. Fix: none needed, or "
                                              "name another version"));
}

absl::Status NoStandby(const std::string& name, uint32_t version, uint32_t active) {
  const std::string wanted = version == 0 ? "" : StrCat(", so there is no version ", version);
  return absl::FailedPreconditionError(
      StrCat("operator '", name, "' has no standby version",
             active == 0 ? std::string() : StrCat(" beside the active one (", active, ")"), wanted,
             ". Fix: install one"));
}

absl::Status NotInSlot(const std::string& name, uint32_t version, uint32_t standby) {
  return absl::FailedPreconditionError(
      StrCat("version ", version, " of operator '", name, "' is not in the standby slot; version ",
             standby, " is. Fix: name that one, or install version ", version, "'s source again"));
}

absl::Status NoPrevious(const std::string& name, uint32_t standby) {
  return absl::FailedPreconditionError(StrCat(
      "operator '", name, "' has no version that served before the active one",
      standby == 0 ? std::string()
                   : StrCat("; the standby, version ", standby, ", was not active before it"),
      ". Fix: activate the version that you want by its number"));
}

absl::Status NoActiveVersionToCompare(const std::string& name, uint32_t standby) {
  return absl::FailedPreconditionError(
      StrCat("operator '", name, "' has no active version to compare ",
             standby == 0 ? std::string("another version") : StrCat("version ", standby),
             " with. Fix: activate a version"));
}

absl::Status DuplicateVersionRole(const std::string& name, uint32_t version) {
  return absl::DataLossError(StrCat("version ", version, " of operator '", name,
                                    "' and another version are both active, or both standby. Fix: "
                                    "run `residentctl state check` on the state folder"));
}

absl::Status PromoteShare(const std::string& field, double percent) {
  return absl::InvalidArgumentError(
      StrCat(field, " of ", percent, " is not a percentage. Fix: send 0 to 100"));
}

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
