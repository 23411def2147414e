#include "client/rollout/rollout.h"

#include <algorithm>
#include <atomic>
#include <cassert>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/rollout/rollout_node.h"

namespace resident::rollout {

Rollout::Rollout(const SetFile& file, Options options, Connect connect, Report report)
    : file_(file),
      options_(std::move(options)),
      connect_(std::move(connect)),
      report_(std::move(report)),
      target_(file.set) {}

Rollout::~Rollout() {
  {
    absl::MutexLock lock(&mu_);
    stop_ = true;
  }
  if (renewer_.joinable()) renewer_.join();
}

void Rollout::ForEach(const Nodes& nodes, absl::FunctionRef<void(Node&)> work) const {
  std::atomic<size_t> next = 0;
  const auto loop = [&] {
    for (size_t i = next++; i < nodes.size(); i = next++) work(*nodes[i]);
  };
  std::vector<std::thread> threads(std::min<size_t>(nodes.size(), options_.parallel));
  for (std::thread& thread : threads) thread = std::thread(loop);
  for (std::thread& thread : threads) thread.join();
}

Outcome Rollout::Start(State::State state) {
  report_("claim", Plural(Up().size(), "node"));
  first_ = nullptr;
  Outcome claimed = Claim(Up(), state);
  if (claimed.result == Result::kApplied && !HoldsFirst()) {
    claimed = {Result::kRefused, "another run of this plan has taken it over"};
  }
  if (claimed.result != Result::kApplied) {
    ReleaseAll(State::STATE_RUNNING);
    return claimed;
  }
  {
    absl::MutexLock lock(&mu_);
    stop_ = false;
  }
  renewer_ = std::thread([this] { RenewLoop(); });
  return claimed;
}

Outcome Rollout::FindObstacle() const {
  for (const auto& node : Up()) {
    if (!node->id.empty()) continue;
    return {Result::kRefused, absl::StrCat(node->label(),
                                           ": its daemon is older and has no claims. "
                                           "Fix: update it; nothing was changed")};
  }
  for (const Difference& difference : Differences()) {
    if (difference.action != "blocked") continue;
    return {Result::kRefused,
            absl::StrCat(difference.node, ": ", difference.name, " is blocked: ", difference.why,
                         ". Fix: change the set or that node; nothing was changed")};
  }
  return {};
}

Outcome Rollout::EndFailedRun() {
  const auto failed = [](const auto& node) { return node->state == State::STATE_FAILED; };
  if (std::ranges::none_of(nodes_, failed)) return {};
  const std::string why = "an earlier run of this plan has failed";
  const bool back = std::ranges::any_of(
      nodes_, [&](const auto& node) { return node->up() && HasToGoBack(*node); });
  if (back || !std::ranges::all_of(Up(), failed)) {
    const Outcome outcome = WayBack(why);
    if (outcome.result != Result::kRolledBack || !options_.again) return outcome;
  } else {
    ReleaseAll(State::STATE_UNSPECIFIED);
    if (!options_.again) {
      return {Result::kRefused, absl::StrCat(why,
                                             " and was undone. Fix: change the set, or try it "
                                             "again with --again; nothing was changed")};
    }
  }
  ForEach(nodes_, [&](Node& node) { LookAt(node); });
  return Start(State::STATE_RUNNING);
}

Outcome Rollout::Finish() {
  if (!options_.publish.empty()) {
    report_("publish", options_.publish);
    const absl::Status status = Publish(file_, options_.publish);
    if (!status.ok()) {
      ReleaseAll(State::STATE_UNSPECIFIED);
      return {Result::kIncomplete,
              absl::StrCat("every node serves the set, but it was not published: ", Text(status))};
    }
  }
  const Verdict pruned = Prune();
  std::vector<std::string> left;
  for (const auto& node : nodes_) {
    if (node->present && !node->up()) left.push_back(node->label());
  }
  if (!pruned.good() || !left.empty()) {
    ReleaseAll(State::STATE_UNSPECIFIED);
    return {Result::kIncomplete, pruned.good()
                                     ? absl::StrCat("down: ", absl::StrJoin(left, ", "),
                                                    ". Fix: run the command again when they answer")
                                     : absl::StrCat(pruned.why, ". Fix: run the command again")};
  }
  report_("release", "");
  ReleaseAll(State::STATE_DONE);
  return {};
}

Outcome Rollout::Run() {
  assert(!Up().empty());
  if (const Outcome obstacle = FindObstacle(); obstacle.result != Result::kApplied) return obstacle;
  const Nodes up = Up();
  const bool same = std::ranges::all_of(up, [&](const auto& node) { return Same(*node); });
  const bool unfinished = std::ranges::any_of(up, [&](const auto& node) {
    const State::State state = node->PlanState(file_.plan);
    return state == State::STATE_RUNNING || state == State::STATE_FAILED;
  });
  if (same && !unfinished) return Finish();
  Outcome claimed = Start(State::STATE_UNSPECIFIED);
  if (claimed.result == Result::kApplied) claimed = EndFailedRun();
  if (claimed.result != Result::kApplied) return claimed;
  const Verdict verdict = Forward();
  if (verdict.good()) return Finish();
  if (verdict.kind == Verdict::Kind::kFailed) return WayBack(verdict.why);
  ReleaseAll(State::STATE_UNSPECIFIED);
  return {Result::kRefused, absl::StrCat("another run continues this plan: ", verdict.why)};
}

}  // namespace resident::rollout
