// ValidationVerdicts: which versions have passed their validation since the daemon started.
// The key is a hash of everything that the verdict depends on. Bounded: the oldest entries
// are dropped.
//
// Thread safety: all members may be called from any thread.
#ifndef RESIDENT_RUNTIME_OPERATORS_INSTALL_VALIDATION_VERDICTS_H_
#define RESIDENT_RUNTIME_OPERATORS_INSTALL_VALIDATION_VERDICTS_H_

#include <deque>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/synchronization/mutex.h"

namespace resident {

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

}  // namespace resident

#endif  // RESIDENT_RUNTIME_OPERATORS_INSTALL_VALIDATION_VERDICTS_H_
