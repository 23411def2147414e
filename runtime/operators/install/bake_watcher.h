// BakeWatcher: looks at the versions that are in their bake time, and says which have
// regressed.
//
// One version of an operator is watched at a time: a new Watch of the same operator ends
// the one before.
//
// Thread safety: all members may be called from any thread. `ended` is called from the
// watcher's own thread, without locks.
#ifndef RESIDENT_RUNTIME_OPERATORS_INSTALL_BAKE_WATCHER_H_
#define RESIDENT_RUNTIME_OPERATORS_INSTALL_BAKE_WATCHER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "runtime/operators/install/bake.h"
#include "runtime/operators/install/operator_manager.h"

namespace resident {

class BakeWatcher {
 public:
  // What the version has served by now.
  using Counters = std::function<BakeCounters()>;
  struct Regression {
    std::string name;
    uint32_t version = 0;
    uint64_t revision = 0;  // Of the operator when the bake began.
    BakeAction action = BakeAction::kWarn;
    std::string reason;
  };

  explicit BakeWatcher(std::function<void(const Regression&)> regressed);
  ~BakeWatcher();

  // `options` without zeros; kOff: only ends what is watched of this operator.
  void Watch(const std::string& name, uint32_t version, uint64_t revision,
             const BakeOptions& options, uint64_t before_p99_ns, Counters counters);
  // Ends what is watched of this operator, if it began at that revision or before.
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
