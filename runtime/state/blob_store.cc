#include "runtime/state/blob_store.h"

#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "runtime/base/sha256.h"
#include "runtime/base/status_macros.h"
#include "runtime/state/errors.h"
#include "runtime/state/files.h"

namespace resident {

bool IsSha256(const std::string& text) {
  return text.size() == 64 && std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

absl::StatusOr<std::unique_ptr<BlobStore>> BlobStore::Open(const std::string& folder) {
  if (!folder.empty()) {
    RETURN_IF_ERROR(MakeFolder(folder));
  }
  return std::unique_ptr<BlobStore>(new BlobStore(folder));
}

absl::StatusOr<std::string> BlobStore::Put(std::string_view bytes) {
  std::string sha256 = Sha256Hex(bytes);
  if (folder_.empty()) return sha256;
  absl::MutexLock files(&files_mu_);
  {
    absl::MutexLock lock(&mu_);
    recently_used_.insert(sha256);
  }
  if (synced_.contains(sha256)) {
    // The file may have been damaged since; then it is replaced.
    const absl::StatusOr<std::string> existing = ReadWholeFile(BlobPath(sha256));
    if (existing.ok() && *existing == bytes) return sha256;
  }
  RETURN_IF_ERROR(WriteWholeFile(BlobPath(sha256), {bytes}));
  synced_.insert(sha256);
  return sha256;
}

absl::StatusOr<std::string> BlobStore::Get(const std::string& sha256) const {
  if (folder_.empty() || !IsSha256(sha256)) return errors::NoBlob(sha256);
  absl::StatusOr<std::string> bytes = ReadWholeFile(BlobPath(sha256));
  if (absl::IsNotFound(bytes.status())) return errors::NoBlob(sha256);
  if (bytes.ok() && Sha256Hex(*bytes) != sha256) return errors::DamagedFile(BlobPath(sha256));
  return bytes;
}

bool BlobStore::Use(const std::string& sha256) {
  if (!IsSha256(sha256)) return false;
  if (folder_.empty()) return true;
  absl::MutexLock lock(&mu_);
  if (access(BlobPath(sha256).c_str(), R_OK) != 0) return false;
  recently_used_.insert(sha256);
  return true;
}

absl::Status BlobStore::Remove(const std::string& sha256) {
  absl::MutexLock files(&files_mu_);
  synced_.erase(sha256);
  {
    absl::MutexLock lock(&mu_);
    recently_used_.erase(sha256);
  }
  return RemoveFile(BlobPath(sha256));
}

absl::Status BlobStore::Collect(const std::set<std::string>& used) {
  if (folder_.empty()) return absl::OkStatus();
  absl::MutexLock files(&files_mu_);
  std::set<std::string> kept;
  {
    absl::MutexLock lock(&mu_);
    kept = std::exchange(recently_used_, {});
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> names, ListFiles(folder_));
  for (const std::string& name : names) {
    if (used.contains(name) || kept.contains(name)) continue;
    absl::MutexLock lock(&mu_);
    if (recently_used_.contains(name)) continue;
    synced_.erase(name);
    RETURN_IF_ERROR(RemoveFile(BlobPath(name)));
  }
  return absl::OkStatus();
}

}  // namespace resident
