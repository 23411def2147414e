#include "runtime/base/errors/install_errors.h"

#include "absl/strings/str_cat.h"
#include "runtime/base/errors/quote.h"

namespace resident::errors {

using absl::StrCat;

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

absl::Status InstallHeaderNotSent(uint64_t limit_ms) {
  return absl::DeadlineExceededError(
      StrCat("the install's header was not sent within ", limit_ms,
             " ms. Fix: send it right after opening the stream; or raise --max_install_header_ms"));
}

absl::Status InstallFileName(const std::string& name, const std::string& what) {
  return absl::InvalidArgumentError(StrCat("file name ", Quote(name), ": ", what,
                                           ". Fix: use the name that the #include directive uses, "
                                           "such as util/math.h"));
}

absl::Status InstallUnexpectedFile(const std::string& name) {
  return absl::InvalidArgumentError(StrCat("file ", Quote(name),
                                           " was sent with an expression or bytecode, which have "
                                           "no files. Fix: leave it out, or set main_file"));
}

absl::Status InstallMissingFile(const std::string& name, size_t files) {
  return absl::InvalidArgumentError(StrCat("the header names the file ", Quote(name),
                                           ", which is not among the ", files,
                                           " that were sent. Fix: send it as an InstallFile of "
                                           "exactly that name"));
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

absl::Status InstallWithdrawn() {
  return absl::CancelledError(
      "the install was withdrawn before it was loaded. Fix: none needed if that was intended");
}

absl::Status CompileFolderFull(uint64_t limit_mib, uint64_t limit_entries) {
  return absl::ResourceExhaustedError(
      StrCat("the compiler's folder exceeded the limit of ", limit_mib, " MiB or ", limit_entries,
             " files. Fix: make the source smaller, and pass large tables as tensors"));
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

}  // namespace resident::errors
