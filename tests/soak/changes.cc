#include "tests/soak/changes.h"

#include <algorithm>
#include <array>
#include <functional>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace resident::soak {
namespace {

constexpr int kTries = 50;
// These keys repeat, so that some installs find their objects in the cache.
constexpr uint32_t kKeysThatRepeat = 8;
// Keys that do not repeat differ between seeds.
constexpr uint32_t kSeedsApart = 100;
constexpr uint32_t kKeysOfSeed = 500;

constexpr std::array<Fault, 5> kBadVersions = {Fault::kDoesNotCompile, Fault::kHangsInValidation,
                                               Fault::kFaultsInValidation, Fault::kWrongResult,
                                               Fault::kWritesBeyond};
constexpr int kBadVersionsOfRound = 2;

std::string Text(const v1::OperatorEvent& event) {
  return absl::StrCat(v1::OperatorEvent::Kind_Name(event.kind()), " of ", event.operator_(),
                      " version ", event.version(), ", revision ", event.revision());
}

}  // namespace

void ExpectedEvents::Check(const std::vector<v1::OperatorEvent>& events, Findings& findings) const {
  absl::MutexLock lock(&mu_);
  auto missing = commanded_;
  auto quarantines = quarantines_;
  uint64_t revision = 0;
  for (const v1::OperatorEvent& event : events) {
    findings.Count(absl::StrCat("events: ", v1::OperatorEvent::Kind_Name(event.kind())));
    if (event.revision() <= revision) findings.Violation("revisions do not rise: " + Text(event));
    revision = event.revision();
    switch (event.kind()) {
      case v1::OperatorEvent::KIND_QUARANTINED:
        if (--quarantines[{event.operator_(), event.version()}] < 0) {
          findings.Violation("unexpected quarantine: " + Text(event));
        }
        break;
      case v1::OperatorEvent::KIND_INSTALLED:
      case v1::OperatorEvent::KIND_ACTIVATED:
      case v1::OperatorEvent::KIND_ROLLED_BACK:
      case v1::OperatorEvent::KIND_PROMOTED:
      case v1::OperatorEvent::KIND_REMOVED: {
        const auto found = missing.find(event.revision());
        if (found == missing.end() || found->second.kind != event.kind() ||
            found->second.name != event.operator_() ||
            (found->second.version != 0 && found->second.version != event.version())) {
          findings.Violation("no command for the event " + Text(event));
        } else {
          missing.erase(found);
        }
        break;
      }
      default:
        break;
    }
  }
  for (const auto& [at, expected] : missing) {
    findings.Violation(
        absl::StrCat("missing event of a command: ", v1::OperatorEvent::Kind_Name(expected.kind),
                     " of ", expected.name, " version ", expected.version, ", revision ", at));
  }
}

bool WaitForEngine(const World& world, pid_t other_than) {
  return testing::Eventually([&] {
    const v1::DeviceStatus device = world.daemon->Device();
    if (device.state() == v1::DeviceStatus::STATE_UNHEALTHY) {
      // The engine failed too often in a minute. Resume the device, as an operator of the
      // daemon would.
      world.findings->Count("unhealthy devices resumed");
      world.client->Resume(0).IgnoreError();
      return false;
    }
    return device.engine_pid() != 0 && device.engine_pid() != other_than &&
           device.state() == v1::DeviceStatus::STATE_RESIDENT;
  });
}

Changes::Changes(const World& world, int op, uint64_t seed)
    : world_(world),
      op_(op),
      name_(OperatorName(op)),
      operators_(*world.client),
      random_(seed * 1'000'003 + static_cast<uint64_t>(op)),
      last_key_(static_cast<uint32_t>(seed % kSeedsApart) * kKeysOfSeed),
      bad_(static_cast<size_t>(op) * kBadVersionsOfRound) {}

void Changes::Failed(const std::string& what, const absl::Status& status) {
  world_.findings->Violation(absl::StrCat(what, " of ", name_, ": ", status.ToString()));
}

uint32_t Changes::NextKey() {
  if (random_() % 2 == 0) return 1 + static_cast<uint32_t>(random_() % kKeysThatRepeat);
  ++last_key_;
  return kKeysThatRepeat + last_key_ % (kMaxKey - kKeysThatRepeat - 1) + 1;
}

