// ops watch, ops audit: changes of operators, as they happen and as they were.
#include "absl/strings/str_cat.h"
#include "client/cli/exit_codes.h"
#include "client/cli/flags.h"
#include "client/cli/output.h"
#include "client/commands/command.h"
#include "client/commands/ops.h"
#include "client/commands/ops_text.h"
#include "client/operators.h"

ABSL_FLAG(uint64_t, after, 0, "watch: begin after this revision; 0: from now on");
ABSL_FLAG(uint64_t, before, 0, "audit: only events before this revision; 0: from the newest");
ABSL_FLAG(uint32_t, count, 0, "watch: end after so many events; audit: at most so many (0: 100)");

namespace resident::cli {

int WatchOperators(const std::vector<std::string>& words) {
  if (words.size() > 1) {
    return UsageError("ops watch takes at most one NAME", "residentctl ops watch [NAME]");
  }
  absl::StatusOr<std::unique_ptr<client::Client>> client = Connect(/*session=*/false);
  if (!client.ok()) return CallError(client.status());
  client::Operators operators(**client);
  absl::StatusOr<std::unique_ptr<client::Watcher>> watcher =
      operators.Watch(absl::GetFlag(FLAGS_after), words.empty() ? "" : words[0]);
  if (!watcher.ok()) return CallError(watcher.status());
  const bool json = absl::GetFlag(FLAGS_json);
  if (!json) Print(EventsText({}, /*header=*/true));
  std::fflush(stdout);
  const uint32_t most = absl::GetFlag(FLAGS_count);
  v1::OperatorEvent event;
  for (uint32_t seen = 0; (*watcher)->Next(&event);) {
    if (json) {
      PrintJsonLine(ToJson(event));
    } else {
      Print(EventsText({event}, /*header=*/false));
      std::fflush(stdout);
    }
    if (++seen == most) return kExitOk;
  }
  return CallError((*watcher)->Finish());
}

int AuditOperators(const std::vector<std::string>& words) {
  if (words.size() > 1) {
    return UsageError("ops audit takes at most one NAME", "residentctl ops audit [NAME]");
  }
  absl::StatusOr<std::unique_ptr<client::Client>> client = Connect(/*session=*/false);
  if (!client.ok()) return CallError(client.status());
  client::Operators operators(**client);
  absl::StatusOr<std::vector<v1::OperatorEvent>> events = operators.Audit(
      words.empty() ? "" : words[0], absl::GetFlag(FLAGS_count), absl::GetFlag(FLAGS_before));
  if (!events.ok()) return CallError(events.status());
  if (absl::GetFlag(FLAGS_json)) {
    Json list = Json::array();
    for (const v1::OperatorEvent& event : *events) list.push_back(ToJson(event));
    PrintJson({{"events", list}});
  } else {
    Print(EventsText(*events, /*header=*/true));
  }
  return kExitOk;
}

}  // namespace resident::cli
