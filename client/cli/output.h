// The output of residentctl: results on stdout, errors with a hint on stderr.
//
// With --json an error is one line on stderr:
//   {"error":{"code":"NOT_FOUND","message":"...","hint":"..."}}
#ifndef RESIDENT_CLIENT_CLI_OUTPUT_H_
#define RESIDENT_CLIENT_CLI_OUTPUT_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "client/cli/proto_json.h"

namespace resident::cli {

// Prints one JSON document on stdout.
void PrintJson(const Json& json);
// Prints it on one line, and flushes; for streams of documents.
void PrintJsonLine(const Json& json);
void Print(std::string_view text);

// Each of these functions prints an error and returns the exit code for it.
int UsageError(std::string_view message, std::string_view hint = "");
// The command line or a file is invalid: prints the status' message, returns kExitUsage.
int UsageError(const absl::Status& status);
// A call failed: kExitUnreachable or kExitRefused, with a hint for common errors.
int CallError(const absl::Status& status);
// A task or program failed: kExitFailed.
int TaskError(const absl::Status& status);
// The result could not be written on this machine: kExitNotWritten.
int WriteError(const absl::Status& status);

// Returns the exit code of a command that checked results and saved them, and prints a write
// error. The code of wrong results takes precedence over that of a write error.
int CheckedExit(uint64_t wrong, const absl::Status& written);

// Flushes stdout. Returns `code`, or kExitNotWritten if a write to stdout failed.
int FinishOutput(int code);

// Returns what to do about a failed call; empty if the message already contains it.
std::string HintFor(const absl::Status& status, std::string_view address);

// Checks before the work whether WriteFile is likely to succeed afterwards. OK for an empty path:
// nothing will be written.
absl::Status CheckWritable(const std::string& path);
// Writes --out. A file is replaced atomically (written under another name and renamed).
absl::Status WriteFile(const std::string& path, std::string_view contents);
// "-" is stdin.
absl::Status ReadFile(const std::string& path, std::string* contents);

}  // namespace resident::cli

#endif  // RESIDENT_CLIENT_CLI_OUTPUT_H_
