// FormQuarantine: the native forms that were quarantined, by content hash, in a file of the state
// folder. A hash contains the translator's version, so that a corrected translator is tried again.
//
// Thread safety: all members may be called from any thread.
#ifndef RESIDENT_RUNTIME_OPERATORS_INSTALL_FORM_QUARANTINE_H_
#define RESIDENT_RUNTIME_OPERATORS_INSTALL_FORM_QUARANTINE_H_

#include <deque>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace resident {

class FormQuarantine {
 public:
  // The oldest entries are dropped.
  static constexpr size_t kMaxEntries = 1024;

  // Reads the file, if there is one. Empty: nothing is kept.
  explicit FormQuarantine(std::string path);

  // Why the form was quarantined; empty: it was not.
  std::string Reason(const std::string& hash) const;
  // Adds the form and writes the file. An error is logged: the form stays quarantined until
  // the daemon ends.
  void Add(const std::string& hash, const std::string& reason);

 private:
  const std::string path_;
  mutable absl::Mutex mu_;
  std::deque<std::pair<std::string, std::string>> entries_ ABSL_GUARDED_BY(mu_);
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_OPERATORS_INSTALL_FORM_QUARANTINE_H_
