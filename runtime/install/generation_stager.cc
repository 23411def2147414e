#include "runtime/install/generation_stager.h"

#include <sys/prctl.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace resident {
namespace {

// How long a round waits for a device whose engine is being replaced.
constexpr absl::Duration kReplacementLimit = absl::Seconds(30);
constexpr absl::Duration kReplacementLook = absl::Milliseconds(5);

std::shared_ptr<const Generation> Renumbered(const Generation& generation, uint64_t number) {
  auto copy = std::make_shared<Generation>(generation);
  copy->number = number;
  return copy;
}

}  // namespace

GenerationStager::GenerationStager(const Options& options, const Registry* registry,
                                   std::vector<Device*> devices, Build build, Loaded loaded)
    : options_(options),
      registry_(registry),
      devices_(std::move(devices)),
      build_(std::move(build)),
      loaded_(std::move(loaded)),
      // The built-in operators' generation has number 1.
      number_(std::max<uint64_t>(1, options.last_number)),
      worker_([this] { Work(); }) {}

GenerationStager::~GenerationStager() {
  Stop();
  worker_.join();
}

void GenerationStager::Stop() {
  giving_up_ = true;
  absl::MutexLock lock(&mu_);
  stopping_ = true;
}

absl::Status GenerationStager::Stage(std::shared_ptr<const OperatorVersion> version) {
  Waiting waiting{std::move(version), absl::OkStatus(), false};
  absl::MutexLock lock(&mu_);
  if (stopping_) return absl::CancelledError("the daemon is stopping");
  waiting_.push_back(&waiting);
  mu_.Await(absl::Condition(&waiting.done));
  return waiting.outcome;
}

void GenerationStager::Work() {
  prctl(PR_SET_NAME, "resident-stager");
  const auto news = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return stopping_ || !waiting_.empty();
  };
  while (true) {
    Round round;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(&news));
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

void GenerationStager::Run(const Round& round) {
  Versions staged;
  for (const Waiting* waiting : round) staged.push_back(waiting->version);
  const absl::Status status = LoadEverywhere(staged);
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

GenerationStager::Versions GenerationStager::Members(const Versions& staged) const {
  Versions members = staged;
  for (auto& version : registry_->SlotHolders()) {
    if (version->builtin) continue;
    const VersionState state = version->state.load(std::memory_order_relaxed);
    if (state == VersionState::kQuarantined) continue;
    // Reserved by an install whose round has not come. One whose round has been stays: its
    // install is about to make it known, and then it may be called.
    if (state == VersionState::kCanaried && !Contains(*version)) continue;
    if (std::find(staged.begin(), staged.end(), version) == staged.end()) {
      members.push_back(std::move(version));
    }
  }
  std::sort(members.begin(), members.end(),
            [](const auto& a, const auto& b) { return a->slot < b->slot; });
  return members;
}

absl::Status GenerationStager::LoadEverywhere(const Versions& staged) {
  absl::MutexLock round_lock(&round_mu_);
  const Versions members = Members(staged);
  const uint64_t number = NextNumber();
  std::vector<std::shared_ptr<const Generation>> generations;
  for (const Device* device : devices_) {
    auto built = build_(*device, number, members);
    if (!built.ok()) return built.status();
    generations.push_back(*std::move(built));
  }
  std::vector<absl::Status> loaded(devices_.size());
  std::vector<std::thread> loaders;  // Each device waits for its own tasks.
  for (size_t i = 1; i < devices_.size(); ++i) {
    loaders.emplace_back([&, i] { loaded[i] = LoadOn(*devices_[i], generations[i]); });
  }
  loaded[0] = LoadOn(*devices_[0], generations[0]);
  for (std::thread& loader : loaders) loader.join();

  const auto failed = std::find_if(loaded.begin(), loaded.end(),
                                   [](const absl::Status& status) { return !status.ok(); });
  if (failed != loaded.end()) {
    for (size_t i = 0; i < devices_.size(); ++i) {
      if (!loaded[i].ok()) continue;
      // What came in stays unused until it can go; nothing names it.
      const auto before = build_(*devices_[i], NextNumber(), Members({}));
      if (before.ok()) devices_[i]->LoadGeneration(*before, options_.park_deadline).IgnoreError();
    }
    return *failed;
  }
  {
    absl::MutexLock lock(&mu_);
    members_.assign(members.begin(), members.end());
  }
  loaded_(number, staged, members);
  return absl::OkStatus();
}

absl::Status GenerationStager::LoadOn(Device& device,
                                      std::shared_ptr<const Generation>& generation) {
  const absl::Time give_up = absl::Now() + kReplacementLimit;
  while (true) {
    const absl::Status status = device.LoadGeneration(generation, options_.park_deadline);
    if (device.snapshot().info.generation == generation->number) return absl::OkStatus();
    if (status.code() == absl::StatusCode::kFailedPrecondition) {
      // A replaced engine has started with a newer one: this one becomes newer still.
      generation = Renumbered(*generation, NextNumber());
    } else if (status.code() == absl::StatusCode::kUnavailable) {
      device.SetGeneration(generation);
      if (device.snapshot().state == Device::State::kUnhealthy) return absl::OkStatus();
      absl::SleepFor(kReplacementLook);
    } else {
      return status;
    }
    if (giving_up_ || absl::Now() >= give_up) return status;
  }
}

std::shared_ptr<const Generation> GenerationStager::Replacement(const Device& device) {
  {
    // What is out of service now has to be brought back before it can serve.
    absl::MutexLock lock(&mu_);
    std::erase_if(members_, [](const auto& member) {
      const auto version = member.lock();
      return version == nullptr || version->state.load() == VersionState::kQuarantined;
    });
  }
  auto built = build_(device, NextNumber(), Members({}));
  return built.ok() ? *std::move(built) : nullptr;
}

bool GenerationStager::Contains(const OperatorVersion& version) const {
  absl::MutexLock lock(&mu_);
  return std::any_of(members_.begin(), members_.end(),
                     [&](const auto& member) { return member.lock().get() == &version; });
}

}  // namespace resident
