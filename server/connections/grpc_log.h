// gRPC's log, with a limit: a peer without a credential can make gRPC log thousands of
// lines a second (failed TLS handshakes, bytes that are not HTTP/2).
//
// For each location in gRPC's source, kMaxLinesPerPlace lines a minute are written to
// stderr, and kMaxLines in total. The last line before a limit announces that further lines
// are suppressed. In a later minute, the first line is preceded by one with the number of
// suppressed lines. resident_grpc_log_lines_suppressed_total counts them.
//
// Thread safety: all functions may be called from any thread.
#ifndef RESIDENT_SERVER_CONNECTIONS_GRPC_LOG_H_
#define RESIDENT_SERVER_CONNECTIONS_GRPC_LOG_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"

namespace resident {

class GrpcLog {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr uint32_t kMaxLinesPerPlace = 5;
  static constexpr uint32_t kMaxLines = 30;
  static constexpr auto kPeriod = std::chrono::minutes(1);
  // Maximum length of a line; the rest is cut off.
  static constexpr size_t kMaxLineBytes = 1024;

  // `write` is called under a lock, with whole lines without their newline.
  explicit GrpcLog(std::function<void(const std::string&)> write) : write_(std::move(write)) {}

  // A message may contain a peer's bytes: unprintable ones are escaped.
  void Log(const char* file, int line, char severity, std::string_view message,
           Clock::time_point now = Clock::now()) ABSL_LOCKS_EXCLUDED(mu_);
  uint64_t suppressed() const ABSL_LOCKS_EXCLUDED(mu_);

  // Replaces gRPC's own log function for the rest of the process. The log is written to
  // stderr.
  static GrpcLog& Install();

 private:
  void BeginPeriod(Clock::time_point now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::function<void(const std::string&)> write_;
  mutable absl::Mutex mu_;
  Clock::time_point began_ ABSL_GUARDED_BY(mu_);
  // By file and line; gRPC's file names are literals.
  absl::flat_hash_map<std::pair<const char*, int>, uint32_t> lines_ ABSL_GUARDED_BY(mu_);
  uint32_t written_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t suppressed_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t reported_ ABSL_GUARDED_BY(mu_) = 0;  // Part of suppressed_ that was reported.
};

}  // namespace resident

#endif  // RESIDENT_SERVER_CONNECTIONS_GRPC_LOG_H_
