#include "runtime/operators/install/form_quarantine.h"

#include <algorithm>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "runtime/base/atomic_file.h"
#include "runtime/base/log.h"

namespace resident {

FormQuarantine::FormQuarantine(std::string path) : path_(std::move(path)) {
  if (path_.empty()) return;
  std::ifstream file(path_);
  std::string line;
  while (std::getline(file, line)) {
    const size_t space = line.find(' ');
    if (space == std::string::npos || space == 0) continue;  // Damaged; the other lines are used.
    entries_.emplace_back(line.substr(0, space), line.substr(space + 1));
    if (entries_.size() > kMaxEntries) entries_.pop_front();
  }
}

std::string FormQuarantine::Reason(const std::string& hash) const {
  absl::MutexLock lock(&mu_);
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const auto& entry) { return entry.first == hash; });
  return found == entries_.end() ? "" : found->second;
}

void FormQuarantine::Add(const std::string& hash, const std::string& reason) {
  absl::MutexLock lock(&mu_);
  std::erase_if(entries_, [&](const auto& entry) { return entry.first == hash; });
  entries_.emplace_back(hash, absl::StrReplaceAll(reason, {{"\n", " "}}));
  if (entries_.size() > kMaxEntries) entries_.pop_front();
  if (path_.empty()) return;
  std::string text;
  for (const auto& [entry, why] : entries_) absl::StrAppend(&text, entry, " ", why, "\n");
  const absl::Status status = WriteFileAtomically(path_, {text});
  if (!status.ok()) {
    LogError("cannot write ", path_, ": ", status.message(),
             ". The quarantine of a native form is lost when the daemon ends");
  }
}

}  // namespace resident