Changes::Response Changes::Install(uint32_t key, Fault fault, v1::VersionState wait_for) {
  client::Installation version = MakeVersion(op_, key, fault);
  version.WaitFor(wait_for);
  Response response = absl::UnknownError("");
  for (int i = 0; i < kTries; ++i) {
    uint64_t loaded_revision = 0;
    response = operators_.Install(version, [&](const v1::InstallResponse& progress) {
      if (progress.state() == v1::VERSION_STATE_LOADED) loaded_revision = progress.revision();
      if (progress.version() != 0) world_.keys->Set(op_, progress.version(), key);
      return true;
    });
    if (loaded_revision != 0) {
      world_.events->Add(loaded_revision, v1::OperatorEvent::KIND_INSTALLED, op_, 0);
    }
    // The engine was lost during the install, or is not running.
    if (response.status().code() != absl::StatusCode::kUnavailable) break;
    world_.findings->Count("installs tried again");
    WaitForEngine(world_, 0);
  }
  if (response.ok()) revision_ = response->revision();
  return response;
}

uint32_t Changes::Load(Fault fault) {
  const Response response = Install(NextKey(), fault, v1::VERSION_STATE_LOADED);
  if (!response.ok()) {
    Failed("an install", response.status());
    return 0;
  }
  world_.findings->Count("changes: installs");
  previous_ = 0;  // The new version took its place.
  return response->version();
}

void Changes::Activate(uint32_t version) {
  if (version == 0) return;
  world_.timeline->MayServe(op_, version);
  client::ChangeOptions options;
  options.version = version;
  options.expected_revision = revision_;
  const auto done = operators_.Activate(name_, options);
  if (!done.ok()) {
    Failed("an activation", done.status());
    return;
  }
  world_.timeline->NoLongerServes(op_, active_ == 0 ? Timeline::kMissing : active_);
  if (done->version() != version || done->previous_version() != active_) {
    Failed("an activation", absl::InternalError(absl::StrCat("version ", done->version(), " after ",
                                                             done->previous_version())));
  }
  world_.events->Add(done->revision(), v1::OperatorEvent::KIND_ACTIVATED, op_, version);
  world_.findings->Count("changes: activations");
  revision_ = done->revision();
  previous_ = active_;
  active_ = version;
}

void Changes::Begin() {
  world_.timeline->MayServe(op_, Timeline::kMissing);
  Activate(Load(Fault::kNone));
}

void Changes::ReplaceVersion() { Activate(Load(Fault::kNone)); }

void Changes::InstallActive() {
  // The number of the version is only known after it serves.
  const uint32_t key = NextKey();
  const uint32_t before = active_;
  for (uint32_t next = 1; next < 100; ++next) world_.timeline->MayServe(op_, before + next);
  const Response response = Install(key, Fault::kNone, v1::VERSION_STATE_ACTIVE);
  for (uint32_t next = 1; next < 100; ++next) {
    if (!response.ok() || before + next != response->version()) {
      world_.timeline->NoLongerServes(op_, before + next);
    }
  }
  if (!response.ok()) {
    Failed("an install that activates", response.status());
    return;
  }
  world_.timeline->NoLongerServes(op_, before);
  world_.events->Add(response->revision(), v1::OperatorEvent::KIND_ACTIVATED, op_,
                     response->version());
  world_.findings->Count("changes: installs");
  world_.findings->Count("changes: activations");
  previous_ = before;
  active_ = response->version();
}

void Changes::Rollback() {
  if (previous_ == 0) return;
  world_.timeline->MayServe(op_, previous_);
  const auto done = operators_.Rollback(name_, revision_);
  if (!done.ok()) {
    Failed("a rollback", done.status());
    return;
  }
  world_.timeline->NoLongerServes(op_, active_);
  if (done->version() != previous_ || done->from_version() != active_) {
    Failed("a rollback", absl::InternalError(absl::StrCat("version ", done->version(), " from ",
                                                          done->from_version())));
  }
  world_.events->Add(done->revision(), v1::OperatorEvent::KIND_ROLLED_BACK, op_, done->version());
  world_.findings->Count("changes: rollbacks");
  revision_ = done->revision();
  active_ = previous_;
  previous_ = 0;
}

void Changes::StaleRevision() {
  const auto done = operators_.Rollback(name_, revision_ - 1);
  if (done.status().code() != absl::StatusCode::kAborted) {
    Failed("a rollback with a stale revision", done.status());
  }
  world_.findings->Count("changes: refused for a stale revision");
}

void Changes::Trial() {
  const uint32_t version = Load(Fault::kNone);
  if (version == 0) return;
  world_.timeline->MayServe(op_, version);
  for (const double share : {20.0, 0.0}) {
    client::ChangeOptions options;
    options.expected_revision = revision_;
    const auto done = operators_.Promote(name_, share, share, options);
    if (!done.ok()) {
      Failed("a trial", done.status());
      return;
    }
    revision_ = done->revision();
    world_.events->Add(revision_, v1::OperatorEvent::KIND_PROMOTED, op_, 0);
  }
  world_.timeline->NoLongerServes(op_, version);
  world_.findings->Count("changes: trials");
}

