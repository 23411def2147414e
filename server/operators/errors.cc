#include "server/operators/errors.h"

#include "absl/strings/str_cat.h"
#include "runtime/base/errors/quote.h"

namespace resident::errors {

using absl::StrCat;

absl::Status InstallHeaderNotSent(uint64_t limit_ms) {
  return absl::DeadlineExceededError(
      StrCat("the install's header was not sent within ", limit_ms,
             " ms. Fix: send it right after opening the stream; or raise --max_install_header_ms"));
}

absl::Status InstallNoHeader() {
  return absl::InvalidArgumentError(
      "the install does not begin with a header. Fix: send InstallRequest.header first");
}

absl::Status InstallSecondHeader() {
  return absl::InvalidArgumentError(
      "the install has a second header. Fix: install one version with each call, and send its "
      "header once");
}

absl::Status InstallEmptyMessage() {
  return absl::InvalidArgumentError(
      "an InstallRequest has no field that this daemon supports. Fix: set header, file or example");
}

absl::Status InstallNoName() {
  return absl::InvalidArgumentError(
      "InstallHeader.name is empty. Fix: send letters, digits, '_', '.', '-', beginning with a "
      "letter");
}

absl::Status InstallNoKind() {
  return absl::InvalidArgumentError(
      "InstallHeader has nothing to install. Fix: set one of main_file, expression, bytecode and "
      "object_file");
}

absl::Status InstallTextTooLong(const std::string& field, size_t bytes, size_t limit) {
  return absl::InvalidArgumentError(StrCat("InstallHeader.", field, " of ", bytes,
                                           " bytes is over the limit of ", limit,
                                           ". Fix: send a shorter one"));
}

absl::Status InstallNotSent(uint64_t limit_ms) {
  return absl::DeadlineExceededError(
      StrCat("the install was not sent completely within ", limit_ms,
             " ms. Fix: prepare files and examples before the call, and half-close after the "
             "last one; or raise --max_install_upload_ms"));
}

absl::Status InstallUnexpectedFile(const std::string& name) {
  return absl::InvalidArgumentError(StrCat("file ", Quote(name),
                                           " was sent with an expression or bytecode, which have "
                                           "no files. Fix: leave it out, or set main_file"));
}

absl::Status InstallTooManyFiles(uint64_t limit) {
  return absl::InvalidArgumentError(
      StrCat("the install has more than ", limit, " files, the limit. Fix: merge some of them"));
}

absl::Status InstallTooManyBytes(const std::string& what, uint64_t bytes, uint64_t limit) {
  return absl::InvalidArgumentError(StrCat(what, " of ", bytes, " bytes or more; the limit is ",
                                           limit, " for all files of one install. Fix: ",
                                           what == "source"
                                               ? "leave out what the operator does not use, and "
                                                 "pass tables in buffers"
                                               : "strip it, or send the source"));
}

absl::Status InstallTooManyExamples(uint64_t limit) {
  return absl::InvalidArgumentError(
      StrCat("the install has more than ", limit, " examples, the limit. Fix: send fewer"));
}

absl::Status InstallConfined() {
  return absl::UnimplementedError(
      "this daemon cannot confine the memory accesses of operators. Fix: install it with isolation "
      "stoppable or trusted");
}

absl::Status InstallIsolatedBytecode() {
  return absl::InvalidArgumentError(
      "a program has no isolation: its interpreter stops it. Fix: leave the isolation out");
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

absl::Status BadPlan(const std::string& plan) {
  return absl::InvalidArgumentError(
      StrCat("plan ", Quote(plan),
             " is not a SHA-256 in hex. Fix: send its 64 digits of 0 to 9 and a "
             "to f, also wherever a lease is sent"));
}

absl::Status BadSet(const std::string& set) {
  return absl::InvalidArgumentError(
      StrCat("set ", Quote(set),
             " is not the name of a set. Fix: send 1 to 63 of the characters a "
             "to z, 0 to 9 and '-', beginning with a letter or digit"));
}

absl::Status HolderTooLong(size_t bytes, size_t limit) {
  return absl::InvalidArgumentError(StrCat("ClaimRequest.holder of ", bytes,
                                           " bytes is over the limit of ", limit,
                                           ". Fix: send a shorter one"));
}

absl::Status ClaimTtl(uint64_t ttl_ms, uint64_t low_ms, uint64_t high_ms) {
  return absl::InvalidArgumentError(StrCat("ClaimRequest.ttl_ms of ", ttl_ms, " is not ", low_ms,
                                           " to ", high_ms,
                                           ". Fix: send such a time and renew the "
                                           "claim before it has passed"));
}

absl::Status TooManyClaimedNames(size_t names, size_t limit) {
  return absl::InvalidArgumentError(StrCat("the claim of ", names, " names is over the limit of ",
                                           limit, ". Fix: divide the set"));
}

absl::Status BadClaimedName(const std::string& name) {
  return absl::InvalidArgumentError(
      StrCat("the claim contains the name ", Quote(name),
             " twice, or it is empty or too long. Fix: send each operator once, by its name of at "
             "most 64 bytes"));
}

absl::Status RemovedButRunning(const std::string& name) {
  return absl::DeadlineExceededError(StrCat(Quote(name),
                                            " was removed, but some of its tasks still run. Fix: "
                                            "none needed; they end, at the latest at their time "
                                            "limit"));
}

}  // namespace resident::errors
