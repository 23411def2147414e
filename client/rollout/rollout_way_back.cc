#include <algorithm>
#include <cassert>
#include <iterator>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/rollout/rollout_node.h"
#include "runtime/base/status_macros.h"

namespace resident::rollout {

bool Rollout::HasToGoBack(const Node& node) const {
  if (node.settled) return false;
  return std::ranges::any_of(node.before, [&](const auto& before) {
    const auto wanted = target_.hashes.find(before.first);
    if (wanted == target_.hashes.end() || before.second == wanted->second) return false;
    const auto* const version = FindHash(FindOperator(*node.summary, before.first), wanted->second);
    return version != nullptr &&
           (version->state() == v1::VERSION_STATE_ACTIVE || version->trial_percent() > 0);
  });
}

absl::Status Rollout::GoBack(Node& node) {
  LookAt(node);
  RETURN_IF_ERROR(node.summary.status());
  for (const auto& [name, before] : node.before) {
    const auto wanted = target_.hashes.find(name);
    const v1::SummaryResponse::Operator* const op = FindOperator(*node.summary, name);
    if (wanted == target_.hashes.end() || before == wanted->second) continue;
    const v1::SummaryResponse::Version* const tried = FindHash(op, wanted->second);
    if (tried != nullptr && tried->trial_percent() > 0) {
      RETURN_IF_ERROR(EndTrial(node, *op, *tried));
      continue;
    }
    if (ActiveHash(*node.summary, name) != wanted->second) continue;
    RETURN_IF_ERROR(Changeable(node));
    if (before.empty()) {
      RETURN_IF_ERROR(
          node.operators
              ->Remove(name, {.expected_revision = op->revision(), .context = Context(node)})
              .status());
      continue;
    }
    const v1::SummaryResponse::Version* const old = FindHash(op, before);
    if (old == nullptr || old->state() == v1::VERSION_STATE_QUARANTINED) {
      return absl::FailedPreconditionError(
          absl::StrCat(name, ": version ", ShortHash(before), ", which served before, is ",
                       old == nullptr ? "not in the kernel any more" : "quarantined"));
    }
    client::ChangeOptions change{.version = old->version(), .expected_revision = op->revision()};
    change.context = Context(node);
    change.bake.set_action(v1::BakeOptions::ACTION_OFF);
    RETURN_IF_ERROR(node.operators->Activate(name, change).status());
  }
  LookAt(node);
  RETURN_IF_ERROR(node.summary.status());
  for (const auto& [name, before] : node.before) {
    const std::string active = ActiveHash(*node.summary, name);
    if (active == before || !target_.hashes.contains(name)) continue;
    return absl::FailedPreconditionError(absl::StrCat(name, " serves ", ShortHash(active),
                                                      " in place of ", ShortHash(before),
                                                      ", which served before"));
  }
  return absl::OkStatus();
}

Outcome Rollout::WayBack(const std::string& why) {
  Nodes claimed;
  std::ranges::copy_if(nodes_, std::back_inserter(claimed),
                       [](const auto& node) { return node->claimed() && !node->settled; });
  // If nothing was switched, there is nothing to undo, and the plan may be tried again.
  ForEach(claimed, [&](Node& node) { LookAt(node); });
  const bool changed = std::ranges::any_of(claimed, [&](const auto& node) {
    return !node->up() || node->state == State::STATE_FAILED || HasToGoBack(*node);
  });
  const bool resumed = std::ranges::any_of(claimed, [](const auto& node) { return node->resumed; });
  if (!changed && !resumed) {
    ReleaseAll(State::STATE_RUNNING);
    return {Result::kRolledBack, absl::StrCat(why, "; no node was switched")};
  }
  report_("fail", why);
  ForEach(claimed, [&](Node& node) {
    v1::ClaimRequest request;
    request.set_plan(file_.plan);
    request.set_set(file_.set.set);
    request.set_ttl_ms(static_cast<uint32_t>(absl::ToInt64Milliseconds(options_.lease)));
    request.set_state(State::STATE_FAILED);
    {
      absl::MutexLock lock(&node.mu);
      request.set_lease(node.lease);
    }
    if (node.operators->Claim(request).ok()) node.state = State::STATE_FAILED;
  });
  report_("back", Plural(claimed.size(), "node"));
  absl::Mutex mu;
  std::vector<std::string> wrong;
  ForEach(claimed, [&](Node& node) {
    const absl::Status status = Insist(node, [&](Node& each) { return GoBack(each); });
    // The record of a node that is down says what to undo when it returns.
    if (status.ok() || IsDown(status)) return;
    absl::MutexLock lock(&mu);
    wrong.push_back(absl::StrCat(node.label(), ": ", Text(status)));
  });
  ReleaseAll(State::STATE_FAILED);
  if (wrong.empty()) return {Result::kRolledBack, why};
  std::ranges::sort(wrong);
  return {Result::kIncomplete, absl::StrCat(why, "; and not every node is back: ",
                                            absl::StrJoin(wrong, "; "), ". Fix: run it again")};
}

Outcome Rollout::Undo() {
  assert(!Up().empty());
  std::vector<std::string> unknown;
  for (const auto& node : Up()) {
    if (node->PlanState(file_.plan) == State::STATE_UNSPECIFIED) unknown.push_back(node->label());
  }
  if (!unknown.empty()) {
    return {Result::kRefused,
            absl::StrCat("no record of plan ", ShortHash(file_.plan), " on ",
                         absl::StrJoin(unknown, ", "),
                         ". Fix: give the file that was applied; each node remembers the last 8 "
                         "plans; nothing was changed")};
  }
  const Outcome claimed = Start(State::STATE_FAILED);
  return claimed.result == Result::kApplied ? WayBack("undone on request") : claimed;
}

}  // namespace resident::rollout
