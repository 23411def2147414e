#include "server/operators/operators_dir.h"

#include <algorithm>
#include <atomic>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "runtime/base/log.h"
#include "runtime/base/status_macros.h"
#include "server/auth/account.h"
#include "server/operators/install_collector.h"
#include "server/operators/operator_messages.h"

namespace resident {
namespace {

constexpr std::chrono::milliseconds kPoll(500);
constexpr std::chrono::seconds kMinPause(1);
constexpr std::chrono::seconds kMaxPause(60);
// Installs at one time; --max_installs, if it is less.
constexpr size_t kMaxInstalls = 8;

std::string Text(const absl::Status& status) { return std::string(status.message()); }

absl::Status Named(const std::string& name, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(name, ": ", status.message()));
}

const SetOperator& FindEntry(const OperatorSet& set, const std::string& name) {
  return *std::ranges::find(set.operators, name, &SetOperator::name);
}

}  // namespace

void OperatorsDir::Schedule::Begin() {
  pending = true;
  at = {};
  pause = kMinPause;
}

// What was ABORTED is expected to succeed soon.
void OperatorsDir::Schedule::Postpone(TimeSource::TimePoint now, const absl::Status& why) {
  at = now + (absl::IsAborted(why) ? kMinPause : pause);
  if (!absl::IsAborted(why)) pause = std::min(2 * pause, kMaxPause);
}

OperatorsDir::OperatorsDir(const std::string& path, Core& core, std::function<void()> on_ready)
    : path_(path), core_(core), on_ready_(std::move(on_ready)), folder_(path) {
  core_.set_applied = false;
  SetState(v1::OperatorsDirStatus::STATE_APPLYING, "");
}

absl::Status OperatorsDir::Start() {
  RETURN_IF_ERROR(folder_.Check());
  Take(folder_.Read());
  thread_ = std::thread([this] { Run(); });
  return absl::OkStatus();
}

void OperatorsDir::RequestStop() {
  absl::MutexLock lock(&mu_);
  stopping_ = true;
}

void OperatorsDir::Join() {
  if (thread_.joinable()) thread_.join();
}

bool OperatorsDir::stopping() const {
  absl::MutexLock lock(&mu_);
  return stopping_;
}

v1::OperatorsDirStatus OperatorsDir::view() const {
  const FolderRecord record = core_.operators.plans().folder;
  absl::MutexLock lock(&mu_);
  v1::OperatorsDirStatus view = view_;
  if (view.state() != v1::OperatorsDirStatus::STATE_APPLIED || record.superseded_by.empty())
    return view;
  const absl::Duration since = absl::Now() - absl::FromUnixMillis(record.superseded_ms);
  view.set_superseded_by(record.superseded_by);
  view.set_superseded_for_ms(
      static_cast<uint64_t>(std::max<int64_t>(0, absl::ToInt64Milliseconds(since))));
  view.clear_differing();
  view.clear_next_missing();  // It installs nothing.
  view.clear_next_error();
  view.set_drift(since > kMaxSuperseded);
  return view;
}

void OperatorsDir::SetState(v1::OperatorsDirStatus::State state, const std::string& error) {
  absl::MutexLock lock(&mu_);
  view_.set_state(state);
  view_.set_error(ToUtf8(error));
  if (state == v1::OperatorsDirStatus::STATE_APPLIED) view_.clear_missing();
  if (!wanted_.has_value()) return;
  view_.set_set(wanted_->set.set);
  view_.set_release(wanted_->set.release);
  view_.set_plan(wanted_->plan);
}

void OperatorsDir::Fail(const absl::Status& status) {
  bool news = false;
  {
    absl::MutexLock lock(&mu_);
    news = view_.error() != ToUtf8(Text(status));
  }
  // A claim ends by itself.
  const bool waits = absl::IsAborted(status);
  if (news && waits) LogInfo("--operators_dir=", path_, " waits: ", Text(status));
  if (news && !waits) {
    LogError("--operators_dir=", path_, " was not applied: ", Text(status));
  }
  SetState(waits ? v1::OperatorsDirStatus::STATE_APPLYING : v1::OperatorsDirStatus::STATE_FAILED,
           Text(status));
}

