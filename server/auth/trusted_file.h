// TrustedFile: files and folders that decide what the daemon does, and who else may change
// them: policy, tokens, certificates and keys, the state folder.
//
//   everybody may write it                    refused: any user of the machine could give
//                                             themselves all rights, or code to run
//   its group may write it, or it belongs     a warning
//   to another user than root or the daemon's
//   a private key that everybody may read     a warning
//   everybody may write the folder it is in   a warning (but not where the sticky bit, as in
//                                             /tmp, keeps others from replacing the file)
//
// Looked at: the file itself, through the descriptor that it is read from, and the folder it is
// in; not the folders above, and no access control lists.
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

// The contents of a file of at most `most` bytes. Errors name the path; FAILED_PRECONDITION:
// everybody may write it. `secret`: a private key. `warnings` gets what is wrong and is not
// refused.
absl::StatusOr<std::string> ReadTrustedFile(const std::string& path, size_t most, bool secret,
                                            std::vector<std::string>* warnings);

// The same for a folder; OK for one that is not there.
absl::Status CheckTrustedFolder(const std::string& path, std::vector<std::string>* warnings);

}  // namespace resident

#endif  // RESIDENT_SERVER_AUTH_TRUSTED_FILE_H_
