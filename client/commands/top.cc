// top: prints the daemon's status repeatedly, with rates.
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/cli/common_options.h"
#include "client/cli/output.h"
#include "client/commands/command.h"
#include "client/commands/status_text.h"

namespace resident::cli {
namespace {

constexpr std::string_view kClearScreen = "\x1b[H\x1b[2J";

Json Rates(const v1::StatusResponse& before, const v1::StatusResponse& now, double seconds) {
  Json rates = Json::array();
  for (const v1::DeviceStatus& device : now.devices()) {
    uint64_t earlier_completed = device.completed_tasks();
    for (const v1::DeviceStatus& earlier : before.devices()) {
      if (earlier.device() == device.device()) earlier_completed = earlier.completed_tasks();
    }
    const uint64_t completed = device.completed_tasks() - earlier_completed;
    rates.push_back({{"device", device.device()},
                     {"tasks_per_second", static_cast<double>(completed) / seconds}});
  }
  return rates;
}

int Watch(absl::Duration interval, bool once) {
  const bool json = Common().json;
  const bool redraw = !json && !once && isatty(STDOUT_FILENO) == 1;

  absl::StatusOr<std::unique_ptr<client::Client>> client = Connect(/*session=*/false);
  if (!client.ok()) return CallError(client.status());
  absl::StatusOr<v1::StatusResponse> before = (*client)->Status();
  if (!before.ok()) return CallError(before.status());
  absl::Time before_time = absl::Now();
  while (true) {
    absl::SleepFor(interval);
    absl::StatusOr<v1::StatusResponse> now = (*client)->Status();
    if (!now.ok()) return CallError(now.status());
    const absl::Time now_time = absl::Now();
    const double seconds = absl::ToDoubleSeconds(now_time - before_time);
    if (json) {
      PrintJsonLine({{"interval_s", seconds},
                     {"rates", Rates(*before, *now, seconds)},
                     {"status", ToJson(*now)}});
    } else {
      if (redraw) Print(kClearScreen);
      Print(TopText(*before, *now, seconds, (*client)->address()));
      if (redraw) {
        Print("\nevery ");
        Print(absl::FormatDuration(interval));
        Print("; Ctrl-C ends\n");
      } else if (!once) {
        Print("\n");
      }
      std::fflush(stdout);
    }
    if (once) return kExitOk;
    before = std::move(now);
    before_time = now_time;
  }
}

}  // namespace

void AddTop(Command& program) {
  Command& top =
      program.Add("top", "live view of devices and clients",
                  "Redraws on a terminal until interrupted; without a terminal, or with --json,\n"
                  "prints one snapshot after the other. --once prints one, with rates over one\n"
                  "interval.\n");
  auto once = std::make_shared<bool>(false);
  auto interval = std::make_shared<absl::Duration>(absl::Seconds(1));
  top.Flag("once", once.get(), "print one snapshot and exit");
  top.Flag("interval", interval.get(), "time between snapshots",
           {.low = absl::Milliseconds(10), .high = absl::Hours(24), .fix = "give 10ms to 24h"});
  top.Run("", [=](const Words&) { return Watch(*interval, *once); });
}

}  // namespace resident::cli
