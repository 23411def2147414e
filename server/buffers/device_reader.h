// DeviceReader: reads a range of a buffer, piece by piece, in order.
//
// Pieces are passed to `take` one at a time, on a thread of the pool for answers. The staging
// memory of a piece is released when `take` returns, so that a slow receiver holds none of it. At
// most kPiecesAhead pieces are under way, or passed on and not released by Next(). The memory
// charge for the receiver's message is acquired together with the staging memory, and passed on
// with the piece; the reader waits for both.
//
//   auto reader = std::make_shared<DeviceReader>(
//       core, client, buffer, DeviceReader::Range{offset, size, piece_bytes},
//       /*take=*/[](absl::Span<const uint8_t> data, Budget::Charge memory) {...},   // Copies.
//       /*end=*/[](const absl::Status& status) {...});
//   reader->Start();
//   ... for each piece that `take` got, when its copy is no longer needed: reader->Next();
//
// `end` is called once: when a copy failed or every piece was passed on, and Next() was called for
// all pieces passed on. No callback follows it.
//
// Thread safety: all members may be called from any thread.
#ifndef RESIDENT_SERVER_BUFFERS_DEVICE_READER_H_
#define RESIDENT_SERVER_BUFFERS_DEVICE_READER_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "server/core/core.h"

namespace resident {

class DeviceReader : public std::enable_shared_from_this<DeviceReader> {
 public:
  static constexpr size_t kPiecesAhead = 4;

  // Copies of each byte of a piece: the receiver's message, and gRPC's copy of it.
  static constexpr uint64_t kMessageCopies = 2;

  using Take = std::function<void(absl::Span<const uint8_t> data, Budget::Charge memory)>;
  using End = std::function<void(const absl::Status& status)>;

  struct Range {
    uint64_t offset;
    uint64_t size;
    uint64_t piece_bytes;
  };

  DeviceReader(Core& core, std::shared_ptr<Client> client, std::shared_ptr<const Buffer> buffer,
               const Range& range, Take take, End end)
      : core_(core),
        client_(std::move(client)),
        buffer_(std::move(buffer)),
        piece_bytes_(core.admission.PieceBytes(buffer_->device, range.piece_bytes)),
        take_(std::move(take)),
        end_(std::move(end)),
        next_offset_(range.offset),
        end_offset_(range.offset + range.size) {}

  void Start() { Post(); }
  // Releases one of the pieces passed on.
  void Next();
  // Ends with CANCELLED.
  void Cancel();

 private:
  struct Piece {
    Ticket ticket;
    uint64_t bytes = 0;
    bool done = false;
  };

  // Requests as many pieces as may be under way. Returns whether the reader must wait for a ticket.
  bool RequestPieces() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The needs of the next piece.
  absl::StatusOr<Needs> NextNeeds() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Request(const Needs& needs, Ticket ticket) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AwaitTicket() ABSL_LOCKS_EXCLUDED(mu_);
  // Runs Advance() on the pool.
  void Post();
  void OnPieceDone(Piece& piece, const absl::Status& status);
  // Requests pieces, passes pieces on, or ends. Runs on the pool.
  void Advance();

  Core& core_;
  const std::shared_ptr<Client> client_;
  const std::shared_ptr<const Buffer> buffer_;
  const uint64_t piece_bytes_;
  const Take take_;
  const End end_;

  absl::Mutex mu_;
  uint64_t next_offset_ ABSL_GUARDED_BY(mu_);
  const uint64_t end_offset_;
  std::deque<std::shared_ptr<Piece>> pieces_ ABSL_GUARDED_BY(mu_);
  bool waiting_ ABSL_GUARDED_BY(mu_) = false;  // For a ticket.
  bool taking_ ABSL_GUARDED_BY(mu_) = false;   // `take` is being called.
  size_t handed_over_ ABSL_GUARDED_BY(mu_) = 0;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
};

}  // namespace resident

#endif  // RESIDENT_SERVER_BUFFERS_DEVICE_READER_H_
