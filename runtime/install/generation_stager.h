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
// A device without an engine at that moment gets the generation with its next engine.
//
// Invariants:
//   1. Numbers of generations rise over all devices.
//   2. When Stage has returned OK, every engine that serves from then on has the version,
//      until it is quarantined or the version is no longer held (registry.h).
//
// Thread safety: all members may be called from any thread. Stage blocks.
#ifndef RESIDENT_RUNTIME_INSTALL_GENERATION_STAGER_H_
#define RESIDENT_RUNTIME_INSTALL_GENERATION_STAGER_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "runtime/device/device.h"
#include "runtime/engine/generation.h"
#include "runtime/registry/registry.h"

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

  GenerationStager(const Options& options, const Registry* registry, std::vector<Device*> devices,
                   Build build, Loaded loaded);
  ~GenerationStager();

  // The round that is under way is given up where a device has no engine; versions that
  // wait are CANCELLED.
  void Stop();

  // Errors: those of `build`; DEADLINE_EXCEEDED (tasks ran all through the park deadline);
  // INVALID_ARGUMENT (a device cannot load it); UNAVAILABLE (no device took it).
  absl::Status Stage(std::shared_ptr<const OperatorVersion> version);

  // Loads what the registry has, without a new version.
  absl::Status Reload() { return LoadEverywhere({}); }

  // What an engine of `device` starts with from now on: without versions that are
  // quarantined. Null: it cannot be built; the present generation does. Called while a
  // device is without an engine, from its supervisor's thread: it waits for no round.
  std::shared_ptr<const Generation> Replacement(const Device& device);

  // Whether the version's code is in the kernels.
  bool Contains(const OperatorVersion& version) const;
  uint64_t generation() const { return number_.load(std::memory_order_relaxed); }

 private:
  struct Waiting {
    std::shared_ptr<const OperatorVersion> version;
    absl::Status outcome;
    bool done = false;
  };
  using Round = std::vector<Waiting*>;

  void Work();
  void Run(const Round& round);
  absl::Status LoadEverywhere(const Versions& staged) ABSL_LOCKS_EXCLUDED(round_mu_);
  // Loads it, or leaves it to the device's next engine.
  absl::Status LoadOn(Device& device, std::shared_ptr<const Generation>& generation);
  // What a generation has: all versions that hold a slot and may be named by a task, and
  // `staged`.
  Versions Members(const Versions& staged) const;
  uint64_t NextNumber() { return number_.fetch_add(1) + 1; }

  const Options options_;
  const Registry* const registry_;
  const std::vector<Device*> devices_;
  const Build build_;
  const Loaded loaded_;
  std::atomic<uint64_t> number_;  // Of the newest generation.
  std::atomic<bool> giving_up_{false};

  // Held during a round.
  absl::Mutex round_mu_ ABSL_ACQUIRED_BEFORE(mu_);
  mutable absl::Mutex mu_;
  std::vector<Waiting*> waiting_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  // Versions of the newest generation.
  std::vector<std::weak_ptr<const OperatorVersion>> members_ ABSL_GUARDED_BY(mu_);

  std::thread worker_;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_INSTALL_GENERATION_STAGER_H_
