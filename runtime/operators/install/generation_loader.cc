#include "runtime/operators/install/generation_loader.h"

#include <sys/prctl.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "runtime/base/status_macros.h"

namespace resident {
namespace {

// How long a round waits for a device whose engine is being replaced.
constexpr absl::Duration kReplacementLimit = absl::Seconds(30);
constexpr absl::Duration kReplacementPollInterval = absl::Milliseconds(5);
// Engines that a device may lose during a load. One may have ended for another reason; a
// round and the retries of its versions must not lose five, after which the device is given
// up.
constexpr int kMaxEnginesLost = 2;

std::shared_ptr<const Generation> WithNumber(const Generation& generation, uint64_t number) {
  auto copy = std::make_shared<Generation>(generation);
  copy->number = number;
  return copy;
}

bool IsUnhealthy(const Device& device) {
  return device.snapshot().state == Device::State::kUnhealthy;
}

// on_ is indexed by device index; a device that did not start leaves a gap.
size_t CountIndices(const std::vector<DeviceControl*>& devices) {
  size_t count = 0;
  for (const Device* device : devices) count = std::max<size_t>(count, device->index() + 1);
  return count;
}

bool IsAmong(const GenerationLoader::Versions& versions, const OperatorVersion& version) {
  return std::any_of(versions.begin(), versions.end(),
                     [&](const auto& candidate) { return candidate.get() == &version; });
}

}  // namespace

GenerationLoader::GenerationLoader(const Options& options, const Registry* registry,
                                   std::vector<DeviceControl*> devices, Build build, Loaded loaded)
    : options_(options),
      registry_(registry),
      devices_(std::move(devices)),
      build_(std::move(build)),
      loaded_(std::move(loaded)),
      // The generation with the built-in operators has number 1.
      number_(std::max<uint64_t>(1, options.last_number)),
      on_(CountIndices(devices_)),
      worker_([this] { Work(); }) {}

GenerationLoader::~GenerationLoader() {
  Stop();
  worker_.join();
}

void GenerationLoader::Stop() {
  giving_up_ = true;
  absl::MutexLock lock(&mu_);
  stopping_ = true;
}

absl::Status GenerationLoader::Load(std::shared_ptr<const OperatorVersion> version) {
  Waiting waiting{std::move(version), absl::OkStatus(), false};
  absl::MutexLock lock(&mu_);
  if (stopping_) return absl::CancelledError("the daemon is stopping");
  waiting_.push_back(&waiting);
  mu_.Await(absl::Condition(&waiting.done));
  return waiting.outcome;
}

void GenerationLoader::Work() {
  prctl(PR_SET_NAME, "resident-loader");
  const auto has_work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return stopping_ || !waiting_.empty();
  };
  while (true) {
    Round round;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(&has_work));
      round.swap(waiting_);
      if (stopping_) {
        for (Waiting* waiting : round) {
          waiting->outcome = absl::CancelledError("the daemon is stopping");
          waiting->done = true;
        }
        return;
      }
    }
    Run(round);
  }
}

void GenerationLoader::Run(const Round& round) {
  Versions loaded;
  for (const Waiting* waiting : round) loaded.push_back(waiting->version);
  const absl::Status status = LoadEverywhere(loaded);
  if (!status.ok() && round.size() > 1) {
    for (Waiting* waiting : round) Run({waiting});
    return;
  }
  absl::MutexLock lock(&mu_);
  for (Waiting* waiting : round) {
    waiting->outcome = status;
    waiting->done = true;
  }
}

bool GenerationLoader::Has(const Members& members, const OperatorVersion& version) {
  return std::any_of(members.begin(), members.end(),
                     [&](const auto& member) { return member.lock().get() == &version; });
}

GenerationLoader::Versions GenerationLoader::SelectMembers(const Device& device,
                                                           const Versions& holders,
                                                           const Versions& loaded,
                                                           bool replacement) const {
  const Members& here = on_[device.index()].members;
  const auto belongs = [&](const OperatorVersion& version) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    switch (version.state.load(std::memory_order_relaxed)) {
      case VersionState::kQuarantined:
        // Tasks on a device where it has not caused a fault may still name it.
        return Has(here, version) &&
               (!replacement || std::any_of(kept_.begin(), kept_.end(), [&](const auto& kept) {
                 return kept.get() == &version;
               }));
      case VersionState::kValidated:
        // Reserved by an install whose round has not run yet, or has: then the version
        // stays, since its install is about to publish it, and tasks may call it.
        return Has(here, version);
      default:
        return true;
    }
  };
  Versions members = loaded;
  for (const auto& version : holders) {
    if (version->builtin || IsAmong(loaded, *version)) continue;
    if (belongs(*version)) members.push_back(version);
  }
  std::sort(members.begin(), members.end(),
            [](const auto& a, const auto& b) { return a->slot < b->slot; });
  return members;
}

uint64_t GenerationLoader::CountReplacements(const Device& device) const {
  absl::MutexLock lock(&mu_);
  return on_[device.index()].replacements;
}

bool GenerationLoader::RecordMembers(const Device& device, const Versions& members,
                                     uint64_t replacements) {
  absl::MutexLock lock(&mu_);
  OnDevice& on = on_[device.index()];
  if (on.replacements != replacements) return false;
  on.members.assign(members.begin(), members.end());
  return true;
}

