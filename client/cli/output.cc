
#include "client/cli/output.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cli/common_options.h"
#include "client/residentd_client.h"
#include "runtime/base/atomic_file.h"
#include "runtime/base/errors/words.h"

namespace resident::cli {
namespace {

void PrintError(absl::StatusCode code, std::string_view message, std::string_view hint) {
  std::fflush(stdout);
  if (Common().json) {
    Json error = {{"code", absl::StatusCodeToString(code)}, {"message", message}};
    if (!hint.empty()) error["hint"] = hint;
    std::fprintf(stderr, "%s\n", Json{{"error", error}}.dump().c_str());
    return;
  }
  std::fprintf(stderr, "residentctl: %.*s\n", static_cast<int>(message.size()), message.data());
  if (!hint.empty()) {
    std::fprintf(stderr, "hint: %.*s\n", static_cast<int>(hint.size()), hint.data());
  }
}

// The daemon's message in the words of residentctl.
std::string ErrorText(const absl::Status& status) {
  constexpr errors::Phrase kWords[] = {
      {"Operators.List", "`residentctl ops list`"},
      {"Operators.Describe", "`residentctl ops show`"},
      {"Operators.Remove", "`residentctl ops remove`"},
      {"Operators.Watch", "`residentctl ops watch`"},
      {"Buffers.LoadFile", "`residentctl buffers load --on_daemon`"},
      {"Buffers.List", "`residentctl buffers`"},
      {"Graphs.Validate", "`residentctl graph validate`"},
      {"Admin.Status returns", "`residentctl status` shows"},
      {"Admin.Status", "`residentctl status`"},
      {"Admin.Park", "`residentctl admin park`"},
      {"send version 0 for the active one", "omit --op_version for the active one"},
      {"send only one of version, content_hash and label",
       "give only one of --op_version, --op_hash and --op_label"},
      {"send one column for each of", "give NAME=VALUE for each of"},
      {"send the output's shape in place of infer_shape",
       "give the output's shape, for example out:2x3="},
      {"raise limits.task_time_ms", "raise --task_time"},
      {"set it in `scalars`", "give NAME=VALUE with this name, for example prompt_len=3"},
      {"leave BufferColumn.strides empty, and copy", "copy"},
      {"set BufferColumn.dtype and .shape",
       "give the element type and the shape: x:f32:2x3=buffer:ID"},
  };
  return errors::InWords({status.message().data(), status.message().size()}, kWords);
}

}  // namespace

void PrintJson(const Json& json) {
  Print(json.dump(2, ' ', false, Json::error_handler_t::replace));
  Print("\n");
}

void PrintJsonLine(const Json& json) {
  Print(json.dump(-1, ' ', false, Json::error_handler_t::replace));
  Print("\n");
  std::fflush(stdout);
}

void Print(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stdout); }

int UsageError(std::string_view message, std::string_view hint) {
  PrintError(absl::StatusCode::kInvalidArgument, message, hint);
  return kExitUsage;
}

int UsageError(const absl::Status& status) {
  PrintError(status.code(), ErrorText(status), "");
  return kExitUsage;
}

int CallError(const absl::Status& status) {
  PrintError(status.code(), ErrorText(status), HintFor(status, Common().server));
  return client::IsUnreachable(status) ? kExitUnreachable : kExitRefused;
}

int TaskError(const absl::Status& status) {
  PrintError(status.code(), ErrorText(status), "");
  return kExitFailed;
}

int WriteError(const absl::Status& status) {
  PrintError(status.code(), ErrorText(status), "the work was done; only writing its result failed");
  return kExitNotWritten;
}

int CheckedExit(uint64_t wrong, const absl::Status& written) {
  const int code = written.ok() ? kExitOk : WriteError(written);
  return wrong == 0 ? code : kExitFailed;
}

int FinishOutput(int code) {
  const std::string why = std::fflush(stdout) == 0 ? "a write failed" : std::strerror(errno);
  if (std::ferror(stdout) == 0) return code;
  PrintError(absl::StatusCode::kUnavailable, absl::StrCat("cannot write to stdout: ", why), "");
  return code == kExitOk ? kExitNotWritten : code;
}

std::string HintFor(const absl::Status& status, std::string_view address) {
  const absl::string_view where(address.data(), address.size());
  if (client::IsUnreachable(status)) {
    if (absl::StrContains(status.message(), "DNS")) {
      return absl::StrCat("'", where, "' cannot be resolved; give --server=HOST:PORT");
    }
    return absl::StrCat("is residentd serving on ", where,
                        "? Start it with: residentd serve; or give another address with "
                        "--server=HOST:PORT or $RESIDENTD_SERVER");
  }
  // Such a message of the daemon already contains advice.
  if (absl::StrContains(status.message(), "Fix: ")) return "";
  switch (status.code()) {
    case absl::StatusCode::kDeadlineExceeded:
      return absl::StrCat(
          "no answer within --timeout=", absl::FormatDuration(Common().call_timeout()),
          "; raise it, or check the daemon: residentctl status");
    case absl::StatusCode::kUnimplemented:
      return absl::StrCat("check that the program at ", where,
                          " is a residentd of the same version: residentctl version");
    case absl::StatusCode::kUnavailable:
      return "the daemon runs but cannot serve this request now; see: residentctl status";
    case absl::StatusCode::kResourceExhausted:
      return "check the current usage: residentctl status";
    default:
      return "";
  }
}

absl::Status CheckWritable(const std::string& path) {
  if (path.empty()) return absl::OkStatus();
  const auto refuse = [&](std::string_view why) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot write ", path, ": ", absl::string_view(why.data(), why.size()),
                     ". Fix: give a file in a folder that exists and is writable"));
  };
  struct stat info;
  if (stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
    if (S_ISDIR(info.st_mode)) return refuse("it is a folder");
    return access(path.c_str(), W_OK) == 0 ? absl::OkStatus() : refuse(std::strerror(errno));
  }
  // WriteFile creates a file in the same folder and renames it.
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  return access(folder.c_str(), W_OK | X_OK) == 0 ? absl::OkStatus() : refuse(std::strerror(errno));
}

absl::Status WriteFile(const std::string& path, std::string_view contents) {
  const absl::string_view bytes(contents.data(), contents.size());
  const auto failed = [&](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat("cannot write ", path, ": ", why));
  };
  struct stat info;
  if (stat(path.c_str(), &info) != 0 || S_ISREG(info.st_mode)) {
    const mode_t mask = umask(0);
    umask(mask);
    const absl::Status written = WriteFileAtomically(path, {bytes}, {.mode = 0666 & ~mask});
    return written.ok() ? written : failed(written.message());
  }
  // Devices and pipes (/dev/stdout) are written directly.
  std::FILE* const file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) return failed(std::strerror(errno));
  const bool written = std::fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size();
  if (std::fclose(file) == 0 && written) return absl::OkStatus();
  return failed(std::strerror(errno));
}

absl::Status ReadFile(const std::string& path, std::string* contents) {
  contents->clear();
  std::FILE* file = path == "-" ? stdin : std::fopen(path.c_str(), "rb");
  if (file == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot read ", path, ": ", std::strerror(errno)));
  }
  char buffer[1 << 16];
  size_t size;
  while ((size = std::fread(buffer, 1, sizeof buffer, file)) > 0) contents->append(buffer, size);
  const bool failed = std::ferror(file) != 0;
  const std::string why = std::strerror(errno);
  if (file != stdin) std::fclose(file);
  if (failed) return absl::InvalidArgumentError(absl::StrCat("cannot read ", path, ": ", why));
  return absl::OkStatus();
}

}  // namespace resident::cli
