#include "client/rollout/rollout.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/targets.h"
#include "runtime/base/sha256.h"
#include "runtime/base/status_macros.h"

namespace resident::rollout {
namespace {

using State = v1::PlanState;

// Of looks and of calls that change something; an install has kInstallTimeout.
constexpr absl::Duration kCallTimeout = absl::Seconds(10);
constexpr absl::Duration kInstallTimeout = absl::Minutes(5);
constexpr absl::Duration kPoll = absl::Milliseconds(200);

std::string Text(const absl::Status& status) { return std::string(status.message()); }

std::string Plural(size_t count, const std::string& what) {
  return absl::StrCat(count, " ", what, count == 1 ? "" : "s");
}

// Whether the call may have reached nobody, or a daemon that is going away.
bool IsDown(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
}

}  // namespace

struct Rollout::Node {
  std::string address;
  std::string host;  // For Connect.
  std::string id;    // Empty: it has never answered.
  std::string name;
  std::unique_ptr<client::Client> client;
  std::unique_ptr<client::Operators> operators;
  // The last look.
  absl::StatusOr<v1::SummaryResponse> summary = absl::UnknownError("");
  absl::Time answered = absl::InfinitePast();
  bool present = true;            // In the last answer of the resolver.
  std::set<std::string> builtin;  // Names of the set that are built in here.
  // Engines that were lost before this run changed something.
  uint64_t engine_failures = 0;

  // The claim.
  absl::Mutex mu;
  uint64_t lease ABSL_GUARDED_BY(mu) = 0;
  absl::Time renewed ABSL_GUARDED_BY(mu);
  absl::Status lost ABSL_GUARDED_BY(mu);
  bool resumed = false;
  State::State state = State::STATE_UNSPECIFIED;
  std::map<std::string, std::string> before;
  // It served the whole set when it was claimed, by a run that has ended: it is not undone.
  bool settled = false;

  bool up() const { return summary.ok(); }
  bool claimed() {
    absl::MutexLock lock(&mu);
    return lease != 0;
  }
  const std::string& label() const { return name.empty() ? address : name; }
  State::State PlanOf(const std::string& plan) const {
    if (!summary.ok()) return State::STATE_UNSPECIFIED;
    for (const State& known : summary->plans()) {
      if (known.plan() == plan) return known.state();
    }
    return State::STATE_UNSPECIFIED;
  }
};

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

// --- Looking ------------------------------------------------------------------------

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

// --- Claims -------------------------------------------------------------------------

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
                 node.PlanOf(file_.plan) == State::STATE_DONE;
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

// --- The way forward ------------------------------------------------------------------

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

absl::Status Rollout::StageNode(Node& node) {
  LookAt(node);
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

Rollout::Verdict Rollout::Stage(const Nodes& nodes) {
  report_("stage", Plural(nodes.size(), "node"));
  std::vector<Verdict> verdicts(nodes.size());
  absl::Mutex mu;
  std::map<const Node*, absl::Status> failed;
  ForEach(nodes, [&](Node& node) {
    const absl::Status status = Insist(node, [&](Node& each) { return StageNode(each); });
    if (status.ok()) return;
    absl::MutexLock lock(&mu);
    failed[&node] = status;
  });
  for (size_t i = 0; i < nodes.size(); ++i) {
    const auto found = failed.find(nodes[i].get());
    if (found != failed.end()) verdicts[i] = Judge(*nodes[i], found->second);
  }
  return Worst(verdicts);
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
  absl::Mutex mu;
  std::map<const Node*, absl::Status> failed;
  ForEach(nodes, [&](Node& node) {
    const absl::Status status = Insist(node, [&](Node& each) { return SwitchNode(each); });
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

Rollout::Verdict Rollout::Watch(const Nodes& nodes, absl::Duration time, const std::string& step) {
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
      for (const auto& [name, hash] : target_.hashes) {
        const auto* const active = FindActive(FindOperator(*node->summary, name));
        if (active == nullptr || active->content_hash() != hash) {
          return Failed(absl::StrCat(
              node->label(), ": ", name, " serves ", ShortHash(ActiveHash(*node->summary, name)),
              " in place of ", ShortHash(hash),
              ": it was rolled back, quarantined or changed; see residentctl ops audit ", name));
        }
        const auto before = node->before.find(name);
        const bool changed = before == node->before.end() || before->second != hash;
        if (changed && absl::Milliseconds(active->active_for_ms()) < time) done = false;
      }
    }
    if (done) return {};
    absl::SleepFor(std::max(kPoll, absl::Milliseconds(nodes.size())));
  }
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
      const auto* const active = FindActive(FindOperator(*node->summary, name));
      if (active != nullptr) tasks += active->tasks();
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
    if (verdict.good()) verdict = Watch(wave, options_.wave_bake, "wave");
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
        status = node->operators->Remove(name, op->revision(), Context(*node)).status();
      }
      if (!status.ok()) return Failed(absl::StrCat(node->label(), ": ", name, ": ", Text(status)));
    }
  }
  return {};
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
  if (!canary.empty()) {
    report_("canary", absl::StrJoin(canary, ", ", [](std::string* out, const auto& node) {
              absl::StrAppend(out, node->label());
            }));
    verdict = Switch(canary);
    for (const auto& node : canary) {
      if (verdict.good() && !node->up()) {
        verdict = Failed(absl::StrCat(node->label(), ": ", Text(node->summary.status())));
      }
    }
    if (verdict.good()) report_("bake", absl::FormatDuration(options_.bake));
    if (verdict.good()) verdict = Watch(canary, options_.bake, "canary");
    if (verdict.good()) verdict = CheckTraffic(canary);
  }
  if (verdict.good()) verdict = Waves(rest);
  if (verdict.good()) report_("sweep", "look for new nodes");
  if (verdict.good()) verdict = Sweep();
  return verdict;
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
  if (const Outcome obstacle = FindObstacle(); obstacle.result != Result::kApplied) return obstacle;
  const Nodes up = Up();
  const bool same = std::ranges::all_of(up, [&](const auto& node) { return Same(*node); });
  const bool unfinished = std::ranges::any_of(up, [&](const auto& node) {
    const State::State state = node->PlanOf(file_.plan);
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

// --- The way back -----------------------------------------------------------------------

bool Rollout::HasToGoBack(const Node& node) const {
  if (node.settled) return false;
  return std::ranges::any_of(node.before, [&](const auto& before) {
    const auto wanted = target_.hashes.find(before.first);
    return wanted != target_.hashes.end() && before.second != wanted->second &&
           ActiveHash(*node.summary, before.first) == wanted->second;
  });
}

absl::Status Rollout::GoBack(Node& node) {
  LookAt(node);
  RETURN_IF_ERROR(node.summary.status());
  for (const auto& [name, before] : node.before) {
    const auto wanted = target_.hashes.find(name);
    const v1::SummaryResponse::Operator* const op = FindOperator(*node.summary, name);
    if (wanted == target_.hashes.end() || before == wanted->second ||
        ActiveHash(*node.summary, name) != wanted->second) {
      continue;
    }
    RETURN_IF_ERROR(Changeable(node));
    if (before.empty()) {
      RETURN_IF_ERROR(node.operators->Remove(name, op->revision(), Context(node)).status());
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
  std::vector<std::string> unknown;
  for (const auto& node : Up()) {
    if (node->PlanOf(file_.plan) == State::STATE_UNSPECIFIED) unknown.push_back(node->label());
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
