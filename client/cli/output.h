// How residentctl says things: results on stdout, errors with a hint on stderr.
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

// One JSON document on stdout.
void PrintJson(const Json& json);
// The same on one line, flushed; for streams of documents.
void PrintJsonLine(const Json& json);
void Print(std::string_view text);

// Each prints an error and returns the exit code for it.
int UsageError(std::string_view message, std::string_view hint = "");
// The command line or a file was wrong: the status' message, kExitUsage.
int UsageError(const absl::Status& status);
// A call failed: kExitUnreachable or kExitRefused, with a hint for what is common.
int CallError(const absl::Status& status);
// A task or program failed: kExitFailed.
int TaskError(const absl::Status& status);
// What the work gave could not be written here: kExitNotWritten.
int WriteError(const absl::Status& status);

// How a command ends that checked results and saved them: wrong ones count for more than what
// could not be written, which is an error all the same.
int CheckedExit(uint64_t wrong, const absl::Status& written);

// Writes out what was printed. `code`, or kExitNotWritten if stdout did not take it all.
int FinishOutput(int code);

// What to do about a failed call; empty when the message says it all.
std::string HintFor(const absl::Status& status, std::string_view address);

// Whether WriteFile can be expected to work: asked before work whose result goes there. An
// empty path is: nothing will be written.
absl::Status CheckWritable(const std::string& path);
// Writes --out: a file, never half of one (it is renamed into place).
absl::Status WriteFile(const std::string& path, std::string_view contents);
// "-" is stdin.
absl::Status ReadFile(const std::string& path, std::string* contents);

}  // namespace resident::cli

#endif  // RESIDENT_CLIENT_CLI_OUTPUT_H_
