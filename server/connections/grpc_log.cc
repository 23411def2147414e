#include "server/connections/grpc_log.h"

#include <grpc/support/log.h>
#include <stdio.h>

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "runtime/base/log.h"

namespace resident {
namespace {

// Maximum number of source locations whose lines are counted separately; about a hundred of
// gRPC's are reachable.
constexpr size_t kMaxPlaces = 1024;

std::string_view BaseName(std::string_view path) { return path.substr(path.rfind('/') + 1); }

char Letter(gpr_log_severity severity) {
  switch (severity) {
    case GPR_LOG_SEVERITY_DEBUG:
      return 'D';
    case GPR_LOG_SEVERITY_INFO:
      return 'I';
    case GPR_LOG_SEVERITY_ERROR:
      return 'E';
  }
  return '?';
}

}  // namespace

void GrpcLog::Log(const char* file, int line, char severity, std::string_view message,
                  Clock::time_point now) {
  absl::MutexLock lock(&mu_);
  if (now - began_ >= kPeriod || began_ == Clock::time_point()) BeginPeriod(now);
  if (lines_.size() >= kMaxPlaces || written_ >= kMaxLines) {
    ++suppressed_;
    return;
  }
  uint32_t& lines = lines_[{file, line}];
  if (lines >= kMaxLinesPerPlace) {
    ++suppressed_;
    return;
  }
  ++lines;
  ++written_;
  const bool last = lines == kMaxLinesPerPlace || written_ == kMaxLines;
  const std::string_view base = BaseName(file);
  write_(absl::StrCat(
      "gRPC: ", std::string(1, severity), " ", absl::string_view(base.data(), base.size()), ":",
      line, ": ",
      absl::CEscape(absl::string_view(message.data(), std::min(message.size(), kMaxLineBytes))),
      last ? " (further lines of this minute are suppressed and counted)" : ""));
}

void GrpcLog::BeginPeriod(Clock::time_point now) {
  if (suppressed_ > reported_) {
    write_(absl::StrCat("gRPC: ", suppressed_ - reported_, " lines were suppressed"));
    reported_ = suppressed_;
  }
  began_ = now;
  written_ = 0;
  lines_.clear();
}

uint64_t GrpcLog::suppressed() const {
  absl::MutexLock lock(&mu_);
  return suppressed_;
}

GrpcLog& GrpcLog::Install() {
  // Never destroyed: gRPC's threads may log until the process has ended.
  static GrpcLog& log = *new GrpcLog([](const std::string& line) { LogInfo(line); });
  gpr_set_log_function([](gpr_log_func_args* args) {
    log.Log(args->file, args->line, Letter(args->severity), args->message);
  });
  return log;
}

}  // namespace resident