void OperatorsDir::Run() {
  while (true) {
    if (apply_.pending && core_.time.Now() >= apply_.at) Attempt();
    if (apply_.pending && Settled()) {  // Meanwhile others have rolled out another plan.
      apply_.pending = false;
      SetState(v1::OperatorsDirStatus::STATE_APPLIED, "");
      BecomeReady();
    }
    FindDrift();
    if (stage_next_.pending && core_.time.Now() >= stage_next_.at) AttemptNext();
    {
      absl::MutexLock lock(&mu_);
      core_.time.Await(mu_, absl::Condition(&stopping_), core_.time.Now() + kPoll);
      if (stopping_) return;
    }
    if (auto contents = folder_.Poll()) Take(*std::move(contents));
  }
}

void OperatorsDir::Take(SetFolder::Contents contents) {
  TakeNext(std::move(contents.next), contents.next_digest);
  const bool known = wanted_.has_value() && wanted_->digest == contents.digest;
  if (known && contents.set.ok() && readable_) return;
  for (const std::string& warning : contents.warnings) LogWarning(warning);
  readable_ = contents.set.ok();
  apply_.pending = false;
  if (!readable_) return Fail(contents.set.status());
  if (!known) {
    wanted_.emplace(*std::move(contents.set), contents.digest);
    wanted_->context.set_plan(wanted_->plan);
    wanted_->context.set_set(wanted_->set.set);
    core_.operators.ListFolder(wanted_->set.set, wanted_->target.hashes);
    absl::MutexLock lock(&mu_);
    view_.clear_missing();
    view_.clear_differing();
    view_.set_drift(false);
  }
  compared_revision_ = 0;
  if (Settled()) {
    SetState(v1::OperatorsDirStatus::STATE_APPLIED, "");
    return BecomeReady();
  }
  apply_.Begin();
  SetState(v1::OperatorsDirStatus::STATE_APPLYING, "");
}

void OperatorsDir::TakeNext(std::optional<absl::StatusOr<OperatorSet>> set,
                            const std::string& digest) {
  if (set.has_value() && set->ok() && next_.has_value() && next_->digest == digest) return;
  const absl::Status status = set.has_value() ? set->status() : absl::OkStatus();
  stage_next_.pending = false;
  next_.reset();
  if (set.has_value() && status.ok()) {
    next_.emplace(**std::move(set), digest);
    next_->context.set_set(next_->set.set);
    next_->context.set_drift(true);  // It is not what the folder wants to serve.
    stage_next_.Begin();
  }
  absl::MutexLock lock(&mu_);
  view_.set_next_plan(next_.has_value() ? next_->plan : "");
  view_.set_next_release(next_.has_value() ? next_->set.release : "");
  view_.clear_next_missing();
  view_.clear_next_error();
  if (status.ok()) return;
  view_.set_next_error(ToUtf8(Text(status)));
  LogError("--operators_dir=", path_, ": the next set is not installed: ", view_.next_error());
}

bool OperatorsDir::Settled() const {
  const FolderRecord record = core_.operators.plans().folder;
  return record.digest == wanted_->digest && (record.applied || !record.superseded_by.empty());
}

void OperatorsDir::BecomeReady() {
  if (core_.set_applied.exchange(true)) return;
  on_ready_();
}

void OperatorsDir::Attempt() {
  const absl::Status status = Apply();
  if (stopping()) return;
  if (status.ok()) {
    apply_.pending = false;
    compared_revision_ = 0;
    if (next_.has_value()) stage_next_.Begin();  // Their slots may have other versions now.
    LogInfo("--operators_dir=", path_, ": set ", wanted_->set.set, " serves");
    SetState(v1::OperatorsDirStatus::STATE_APPLIED, "");
    return BecomeReady();
  }
  Fail(status);
  apply_.Postpone(core_.time.Now(), status);
}

