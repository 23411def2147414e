// BlobStore: bytes by their SHA-256, each in a file of that name: sources, programs and examples of
// operators in one folder, contents of durable buffers in another.
//
// Nothing is written over: a name says what is in the file, and what is read is checked
// against it.
//
// Without a folder nothing is kept: what is put is for a restart, and there is none to
// bring it back.
//
// Thread safety: all members may be called from any thread.
#ifndef RESIDENT_RUNTIME_STATE_BLOB_STORE_H_
#define RESIDENT_RUNTIME_STATE_BLOB_STORE_H_

#include <cstdint>
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
  // `folder` empty: keeps nothing.
  static absl::StatusOr<std::unique_ptr<BlobStore>> Open(const std::string& folder);

  absl::StatusOr<std::string> Put(std::string_view bytes);
  // NOT_FOUND; DATA_LOSS.
  absl::StatusOr<std::string> Get(const std::string& sha256) const;
  // Whether it is there; then the next Collect leaves it. Waits for no file to be written.
  // Always true without a folder.
  bool Use(const std::string& sha256);

  // Removes what is not in `used`, unless it was put or used after the Collect before this
  // one: who did may be about to refer to it.
  absl::Status Collect(const std::set<std::string>& used);
  // Removes it now. REQUIRES: nothing refers to it, nor is about to.
  absl::Status Remove(const std::string& sha256);

 private:
  explicit BlobStore(std::string folder) : folder_(std::move(folder)) {}
  std::string PathOf(const std::string& sha256) const { return folder_ + "/" + sha256; }

  const std::string folder_;
  absl::Mutex files_mu_ ABSL_ACQUIRED_BEFORE(mu_);  // Held while files come and go.
  absl::Mutex mu_;
  std::set<std::string> used_lately_ ABSL_GUARDED_BY(mu_);
};

// Whether it is what names of blobs look like.
bool IsSha256(const std::string& text);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_STATE_BLOB_STORE_H_
