// VersionValidation: validates a version on a temporary engine for each target.
//
// The constructor starts the engines, so that they start while the compiler works. A
// version that has passed before passes again without an engine (ValidationVerdicts).
//
// Thread safety: an object belongs to one thread.
#ifndef RESIDENT_RUNTIME_OPERATORS_INSTALL_VERSION_VALIDATION_H_
#define RESIDENT_RUNTIME_OPERATORS_INSTALL_VERSION_VALIDATION_H_

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "runtime/device/device_control.h"
#include "runtime/operators/install/operator_manager.h"
#include "runtime/operators/install/version_builder.h"
#include "runtime/operators/registry/operator_version.h"
#include "runtime/operators/validation/validation.h"

namespace resident {

// Interval at which `withdrawn` is polled during an install.
inline constexpr absl::Duration kWithdrawnPollInterval = absl::Milliseconds(20);

// ValidationVerdicts: which versions have passed their validation since the daemon started.
// The key is a hash of everything that the verdict depends on. Bounded: the oldest entries
// are dropped.
//
// Thread safety: all members may be called from any thread.
class ValidationVerdicts {
 public:
  static constexpr size_t kMaxVerdicts = 4096;

  bool Passed(const std::string& key) const {
    absl::MutexLock lock(&mu_);
    return passed_.contains(key);
  }

  void RecordPassed(const std::string& key) {
    absl::MutexLock lock(&mu_);
    if (!passed_.insert(key).second) return;
    order_.push_back(key);
    if (order_.size() <= kMaxVerdicts) return;
    passed_.erase(order_.front());
    order_.pop_front();
  }

 private:
  mutable absl::Mutex mu_;
  absl::flat_hash_set<std::string> passed_ ABSL_GUARDED_BY(mu_);
  std::deque<std::string> order_ ABSL_GUARDED_BY(mu_);
};

class VersionValidation {
 public:
  struct Setup {
    const VersionBuilder* builder;
    ValidationVerdicts* verdicts;
    std::vector<DeviceControl*> devices;  // Devices that started with the daemon.
    std::vector<EngineChoice> engines;    // By device index().
    std::string engine_program;
  };
  struct Case {
    std::string operator_name;
    std::string content_hash;
    Signature signature;
    SplitRule split;
    const std::vector<Example>* examples = nullptr;
    std::chrono::milliseconds task_time_limit{0};
    // The active version; null: none. Its outputs replace expected outputs that examples
    // omit.
    std::shared_ptr<const OperatorVersion> active = nullptr;
    // A built-in operator that is used in place of the active version.
    std::optional<uint32_t> reference_slot = std::nullopt;
  };
  using Steps = std::vector<std::pair<std::string, std::chrono::nanoseconds>>;

  VersionValidation(const Setup& setup, Case version);
  ~VersionValidation();

  // INVALID_ARGUMENT: names the target and the violation of the version. UNAVAILABLE: an
  // engine did not start, or was killed twice. CANCELLED: `withdrawn` returned true; it is also
  // called from another thread.
  absl::Status Run(const BuiltVersion& built, const std::function<bool()>& withdrawn, Steps* steps);

  // Whether all targets' verdicts were known before.
  bool cached() const { return trials_.empty(); }

 private:
  struct Trial {
    std::string target;
    std::string key;  // Key of the verdict.
    std::unique_ptr<ValidationEngine> engine;
  };

  absl::Status RunOn(Trial& trial, const BuiltVersion& built,
                     const std::function<bool()>& withdrawn, Steps* steps) const;

  const Setup setup_;
  const Case version_;
  std::vector<Trial> trials_;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_OPERATORS_INSTALL_VERSION_VALIDATION_H_