absl::Status OperatorsDir::CheckClaim() const {
  const PlanTable plans = core_.operators.plans();
  const auto claimed = std::ranges::find(plans.plans, plans.claimed, &PlanRecord::plan);
  if (plans.lease == 0 || claimed == plans.plans.end()) return absl::OkStatus();
  const bool ours = claimed->set == wanted_->set.set ||
                    std::ranges::any_of(claimed->before, [&](const auto& before) {
                      return wanted_->target.hashes.contains(before.first);
                    });
  if (!ours) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat(
      "operators of set ", wanted_->set.set, " are claimed by '", claimed->holder, "' for plan ",
      ShortHash(claimed->plan), ". Fix: none needed; the folder waits until the claim ends"));
}

std::vector<SetDifference> OperatorsDir::Compare(const Wanted& wanted,
                                                 v1::SummaryResponse* summary) const {
  summary->Clear();
  FillSummary(core_, summary);
  std::set<std::string> builtin;
  for (const auto& [name, hash] : wanted.target.hashes) {
    if (FindOperator(*summary, name) != nullptr) continue;
    if (core_.registry.Describe(name).ok()) builtin.insert(name);
  }
  std::set<std::string> pruned = FindPruned(wanted.set, *summary);
  if (next_.has_value()) {
    std::erase_if(pruned,
                  [&](const std::string& name) { return next_->target.hashes.contains(name); });
  }
  return CompareWithSet(wanted.target, pruned, builtin, *summary);
}

absl::Status OperatorsDir::Apply() {
  // While the daemon drains, operators are not changed.
  ASSIGN_OR_RETURN(const DrainGate::Entry entry, core_.gate.Enter(1));
  FolderRecord record{
      .digest = wanted_->digest, .plan = wanted_->plan, .set = wanted_->set.set, .applied = false};
  if (core_.operators.plans().folder.digest != wanted_->digest) {
    RETURN_IF_ERROR(core_.operators.RecordFolder(record));
  }
  v1::SummaryResponse summary;
  const std::vector<SetDifference> differences = Compare(*wanted_, &summary);
  {
    absl::MutexLock lock(&mu_);
    view_.clear_missing();
    for (const SetDifference& difference : differences) view_.add_missing(difference.name);
  }
  if (!differences.empty()) {
    RETURN_IF_ERROR(CheckClaim());
    RETURN_IF_ERROR(Stage(*wanted_, differences, summary));
    RETURN_IF_ERROR(Switch());
  }
  record.applied = true;
  return core_.operators.RecordFolder(record);
}

