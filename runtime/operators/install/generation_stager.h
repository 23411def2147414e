// GenerationStager: brings versions into the kernels of all devices, those that wait
// together in one generation.
//
//   Stage(version) ─┐
//   Stage(version) ─┼─▶ a round: build one generation for each device, load it everywhere
//   Stage(version) ─┘      │ one device cannot: the others go back to what they had
//                          ▼
//                   every caller gets its answer; a round that fails with several versions
//                   is tried again with each alone, so that one cannot fail another
//
// A device without an engine at that moment is waited for. Only one that was given up
// before the round (unhealthy) is left to start with the generation once it is resumed:
// what no engine has taken is not what replacements start with.
//
// Invariants:
//   1. Numbers of generations rise over all devices.
//   2. When Stage has returned OK, every engine that serves from then on has the version,
//      until it is quarantined or the version is no longer held (registry.h).
//   3. A round takes no code from a kernel that a task may still name. A replacement leaves
//      out what is quarantined, unless it is kept (Keep): its device's tasks ended with the
//      engine before.
//
// Thread safety: all members may be called from any thread. Stage blocks.
#ifndef RESIDENT_RUNTIME_OPERATORS_INSTALL_GENERATION_STAGER_H_
#define RESIDENT_RUNTIME_OPERATORS_INSTALL_GENERATION_STAGER_H_

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

class GenerationStager {
 public:
  using Versions = std::vector<std::shared_ptr<const OperatorVersion>>;
  struct Options {
    // --park_deadline: how long a round waits for running tasks to end.
    std::chrono::milliseconds park_deadline{2'000};
    // Numbers up to this one are taken, by a daemon before this one too.
    uint64_t last_number = 1;
  };
  // Makes the generation of a device that has these versions beside the built-in ones.
  using Build = std::function<absl::StatusOr<std::shared_ptr<const Generation>>(
      const Device& device, uint64_t number, const Versions& versions)>;
  // A round has been loaded: its number, what came in, and what it has in all.
  using Loaded =
      std::function<void(uint64_t number, const Versions& staged, const Versions& members)>;

  GenerationStager(const Options& options, const Registry* registry,
                   std::vector<DeviceControl*> devices, Build build, Loaded loaded);
  ~GenerationStager();

  // The round that is under way is given up where a device has no engine; versions that
  // wait are CANCELLED.
  void Stop();

  // Errors: those of `build`; DEADLINE_EXCEEDED (tasks ran all through the park deadline);
  // INVALID_ARGUMENT (a device cannot load it); UNAVAILABLE (a device did not take it: its
  // engine ended each time, or did not come back).
  absl::Status Stage(std::shared_ptr<const OperatorVersion> version);

  // While it lives, the version stays in the kernels that have it, though it is quarantined.
  // Who brings one back keeps it from before Stage until it serves.
  class [[nodiscard]] Kept {
   public:
    Kept() = default;
    Kept(Kept&& other) noexcept : stager_(std::exchange(other.stager_, nullptr)), at_(other.at_) {}
    Kept& operator=(Kept&& other) noexcept {
      std::swap(stager_, other.stager_);
      std::swap(at_, other.at_);
      return *this;
    }
    ~Kept();

   private:
    friend class GenerationStager;
    using Entry = std::list<std::shared_ptr<const OperatorVersion>>::iterator;
    Kept(GenerationStager* stager, Entry at) : stager_(stager), at_(at) {}

    GenerationStager* stager_ = nullptr;
    Entry at_;
  };
  Kept Keep(std::shared_ptr<const OperatorVersion> version);

  // Loads what the registry has, without a new version.
  absl::Status Reload() { return LoadEverywhere({}); }

  // What an engine of `device` starts with from now on: without versions that are
  // quarantined. Null: it cannot be built; the present generation does. Called while a
  // device is without an engine, from its supervisor's thread: it waits for no round.
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
    // Of the generation that the device runs, or starts its next engine with.
    Members members;
    // Replacements chosen so far. One that is chosen while a generation is loaded is what
    // the device has afterwards.
    uint64_t replacements = 0;
  };
  // What a round does to one device.
  struct Plan {
    DeviceControl* device;
    Versions members;
    Versions fresh;  // Staged ones that the device does not have.
    bool given_up;   // Before the round.
    std::shared_ptr<const Generation> generation;
    absl::Status loaded;  // What came of it.
  };

  void Work();
  void Run(const Round& round);
  absl::Status LoadEverywhere(const Versions& staged) ABSL_LOCKS_EXCLUDED(round_mu_);
  absl::Status LoadOn(const Plan& plan);
  // A round has failed: its devices go back to what they had, now or with their next engine.
  void PutBack(const std::vector<Plan>& plans);
  // What a generation of the device has: all versions that hold a slot and may be named by a
  // task, and `staged`.
  Versions MembersOf(const Device& device, const Versions& holders, const Versions& staged,
                     bool replacement) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  static bool Has(const Members& members, const OperatorVersion& version);
  uint64_t ReplacementsOf(const Device& device) const;
  // The device has these, unless a replacement was chosen since there were `replacements`;
  // false: one was.
  bool Note(const Device& device, const Versions& members, uint64_t replacements);
  uint64_t NextNumber() { return number_.fetch_add(1) + 1; }

  const Options options_;
  const Registry* const registry_;
  const std::vector<DeviceControl*> devices_;
  const Build build_;
  const Loaded loaded_;
  std::atomic<uint64_t> number_;  // Of the newest generation.
  std::atomic<bool> giving_up_{false};

  // Held during a round.
  absl::Mutex round_mu_ ABSL_ACQUIRED_BEFORE(mu_);
  mutable absl::Mutex mu_;
  std::vector<Waiting*> waiting_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<OnDevice> on_ ABSL_GUARDED_BY(mu_);  // By index; gaps where none started.
  std::list<std::shared_ptr<const OperatorVersion>> kept_ ABSL_GUARDED_BY(mu_);

  std::thread worker_;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_OPERATORS_INSTALL_GENERATION_STAGER_H_
