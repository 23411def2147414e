// UploadStream: one Buffers.Upload.
//
// Each message is divided into pieces, which are copied through staging memory to the buffer. Two
// pieces are under way at a time: one is copied into staging memory while the device copies the
// other out of it. The next message is read once the last piece of the previous one is under way.
// If staging memory is full, the upload waits for it.
//
// A stream that is ending waits for the pieces that are under way, but not for a message.
//
// Thread safety: see BidiStream.
#ifndef RESIDENT_SERVER_BUFFERS_UPLOAD_STREAM_H_
#define RESIDENT_SERVER_BUFFERS_UPLOAD_STREAM_H_

#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "resident/v1/buffers.pb.h"
#include "server/rpc/bidi_stream.h"
#include "server/rpc/call.h"
#include "server/rpc/message_bytes.h"

namespace resident {

class UploadStream final : public BidiStream<grpc::ByteBuffer, NoMessage> {
 public:
  UploadStream(Transport& transport, Core& core)
      : BidiStream(transport, core),
        limits_(FindMessageLimits(core, "/resident.v1.Buffers/Upload")) {}
  // `response`: sent if the stream ends OK; valid until OnDone.
  void Open(const grpc::CallbackServerContext& context, grpc::ByteBuffer& response);

 private:
  void OnRequest(grpc::ByteBuffer& bytes) override;
  void OnHalfClose() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnMayRead() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { Step(); }
  void OnEnd(const absl::Status& status) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool Busy() const override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return under_way_ > 0 || waiting_ || saving_;
  }
  // The durable write ends before the answer is sent.
  void OnFinish() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { durable_write_.reset(); }

  // Checks and stores the message that was read.
  absl::Status Accept(grpc::ByteBuffer& bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status SendPiece() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Sends the piece that needs_ describes.
  absl::Status Send(Ticket ticket) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AwaitTicket() ABSL_LOCKS_EXCLUDED(mu_);
  void OnTicket(absl::StatusOr<Ticket> ticket) ABSL_LOCKS_EXCLUDED(mu_);
  void OnPieceDone(const absl::Status& copied, uint64_t offset, uint64_t bytes,
                   const uint8_t* host);
  // Releases the message's memory and reads the next one, or waits until there is memory for it.
  void ReadOn() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Concludes with `status`, unless it is OK.
  void Fail(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Does the next step: sends pieces, reads, completes, or ends.
  void Step() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Called when all data is on the device. Updates and saves the copy of a durable buffer.
  void Complete() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const MessageLimits limits_;
  grpc::ByteBuffer* response_ = nullptr;
  std::shared_ptr<Client> client_;
  DrainGate::Entry entry_;

  v1::UploadRequest message_ ABSL_GUARDED_BY(mu_);
  Budget::Charge message_charge_ ABSL_GUARDED_BY(mu_);
  bool awaits_message_ ABSL_GUARDED_BY(mu_) = false;
  bool half_closed_ ABSL_GUARDED_BY(mu_) = false;
  std::shared_ptr<const Buffer> buffer_ ABSL_GUARDED_BY(mu_);  // From the first message on.
  // For a durable buffer: committed once all of the upload is on the device. Shared with the
  // pieces.
  std::shared_ptr<DurableWrite> durable_write_ ABSL_GUARDED_BY(mu_);
  uint64_t position_ ABSL_GUARDED_BY(mu_) = 0;  // In message_'s data.
  uint64_t offset_ ABSL_GUARDED_BY(mu_) = 0;    // The buffer's offset for position_.
  uint64_t written_ ABSL_GUARDED_BY(mu_) = 0;
  int under_way_ ABSL_GUARDED_BY(mu_) = 0;
  Needs needs_ ABSL_GUARDED_BY(mu_);           // Needs of the next piece.
  bool waiting_ ABSL_GUARDED_BY(mu_) = false;  // For a ticket.
  bool saving_ ABSL_GUARDED_BY(mu_) = false;   // The buffer is being written to the disk.
};

}  // namespace resident

#endif  // RESIDENT_SERVER_BUFFERS_UPLOAD_STREAM_H_