absl::Status OperatorsDir::Stage(Wanted& wanted, const std::vector<SetDifference>& differences,
                                 const v1::SummaryResponse& summary) {
  std::vector<const SetDifference*> missing;
  std::vector<std::string> errors;
  absl::StatusCode code = absl::StatusCode::kOk;
  const auto add = [&](const std::string& name, const absl::Status& status) {
    // An install that was ABORTED may succeed at the next attempt; the others decide.
    if (code == absl::StatusCode::kOk || absl::IsAborted(absl::Status(code, ""))) {
      code = status.code();
    }
    errors.push_back(absl::StrCat(name, ": ", status.message()));
  };
  const auto revision_of = [&](const std::string& name) {
    const v1::SummaryResponse::Operator* const op = FindOperator(summary, name);
    return op == nullptr ? 0 : op->revision();
  };
  for (const SetDifference& difference : differences) {
    if (difference.action == "blocked") {
      add(difference.name, absl::FailedPreconditionError(absl::StrCat(
                               difference.why, ". Fix: change the set, or this daemon")));
    }
    if (difference.action != "stage") continue;
    const auto refused = wanted.refused.find(difference.name);
    if (refused != wanted.refused.end() &&
        refused->second.revision == revision_of(difference.name)) {
      add(difference.name, refused->second.status);
      continue;
    }
    missing.push_back(&difference);
  }
  absl::Mutex mu;  // Guards what the threads share.
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t i = next++; i < missing.size(); i = next++) {
      const std::string& name = missing[i]->name;
      const uint64_t revision = revision_of(name);
      const absl::Status status = Install(wanted, FindEntry(wanted.set, name), revision);
      if (status.ok()) continue;
      absl::MutexLock lock(&mu);
      add(name, status);
      if (absl::IsInvalidArgument(status)) wanted.refused[name] = {revision, status};
    }
  };
  std::vector<std::thread> threads(
      std::min({missing.size(), kMaxInstalls, size_t{core_.limits.max_installs}}));
  for (std::thread& thread : threads) thread = std::thread(work);
  for (std::thread& thread : threads) thread.join();
  if (errors.empty()) return absl::OkStatus();
  std::ranges::sort(errors);
  return absl::Status(code,
                      absl::StrCat(absl::StrJoin(errors, "; "), " (no operator was changed)"));
}

absl::Status OperatorsDir::Install(const Wanted& wanted, const SetOperator& op, uint64_t revision) {
  ASSIGN_OR_RETURN(SetInstall install, MakeInstall(op, wanted.set));
  install.header.set_expected_revision(revision);
  install.header.set_wait_for(v1::VERSION_STATE_LOADED);
  *install.header.mutable_context() = wanted.context;
  InstallCollector collector;
  v1::InstallRequest message;
  *message.mutable_header() = std::move(install.header);
  RETURN_IF_ERROR(collector.Add(message));
  for (const auto& [name, text] : op.files) {
    message.mutable_file()->set_name(name);
    message.mutable_file()->set_data(text);
    RETURN_IF_ERROR(collector.Add(message));
  }
  for (v1::InstallExample& example : install.examples) {
    *message.mutable_example() = std::move(example);
    RETURN_IF_ERROR(collector.Add(message));
  }
  ASSIGN_OR_RETURN(InstallRequest request, collector.Finish());
  request.actor = kDaemonActor;
  return core_.operators.Install(
      request, [](const InstallProgress&) {}, [this] { return stopping(); });
}

absl::Status OperatorsDir::Switch() {
  v1::SummaryResponse summary;
  for (const SetDifference& difference : Compare(*wanted_, &summary)) {
    const std::string& name = difference.name;
    const v1::SummaryResponse::Operator* const op = FindOperator(summary, name);
    if (stopping()) return absl::CancelledError("the daemon ends");
    if (difference.action == "remove") {
      RETURN_IF_ERROR(Named(name, core_.operators
                                      .Remove(name, op->revision(), kDaemonActor,
                                              {.plan = wanted_->plan, .set = wanted_->set.set})
                                      .status()));
      continue;
    }
    const v1::SummaryResponse::Version* const loaded = FindHash(op, difference.wanted);
    if (difference.action != "switch" || loaded == nullptr) {
      // Others have changed it since it was installed.
      return absl::AbortedError(absl::StrCat(name, ": version ", ShortHash(difference.wanted),
                                             " is not loaded any more",
                                             difference.why.empty() ? "" : ": ", difference.why,
                                             ". Fix: none needed; it is tried again"));
    }
    v1::ActivateRequest activate;
    activate.set_name(name);
    activate.set_version(loaded->version());
    activate.set_expected_revision(op->revision());
    *activate.mutable_bake() =
        MakeBake(wanted_->set, wanted_->set.bake_time.value_or(absl::ZeroDuration()));
    *activate.mutable_context() = wanted_->context;
    ASSIGN_OR_RETURN(SwitchRequest request, ParseSwitch(activate));
    request.actor = kDaemonActor;
    RETURN_IF_ERROR(Named(name, core_.operators.Activate(request).status()));
  }
  return absl::OkStatus();
}

