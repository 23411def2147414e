// Findings: the counts and the violations of a soak.
//
// Thread safety: all members may be called from any thread.
#ifndef RESIDENT_TESTS_SOAK_FINDINGS_H_
#define RESIDENT_TESTS_SOAK_FINDINGS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace resident::soak {

class Findings {
 public:
  void Count(const std::string& what, uint64_t times = 1) {
    absl::MutexLock lock(&mu_);
    counts_[what] += times;
  }
  // Records a violation. Keeps the text of the first ones.
  void Violation(const std::string& what) {
    absl::MutexLock lock(&mu_);
    if (++violations_ <= kKept) texts_.push_back(what);
  }

  std::map<std::string, uint64_t> counts() const {
    absl::MutexLock lock(&mu_);
    return counts_;
  }
  uint64_t violations() const {
    absl::MutexLock lock(&mu_);
    return violations_;
  }
  std::vector<std::string> texts() const {
    absl::MutexLock lock(&mu_);
    return texts_;
  }

 private:
  static constexpr uint64_t kKept = 20;
  mutable absl::Mutex mu_;
  std::map<std::string, uint64_t> counts_ ABSL_GUARDED_BY(mu_);
  uint64_t violations_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<std::string> texts_ ABSL_GUARDED_BY(mu_);
};

}  // namespace resident::soak

#endif  // RESIDENT_TESTS_SOAK_FINDINGS_H_
