// BlobStore: stores contents by their SHA-256, each in a file of that name: sources, programs and
// examples of operators in one folder, contents of durable buffers in another.
//
// Files are never overwritten with other contents: the name is the hash of the contents, and Get
// checks it.
//
// Without a folder nothing is stored: blobs are only needed after a restart, and without
// --state_dir a restart restores nothing.
//
// Thread safety: all members may be called from any thread.
#ifndef RESIDENT_RUNTIME_STATE_BLOB_STORE_H_
#define RESIDENT_RUNTIME_STATE_BLOB_STORE_H_

#include <memory>
#include <set>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

namespace resident {

class BlobStore {
 public:
  // `folder` empty: stores nothing.
  static absl::StatusOr<std::unique_ptr<BlobStore>> Open(const std::string& folder);

  // Returns the SHA-256 in hex. If it returns OK, the blob is on disk.
  absl::StatusOr<std::string> Put(std::string_view bytes);
  // NOT_FOUND: there is no such blob. DATA_LOSS: its file is damaged.
  absl::StatusOr<std::string> Get(const std::string& sha256) const;
  // Returns whether the blob exists; if so, the next Collect does not remove it. Does not wait for
  // files to be written. Always true without a folder.
  bool Use(const std::string& sha256);

  // Removes blobs that are not in `used`, unless they were put or used since the previous Collect:
  // a change that refers to them may follow.
  absl::Status Collect(const std::set<std::string>& used);
  // Removes a blob at once. REQUIRES: nothing refers to it, or will refer to it.
  absl::Status Remove(const std::string& sha256);

 private:
  explicit BlobStore(std::string folder) : folder_(std::move(folder)) {}
  std::string BlobPath(const std::string& sha256) const { return folder_ + "/" + sha256; }

  const std::string folder_;
  absl::Mutex files_mu_ ABSL_ACQUIRED_BEFORE(mu_);  // Held while files are written or removed.
  // Blobs whose files this object has written and synced. An existing file may also be left of a
  // write that failed, or of a process that was killed, before its folder was synced.
  std::set<std::string> synced_ ABSL_GUARDED_BY(files_mu_);
  absl::Mutex mu_;
  std::set<std::string> recently_used_ ABSL_GUARDED_BY(mu_);
};

// Whether the text has the form of a blob's name.
bool IsSha256(const std::string& text);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_STATE_BLOB_STORE_H_
