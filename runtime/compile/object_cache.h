// ObjectCache: results of the compiler on disk, by content.
//
// One file for each key in a folder. A file is written under another name, synced and
// renamed, so it is there as a whole or not at all; it begins with a checksum, and one
// that is damaged is removed and not found. Over the limit on bytes, the files that were
// not used for the longest are removed (a use is seen by the file's time of change).
//
// Thread safety: all members may be called from any thread, and several processes may
// share the folder.
//
//   ASSIGN_OR_RETURN(auto cache, ObjectCache::Open(folder, 512 << 20));
//   if (std::optional<std::string> found = cache->Get(key)) ...
//   cache->Put(key, bytes);
#ifndef RESIDENT_RUNTIME_COMPILE_OBJECT_CACHE_H_
#define RESIDENT_RUNTIME_COMPILE_OBJECT_CACHE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

namespace resident {

class ObjectCache {
 public:
  // Makes the folder if need be. FAILED_PRECONDITION: it cannot be written to.
  static absl::StatusOr<std::unique_ptr<ObjectCache>> Open(const std::string& folder,
                                                           uint64_t most_bytes);

  // `key`: 64 hex digits.
  std::optional<std::string> Get(const std::string& key);
  // A failure is reported and otherwise harmless: the entry is not there.
  absl::Status Put(const std::string& key, const std::string& bytes);

  // Of this cache's own last look at the folder, and what it wrote since.
  uint64_t bytes() const;

 private:
  ObjectCache(std::string folder, uint64_t most_bytes)
      : folder_(std::move(folder)), most_bytes_(most_bytes) {}

  std::string FindPath(const std::string& key) const { return folder_ + "/" + key; }
  // Looks at the folder, and removes entries until it is within the limit, with room to
  // spare.
  void Shrink() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::string folder_;
  const uint64_t most_bytes_;
  mutable absl::Mutex mu_;
  uint64_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_COMPILE_OBJECT_CACHE_H_
