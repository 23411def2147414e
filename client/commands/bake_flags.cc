#include "client/commands/bake_flags.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace resident::cli {

bool AbslParseFlag(absl::string_view text, PercentFlag* flag, std::string* error) {
  absl::string_view number = text;
  absl::ConsumeSuffix(&number, "%");
  if (absl::SimpleAtod(number, &flag->percent) && flag->percent >= 0 && flag->percent <= 100) {
    return true;
  }
  *error = "a percentage is 0% to 100%";
  return false;
}

std::string AbslUnparseFlag(const PercentFlag& flag) { return absl::StrCat(flag.percent, "%"); }

void AddBakeFlags(Command& command, bool shadows, BakeFlags& flags) {
  command.Flag("bake", &flags.bake,
               "how long the version is monitored; 0s: the daemon's --bake_time",
               {.low = absl::ZeroDuration(), .fix = "give 0s or more, e.g. 10m"});
  command.Flag(
      "on_regression", &flags.on_regression,
      "action if the version is worse: off, warn or roll_back; default: the daemon's --bake_action",
      {.one_of = {"off", "warn", "roll_back"}});
  command.Flag("max_error_rate", &flags.max_error_rate,
               "largest accepted share of failed tasks, 1% or 0.01; 0: the daemon's");
  command.Flag("max_latency_ratio", &flags.max_latency_ratio,
               "largest accepted p99, as a multiple of the previous version's; 0: the daemon's",
               {.low = 0,
                .holds = [](double ratio) { return std::isfinite(ratio); },
                .fix = "give a number of 0 or more, e.g. 2"});
  if (shadows) {
    command.Flag(
        "max_mismatch_rate", &flags.max_mismatch_rate,
        "largest accepted share of shadowed tasks that differ, 1% or 0.01; 0: the daemon's");
  }
  command.Flag("min_tasks", &flags.min_tasks,
               "number of tasks before the version is evaluated; 0: the daemon's --bake_min_tasks");
}

v1::BakeOptions ToMessage(const BakeFlags& flags) {
  v1::BakeOptions bake;
  if (flags.on_regression == "off") bake.set_action(v1::BakeOptions::ACTION_OFF);
  if (flags.on_regression == "warn") bake.set_action(v1::BakeOptions::ACTION_WARN);
  if (flags.on_regression == "roll_back") bake.set_action(v1::BakeOptions::ACTION_ROLL_BACK);
  bake.set_time_ms(static_cast<uint64_t>(
      absl::ToInt64Milliseconds(std::min(flags.bake, absl::Hours(24 * 365)))));
  bake.set_max_error_rate(flags.max_error_rate.value);
  bake.set_max_latency_ratio(flags.max_latency_ratio);
  bake.set_max_mismatch_rate(flags.max_mismatch_rate.value);
  bake.set_min_tasks(flags.min_tasks);
  return bake;
}

}  // namespace resident::cli
