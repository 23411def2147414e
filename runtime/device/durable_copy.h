// DurableCopy: the host's copy of a durable buffer: the contents of its completed writes, and zeros
// where nothing was written. A replaced engine and the state folder get these contents.
//
// A write (an upload, a Persist) collects its pieces in a DurableWrite. Commit puts all of them
// into the contents at once; a write that ends without it changes nothing.
//
// A copy mirrors one engine, identified by its epoch: the one whose memory contains the buffer. A
// write belongs to the engine that the buffer had when the write began. It fails if the copy
// mirrors another engine by then, because the new engine got the contents without it.
//
// Invariants:
//   1. The contents are those of completed writes only.
//   2. Once Mirror(epoch) has returned true, no write of an earlier engine changes the contents.
//   3. A Persist is committed only if no upload ran at any time since it began: otherwise the data
//      that it read from the device could contain a part of that upload.
//   4. No thread holds a lock while it waits for a device or a disk.
//
// Thread safety: all members may be called from any thread.
//
//   ASSIGN_OR_RETURN(auto write, copy->StartWrite(DurableCopy::Kind::kUpload, id, epoch, own));
//   RETURN_IF_ERROR(write->Add(offset, data));  // For each piece, in any order.
//   RETURN_IF_ERROR(write->Commit());
#ifndef RESIDENT_RUNTIME_DEVICE_DURABLE_COPY_H_
#define RESIDENT_RUNTIME_DEVICE_DURABLE_COPY_H_

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "runtime/device/host_memory.h"

namespace resident {

class DurableWrite;

// Accounts for the memory of copies and of writes to them. The limits apply to each separately.
struct DurableMemory {
  DurableMemory(uint64_t client_limit_bytes, uint64_t limit_bytes)
      : copies(client_limit_bytes, limit_bytes), writes(client_limit_bytes, limit_bytes) {}
  HostMemory copies;
  HostMemory writes;
};
struct DurableUse {
  std::shared_ptr<HostUsage> copies = std::make_shared<HostUsage>();
  std::shared_ptr<HostUsage> writes = std::make_shared<HostUsage>();
};

class DurableCopy : public std::enable_shared_from_this<DurableCopy> {
 public:
  // Makes a copy of zeros that mirrors the engine with this epoch. The system allocates its memory
  // when it is written. RESOURCE_EXHAUSTED: over a limit of `memory`, or out of memory.
  static absl::StatusOr<std::shared_ptr<DurableCopy>> Make(std::shared_ptr<DurableMemory> memory,
                                                           std::shared_ptr<HostUsage> own,
                                                           uint64_t bytes, uint64_t epoch);
  // Makes a copy with these contents (empty: all zeros). It was accepted before the daemon was
  // restarted, so no limit applies. It mirrors no engine yet.
  static absl::StatusOr<std::shared_ptr<DurableCopy>> Restore(std::shared_ptr<DurableMemory> memory,
                                                              uint64_t bytes,
                                                              absl::Span<const uint8_t> contents);

  enum class Kind {
    kUpload,   // Writes a part of the buffer.
    kPersist,  // Writes the device's contents of the whole buffer.
  };
  // `epoch`: that of the engine that has the buffer. `own`: the account for the pieces.
  // UNAVAILABLE: the copy mirrors another engine. ABORTED: a Persist during an upload.
  absl::StatusOr<std::unique_ptr<DurableWrite>> StartWrite(Kind kind, uint64_t buffer_id,
                                                           uint64_t epoch,
                                                           std::shared_ptr<HostUsage> own);

  // Makes the copy mirror this engine from now on. Returns false if it mirrors a newer one.
  bool Mirror(uint64_t epoch);
  // Copies a part of the contents. Returns false if it mirrors another engine by now.
  bool Read(uint64_t epoch, uint64_t offset, absl::Span<uint8_t> to) const;
  std::vector<uint8_t> Contents() const;

 private:
  friend class DurableWrite;
  struct FreeBytes {
    void operator()(uint8_t* bytes) const { free(bytes); }
  };
  using Bytes = std::unique_ptr<uint8_t[], FreeBytes>;

  static absl::StatusOr<std::shared_ptr<DurableCopy>> MakeCharged(
      std::shared_ptr<DurableMemory> memory, HostMemory::Charge charge, uint64_t bytes,
      uint64_t epoch);
  DurableCopy(std::shared_ptr<DurableMemory> memory, HostMemory::Charge charge, Bytes bytes,
              uint64_t size, uint64_t epoch)
      : memory_(std::move(memory)),
        charge_(std::move(charge)),
        size_(size),
        bytes_(std::move(bytes)),
        epoch_(epoch) {}

  const std::shared_ptr<DurableMemory> memory_;  // Outlives the charges.
  const HostMemory::Charge charge_;
  const uint64_t size_;
  mutable absl::Mutex mu_;
  const Bytes bytes_ ABSL_GUARDED_BY(mu_);
  uint64_t epoch_ ABSL_GUARDED_BY(mu_);
  uint64_t open_uploads_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t started_uploads_ ABSL_GUARDED_BY(mu_) = 0;
};

// A write that has not ended. If it is destroyed without Commit, it changes nothing.
class DurableWrite {
 public:
  ~DurableWrite();

  // Adds a piece that is already on the device. Any number of threads may add pieces concurrently.
  // UNAVAILABLE: the copy mirrors another engine. RESOURCE_EXHAUSTED: over a limit, or out of
  // memory.
  absl::Status Add(uint64_t offset, absl::Span<const uint8_t> data);
  // Writes all pieces to the contents. Call it once, after every Add has returned. After an error
  // nothing is changed. UNAVAILABLE: the copy mirrors another engine. ABORTED: an upload ran during
  // this Persist.
  absl::Status Commit();

 private:
  friend class DurableCopy;
  struct Piece {
    uint64_t offset;
    uint64_t bytes;
    DurableCopy::Bytes data;
    HostMemory::Charge charge;
  };
  DurableWrite(std::shared_ptr<DurableCopy> copy, DurableCopy::Kind kind, uint64_t buffer_id,
               uint64_t epoch, uint64_t started_uploads, std::shared_ptr<HostUsage> own)
      : copy_(std::move(copy)),
        kind_(kind),
        buffer_id_(buffer_id),
        epoch_(epoch),
        started_uploads_(started_uploads),
        own_(std::move(own)) {}

  const std::shared_ptr<DurableCopy> copy_;
  const DurableCopy::Kind kind_;
  const uint64_t buffer_id_;
  const uint64_t epoch_;
  const uint64_t started_uploads_;  // The copy's counter when this write began.
  const std::shared_ptr<HostUsage> own_;
  absl::Mutex mu_;  // Acquired before the copy's mu_.
  std::vector<Piece> pieces_ ABSL_GUARDED_BY(mu_);
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_DEVICE_DURABLE_COPY_H_
