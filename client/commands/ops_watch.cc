// ops watch, ops audit: new and past changes of operators.
#include <algorithm>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
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

// As the daemon's default.
constexpr uint32_t kDefaultEvents = 100;
// Of one call.
constexpr uint32_t kMaxEvents = 1000;

struct AuditFlags {
  uint64_t before = 0;
  uint32_t count = 0;
  std::string plan;     // Or its first digits; empty: all.
  std::string targets;  // Empty: --server alone.
};

// The events of one daemon, newest first.
absl::StatusOr<v1::AuditResponse> ReadAudit(client::Client& client, const std::string& name,
                                            const AuditFlags& flags) {
  client::Operators operators(client);
  if (flags.plan.empty()) return operators.Audit(name, flags.count, flags.before);
  v1::AuditResponse found;
  const int count = static_cast<int>(flags.count == 0 ? kDefaultEvents : flags.count);
  for (uint64_t before = flags.before; found.events_size() < count;) {
    absl::StatusOr<v1::AuditResponse> page = operators.Audit(name, kMaxEvents, before);
    if (!page.ok()) return page.status();
    found.set_node_id(page->node_id());
    found.set_node_name(page->node_name());
    for (v1::OperatorEvent& event : *page->mutable_events()) {
      before = event.revision();
      const bool wanted = absl::StartsWith(event.plan(), flags.plan);
      if (wanted && found.events_size() < count) *found.add_events() = std::move(event);
    }
    // Before 0 would be from the newest.
    if (page->events_size() < static_cast<int>(kMaxEvents) || before <= 1) break;
  }
  return found;
}

// An event, and the node that recorded it.
struct NodeEvent {
  std::string node;
  std::string name;
  v1::OperatorEvent event;
};

// audit --targets: the events of all nodes, by their times. Revisions and times are those of the
// nodes.
int AuditOfNodes(const std::string& name, const AuditFlags& flags) {
  if (flags.before != 0) {
    return UsageError(
        "--before is a revision of one daemon, and excludes --targets. Fix: give --count");
  }
  client::Targets nodes;
  if (const std::optional<int> code = ResolveNodes(flags.targets, &nodes)) return *code;
  std::vector<absl::StatusOr<v1::AuditResponse>> past(nodes.addresses.size(),
                                                      absl::UnknownError(""));
  ForEachNode(nodes, [&](size_t i, const auto& client) {
    past[i] = client.ok() ? ReadAudit(**client, name, flags) : client.status();
  });
  std::vector<NodeEvent> events;
  std::set<std::string> ids;  // A node can have several addresses.
  std::vector<std::pair<std::string, std::string>> failed;
  size_t width = 0;
  for (size_t i = 0; i < past.size(); ++i) {
    const std::string& address = nodes.addresses[i];
    if (!past[i].ok()) failed.emplace_back(address, past[i].status().message());
    if (!past[i].ok() || !ids.insert(past[i]->node_id()).second) continue;
    width = std::max(width, address.size());
    for (const v1::OperatorEvent& event : past[i]->events()) {
      events.push_back({address, past[i]->node_name(), event});
    }
  }
  std::ranges::stable_sort(events, std::greater<>(),
                           [](const NodeEvent& each) { return each.event.time_ms(); });
  const size_t count = flags.count == 0 ? kDefaultEvents : flags.count;
  if (events.size() > count) events.resize(count);
  if (Common().json) {
    Json list = Json::array();
    for (const NodeEvent& each : events) {
      Json row = {{"node", each.node}, {"node_name", each.name}};
      row.update(ToJson(each.event));
      list.push_back(std::move(row));
    }
    Json errors = Json::array();
    for (const auto& [node, error] : failed) errors.push_back({{"node", node}, {"error", error}});
    PrintJson({{"events", std::move(list)}, {"errors", std::move(errors)}});
  } else {
    const int padded = static_cast<int>(std::max(width, sizeof("NODE") - 1));
    std::string text = absl::StrFormat("%-*s  %s", padded, "NODE", EventsText({}, /*header=*/true));
    for (const NodeEvent& each : events) {
      absl::StrAppendFormat(&text, "%-*s  %s", padded, each.node,
                            EventsText({each.event}, /*header=*/false));
    }
    for (const auto& [node, error] : failed) absl::StrAppend(&text, node, ": ", error, "\n");
    Print(text);
  }
  return failed.empty() ? kExitOk : kExitFailed;
}

int Audit(const std::string& name, const AuditFlags& flags) {
  if (!flags.targets.empty()) return AuditOfNodes(name, flags);
  absl::StatusOr<std::unique_ptr<client::Client>> client = Connect(/*session=*/false);
  if (!client.ok()) return CallError(client.status());
  absl::StatusOr<v1::AuditResponse> past = ReadAudit(**client, name, flags);
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
  Command& audit =
      ops.Add("audit", "list past changes, newest first",
              "With --targets it asks each node of the target, in place of --server, and merges "
              "the events\n"
              "of all by their times. Times and revisions are those of each node: the order is as "
              "exact as\n"
              "the nodes' clocks. Exit status 1 if a node did not answer.\n"
              "  residentctl ops audit --targets dns:///residentd-all:50051 --plan 3f6a3bb00a8f\n");
  auto listed = std::make_shared<AuditFlags>();
  audit.Flag("before", &listed->before, "only events before this revision; 0: from the newest");
  audit.Flag("count", &listed->count, "maximum number of events; 0: 100");
  audit.Flag("plan", &listed->plan,
             "only changes of this plan of residentctl apply: its first digits");
  audit.Flag("targets", &listed->targets,
             "dns:///NAME:PORT or ipv4:HOST:PORT,HOST:PORT: the events of all nodes");
  audit.Run("[NAME]", [=](const Words& words) { return Audit(name(words), *listed); });
}

}  // namespace resident::cli