void Changes::BadInstalls() {
  for (int i = 0; i < kBadVersionsOfRound; ++i) {
    const Fault fault = kBadVersions[bad_++ % kBadVersions.size()];
    const Response response = Install(NextKey(), fault, v1::VERSION_STATE_ACTIVE);
    if (response.status().code() != absl::StatusCode::kInvalidArgument) {
      Failed(absl::StrCat("an install that ", FaultName(fault)), response.status());
    }
    world_.findings->Count(absl::StrCat("changes: rejected, ", FaultName(fault)));
  }
}

void Changes::WithdrawInstall() {
  // Uses a new key: a version that is already validated would be loaded before the install
  // can be withdrawn.
  ++last_key_;
  const auto done = operators_.Install(
      MakeVersion(op_, kKeysThatRepeat + 1 + last_key_, Fault::kSlowInValidation),
      [](const v1::InstallResponse& progress) {
        return progress.state() != v1::VERSION_STATE_COMPILED;
      });
  if (done.status().code() != absl::StatusCode::kCancelled) {
    Failed("an install that was withdrawn", done.status());
  }
  world_.findings->Count("changes: installs withdrawn");
}

void Changes::Remove() {
  world_.timeline->MayServe(op_, Timeline::kMissing);
  const auto done = operators_.Remove(name_, {.expected_revision = revision_});
  if (!done.ok()) {
    Failed("a removal", done.status());
    return;
  }
  world_.timeline->NoLongerServes(op_, active_);
  world_.events->Add(done->revision(), v1::OperatorEvent::KIND_REMOVED, op_, 0);
  world_.findings->Count("changes: removals");
  active_ = 0;
  previous_ = 0;
}

void Changes::FaultInProduction() {
  const std::unique_lock<std::shared_mutex> exclusive(*world_.fault_mutex);
  const Fault fault = random_() % 2 == 0 ? Fault::kFaultsInProduction : Fault::kHangsInProduction;
  const uint32_t before = active_;
  const uint32_t version = Load(fault);
  if (version == 0 || before == 0) return;
  Activate(version);
  if (active_ != version) return;
  world_.timeline->BeginDisturbance();
  world_.timeline->MayServe(op_, before);
  world_.events->AddQuarantine(op_, version);
  const std::vector<float> x(kElements, 1);
  const auto quarantined = [&] {
    const auto op = world_.client->DescribeOperator(name_);
    if (!op.ok() || op->active_version() != before) return false;
    revision_ = op->revision();
    return true;
  };
  // If the engine is killed for another reason before it reaches the task, the version is
  // not quarantined, and the next engine receives the task again.
  for (int i = 0; i < kTries && !quarantined(); ++i) {
    WaitForEngine(world_, 0);
    const pid_t engine = world_.daemon->engine_pid();
    client::TaskBatch poison(name_);
    poison.Version(version).Input(x).Scalar(kPoison).Return<float>({kElements});
    const auto result = world_.client->Run(poison);
    if (result.ok() && result->ok()) Failed("a task that must fail", absl::OkStatus());
    if (!result.ok() && !quarantined()) continue;  // The task was not accepted.
    WaitForEngine(world_, engine);
  }
  if (!quarantined()) Failed(absl::StrCat("a version that ", FaultName(fault)), absl::OkStatus());
  WaitForEngine(world_, 0);
  world_.timeline->NoLongerServes(op_, version);
  world_.timeline->EndDisturbance();
  world_.findings->Count(absl::StrCat("changes: quarantined, ", FaultName(fault)));
  active_ = before;
  previous_ = 0;
}

void Changes::Round(bool faults) {
  std::vector<std::function<void()>> steps = {
      [this] { ReplaceVersion(); }, [this] { InstallActive(); }, [this] { Rollback(); },
      [this] { StaleRevision(); },  [this] { Trial(); },         [this] { BadInstalls(); },
      [this] { WithdrawInstall(); }};
  if (random_() % 2 == 0) {
    steps.push_back([this] {
      Remove();
      Activate(Load(Fault::kNone));
    });
  }
  std::shuffle(steps.begin(), steps.end(), random_);
  for (const auto& step : steps) {
    const std::shared_lock<std::shared_mutex> shared(*world_.fault_mutex);
    step();
  }
  if (faults) FaultInProduction();
}

void Changes::End() { Remove(); }

}  // namespace resident::soak
