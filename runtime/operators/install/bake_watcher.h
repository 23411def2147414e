// BakeWatcher: evaluates the versions that are in their bake time, and reports which have
// regressed.
//
// One version of an operator is watched at a time: a new Watch of the same operator
// replaces the one before.
//
// Thread safety: all members may be called from any thread. `regressed` is called from the
// watcher's own thread, without locks.
#ifndef RESIDENT_RUNTIME_OPERATORS_INSTALL_BAKE_WATCHER_H_
#define RESIDENT_RUNTIME_OPERATORS_INSTALL_BAKE_WATCHER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "runtime/operators/install/bake.h"
#include "runtime/operators/install/operator_manager.h"

namespace resident {

class BakeWatcher {
 public:
  // Returns what the version has served so far.
  using Counters = std::function<BakeCounters()>;
  struct Regression {
    std::string name;
    uint32_t version = 0;
    uint64_t revision = 0;  // The operator's, when the bake began.
    BakeAction action = BakeAction::kWarn;
    std::string reason;
  };

  explicit BakeWatcher(std::function<void(const Regression&)> regressed);
  ~BakeWatcher();

  // `options` must not have zeros. kOff: only stops watching this operator.
  void Watch(const std::string& name, uint32_t version, uint64_t revision,
             const BakeOptions& options, uint64_t before_p99_ns, Counters counters);
  // Stops watching this operator, if its bake began at that revision or before.
  void Forget(const std::string& name, uint64_t revision = UINT64_MAX);

 private:
  struct Watched {
    uint32_t version;
    uint64_t revision;
    Bake bake;
    Counters counters;
  };

  void Work();

  const std::function<void(const Regression&)> regressed_;
  absl::Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::map<std::string, Watched> watched_ ABSL_GUARDED_BY(mu_);
  std::thread worker_;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_OPERATORS_INSTALL_BAKE_WATCHER_H_
