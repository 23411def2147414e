// InferenceStatistics: what ModelStatistics reports, by model and version. It counts requests of
// the Open Inference Protocol only; the metrics page has the figures of all tasks.
//
// Every duration is measured, or a difference of measured times (open_inference.proto).
//
// Thread safety: all members may be called from any thread.
//
//   statistics.Record("add", version, {...});
//   statistics.Fill("add", version, out);
#ifndef RESIDENT_SERVER_INFERENCE_STATISTICS_H_
#define RESIDENT_SERVER_INFERENCE_STATISTICS_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "inference/open_inference.pb.h"

namespace resident {

// One request whose tasks have ended.
struct RequestTimes {
  bool ok = false;
  uint64_t tasks = 0;
  std::chrono::nanoseconds total{0};
  std::chrono::nanoseconds input{0};
  std::chrono::nanoseconds queue{0};
  std::chrono::nanoseconds device{0};
  std::chrono::nanoseconds output{0};
};

class InferenceStatistics {
 public:
  // `model`: as in the request, such as "add:batch".
  void Record(const std::string& model, uint32_t version, const RequestTimes& times);
  // All zero if there was no request.
  void Fill(const std::string& model, uint32_t version, inference::ModelStatistics* out) const;

 private:
  struct Counters {
    uint64_t last_ms = 0;
    uint64_t succeeded = 0;
    uint64_t failed = 0;
    uint64_t tasks = 0;
    // Sums of the requests that succeeded.
    RequestTimes sums;
    std::chrono::nanoseconds failed_time{0};
  };
  // The versions of a model that have the highest numbers; others are no longer in the kernel.
  static constexpr size_t kVersions = 4;

  mutable absl::Mutex mu_;
  // Cleared when it is full, which takes thousands of operators that were installed and removed.
  std::map<std::string, std::map<uint32_t, Counters>> models_ ABSL_GUARDED_BY(mu_);
};

}  // namespace resident

#endif  // RESIDENT_SERVER_INFERENCE_STATISTICS_H_
