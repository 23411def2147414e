#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/rollout/rollout_node.h"
#include "client/targets.h"
#include "runtime/base/status_macros.h"

namespace resident::rollout {
namespace {

// The limit of looks and of calls that change something; an install has one of its own.
constexpr absl::Duration kCallTimeout = absl::Seconds(10);

}  // namespace

std::string Text(const absl::Status& status) { return std::string(status.message()); }

std::string Plural(size_t count, const std::string& what) {
  return absl::StrCat(count, " ", what, count == 1 ? "" : "s");
}

bool IsDown(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
}

absl::StatusOr<Rollout::Nodes> Rollout::Resolve() {
  ASSIGN_OR_RETURN(const client::Targets targets, client::ResolveTargets(options_.target));
  Nodes found;
  absl::MutexLock lock(&mu_);
  for (const auto& node : nodes_) node->present = false;
  for (const std::string& address : targets.addresses) {
    const auto same = std::ranges::find(nodes_, address, &Node::address);
    if (same != nodes_.end()) {
      (*same)->present = true;
      continue;
    }
    auto node = std::make_shared<Node>();
    node->address = address;
    node->host = targets.host;
    found.push_back(std::move(node));
  }
  return found;
}

void Rollout::LookAt(Node& node) const {
  if (node.client == nullptr) {
    absl::StatusOr<std::unique_ptr<client::Client>> client =
        connect_(node.address, node.host, kCallTimeout);
    if (!client.ok()) {
      node.summary = client.status();
      return;
    }
    node.client = *std::move(client);
    node.operators = std::make_unique<client::Operators>(*node.client);
  }
  node.summary = node.operators->Summary();
  if (!node.summary.ok()) return;
  node.answered = absl::Now();
  if (node.id != node.summary->node_id()) {  // New, or it was started anew without its state.
    {
      absl::MutexLock lock(&node.mu);
      node.lease = 0;
    }
    node.before.clear();
    node.builtin.clear();
    node.settled = false;
    node.id = node.summary->node_id();
    node.name = node.summary->node_name();
    node.engine_failures = node.summary->engine_failures();
  }
  // A restarted daemon counts from 0.
  node.engine_failures = std::min(node.engine_failures, node.summary->engine_failures());
  for (const auto& [name, hash] : target_.hashes) {
    if (FindOperator(*node.summary, name) != nullptr) continue;
    const absl::StatusOr<v1::Operator> op = node.client->DescribeOperator(name);
    if (op.ok() && op->revision() == 0) node.builtin.insert(name);
  }
}

absl::Status Rollout::Look() {
  ASSIGN_OR_RETURN(Nodes found, Resolve());
  ForEach(found, [&](Node& node) { LookAt(node); });
  std::set<std::string> ids;
  for (const auto& node : found) {
    // Two addresses of one node.
    if (!node->id.empty() && !ids.insert(node->id).second) continue;
    nodes_.push_back(node);
    if (node->up()) pruned_.merge(FindPruned(file_.set, *node->summary));
  }
  std::ranges::sort(nodes_, {},
                    [](const auto& node) { return std::pair(node->id, node->address); });
  if (!TooManyDown(down()) && down() < nodes_.size()) return absl::OkStatus();
  std::vector<std::string> why;
  for (const auto& node : nodes_) {
    if (!node->up()) why.push_back(absl::StrCat(node->address, ": ", Text(node->summary.status())));
  }
  return absl::UnavailableError(absl::StrCat(down(), " of ", Plural(nodes_.size(), "node"),
                                             " did not answer: ", absl::StrJoin(why, "; "),
                                             ". Fix: start them, or allow it with --max_down"));
}

size_t Rollout::down() const {
  return static_cast<size_t>(
      std::ranges::count_if(nodes_, [](const auto& node) { return !node->up(); }));
}

bool Rollout::TooManyDown(size_t down) const {
  const double share = options_.max_down_share * static_cast<double>(nodes_.size());
  return down > std::max<size_t>(options_.max_down, static_cast<size_t>(std::floor(share)));
}

Rollout::Nodes Rollout::Up() const {
  Nodes up;
  std::ranges::copy_if(nodes_, std::back_inserter(up), [](const auto& node) { return node->up(); });
  return up;
}

std::vector<Difference> Rollout::Compare(const Node& node) const {
  std::vector<Difference> differences;
  for (SetDifference& difference : CompareWithSet(target_, pruned_, node.builtin, *node.summary)) {
    differences.push_back({std::move(difference), node.label()});
  }
  return differences;
}

bool Rollout::Same(const Node& node) const { return node.up() && Compare(node).empty(); }

std::vector<Difference> Rollout::Differences() const {
  std::vector<Difference> all;
  for (const auto& node : nodes_) {
    if (!node->up()) continue;
    std::ranges::move(Compare(*node), std::back_inserter(all));
  }
  return all;
}

}  // namespace resident::rollout
