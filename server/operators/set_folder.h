// SetFolder: the folder of --operators_dir: `operators.yaml` (runtime/operator_set/operator_set.h),
// `operators_next.yaml`, if there is one, and the files that they name.
//
// All files are of one generation. Kubernetes replaces the files of a ConfigMap by renaming the
// link
// `..data`, so the folder behind that link is opened once, and all files are read in it. Without
// that link, files that are replaced one by one are read when none of them has changed between two
// polls and while they are read.
//
// Files of a mount with `subPath` never change, because Kubernetes mounts them one by one: a
// warning says so.
//
// Who can write the folder can run code in the engines, so the folder and its files are checked as
// those of --policy (server/auth/trusted_file.h).
//
// Thread safety: an object belongs to one thread at a time.
//
//   SetFolder folder(path);
//   RETURN_IF_ERROR(folder.Check());
//   SetFolder::Contents first = folder.Read();
//   ... twice a second: if (auto changed = folder.Poll()) ...
#ifndef RESIDENT_SERVER_OPERATORS_SET_FOLDER_H_
#define RESIDENT_SERVER_OPERATORS_SET_FOLDER_H_

#include <cstddef>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/operator_set/operator_set.h"

namespace resident {

// Of all files together.
inline constexpr size_t kMaxSetFolderBytes = 16u << 20;

class SetFolder {
 public:
  struct Contents {
    // INVALID_ARGUMENT, NOT_FOUND, ...: why it cannot be used.
    absl::StatusOr<OperatorSet> set;
    // Over the names and contents of its files that were read.
    std::string digest;
    // The set in `operators_next.yaml`; nullopt: there is no such file.
    std::optional<absl::StatusOr<OperatorSet>> next;
    std::string next_digest;
    std::vector<std::string> warnings;
  };

  explicit SetFolder(std::string path) : path_(std::move(path)) {}

  // Whether it is a folder that can be used. INVALID_ARGUMENT: it is none, or every user may write
  // to it.
  absl::Status Check() const;

  Contents Read();
  // The contents, if they are other ones than those that were returned last, and have not changed
  // since the last Poll.
  std::optional<Contents> Poll();

 private:
  // The identity, size and times of the folder and of the files that were named last.
  std::string Fingerprint() const;

  const std::string path_;
  std::set<std::string> names_;  // Of the files that Read has asked for.
  std::string returned_;         // Fingerprint of what Poll has returned last.
  std::string last_;             // That of the last Poll.
};

}  // namespace resident

#endif  // RESIDENT_SERVER_OPERATORS_SET_FOLDER_H_
