#include "server/inference/statistics.h"

#include "absl/strings/str_cat.h"
#include "runtime/base/limits.h"

namespace resident {
namespace {

// Twice the operators that there can be, because each is two models; with room for those that are
// built in.
constexpr size_t kMaxModels = 2 * (kMaxInstalledOperators + kMaxBytecodeOperators + 512);

void Set(uint64_t count, std::chrono::nanoseconds time, inference::StatisticDuration* out) {
  out->set_count(count);
  out->set_ns(static_cast<uint64_t>(time.count()));
}

}  // namespace

void InferenceStatistics::Record(const std::string& model, uint32_t version,
                                 const RequestTimes& times) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  absl::MutexLock lock(&mu_);
  if (models_.size() >= kMaxModels && !models_.contains(model)) models_.clear();
  auto& versions = models_[model];
  Counters& counters = versions[version];
  counters.last_ms =
      static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(now).count());
  if (times.ok) {
    ++counters.succeeded;
    counters.tasks += times.tasks;
    counters.sums.total += times.total;
    counters.sums.input += times.input;
    counters.sums.queue += times.queue;
    counters.sums.device += times.device;
    counters.sums.output += times.output;
  } else {
    ++counters.failed;
    counters.failed_time += times.total;
  }
  if (versions.size() > kVersions) versions.erase(versions.begin());
}

void InferenceStatistics::Fill(const std::string& model, uint32_t version,
                               inference::ModelStatistics* out) const {
  Counters counters;
  {
    absl::MutexLock lock(&mu_);
    const auto found = models_.find(model);
    if (found != models_.end()) {
      const auto of_version = found->second.find(version);
      if (of_version != found->second.end()) counters = of_version->second;
    }
  }
  out->set_name(model);
  out->set_version(absl::StrCat(version));
  out->set_last_inference(counters.last_ms);
  out->set_inference_count(counters.tasks);
  out->set_execution_count(counters.succeeded);
  inference::InferStatistics* const stats = out->mutable_inference_stats();
  Set(counters.succeeded, counters.sums.total, stats->mutable_success());
  Set(counters.failed, counters.failed_time, stats->mutable_fail());
  Set(counters.succeeded, counters.sums.queue, stats->mutable_queue());
  Set(counters.succeeded, counters.sums.input, stats->mutable_compute_input());
  Set(counters.succeeded, counters.sums.device, stats->mutable_compute_infer());
  Set(counters.succeeded, counters.sums.output, stats->mutable_compute_output());
}

}  // namespace resident
