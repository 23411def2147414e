#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "client/rollout/rollout_node.h"
#include "runtime/base/status_macros.h"

namespace resident::rollout {

absl::Status Rollout::ClaimNode(Node& node, State::State state) {
  v1::ClaimRequest request;
  request.set_plan(file_.plan);
  request.set_set(file_.set.set);
  request.set_holder(options_.holder);
  request.set_ttl_ms(static_cast<uint32_t>(absl::ToInt64Milliseconds(options_.lease)));
  for (const auto& [name, hash] : target_.hashes) request.add_names(name);
  for (const std::string& name : pruned_) request.add_names(name);
  request.set_steal(options_.steal);
  // The record of a run that has ended stays, for --undo.
  node.settled = state == State::STATE_UNSPECIFIED && Same(node) &&
                 node.PlanState(file_.plan) == State::STATE_DONE;
  request.set_state(node.settled ? State::STATE_DONE : state);
  const absl::Time began = absl::Now();
  ASSIGN_OR_RETURN(const v1::ClaimResponse claimed, node.operators->Claim(request));
  node.resumed = claimed.resumed();
  node.state = claimed.state();
  node.before.clear();
  for (const auto& before : claimed.before()) node.before[before.name()] = before.content_hash();
  absl::MutexLock lock(&node.mu);
  node.lease = claimed.lease();
  node.renewed = began;
  node.lost = absl::OkStatus();
  return absl::OkStatus();
}

Outcome Rollout::Claim(const Nodes& nodes, State::State state) {
  for (const auto& node : nodes) {
    const absl::Status status = ClaimNode(*node, state);
    if (status.ok() && first_ == nullptr) first_ = node;
    if (status.ok()) continue;
    if (IsDown(status)) {
      node->summary = status;
      if (!TooManyDown(down())) continue;
    }
    return {IsDown(status) ? Result::kUnreachable : Result::kRefused,
            absl::StrCat(node->label(), ": ", Text(status))};
  }
  return {};
}

void Rollout::ReleaseAll(State::State state) {
  Nodes claimed;
  {
    absl::MutexLock lock(&mu_);
    stop_ = true;
    std::ranges::copy_if(nodes_, std::back_inserter(claimed),
                         [](const auto& node) { return node->claimed(); });
  }
  if (renewer_.joinable()) renewer_.join();
  ForEach(claimed, [&](Node& node) {
    v1::ReleaseRequest request;
    request.set_plan(file_.plan);
    request.set_state(state);
    // Nothing was changed: only a record that this run has made is removed.
    if (state == State::STATE_RUNNING && (node.resumed || node.settled)) {
      request.set_state(State::STATE_UNSPECIFIED);
    }
    absl::MutexLock lock(&node.mu);
    request.set_lease(node.lease);
    node.lease = 0;
    // If it fails, the claim runs out.
    (void)node.operators->Release(request);
  });
}

void Rollout::RenewLoop() {
  while (true) {
    Nodes nodes;
    {
      absl::MutexLock lock(&mu_);
      mu_.AwaitWithTimeout(absl::Condition(&stop_), options_.lease / 3);
      if (stop_) return;
      nodes = nodes_;
    }
    ForEach(nodes, [&](Node& node) { Renew(node); });
  }
}

void Rollout::Renew(Node& node) {
  v1::ClaimRequest request;
  request.set_plan(file_.plan);
  request.set_set(file_.set.set);
  request.set_ttl_ms(static_cast<uint32_t>(absl::ToInt64Milliseconds(options_.lease)));
  {
    absl::MutexLock lock(&node.mu);
    if (node.lease == 0 || !node.lost.ok()) return;
    request.set_lease(node.lease);
  }
  const absl::Time began = absl::Now();
  const absl::Status status = node.operators->Claim(request).status();
  absl::MutexLock lock(&node.mu);
  if (node.lease != request.lease()) return;
  if (status.ok()) node.renewed = began;
  if (absl::IsAborted(status)) node.lost = status;
}

bool Rollout::HoldsFirst() {
  if (first_ == nullptr) return true;
  Renew(*first_);
  absl::MutexLock lock(&first_->mu);
  return first_->lost.ok();
}

absl::Status Rollout::Insist(Node& node, absl::FunctionRef<absl::Status(Node&)> work) {
  const absl::Status status = work(node);
  if (!absl::IsAborted(status)) return status;
  Renew(node);
  {
    absl::MutexLock lock(&node.mu);
    if (node.lost.ok()) return status;  // Somebody else has changed the operator.
  }
  RETURN_IF_ERROR(Changeable(node));
  return work(node);
}

absl::Status Rollout::Changeable(Node& node) {
  const auto lost = [&] {
    absl::MutexLock lock(&node.mu);
    return node.lost;
  };
  if (!lost().ok()) {
    if (!HoldsFirst()) return lost();
    RETURN_IF_ERROR(ClaimNode(node, State::STATE_UNSPECIFIED));
  }
  const auto fresh = [&] {
    absl::MutexLock lock(&node.mu);
    return !node.lost.ok() || absl::Now() < node.renewed + options_.lease * 2 / 3;
  };
  if (!fresh()) Renew(node);
  absl::MutexLock lock(&node.mu);
  if (!node.lost.ok()) return node.lost;
  if (absl::Now() < node.renewed + options_.lease * 2 / 3) return absl::OkStatus();
  return absl::UnavailableError("its claim could not be renewed");
}

v1::ChangeContext Rollout::Context(const Node& node) const {
  v1::ChangeContext context;
  context.set_plan(file_.plan);
  context.set_set(file_.set.set);
  absl::MutexLock lock(&const_cast<Node&>(node).mu);
  context.set_lease(node.lease);
  return context;
}

}  // namespace resident::rollout
