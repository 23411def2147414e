// ObjectCache: stores results of the compiler on disk, by content.
//
// A folder with one file for each key. A file is written under a temporary name and renamed,
// so no reader sees a part of it. It begins with a checksum; Get removes a damaged file and does
// not return it. If the files exceed the limit on bytes, the least recently used ones are removed
// (Get sets a file's modification time).
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
  // Makes the folder if it does not exist. FAILED_PRECONDITION: it cannot be written to.
  static absl::StatusOr<std::unique_ptr<ObjectCache>> Open(const std::string& folder,
                                                           uint64_t max_bytes);

  // `key`: 64 hex digits.
  std::optional<std::string> Get(const std::string& key);
  // If it fails, the entry is not in the cache.
  absl::Status Put(const std::string& key, const std::string& bytes);

  // The size of the folder when this object last read it, and what it has written since.
  uint64_t bytes() const;

 private:
  ObjectCache(std::string folder, uint64_t max_bytes)
      : folder_(std::move(folder)), max_bytes_(max_bytes) {}

  std::string PathTo(const std::string& key) const { return folder_ + "/" + key; }
  // Reads the folder, and removes entries until it is a tenth below the limit.
  void Shrink() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::string folder_;
  const uint64_t max_bytes_;
  mutable absl::Mutex mu_;
  uint64_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_COMPILE_OBJECT_CACHE_H_
