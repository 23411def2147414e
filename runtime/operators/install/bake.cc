#include "runtime/operators/install/bake.h"

#include "absl/strings/str_format.h"

namespace resident {
namespace {

double Share(uint64_t part, uint64_t all) {
  return all == 0 ? 0 : static_cast<double>(part) / static_cast<double>(all);
}

}  // namespace

BakeOptions WithDefaults(const BakeOptions& requested, const BakeOptions& defaults) {
  BakeOptions options = requested;
  if (options.action == BakeAction::kDefault) options.action = defaults.action;
  if (options.time.count() == 0) options.time = defaults.time;
  if (options.max_error_rate == 0) options.max_error_rate = defaults.max_error_rate;
  if (options.max_latency_ratio == 0) options.max_latency_ratio = defaults.max_latency_ratio;
  if (options.max_mismatch_rate == 0) options.max_mismatch_rate = defaults.max_mismatch_rate;
  if (options.min_tasks == 0) options.min_tasks = defaults.min_tasks;
  return options;
}

Bake::Verdict Bake::Evaluate(const BakeCounters& counters,
                             std::chrono::steady_clock::time_point now) {
  if (counters.tasks >= options_.min_tasks) {
    if (Share(counters.failed, counters.tasks) > options_.max_error_rate) {
      reason_ = absl::StrFormat("%d of %d tasks did not end OK; the threshold is %g",
                                counters.failed, counters.tasks, options_.max_error_rate);
      return Verdict::kRegressed;
    }
    if (before_p99_ns_ > 0 &&
        static_cast<double>(counters.p99_ns) >
            options_.max_latency_ratio * static_cast<double>(before_p99_ns_)) {
      reason_ = absl::StrFormat(
          "p99 of the device time is %d ns, that of the version before was %d ns; the threshold is "
          "%g times",
          counters.p99_ns, before_p99_ns_, options_.max_latency_ratio);
      return Verdict::kRegressed;
    }
  }
  if (counters.shadow_tasks >= options_.min_tasks &&
      Share(counters.shadow_mismatches, counters.shadow_tasks) > options_.max_mismatch_rate) {
    reason_ = absl::StrFormat(
        "the outputs of %d of %d shadowed tasks differ from the active version's; the threshold is "
        "%g",
        counters.shadow_mismatches, counters.shadow_tasks, options_.max_mismatch_rate);
    return Verdict::kRegressed;
  }
  return now >= ends_ ? Verdict::kPassed : Verdict::kWait;
}

}  // namespace resident
