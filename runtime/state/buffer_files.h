// BufferFiles: the contents of durable buffers, one file each: "ID.SEQUENCE".
//
// A buffer is written to a new file under a higher sequence number; the journal then says
// which one counts, and the one before is removed. So a buffer's contents are all of one
// write, however that write ended. The checksum is the journal's.
//
// Thread safety: calls for different buffers may be made at once.
#ifndef RESIDENT_RUNTIME_STATE_BUFFER_FILES_H_
#define RESIDENT_RUNTIME_STATE_BUFFER_FILES_H_

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace resident {

class BufferFiles {
 public:
  static absl::StatusOr<std::unique_ptr<BufferFiles>> Open(const std::string& folder);

  // The checksum of the contents.
  absl::StatusOr<uint32_t> Write(uint64_t id, uint64_t sequence,
                                 absl::Span<const uint8_t> contents) const;
  // DATA_LOSS: they are not what was written.
  absl::StatusOr<std::string> Read(uint64_t id, uint64_t sequence, uint64_t size_bytes,
                                   uint32_t crc) const;
  absl::Status Remove(uint64_t id, uint64_t sequence) const;
  // Removes files that are not among these, which crashes left.
  absl::Status RemoveOthers(const std::set<std::pair<uint64_t, uint64_t>>& used) const;

  std::string PathOf(uint64_t id, uint64_t sequence) const;

 private:
  explicit BufferFiles(std::string folder) : folder_(std::move(folder)) {}

  const std::string folder_;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_STATE_BUFFER_FILES_H_
