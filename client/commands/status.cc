// status: the current state of the daemon.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cli/common_options.h"
#include "client/cli/output.h"
#include "client/commands/command.h"
#include "client/commands/status_text.h"
#include "client/targets.h"
#include "client/version.h"

namespace resident::cli {
namespace {

// What a node of --targets has answered.
struct Node {
  std::string address;
  absl::StatusOr<v1::StatusResponse> status = absl::UnknownError("");
  bool serving = false;
};

std::vector<Node> AskAll(const client::Targets& targets) {
  std::vector<Node> nodes(targets.addresses.size());
  ForEachNode(targets, [&](size_t i, const auto& client) {
    nodes[i].address = targets.addresses[i];
    nodes[i].status = client.ok() ? (*client)->Status() : client.status();
    nodes[i].serving = nodes[i].status.ok() && (*client)->IsServing().value_or(false);
  });
  return nodes;
}

std::string DescribeState(const Node& node) {
  if (!node.status.ok()) return "down";
  if (node.status->draining()) return "draining";
  return node.serving ? "serving" : "not serving";
}

// status --targets: a row for each node.
int StatusOfNodes(const std::string& target) {
  client::Targets targets;
  if (const std::optional<int> code = ResolveNodes(target, &targets)) return *code;
  const std::vector<Node> nodes = AskAll(targets);
  const auto down =
      std::ranges::count_if(nodes, [](const Node& node) { return !node.status.ok(); });
  if (Common().json) {
    Json list = Json::array();
    for (const Node& node : nodes) {
      Json row = {{"node", node.address}, {"state", DescribeState(node)}};
      if (node.status.ok()) {
        row["status"] = ToJson(*node.status);
      } else {
        row["error"] = std::string(node.status.status().message());
      }
      list.push_back(std::move(row));
    }
    PrintJson({{"nodes", std::move(list)}, {"down", down}});
  } else {
    std::vector<NodeRow> rows;
    rows.reserve(nodes.size());
    for (const Node& node : nodes) {
      rows.push_back({node.address, DescribeState(node), node.status.ok() ? &*node.status : nullptr,
                      std::string(node.status.status().message())});
    }
    Print(NodesText(rows));
  }
  return down == 0 ? kExitOk : kExitFailed;
}

int Status(const Words&) {
  absl::StatusOr<std::unique_ptr<client::Client>> client = Connect(/*session=*/false);
  if (!client.ok()) return CallError(client.status());
  absl::StatusOr<v1::StatusResponse> status = (*client)->Status();
  if (!status.ok()) return CallError(status.status());
  if (Common().json) {
    PrintJson(ToJson(*status));
  } else {
    Print(StatusText(*status, (*client)->address()));
  }
  return kExitOk;
}

}  // namespace

void AddStatus(Command& program) {
  static std::string* const kTargets = new std::string();
  Command& status = program.Add(
      "status", "devices, queues and clients of the daemon",
      "With --targets it asks each node of the target, in place of --server, and prints a row for\n"
      "each: its state (serving, not serving, draining; down: it did not answer), its devices, "
      "the\n"
      "share of the slots of their rings that are in use, the tasks that wait, the set of its\n"
      "--operators_dir with its state (applying, applied, failed; drift: which operators others\n"
      "have changed; superseded by a roll-out), and its uptime. Exit status 1 if a node is down.\n"
      "  residentctl status --targets dns:///residentd.example:50051\n");
  status.Flag("targets", kTargets,
              "dns:///NAME:PORT or ipv4:HOST:PORT,HOST:PORT: one row for each node");
  status.Run("", [](const Words& words) {
    return kTargets->empty() ? Status(words) : StatusOfNodes(*kTargets);
  });
}

// health: whether the daemon accepts work, for health checks of containers and load balancers.

void AddHealth(Command& program) {
  Command& health = program.Add(
      "health", "query gRPC's health service: whether the daemon accepts work",
      "Prints SERVING, or NOT_SERVING while the daemon drains or every device is unhealthy. Exit\n"
      "status 0 only if it is SERVING, so that a container's health check can use this command.\n"
      "SERVICE is a gRPC service's full name, or resident.device/N for device N; without it, all\n"
      "of them. With TLS it needs the same certificates as other commands, but never a token.\n"
      "  residentctl health --timeout=2s\n"
      "  residentctl health resident.v1.Executor\n"
      "  residentctl health resident.device/0\n");
  health.Run("[SERVICE]", [](const Words& words) {
    const std::string service = words.empty() ? "" : words[0];
    absl::StatusOr<std::unique_ptr<client::Client>> client = Connect(/*session=*/false);
    if (!client.ok()) return CallError(client.status());
    absl::StatusOr<bool> serving = (*client)->IsServing(service);
    if (!serving.ok()) return CallError(serving.status());
    const std::string state = *serving ? "SERVING" : "NOT_SERVING";
    if (Common().json) {
      PrintJson({{"service", service}, {"status", state}});
    } else {
      Print(absl::StrCat(state, "\n"));
    }
    return *serving ? kExitOk : kExitFailed;
  });
}

// version: the versions of residentctl, and of the daemon if one answers.

namespace {

int Version(const Words&) {
  // It is not an error if no daemon answers.
  std::string server;
  absl::StatusOr<std::unique_ptr<client::Client>> client = Connect(/*session=*/false);
  if (client.ok()) {
    absl::StatusOr<v1::StatusResponse> status = (*client)->Status();
    if (status.ok()) server = status->version();
  }
  if (Common().json) {
    Json json = {{"residentctl", kClientVersion}, {"address", Common().server}};
    json["residentd"] = server.empty() ? Json(nullptr) : Json(server);
    PrintJson(json);
    return kExitOk;
  }
  Print(absl::StrCat("residentctl ", kClientVersion, "\n"));
  Print(server.empty() ? absl::StrCat("residentd   not reached at ", Common().server, "\n")
                       : absl::StrCat("residentd   ", server, " at ", Common().server, "\n"));
  return kExitOk;
}

}  // namespace

void AddVersion(Command& program) {
  program.Add("version", "versions of residentctl and of the daemon")
      .Alias("--version")
      .Run("", Version);
}

}  // namespace resident::cli
