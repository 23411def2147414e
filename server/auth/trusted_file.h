// TrustedFile: checks that no other user may change the files and folders that control the
// daemon: policy, tokens, certificates and keys, the state folder.
//
//   every user may write it                     refused: any user of the machine could gain
//                                               all rights, or run code
//   its group may write it, or its owner is     a warning
//   neither root nor the daemon's user
//   a private key that every user may read      a warning
//   every user may write its folder             a warning (but not if the sticky bit, as in /tmp,
//                                               prevents others from replacing the file)
//
// On a mount that is read-only for the daemon nobody may write, whatever the mode: Kubernetes gives
// folders of ConfigMaps and Secrets the mode 2777, and mounts them so.
//
// Checked are the file itself, through the descriptor that it is read from, and its folder;
// not the folders above, and no access control lists.
//
// Thread safety: functions without state.
#ifndef RESIDENT_SERVER_AUTH_TRUSTED_FILE_H_
#define RESIDENT_SERVER_AUTH_TRUSTED_FILE_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace resident {

// The contents of a file of up to `max_bytes`. Errors contain the path;
// FAILED_PRECONDITION: every user may write the file. `secret`: a private key. `warnings`
// receives problems that are not refused.
absl::StatusOr<std::string> ReadTrustedFile(const std::string& path, size_t max_bytes, bool secret,
                                            std::vector<std::string>* warnings);

// The same for a file of an open folder, which `path` does not leave, also not over links. `folder`
// is its path, for errors.
absl::StatusOr<std::string> ReadTrustedFileIn(int folder_fd, const std::string& folder,
                                              const std::string& path, size_t max_bytes,
                                              std::vector<std::string>* warnings);

// The same for a folder; OK if it does not exist.
absl::Status CheckTrustedFolder(const std::string& path, std::vector<std::string>* warnings);

}  // namespace resident

#endif  // RESIDENT_SERVER_AUTH_TRUSTED_FILE_H_
