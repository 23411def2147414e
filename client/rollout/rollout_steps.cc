#include <algorithm>
#include <cmath>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/rollout/rollout_node.h"
#include "runtime/base/sha256.h"
#include "runtime/base/status_macros.h"

namespace resident::rollout {
namespace {

constexpr absl::Duration kInstallTimeout = absl::Minutes(5);
constexpr absl::Duration kPoll = absl::Milliseconds(200);

}  // namespace

Rollout::Verdict Rollout::Judge(Node& node, const absl::Status& status) {
  if (status.ok()) return {};
  const std::string why = absl::StrCat(node.label(), ": ", Text(status));
  if (IsDown(status)) {
    node.summary = status;
    return TooManyDown(down()) ? Failed(why) : Verdict();
  }
  if (!absl::IsAborted(status)) return Failed(why);
  // Another run of this plan continues it; anything else is a change by others.
  Renew(node);
  LookAt(node);
  absl::MutexLock lock(&node.mu);
  const bool ours =
      node.up() && std::ranges::any_of(node.summary->plans(), [&](const State& known) {
        return known.plan() == file_.plan && known.claimed();
      });
  if (ours && !node.lost.ok()) return {Verdict::Kind::kStopped, why};
  return Failed(why);
}

Rollout::Verdict Rollout::Worst(const std::vector<Verdict>& verdicts) const {
  Verdict worst;
  for (const Verdict& verdict : verdicts) {
    if (static_cast<int>(verdict.kind) > static_cast<int>(worst.kind)) worst = verdict;
  }
  return worst;
}

absl::Status Rollout::EndTrial(Node& node, const v1::SummaryResponse::Operator& op,
                               const v1::SummaryResponse::Version& tried) {
  RETURN_IF_ERROR(Changeable(node));
  client::ChangeOptions end{.version = tried.version(), .expected_revision = op.revision()};
  end.context = Context(node);
  return node.operators->Promote(op.name(), /*shadow_percent=*/0, /*traffic_percent=*/0, end)
      .status();
}

absl::Status Rollout::StageNode(Node& node) {
  LookAt(node);
  RETURN_IF_ERROR(node.summary.status());
  // An operator takes no other version during a trial. One of this set was left by another plan.
  bool ended = false;
  for (const v1::SummaryResponse::Operator& op : node.summary->operators()) {
    const auto wanted = target_.hashes.find(op.name());
    if (wanted == target_.hashes.end()) continue;
    for (const v1::SummaryResponse::Version& version : op.versions()) {
      const bool left = version.trial_percent() > 0 && version.set() == file_.set.set &&
                        version.content_hash() != wanted->second;
      if (left) RETURN_IF_ERROR(EndTrial(node, op, version));
      ended |= left;
    }
  }
  if (ended) LookAt(node);
  RETURN_IF_ERROR(node.summary.status());
  std::unique_ptr<client::Client> client;
  for (size_t i = 0; i < file_.set.operators.size(); ++i) {
    const SetOperator& op = file_.set.operators[i];
    const v1::SummaryResponse::Operator* const installed = FindOperator(*node.summary, op.name);
    if (FindHash(installed, op.spec.content_hash) != nullptr) continue;
    RETURN_IF_ERROR(Changeable(node));
    if (client == nullptr) {
      ASSIGN_OR_RETURN(client, connect_(node.address, node.host, kInstallTimeout));
    }
    client::Installation installation = file_.installations[i];
    installation.WaitFor(v1::VERSION_STATE_LOADED);
    installation.ExpectRevision(installed == nullptr ? 0 : installed->revision());
    *installation.header().mutable_context() = Context(node);
    const absl::Status status = client::Operators(*client).Install(installation).status();
    if (!status.ok()) {
      return absl::Status(status.code(), absl::StrCat(op.name, ": ", Text(status)));
    }
  }
  LookAt(node);
  RETURN_IF_ERROR(node.summary.status());
  for (const SetOperator& op : file_.set.operators) {
    const auto* const loaded = FindHash(FindOperator(*node.summary, op.name), op.spec.content_hash);
    if (loaded != nullptr && loaded->state() != v1::VERSION_STATE_QUARANTINED) continue;
    // The daemon computes other hashes than this program, or the version was taken out of service.
    return absl::FailedPreconditionError(absl::StrCat(
        op.name, ": the version with content hash ", ShortHash(op.spec.content_hash),
        " is not ready to serve after its install. Fix: use residentctl of the daemon's version"));
  }
  return absl::OkStatus();
}

Rollout::Verdict Rollout::Change(const Nodes& nodes, absl::FunctionRef<absl::Status(Node&)> work) {
  absl::Mutex mu;
  std::map<const Node*, absl::Status> failed;
  ForEach(nodes, [&](Node& node) {
    const absl::Status status = Insist(node, work);
    if (status.ok()) return;
    absl::MutexLock lock(&mu);
    failed[&node] = status;
  });
  std::vector<Verdict> verdicts;
  for (const auto& node : nodes) {
    const auto found = failed.find(node.get());
    if (found != failed.end()) verdicts.push_back(Judge(*node, found->second));
  }
  return Worst(verdicts);
}

Rollout::Verdict Rollout::Stage(const Nodes& nodes) {
  report_("stage", Plural(nodes.size(), "node"));
  return Change(nodes, [&](Node& node) { return StageNode(node); });
}

absl::Status Rollout::TryNode(Node& node) {
  LookAt(node);
  RETURN_IF_ERROR(node.summary.status());
  for (const auto& [name, hash] : target_.hashes) {
    const v1::SummaryResponse::Operator* const op = FindOperator(*node.summary, name);
    const std::string active = ActiveHash(*node.summary, name);
    const v1::SummaryResponse::Version* const loaded = FindHash(op, hash);
    // Without a version that serves, there is nothing to share with.
    if (active.empty() || active == hash || loaded == nullptr) continue;
    if (loaded->trial_percent() == options_.percent) continue;
    RETURN_IF_ERROR(Changeable(node));
    client::ChangeOptions change{.version = loaded->version(), .expected_revision = op->revision()};
    change.context = Context(node);
    change.bake = MakeBake(file_.set, std::max(options_.bake, absl::Milliseconds(1)));
    const absl::Status status =
        node.operators->Promote(name, /*shadow_percent=*/0, options_.percent, change).status();
    if (!status.ok()) {
      return absl::Status(status.code(), absl::StrCat(name, ": ", Text(status)));
    }
  }
  return absl::OkStatus();
}

absl::Status Rollout::SwitchNode(Node& node) {
  LookAt(node);
  RETURN_IF_ERROR(node.summary.status());
  for (const auto& [name, hash] : target_.hashes) {
    const v1::SummaryResponse::Operator* const op = FindOperator(*node.summary, name);
    if (ActiveHash(*node.summary, name) == hash) continue;
    const v1::SummaryResponse::Version* const loaded = FindHash(op, hash);
    if (loaded == nullptr || loaded->state() == v1::VERSION_STATE_QUARANTINED) {
      return absl::FailedPreconditionError(absl::StrCat(
          name, ": version ", ShortHash(hash), " is ", loaded == nullptr ? "gone" : "quarantined"));
    }
    RETURN_IF_ERROR(Changeable(node));
    client::ChangeOptions change{.version = loaded->version(), .expected_revision = op->revision()};
    change.context = Context(node);
    change.bake = MakeBake(file_.set, std::max(options_.bake, absl::Milliseconds(1)));
    const absl::Status status = node.operators->Activate(name, change).status();
    if (!status.ok()) {
      return absl::Status(status.code(), absl::StrCat(name, ": ", Text(status)));
    }
  }
  return absl::OkStatus();
}

Rollout::Verdict Rollout::Switch(const Nodes& nodes) {
  return Change(nodes, [&](Node& node) { return SwitchNode(node); });
}

Rollout::Verdict Rollout::Watch(const Nodes& nodes, const std::string& step, Check check) {
  const absl::Time began = absl::Now();
  for (const auto& node : nodes) node->answered = began;
  while (true) {
    ForEach(nodes, [&](Node& node) { LookAt(node); });
    bool done = true;
    for (const auto& node : nodes) {
      if (const absl::Status status = Changeable(*node); absl::IsAborted(status)) {
        return Judge(*node, status);
      }
      if (!node->up()) {
        done = false;
        if (absl::Now() - node->answered < options_.lease / 3) continue;
        if (step == "wave" && !TooManyDown(down())) {
          done = true;
          continue;
        }
        return Failed(absl::StrCat(node->label(), " has not answered for ",
                                   absl::FormatDuration(options_.lease / 3), ": ",
                                   Text(node->summary.status())));
      }
      if (node->summary->engine_failures() > node->engine_failures) {
        return Failed(absl::StrCat(node->label(), " has lost an engine: a task faulted or hung"));
      }
      if (Verdict verdict = check(*node, &done); !verdict.good()) return verdict;
    }
    if (done) return {};
    absl::SleepFor(std::max(kPoll, absl::Milliseconds(nodes.size())));
  }
}

Rollout::Verdict Rollout::WatchServing(const Nodes& nodes, absl::Duration time,
                                       const std::string& step) {
  return Watch(nodes, step, [&](const Node& node, bool* done) -> Verdict {
    for (const auto& [name, hash] : target_.hashes) {
      const auto* const active = FindActive(FindOperator(*node.summary, name));
      if (active == nullptr || active->content_hash() != hash) {
        return Failed(absl::StrCat(
            node.label(), ": ", name, " serves ", ShortHash(ActiveHash(*node.summary, name)),
            " in place of ", ShortHash(hash),
            ": it was rolled back, quarantined or changed; see residentctl ops audit ", name));
      }
      const auto before = node.before.find(name);
      const bool changed = before == node.before.end() || before->second != hash;
      if (changed && absl::Milliseconds(active->active_for_ms()) < time) *done = false;
    }
    return {};
  });
}

Rollout::Verdict Rollout::WatchTrial(const Nodes& nodes) {
  const absl::Time began = absl::Now();
  return Watch(nodes, "trial", [&](const Node& node, bool* done) -> Verdict {
    for (const auto& [name, hash] : target_.hashes) {
      const v1::SummaryResponse::Operator* const op = FindOperator(*node.summary, name);
      const std::string active = ActiveHash(*node.summary, name);
      const v1::SummaryResponse::Version* const loaded = FindHash(op, hash);
      if (active.empty() || active == hash) continue;
      if (loaded != nullptr && loaded->trial_percent() > 0) continue;
      return Failed(absl::StrCat(node.label(), ": the trial of ", name, " ", ShortHash(hash),
                                 " has ended: it was rolled back, quarantined or changed; see "
                                 "residentctl ops audit ",
                                 name));
    }
    if (absl::Now() - began < options_.bake) *done = false;
    return {};
  });
}

Rollout::Verdict Rollout::CheckTraffic(const Nodes& canary) {
  if (options_.min_tasks == 0) return {};
  for (const auto& [name, hash] : target_.hashes) {
    uint64_t tasks = 0;
    bool needed = false;
    for (const auto& node : canary) {
      const auto before = node->before.find(name);
      const std::string old = before == node->before.end() ? "" : before->second;
      needed |= !old.empty() && old != hash;
      const auto* const version = FindHash(FindOperator(*node->summary, name), hash);
      if (version != nullptr) tasks += version->tasks();
    }
    if (!needed || tasks >= options_.min_tasks) continue;
    return Failed(absl::StrCat("inconclusive: ", name, " has served ", Plural(tasks, "task"),
                               " on the canary, and --min_tasks=", options_.min_tasks,
                               " are needed. Fix: send it traffic, bake longer, or accept it with "
                               "--min_tasks=0"));
  }
  return {};
}

Rollout::Verdict Rollout::Waves(const Nodes& rest) {
  size_t done = 0;
  for (const double share : options_.waves) {
    const size_t end = std::min(
        rest.size(), static_cast<size_t>(std::ceil(share * static_cast<double>(rest.size()))));
    if (end <= done) continue;
    Nodes wave(rest.begin() + static_cast<int64_t>(done), rest.begin() + static_cast<int64_t>(end));
    report_("wave", absl::StrCat(Plural(wave.size(), "node"), ", ", end, " of ", rest.size()));
    Verdict verdict = Switch(wave);
    std::erase_if(wave, [](const auto& node) { return !node->up(); });
    if (verdict.good()) verdict = WatchServing(wave, options_.wave_bake, "wave");
    if (!verdict.good()) return verdict;
    done = end;
  }
  return {};
}

Rollout::Verdict Rollout::Sweep() {
  const absl::Time began = absl::Now();
  for (int equal = 0; equal < 2;) {
    const absl::StatusOr<Nodes> resolved = Resolve();
    if (!resolved.ok()) return Failed(Text(resolved.status()));
    Nodes fresh = *resolved;
    Nodes known = nodes_;
    std::erase_if(known, [](const auto& node) { return !node->present; });
    ForEach(fresh, [&](Node& node) { LookAt(node); });
    std::erase_if(fresh, [&](const auto& node) {  // Another address of a known node.
      return !node->id.empty() && std::ranges::find(nodes_, node->id, &Node::id) != nodes_.end();
    });
    {
      absl::MutexLock lock(&mu_);
      nodes_.insert(nodes_.end(), fresh.begin(), fresh.end());
    }
    known.insert(known.end(), fresh.begin(), fresh.end());
    ForEach(known, [&](Node& node) { LookAt(node); });
    Nodes late;
    bool down = false;
    for (const auto& node : known) {
      down |= !node->up();
      const auto differences = node->up() ? Compare(*node) : std::vector<Difference>();
      const bool differs = std::ranges::any_of(
          differences, [](const Difference& difference) { return difference.action != "remove"; });
      if (differs) late.push_back(node);
    }
    if (!late.empty()) {
      equal = 0;
      report_("sweep", absl::StrCat(Plural(late.size(), "node"), " to bring up to date"));
      for (const auto& node : late) {
        const absl::Status status =
            node->claimed() ? absl::OkStatus() : ClaimNode(*node, State::STATE_UNSPECIFIED);
        if (const Verdict verdict = Judge(*node, status); !verdict.good()) return verdict;
      }
      Verdict verdict = Stage(late);
      if (verdict.good()) verdict = Switch(late);
      if (!verdict.good()) return verdict;
    } else if (!down) {
      ++equal;
      continue;
    }
    // A node that restarts answers soon; one that stays down is what Run reports.
    if (absl::Now() - began > (late.empty() ? options_.lease / 3 : options_.sweep)) break;
    absl::SleepFor(kPoll);
  }
  return {};
}

Rollout::Verdict Rollout::Prune() {
  for (const auto& node : nodes_) {
    if (!node->up() || !node->present) continue;
    for (const std::string& name : pruned_) {
      const auto* const op = FindOperator(*node->summary, name);
      if (op == nullptr) continue;
      report_("prune", absl::StrCat(name, " on ", node->label()));
      absl::Status status = Changeable(*node);
      if (status.ok()) {
        status =
            node->operators
                ->Remove(name, {.expected_revision = op->revision(), .context = Context(*node)})
                .status();
      }
      if (!status.ok()) return Failed(absl::StrCat(node->label(), ": ", name, ": ", Text(status)));
    }
  }
  return {};
}

Rollout::Verdict Rollout::Canary(const Nodes& canary) {
  const auto check_up = [&](Verdict verdict) {
    for (const auto& node : canary) {
      if (verdict.good() && !node->up()) {
        verdict = Failed(absl::StrCat(node->label(), ": ", Text(node->summary.status())));
      }
    }
    return verdict;
  };
  const std::string names = absl::StrJoin(canary, ", ", [](std::string* out, const auto& node) {
    absl::StrAppend(out, node->label());
  });
  if (options_.percent > 0) {
    report_("trial", absl::StrCat(options_.percent, "% on ", names, " for ",
                                  absl::FormatDuration(options_.bake)));
    Verdict tried = check_up(Change(canary, [&](Node& node) { return TryNode(node); }));
    if (tried.good()) tried = WatchTrial(canary);
    if (tried.good()) tried = CheckTraffic(canary);
    if (!tried.good()) return tried;
  }
  report_("canary", names);
  Verdict verdict = check_up(Switch(canary));
  if (verdict.good()) report_("bake", absl::FormatDuration(options_.bake));
  if (verdict.good()) verdict = WatchServing(canary, options_.bake, "canary");
  if (verdict.good()) verdict = CheckTraffic(canary);
  return verdict;
}

Rollout::Verdict Rollout::Forward() {
  Verdict verdict = Stage(Up());
  if (!verdict.good()) return verdict;
  // The same ones in each run of this plan.
  Nodes order = Up();
  std::ranges::sort(order, {}, [&](const auto& node) {
    return std::pair(Sha256Hex(file_.plan + node->id), node->id);
  });
  const std::set<std::string> named(options_.canary_nodes.begin(), options_.canary_nodes.end());
  Nodes canary;
  Nodes rest;
  for (const auto& node : order) {
    const bool first = named.empty() ? canary.size() < options_.canary
                                     : named.contains(node->name) || named.contains(node->address);
    (first ? canary : rest).push_back(node);
  }
  if (canary.size() < named.size()) {
    return Failed(
        "a node of --canary_nodes is not in the fleet. Fix: give names or addresses as in "
        "residentctl status --targets");
  }
  if (!canary.empty()) verdict = Canary(canary);
  if (verdict.good()) verdict = Waves(rest);
  if (verdict.good()) report_("sweep", "look for new nodes");
  if (verdict.good()) verdict = Sweep();
  return verdict;
}

}  // namespace resident::rollout
