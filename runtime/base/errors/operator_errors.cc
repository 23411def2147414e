#include "runtime/base/errors/operator_errors.h"

#include "absl/strings/str_cat.h"
#include "runtime/base/errors/quote.h"

namespace resident::errors {

using absl::StrCat;

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

absl::Status InternalOperator(const std::string& name) {
  return absl::InvalidArgumentError(StrCat("operator '", name,
                                           "' is not called with tasks. Fix: "
                                           "send Batch.programs, whose arguments the daemon "
                                           "checks and packs"));
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

absl::Status BakeThreshold(const std::string& field, double value, const std::string& range) {
  return absl::InvalidArgumentError(StrCat("BakeOptions.", field, " of ", value,
                                           " is not a valid threshold. Fix: send ", range,
                                           ", where 0 selects the daemon's setting"));
}

absl::Status BakeTime(uint64_t time_ms, uint64_t limit_ms) {
  return absl::InvalidArgumentError(StrCat("BakeOptions.time_ms of ", time_ms,
                                           " is over the limit of ", limit_ms,
                                           ". Fix: send less; 0 selects --bake_time"));
}

absl::Status TooManyAuditEvents(uint64_t count, uint64_t limit) {
  return absl::InvalidArgumentError(StrCat("count of ", count, " is over the limit of ", limit,
                                           ". Fix: request fewer, then continue with "
                                           "before_revision"));
}

absl::Status RemovedButRunning(const std::string& name) {
  return absl::DeadlineExceededError(StrCat(Quote(name),
                                            " was removed, but some of its tasks still run. Fix: "
                                            "none needed; they end, at the latest at their time "
                                            "limit"));
}

}  // namespace resident::errors
