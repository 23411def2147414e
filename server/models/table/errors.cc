#include "server/models/table/errors.h"

#include "absl/strings/str_cat.h"
#include "runtime/base/errors/quote.h"

namespace resident::errors {

using absl::StrCat;

absl::Status NoSuchModel(const std::string& name) {
  return absl::NotFoundError(
      StrCat("there is no model ", Quote(name), ". Fix: correct the name, or load the model"));
}

absl::Status NoSuchModelVersion(const std::string& name, uint32_t version, uint32_t active) {
  return absl::NotFoundError(
      StrCat("model ", name, " has no version ", version,
             active == 0 ? std::string(", and none is active")
                         : StrCat("; version ", active, " is active"),
             ". Fix: name a version that Models.List shows, or none for the active one"));
}

absl::Status NoActiveModelVersion(const std::string& name) {
  return absl::UnavailableError(
      StrCat("model ", name, " has no active version. Fix: activate one of its versions"));
}

absl::Status NoPreviousModelVersion(const std::string& name) {
  return absl::FailedPreconditionError(StrCat(
      "model ", name, " has no previous version. Fix: activate the version that is to serve"));
}

absl::Status ModelSharePercent(double percent) {
  return absl::InvalidArgumentError(
      StrCat("a share of ", percent, " percent is not possible. Fix: give 0 to 100"));
}

absl::Status ModelVersionIsActive(const std::string& name, uint32_t version) {
  return absl::FailedPreconditionError(
      StrCat("version ", version, " of model ", name,
             " is active. Fix: activate another version first, or remove the model"));
}

absl::Status StaleModelRevision(const std::string& name, uint64_t expected, uint64_t revision) {
  return absl::AbortedError(StrCat("model ", name, " has revision ", revision, ", and ", expected,
                                   " was expected: it was changed meanwhile. Fix: look at it again "
                                   "(Models.List) and repeat the change"));
}

absl::Status TooManyModels(size_t limit) {
  return absl::ResourceExhaustedError(
      StrCat("the daemon has ", limit, " models, which is the limit. Fix: remove one"));
}

absl::Status TooManyModelVersions(const std::string& name, size_t limit) {
  return absl::ResourceExhaustedError(StrCat("model ", name, " has ", limit,
                                             " versions, which is the limit. Fix: remove one that "
                                             "does not serve"));
}

}  // namespace resident::errors
