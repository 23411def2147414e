#include "runtime/state/blob_store.h"

#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "runtime/errors/state_errors.h"
#include "runtime/hash/sha256.h"
#include "runtime/state/files.h"

namespace resident {

bool IsSha256(const std::string& text) {
  return text.size() == 64 && std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

absl::StatusOr<std::unique_ptr<BlobStore>> BlobStore::Open(const std::string& folder) {
  if (!folder.empty()) {
    const absl::Status made = MakeFolder(folder);
    if (!made.ok()) return made;
  }
  return std::unique_ptr<BlobStore>(new BlobStore(folder));
}

absl::StatusOr<std::string> BlobStore::Put(std::string_view bytes) {
  std::string sha256 = Sha256Hex(bytes);
  absl::MutexLock lock(&mu_);
  put_lately_.insert(sha256);
  if (folder_.empty()) {
    memory_.try_emplace(sha256, bytes);
    return sha256;
  }
  // One that is there may have been damaged since: it is as good as new afterwards.
  const absl::StatusOr<std::string> there = ReadWholeFile(PathOf(sha256));
  if (there.ok() && *there == bytes) return sha256;
  const absl::Status written = WriteWholeFile(PathOf(sha256), {bytes});
  if (!written.ok()) return written;
  return sha256;
}

absl::StatusOr<std::string> BlobStore::Get(const std::string& sha256) const {
  if (!IsSha256(sha256)) return errors::NoBlob(sha256);
  if (folder_.empty()) {
    absl::MutexLock lock(&mu_);
    const auto found = memory_.find(sha256);
    if (found == memory_.end()) return errors::NoBlob(sha256);
    return found->second;
  }
  absl::StatusOr<std::string> bytes = ReadWholeFile(PathOf(sha256));
  if (absl::IsNotFound(bytes.status())) return errors::NoBlob(sha256);
  if (bytes.ok() && Sha256Hex(*bytes) != sha256) return errors::DamagedFile(PathOf(sha256));
  return bytes;
}

bool BlobStore::Has(const std::string& sha256) const {
  if (!IsSha256(sha256)) return false;
  if (!folder_.empty()) return access(PathOf(sha256).c_str(), R_OK) == 0;
  absl::MutexLock lock(&mu_);
  return memory_.contains(sha256);
}

absl::Status BlobStore::Collect(const std::set<std::string>& used) {
  absl::MutexLock lock(&mu_);
  const std::set<std::string> spared = std::exchange(put_lately_, {});
  const auto keep = [&](const std::string& name) {
    return used.contains(name) || spared.contains(name);
  };
  if (folder_.empty()) {
    std::erase_if(memory_, [&](const auto& blob) { return !keep(blob.first); });
    return absl::OkStatus();
  }
  const absl::StatusOr<std::vector<std::string>> names = ListFiles(folder_);
  if (!names.ok()) return names.status();
  for (const std::string& name : *names) {
    if (keep(name)) continue;
    const absl::Status removed = RemoveFile(PathOf(name));
    if (!removed.ok()) return removed;
  }
  return absl::OkStatus();
}

}  // namespace resident
