// DurableCopy: the host's copy of a durable buffer: what its completed writes left, and zeros
// where nothing was written. An engine's replacement and the state folder get these contents.
//
// A write (an upload, a Persist) collects its pieces in a DurableWrite. Commit puts all of them
// into the contents at once; a write that ends without it changes nothing.
//
// A copy mirrors one engine, known by its epoch: the one whose memory holds the buffer. A write
// belongs to the engine that the buffer had when it began, and fails once the copy mirrors another
// one: the new engine got the contents without it.
//
// Invariants:
//   1. The contents are those of completed writes, whatever became of the others.
//   2. Once Mirror(epoch) has returned true, no write of an earlier engine changes the contents.
//   3. A Persist is committed only if no upload was under way at any time since it began: what it
//      read of the device could otherwise hold a part of that upload.
//   4. No lock is held while a device or a disk is waited for.
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
#include "runtime/base/host_memory.h"

namespace resident {

class DurableWrite;

// What copies and the writes to them are charged to. The limits hold for each.
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
  // All zeros, mirroring the engine with this epoch. Its memory is taken as it is written.
  // RESOURCE_EXHAUSTED: over a limit of `memory`, or the system has no more.
  static absl::StatusOr<std::shared_ptr<DurableCopy>> Make(std::shared_ptr<DurableMemory> memory,
                                                           std::shared_ptr<HostUsage> own,
                                                           uint64_t bytes, uint64_t epoch);
  // A copy with these contents (empty: all zeros) that was accepted before the daemon was
  // restarted: no limit refuses it. It mirrors no engine yet.
  static absl::StatusOr<std::shared_ptr<DurableCopy>> Restore(std::shared_ptr<DurableMemory> memory,
                                                              uint64_t bytes,
                                                              absl::Span<const uint8_t> contents);

  enum class Kind {
    kUpload,   // Of a part of the buffer.
    kPersist,  // Of what the whole buffer has on the device.
  };
  // `epoch`: of the engine that the buffer is on. `own`: what the pieces are charged to.
  // UNAVAILABLE: the copy mirrors another engine. ABORTED: a Persist during an upload.
  absl::StatusOr<std::unique_ptr<DurableWrite>> StartWrite(Kind kind, uint64_t buffer_id,
                                                           uint64_t epoch,
                                                           std::shared_ptr<HostUsage> own);

  // From now on the copy mirrors this engine. False: it mirrors a newer one.
  bool Mirror(uint64_t epoch);
  // Copies a part of the contents. False: it mirrors another engine by now.
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

// One write that has not ended. Destroyed without Commit, it changes nothing.
class DurableWrite {
 public:
  ~DurableWrite();

  // Takes a piece that is on the device. Any number of threads may add pieces at once.
  // UNAVAILABLE: the copy mirrors another engine. RESOURCE_EXHAUSTED: over a limit, or the system
  // has no more memory.
  absl::Status Add(uint64_t offset, absl::Span<const uint8_t> data);
  // Puts all pieces into the contents. Once, after every Add has returned. UNAVAILABLE: the copy
  // mirrors another engine. ABORTED: an upload ran during this Persist. Nothing is changed then.
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
  const uint64_t started_uploads_;  // Of the copy, when this began.
  const std::shared_ptr<HostUsage> own_;
  absl::Mutex mu_;  // Taken before the copy's.
  std::vector<Piece> pieces_ ABSL_GUARDED_BY(mu_);
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_DEVICE_DURABLE_COPY_H_