void OperatorsDir::AttemptNext() {
  if (!readable_ || apply_.pending || !Settled()) return;
  if (!core_.operators.plans().folder.superseded_by.empty()) return;
  const absl::Status status = StageNext();
  if (stopping()) return;
  stage_next_.pending = !status.ok();
  bool news = false;
  {
    absl::MutexLock lock(&mu_);
    if (status.ok()) view_.clear_next_missing();
    news = view_.next_error() != ToUtf8(Text(status));
    view_.set_next_error(ToUtf8(Text(status)));
  }
  if (status.ok()) return;
  stage_next_.Postpone(core_.time.Now(), status);
  if (!news) return;
  if (absl::IsAborted(status)) {
    LogInfo("--operators_dir=", path_, ": the next set waits: ", Text(status));
  } else {
    LogError("--operators_dir=", path_, ": the next set is not installed: ", Text(status));
  }
}

absl::Status OperatorsDir::StageNext() {
  if (next_->set.set != wanted_->set.set) {
    return absl::InvalidArgumentError(absl::StrCat("operators_next.yaml is of set ", next_->set.set,
                                                   ", and operators.yaml of ", wanted_->set.set,
                                                   ". Fix: give both the same set"));
  }
  ASSIGN_OR_RETURN(const DrainGate::Entry entry, core_.gate.Enter(1));
  v1::SummaryResponse summary;
  std::vector<SetDifference> missing = Compare(*next_, &summary);
  std::erase_if(missing, [](const SetDifference& difference) {
    return difference.action != "stage" && difference.action != "blocked";
  });
  {
    absl::MutexLock lock(&mu_);
    view_.clear_next_missing();
    for (const SetDifference& difference : missing) view_.add_next_missing(difference.name);
  }
  if (missing.empty()) return absl::OkStatus();
  RETURN_IF_ERROR(CheckClaim());
  for (const SetDifference& difference : missing) {
    // The version before it is needed for an automatic rollback, and has the slot.
    if (!core_.operators.baking(difference.name)) continue;
    return absl::AbortedError(absl::StrCat(difference.name,
                                           ": a version is in its bake. Fix: none needed; the next "
                                           "set is installed when the bake ends"));
  }
  RETURN_IF_ERROR(Stage(*next_, missing, summary));
  LogInfo("--operators_dir=", path_, ": the next set, plan ", ShortHash(next_->plan),
          ", is installed, and not activated");
  return absl::OkStatus();
}

void OperatorsDir::FindDrift() {
  const uint64_t revision = core_.operators.revision() + 1;
  if (!wanted_.has_value() || apply_.pending) return;
  if (compared_revision_ == revision || !Settled()) return;
  compared_revision_ = revision;
  v1::SummaryResponse summary;
  std::vector<std::string> names;
  std::vector<std::string> texts;
  for (const SetDifference& difference : Compare(*wanted_, &summary)) {
    names.push_back(difference.name);
    texts.push_back(absl::StrCat(difference.name, " serves ", ShortHash(difference.active),
                                 " in place of ", ShortHash(difference.wanted)));
  }
  const bool superseded = !core_.operators.plans().folder.superseded_by.empty();
  absl::MutexLock lock(&mu_);
  const bool news = !std::ranges::equal(view_.differing(), names);
  view_.mutable_differing()->Assign(names.begin(), names.end());
  view_.set_drift(!names.empty());
  if (!news || superseded) return;
  if (names.empty()) {
    LogInfo("--operators_dir=", path_, ": set ", wanted_->set.set, " serves again");
  } else {
    LogWarning("--operators_dir=", path_, ": others have changed operators of set ",
               wanted_->set.set, ": ", absl::StrJoin(texts, "; "),
               "; they are left as they are until the folder changes");
  }
}

}  // namespace resident
