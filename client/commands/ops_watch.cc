// ops watch, ops audit: new and past changes of operators.
#include "absl/strings/str_cat.h"
#include "client/cli/common_options.h"
#include "client/cli/output.h"
#include "client/commands/command.h"
#include "client/commands/ops_text.h"
#include "client/operators.h"

namespace resident::cli {
namespace {

int Watch(const std::string& name, uint64_t after, uint32_t count) {
  absl::StatusOr<std::unique_ptr<client::Client>> client = Connect(/*session=*/false);
  if (!client.ok()) return CallError(client.status());
  client::Operators operators(**client);
  absl::StatusOr<std::unique_ptr<client::Watcher>> watcher = operators.Watch(after, name);
  if (!watcher.ok()) return CallError(watcher.status());
  const bool json = Common().json;
  if (!json) Print(EventsText({}, /*header=*/true));
  std::fflush(stdout);
  v1::OperatorEvent event;
  for (uint32_t seen = 0; (*watcher)->Next(&event);) {
    if (json) {
      PrintJsonLine(ToJson(event));
    } else {
      Print(EventsText({event}, /*header=*/false));
      std::fflush(stdout);
    }
    if (++seen == count) return kExitOk;
  }
  return CallError((*watcher)->Finish());
}

int Audit(const std::string& name, uint64_t before, uint32_t count) {
  absl::StatusOr<std::unique_ptr<client::Client>> client = Connect(/*session=*/false);
  if (!client.ok()) return CallError(client.status());
  client::Operators operators(**client);
  absl::StatusOr<v1::AuditResponse> past = operators.Audit(name, count, before);
  if (!past.ok()) return CallError(past.status());
  if (Common().json) {
    Json list = Json::array();
    for (const v1::OperatorEvent& event : past->events()) list.push_back(ToJson(event));
    PrintJson({{"node_id", past->node_id()}, {"node_name", past->node_name()}, {"events", list}});
  } else {
    Print(EventsText({past->events().begin(), past->events().end()}, /*header=*/true));
  }
  return kExitOk;
}

}  // namespace

void AddOpsWatch(Command& ops) {
  struct Range {
    uint64_t revision = 0;
    uint32_t count = 0;
  };
  const auto name = [](const Words& words) { return words.empty() ? std::string() : words[0]; };
  Command& watch = ops.Add("watch", "follow changes");
  auto watched = std::make_shared<Range>();
  watch.Flag("after", &watched->revision, "begin after this revision; 0: from now on");
  watch.Flag("count", &watched->count, "end after this number of events; 0: when interrupted");
  watch.Run("[NAME]", [=](const Words& words) {
    return Watch(name(words), watched->revision, watched->count);
  });
  Command& audit = ops.Add("audit", "list past changes, newest first");
  auto listed = std::make_shared<Range>();
  audit.Flag("before", &listed->revision, "only events before this revision; 0: from the newest");
  audit.Flag("count", &listed->count, "maximum number of events; 0: 100");
  audit.Run("[NAME]", [=](const Words& words) {
    return Audit(name(words), listed->revision, listed->count);
  });
}

}  // namespace resident::cli
