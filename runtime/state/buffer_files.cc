#include "runtime/state/buffer_files.h"

#include "absl/strings/str_cat.h"
#include "runtime/base/errors/state_errors.h"
#include "runtime/base/status_macros.h"
#include "runtime/state/crc32c.h"
#include "runtime/state/files.h"

namespace resident {

absl::StatusOr<std::unique_ptr<BufferFiles>> BufferFiles::Open(const std::string& folder) {
  RETURN_IF_ERROR(MakeFolder(folder));
  return std::unique_ptr<BufferFiles>(new BufferFiles(folder));
}

std::string BufferFiles::PathOf(uint64_t id, uint64_t sequence) const {
  return absl::StrCat(folder_, "/", id, ".", sequence);
}

absl::StatusOr<uint32_t> BufferFiles::Write(uint64_t id, uint64_t sequence,
                                            absl::Span<const uint8_t> contents) const {
  const std::string_view bytes(reinterpret_cast<const char*>(contents.data()), contents.size());
  RETURN_IF_ERROR(WriteWholeFile(PathOf(id, sequence), {bytes}));
  return Crc32c(bytes);
}

absl::StatusOr<std::string> BufferFiles::Read(uint64_t id, uint64_t sequence, uint64_t size_bytes,
                                              uint32_t crc) const {
  absl::StatusOr<std::string> bytes = ReadWholeFile(PathOf(id, sequence));
  if (absl::IsNotFound(bytes.status())) return errors::DamagedFile(PathOf(id, sequence));
  if (!bytes.ok()) return bytes;
  if (bytes->size() != size_bytes || Crc32c(*bytes) != crc) {
    return errors::DamagedFile(PathOf(id, sequence));
  }
  return bytes;
}

absl::Status BufferFiles::Remove(uint64_t id, uint64_t sequence) const {
  return RemoveFile(PathOf(id, sequence));
}

absl::Status BufferFiles::RemoveOthers(const std::set<std::pair<uint64_t, uint64_t>>& used) const {
  std::set<std::string> names;
  for (const auto& [id, sequence] : used) names.insert(absl::StrCat(id, ".", sequence));
  ASSIGN_OR_RETURN(const std::vector<std::string> found, ListFiles(folder_));
  for (const std::string& name : found) {
    if (names.contains(name)) continue;
    RETURN_IF_ERROR(RemoveFile(folder_ + "/" + name));
  }
  return absl::OkStatus();
}

}  // namespace resident