absl::Status GenerationLoader::LoadEverywhere(const Versions& loaded) {
  absl::MutexLock round_lock(&round_mu_);
  const uint64_t number = NextNumber();
  const Versions holders = registry_->SlotHolders();
  std::vector<Plan> plans;
  for (DeviceControl* device : devices_) {
    Plan plan{device, {}, {}, IsUnhealthy(*device), nullptr, absl::OkStatus()};
    {
      absl::MutexLock lock(&mu_);
      plan.members = SelectMembers(*device, holders, loaded, /*replacement=*/false);
      for (const auto& version : loaded) {
        if (!Has(on_[device->index()].members, *version)) plan.fresh.push_back(version);
      }
    }
    ASSIGN_OR_RETURN(auto built, build_(*device, number, plan.members));
    plan.generation = std::move(built);
    plans.push_back(std::move(plan));
  }
  std::vector<std::thread> loaders;  // Each device waits for its own tasks.
  for (size_t i = 1; i < plans.size(); ++i) {
    loaders.emplace_back([&, i] { plans[i].loaded = LoadOn(plans[i]); });
  }
  plans[0].loaded = LoadOn(plans[0]);
  for (std::thread& loader : loaders) loader.join();

  absl::Status status;
  for (Plan& plan : plans) {
    if (plan.loaded.ok() && !plan.was_unhealthy && IsUnhealthy(*plan.device)) {
      plan.loaded = absl::UnavailableError(
          absl::StrCat("device ", plan.device->index(), " became unhealthy while generation ",
                       number, " was loaded: ", plan.device->snapshot().detail));
    }
    status.Update(plan.loaded);
  }
  if (!status.ok()) {
    RestoreDevices(plans);
    return status;
  }
  // A device may have needed a higher number.
  loaded_(number_.load(), loaded, plans.front().members);
  return absl::OkStatus();
}

void GenerationLoader::RestoreDevices(const std::vector<Plan>& plans) {
  for (const Plan& plan : plans) {
    DeviceControl& device = *plan.device;
    const Versions holders = registry_->SlotHolders();
    Versions members;
    uint64_t replacements = 0;
    {
      absl::MutexLock lock(&mu_);
      OnDevice& on = on_[device.index()];
      std::erase_if(on.members, [&](const auto& member) {
        const auto version = member.lock();
        return version == nullptr || IsAmong(plan.fresh, *version);
      });
      members = SelectMembers(device, holders, {}, /*replacement=*/false);
      replacements = on.replacements;
    }
    const auto before = build_(device, NextNumber(), members);
    // The new code stays in the kernel, unused, until it can be removed; no task names it.
    if (!before.ok()) continue;
    if (plan.loaded.ok() && device.LoadGeneration(*before, options_.park_deadline).ok()) {
      RecordMembers(device, members, replacements);
      continue;
    }
    absl::MutexLock lock(&mu_);
    // A replacement that a fault chose meanwhile does not contain the versions of this
    // round.
    if (on_[device.index()].replacements == replacements) device.SetGeneration(*before);
  }
}

absl::Status GenerationLoader::LoadOn(const Plan& plan) {
  DeviceControl& device = *plan.device;
  std::shared_ptr<const Generation> generation = plan.generation;
  bool was_unhealthy = plan.was_unhealthy;
  int engines_lost = 0;
  const absl::Time give_up = absl::Now() + kReplacementLimit;
  while (true) {
    const uint64_t replacements = CountReplacements(device);
    const bool had_engine = device.snapshot().engine_pid != 0;
    absl::Status status = device.LoadGeneration(generation, options_.park_deadline);
    if (status.ok()) {
      if (RecordMembers(device, plan.members, replacements)) return status;
      status = absl::UnavailableError(absl::StrCat("the engine of device ", device.index(),
                                                   " ended as soon as it had loaded "
                                                   "generation ",
                                                   generation->number, ". Fix: try again"));
    }
    if (status.code() == absl::StatusCode::kFailedPrecondition) {
      // A replaced engine has started with a newer generation: use a higher number.
      generation = WithNumber(*generation, NextNumber());
    } else if (status.code() == absl::StatusCode::kUnavailable) {
      if (!IsUnhealthy(device)) {
        was_unhealthy = false;
        if (had_engine && ++engines_lost == kMaxEnginesLost) return status;
      } else if (!was_unhealthy) {
        return status;  // The generation that is being loaded may be the cause.
      } else {
        device.SetGeneration(generation);
        // Still unhealthy: it was not resumed with another generation meanwhile.
        if (IsUnhealthy(device) && RecordMembers(device, plan.members, replacements))
          return absl::OkStatus();
      }
      absl::SleepFor(kReplacementPollInterval);
    } else {
      return status;
    }
    if (giving_up_ || absl::Now() >= give_up) return status;
  }
}

std::shared_ptr<const Generation> GenerationLoader::Replacement(const Device& device) {
  const Versions holders = registry_->SlotHolders();
  Versions members;
  {
    absl::MutexLock lock(&mu_);
    OnDevice& on = on_[device.index()];
    members = SelectMembers(device, holders, {}, /*replacement=*/true);
    on.members.assign(members.begin(), members.end());
    ++on.replacements;
  }
  auto built = build_(device, NextNumber(), members);
  return built.ok() ? *std::move(built) : nullptr;
}

GenerationLoader::Kept GenerationLoader::Keep(std::shared_ptr<const OperatorVersion> version) {
  absl::MutexLock lock(&mu_);
  return Kept(this, kept_.insert(kept_.end(), std::move(version)));
}

GenerationLoader::Kept::~Kept() {
  if (loader_ == nullptr) return;
  std::shared_ptr<const OperatorVersion> last;  // Destroyed without the lock.
  absl::MutexLock lock(&loader_->mu_);
  last = std::move(*at_);
  loader_->kept_.erase(at_);
}

bool GenerationLoader::Contains(const OperatorVersion& version) const {
  absl::MutexLock lock(&mu_);
  const auto has = [&](const Device* device) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return Has(on_[device->index()].members, version);
  };
  return std::all_of(devices_.begin(), devices_.end(), has);
}

}  // namespace resident
