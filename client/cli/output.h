// The output of residentctl: results on stdout, errors with a hint on stderr, and the exit code.
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

// residentctl's exit codes, for scripts. `residentctl help` lists them.

inline constexpr int kExitOk = 0;
// A check found a difference, a task or program ended with an error, or the daemon does not
// serve (health).
inline constexpr int kExitFailed = 1;
// The command line, or a file that it names, is invalid. Nothing was sent.
inline constexpr int kExitUsage = 2;
// No server answered.
inline constexpr int kExitUnreachable = 3;
// The server refused the request, or did not answer it in time.
inline constexpr int kExitRefused = 4;
// The work was done, but its result could not be written on this machine.
inline constexpr int kExitNotWritten = 5;
// A roll-out has ended, and a node is neither in the old nor in the new state.
inline constexpr int kExitIncomplete = 6;

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
