// ShadowTally: the results of shadow comparisons of each version, until the version is
// destroyed.
//
// Thread safety: all members may be called from any thread.
#ifndef RESIDENT_RUNTIME_OPERATORS_INSTALL_SHADOW_TALLY_H_
#define RESIDENT_RUNTIME_OPERATORS_INSTALL_SHADOW_TALLY_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "runtime/operators/registry/operator_version.h"

namespace resident {

class ShadowTally {
 public:
  struct Counters {
    uint64_t tasks = 0;
    uint64_t mismatches = 0;
  };

  void Add(const OperatorVersion& version, uint64_t tasks, uint64_t mismatches);
  Counters Get(const std::string& name, uint32_t version) const;
  // Resets the version's counters to 0.
  void Forget(const std::string& name, uint32_t version);

  // Number of entries: one per existing version, and those of versions destroyed since the
  // last new entry.
  size_t size() const;

 private:
  struct Entry {
    Counters counters;
    std::shared_ptr<absl::Notification> gone;  // OperatorVersion::drained.
  };

  mutable absl::Mutex mu_;
  std::map<std::pair<std::string, uint32_t>, Entry> entries_ ABSL_GUARDED_BY(mu_);
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_OPERATORS_INSTALL_SHADOW_TALLY_H_
