
#include "client/commands/status_text.h"

#include <algorithm>
#include <cstdint>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "client/cli/format.h"
#include "client/cli/proto_json.h"

namespace resident::cli {
namespace {

// "ranking@2026-11-27.1"; "-": the daemon has no --operators_dir, or has not read it yet.
std::string SetName(const v1::OperatorsDirStatus& folder) {
  if (folder.set().empty()) return "-";
  return folder.release().empty() ? folder.set()
                                  : absl::StrCat(folder.set(), "@", folder.release());
}

// "applied", "applying", "failed", "superseded", or the operators that drifted.
std::string FolderState(const v1::OperatorsDirStatus& folder) {
  if (folder.differing_size() > 0)
    return absl::StrCat("drift: ", absl::StrJoin(folder.differing(), ", "));
  if (!folder.superseded_by().empty()) return "superseded";
  return EnumName(folder.state());
}

std::string FolderText(const v1::OperatorsDirStatus& folder) {
  std::string text = absl::StrCat("operators ", SetName(folder), ", ", FolderState(folder));
  if (!folder.superseded_by().empty()) {
    absl::StrAppend(
        &text, " by plan ", ShortHash(folder.superseded_by()), " for ",
        HumanDuration(absl::Milliseconds(static_cast<int64_t>(folder.superseded_for_ms()))));
  }
  if (folder.missing_size() > 0) {
    absl::StrAppend(&text, "; missing: ", absl::StrJoin(folder.missing(), ", "));
  }
  absl::StrAppend(&text, "\n", folder.error().empty() ? "" : folder.error() + "\n");
  if (!folder.next_plan().empty()) {
    absl::StrAppend(
        &text, "next      ",
        folder.next_release().empty() ? ShortHash(folder.next_plan()) : folder.next_release(),
        folder.next_missing_size() == 0
            ? ""
            : absl::StrCat(", missing: ", absl::StrJoin(folder.next_missing(), ", ")),
        "\n");
  }
  return absl::StrCat(text, folder.next_error().empty() ? "" : folder.next_error() + "\n");
}

std::string Headline(const v1::StatusResponse& status, const std::string& address) {
  std::string text =
      absl::StrCat("residentd ", status.version(), " at ", address, ", pid ", status.pid(), ", up ",
                   HumanDuration(absl::Milliseconds(static_cast<int64_t>(status.uptime_ms()))),
                   status.draining() ? ", draining" : "", "\n");
  if (!status.node_id().empty()) {  // An older daemon has none.
    absl::StrAppend(&text, "node      ", status.node_name(), ", ", status.node_id(), "\n");
  }
  if (!status.metrics_address().empty()) {
    absl::StrAppend(&text, "metrics   http://", status.metrics_address(), "/metrics\n");
  }
  if (!status.local_address().empty()) {
    absl::StrAppend(&text, "local     ", status.local_address(), "\n");
  }
  if (!status.gpu_unavailable_reason().empty()) {
    absl::StrAppend(&text, "no GPU    ", status.gpu_unavailable_reason(), "\n");
  }
  if (status.has_operators_dir()) text += FolderText(status.operators_dir());
  return text;
}

std::string StateName(const v1::DeviceStatus& device) {
  std::string name = EnumName(device.state());
  std::ranges::replace(name, '_', ' ');
  return name;
}

std::string Memory(const v1::DeviceStatus& device) {
  return absl::StrCat(FormatBytes(device.memory_used_bytes()), " of ",
                      FormatBytes(device.memory_total_bytes()));
}

// The reasons why devices do not serve.
std::string Details(const v1::StatusResponse& status) {
  std::string text;
  for (const v1::DeviceStatus& device : status.devices()) {
    if (device.detail().empty()) continue;
    absl::StrAppend(&text, "device ", device.device(), ": ", device.detail(), "\n");
  }
  return text;
}

std::string ClientName(const v1::ClientStatus& client) {
  return client.name().empty() ? "-" : client.name();
}

std::string Rate(uint64_t before, uint64_t now, double seconds) {
  if (seconds <= 0 || now < before) return "0/s";
  return absl::StrCat(FormatCount(static_cast<double>(now - before) / seconds), "/s");
}

}  // namespace

std::string StatusText(const v1::StatusResponse& status, const std::string& address) {
  std::string text = Headline(status, address);
  Table devices({"DEVICE", "NAME", "ENGINE", "STATE", "GENERATION", "BLOCKS", "RING", "QUEUED",
                 "COMPLETED", "MEMORY", "BUFFERS", "PARKS", "RESTARTS"},
                {Table::kRight, Table::kLeft, Table::kLeft, Table::kLeft, Table::kRight,
                 Table::kRight, Table::kRight, Table::kRight, Table::kRight, Table::kRight,
                 Table::kRight, Table::kRight, Table::kRight});
  for (const v1::DeviceStatus& device : status.devices()) {
    devices.Add({absl::StrCat(device.device()), device.name(), device.engine(), StateName(device),
                 absl::StrCat(device.generation()),
                 absl::StrCat(device.blocks(), "x", device.threads_per_block()),
                 absl::StrCat(device.ring().in_flight(), "/", device.ring().slots()),
                 FormatExact(device.queued_tasks()), FormatExact(device.completed_tasks()),
                 Memory(device), absl::StrCat(device.buffers()), absl::StrCat(device.parks()),
                 absl::StrCat(device.restarts())});
  }
  absl::StrAppend(&text, "\n", devices.ToString(), Details(status));
  if (status.clients().empty()) {
    absl::StrAppend(&text, "\nno clients\n");
    return text;
  }
  Table clients({"CLIENT", "NAME", "PEER", "QUEUED", "COMPLETED", "BUFFERS", "MEMORY"},
                {Table::kLeft, Table::kLeft, Table::kLeft, Table::kRight, Table::kRight,
                 Table::kRight, Table::kRight});
  for (const v1::ClientStatus& client : status.clients()) {
    clients.Add({client.id(), ClientName(client), client.peer(), FormatExact(client.queued_tasks()),
                 FormatExact(client.completed_tasks()), absl::StrCat(client.buffers()),
                 FormatBytes(client.buffer_bytes())});
  }
  absl::StrAppend(&text, "\n", clients.ToString());
  return text;
}

std::string NodesText(const std::vector<NodeRow>& nodes) {
  Table table({"NODE", "STATE", "DEVICES", "LOAD", "QUEUED", "SET", "OPERATORS", "UP"},
              {Table::kLeft, Table::kLeft, Table::kLeft, Table::kRight, Table::kRight, Table::kLeft,
               Table::kLeft, Table::kRight});
  std::string reasons;
  size_t down = 0;
  for (const NodeRow& node : nodes) {
    if (node.status == nullptr) {
      ++down;
      table.Add({node.address, node.state, "-", "-", "-", "-", "-", "-"});
      absl::StrAppend(&reasons, node.address, ": ", node.error, "\n");
      continue;
    }
    std::map<std::string, int> devices;  // By name.
    uint64_t queued = 0, in_flight = 0, slots = 0;
    for (const v1::DeviceStatus& device : node.status->devices()) {
      ++devices[device.name()];
      queued += device.queued_tasks();
      in_flight += device.ring().in_flight();
      slots += device.ring().slots();
    }
    table.Add({node.address, node.state,
               absl::StrJoin(devices, ", ",
                             [](std::string* out, const auto& device) {
                               absl::StrAppend(out, device.second, " ", device.first);
                             }),
               absl::StrFormat(
                   "%.2f",
                   slots == 0 ? 0.0 : static_cast<double>(in_flight) / static_cast<double>(slots)),
               FormatExact(queued), SetName(node.status->operators_dir()),
               node.status->has_operators_dir() ? FolderState(node.status->operators_dir()) : "-",
               HumanDuration(absl::Milliseconds(static_cast<int64_t>(node.status->uptime_ms())))});
  }
  return absl::StrCat(table.ToString(), reasons, nodes.size(),
                      nodes.size() == 1 ? " node, " : " nodes, ", down, " down\n");
}

std::string TopText(const v1::StatusResponse& before, const v1::StatusResponse& now, double seconds,
                    const std::string& address) {
  std::string text = Headline(now, address);
  Table devices({"DEVICE", "NAME", "STATE", "TASKS", "QUEUED", "RING", "MEMORY", "RESTARTS"},
                {Table::kRight, Table::kLeft, Table::kLeft, Table::kRight, Table::kRight,
                 Table::kRight, Table::kRight, Table::kRight});
  for (const v1::DeviceStatus& device : now.devices()) {
    uint64_t completed = device.completed_tasks();
    for (const v1::DeviceStatus& earlier : before.devices()) {
      if (earlier.device() == device.device()) completed = earlier.completed_tasks();
    }
    devices.Add({absl::StrCat(device.device()), device.name(), StateName(device),
                 Rate(completed, device.completed_tasks(), seconds),
                 FormatExact(device.queued_tasks()),
                 absl::StrCat(device.ring().in_flight(), "/", device.ring().slots()),
                 Memory(device), absl::StrCat(device.restarts())});
  }
  absl::StrAppend(&text, "\n", devices.ToString(), Details(now));
  Table clients(
      {"CLIENT", "NAME", "TASKS", "QUEUED", "BUFFERS", "MEMORY"},
      {Table::kLeft, Table::kLeft, Table::kRight, Table::kRight, Table::kRight, Table::kRight});
  for (const v1::ClientStatus& client : now.clients()) {
    uint64_t completed = 0;
    for (const v1::ClientStatus& earlier : before.clients()) {
      if (earlier.id() == client.id()) completed = earlier.completed_tasks();
    }
    clients.Add({client.id(), ClientName(client),
                 Rate(completed, client.completed_tasks(), seconds),
                 FormatExact(client.queued_tasks()), absl::StrCat(client.buffers()),
                 FormatBytes(client.buffer_bytes())});
  }
  if (!clients.empty()) absl::StrAppend(&text, "\n", clients.ToString());
  return text;
}

}  // namespace resident::cli
