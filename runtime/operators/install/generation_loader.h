// GenerationLoader: adds versions to the kernels of all devices. Versions that wait at the
// same time go into one generation.
//
//   Load(version) ─┐
//   Load(version) ─┼─▶ a round: build one generation for each device, load it everywhere
//   Load(version) ─┘      │ if one device fails, the others return to their previous generation
//                          ▼
//                   every caller gets its result; a round that fails with several versions
//                   is retried with each alone, so that one cannot fail another
//
// A round waits for a device that has no engine at the moment. Only a device that was
// unhealthy before the round does not load the generation; it starts with it when it
// is resumed. A generation that no engine has loaded is never used for a replacement
// engine.
//
// Invariants:
//   1. Generation numbers increase across all devices.
//   2. When Load has returned OK, every engine that serves from then on has the version,
//      until it is quarantined or the version is no longer held (registry.h).
//   3. A round does not remove code from a kernel while a task may still name it. A replacement
//      leaves out quarantined versions, unless they are kept (Keep): the device's tasks ended
//      with the previous engine.
//
// Thread safety: all members may be called from any thread. Load blocks.
#ifndef RESIDENT_RUNTIME_OPERATORS_INSTALL_GENERATION_LOADER_H_
#define RESIDENT_RUNTIME_OPERATORS_INSTALL_GENERATION_LOADER_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "runtime/device/device_control.h"
#include "runtime/engine/generation.h"
#include "runtime/operators/registry/registry.h"

namespace resident {

class GenerationLoader {
 public:
  using Versions = std::vector<std::shared_ptr<const OperatorVersion>>;
  struct Options {
    // --park_deadline: how long a round waits for running tasks to end.
    std::chrono::milliseconds park_deadline{2'000};
    // Highest number that was used so far, including by previous daemons.
    uint64_t last_number = 1;
  };
  // Builds the generation of a device that has these versions in addition to the built-in
  // ones.
  using Build = std::function<absl::StatusOr<std::shared_ptr<const Generation>>(
      const Device& device, uint64_t number, const Versions& versions)>;
  // Called after a round was loaded: its number, the added versions, and all versions in
  // it.
  using Loaded =
      std::function<void(uint64_t number, const Versions& loaded, const Versions& members)>;

  GenerationLoader(const Options& options, const Registry* registry,
                   std::vector<DeviceControl*> devices, Build build, Loaded loaded);
  ~GenerationLoader();

  // Cancels waiting versions (CANCELLED), and ends the current round at devices that have
  // no engine.
  void Stop();

  // Errors: those of `build`; DEADLINE_EXCEEDED (tasks kept running until the park
  // deadline); INVALID_ARGUMENT (a device cannot load the generation); UNAVAILABLE (a
  // device did not load it: its engine ended each time, or was not replaced in time).
  absl::Status Load(std::shared_ptr<const OperatorVersion> version);

  // While this object exists, the version stays in the kernels that have it, although it is
  // quarantined. A caller that reactivates a version keeps it from before Load until it
  // serves.
  class [[nodiscard]] Kept {
   public:
    Kept() = default;
    Kept(Kept&& other) noexcept : loader_(std::exchange(other.loader_, nullptr)), at_(other.at_) {}
    Kept& operator=(Kept&& other) noexcept {
      std::swap(loader_, other.loader_);
      std::swap(at_, other.at_);
      return *this;
    }
    ~Kept();

   private:
    friend class GenerationLoader;
    using Entry = std::list<std::shared_ptr<const OperatorVersion>>::iterator;
    Kept(GenerationLoader* loader, Entry at) : loader_(loader), at_(at) {}

    GenerationLoader* loader_ = nullptr;
    Entry at_;
  };
  Kept Keep(std::shared_ptr<const OperatorVersion> version);

  // Loads the versions that the registry has, without a new version.
  absl::Status Reload() { return LoadEverywhere({}); }

  // The generation that an engine of `device` starts with from now on: without quarantined
  // versions. Null: it cannot be built, and the current generation is used. Called while
  // the device has no engine, from its supervisor's thread; it does not wait for a round.
  std::shared_ptr<const Generation> Replacement(const Device& device);

  // Whether the version's code is in the kernels of all devices that started.
  bool Contains(const OperatorVersion& version) const;

 private:
  struct Waiting {
    std::shared_ptr<const OperatorVersion> version;
    absl::Status outcome;
    bool done = false;
  };
  using Round = std::vector<Waiting*>;
  using Members = std::vector<std::weak_ptr<const OperatorVersion>>;
  struct OnDevice {
    // Members of the generation that the device runs, or starts its next engine with.
    Members members;
    // Replacements chosen so far. If one is chosen while a generation is being loaded, the
    // replacement applies.
    uint64_t replacements = 0;
  };
  // What a round does with one device.
  struct Plan {
    DeviceControl* device;
    Versions members;
    Versions fresh;      // Loaded versions that the device does not have.
    bool was_unhealthy;  // Before the round.
    std::shared_ptr<const Generation> generation;
    absl::Status loaded;  // Result of the load.
  };

  void Work();
  void Run(const Round& round);
  absl::Status LoadEverywhere(const Versions& loaded) ABSL_LOCKS_EXCLUDED(round_mu_);
  absl::Status LoadOn(const Plan& plan);
  // After a failed round: its devices return to their previous generation, now or with
  // their next engine.
  void RestoreDevices(const std::vector<Plan>& plans);
  // The members of the device's next generation: all versions that hold a slot and may be
  // named by a task, and `loaded`.
  Versions SelectMembers(const Device& device, const Versions& holders, const Versions& loaded,
                         bool replacement) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  static bool Has(const Members& members, const OperatorVersion& version);
  uint64_t CountReplacements(const Device& device) const;
  // Records the device's members; returns false without doing so if a replacement was
  // chosen since there were `replacements`.
  bool RecordMembers(const Device& device, const Versions& members, uint64_t replacements);
  uint64_t NextNumber() { return number_.fetch_add(1) + 1; }

  const Options options_;
  const Registry* const registry_;
  const std::vector<DeviceControl*> devices_;
  const Build build_;
  const Loaded loaded_;
  std::atomic<uint64_t> number_;  // Number of the newest generation.
  std::atomic<bool> giving_up_{false};

  // Held during a round.
  absl::Mutex round_mu_ ABSL_ACQUIRED_BEFORE(mu_);
  mutable absl::Mutex mu_;
  std::vector<Waiting*> waiting_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<OnDevice> on_
      ABSL_GUARDED_BY(mu_);  // By device index; gaps for devices that did not start.
  std::list<std::shared_ptr<const OperatorVersion>> kept_ ABSL_GUARDED_BY(mu_);

  std::thread worker_;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_OPERATORS_INSTALL_GENERATION_LOADER_H_
