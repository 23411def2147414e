// UploadStream: one Buffers.Upload.
//
// Each message is cut into pieces, which go through staging memory to the buffer, two of
// them under way at a time: one is copied into staging memory while the device copies
// the other out of it. The next message is read once the last piece of the one before
// is under way. Where staging memory is full, the upload waits for it.
//
// A stream that ends does not wait for a message, but for the pieces that are under way.
//
// Thread safety: as BidiStream.
#ifndef RESIDENT_SERVER_RPC_UPLOAD_STREAM_H_
#define RESIDENT_SERVER_RPC_UPLOAD_STREAM_H_

#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "resident/v1/buffers.pb.h"
#include "server/rpc/bidi_stream.h"

namespace resident {

class UploadStream final : public BidiStream<grpc::ByteBuffer, NoMessage> {
 public:
  UploadStream(Transport& transport, Core& core) : BidiStream(transport, core) {}
  ~UploadStream() override;
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
  // The write ends before the answer.
  void OnFinish() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { durable_write_.reset(); }

  // Takes the message that was read.
  absl::Status Accept(grpc::ByteBuffer& bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status SendPiece() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Sends the piece that needs_ is about.
  absl::Status Send(Ticket ticket) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AwaitTicket() ABSL_LOCKS_EXCLUDED(mu_);
  void OnTicket(absl::StatusOr<Ticket> ticket) ABSL_LOCKS_EXCLUDED(mu_);
  void OnPieceDone(const absl::Status& copied, uint64_t offset, uint64_t bytes,
                   const uint8_t* host);
  // Gives the message's memory back and reads the next one, or waits for room for it.
  void ReadOn() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Concludes with `status`, unless it is OK.
  void Fail(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Does what is due: sends pieces, reads, completes, or ends.
  void Step() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Everything is on the device. Puts it into the durable copy and saves that, if it is a durable
  // buffer.
  void Complete() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  grpc::ByteBuffer* response_ = nullptr;
  std::shared_ptr<Client> client_;
  bool entered_ = false;  // Counted by the gate.

  v1::UploadRequest message_ ABSL_GUARDED_BY(mu_);
  Budget::Charge message_charge_ ABSL_GUARDED_BY(mu_);
  bool awaits_message_ ABSL_GUARDED_BY(mu_) = false;
  bool half_closed_ ABSL_GUARDED_BY(mu_) = false;
  std::shared_ptr<const Buffer> buffer_ ABSL_GUARDED_BY(mu_);  // From the first message on.
  // Durable buffers: committed once all of the upload is on the device. Shared with the pieces.
  std::shared_ptr<DurableWrite> durable_write_ ABSL_GUARDED_BY(mu_);
  uint64_t position_ ABSL_GUARDED_BY(mu_) = 0;  // In message_'s data.
  uint64_t offset_ ABSL_GUARDED_BY(mu_) = 0;    // Of position_, in the buffer.
  uint64_t written_ ABSL_GUARDED_BY(mu_) = 0;
  int under_way_ ABSL_GUARDED_BY(mu_) = 0;
  Needs needs_ ABSL_GUARDED_BY(mu_);           // Of the next piece.
  bool waiting_ ABSL_GUARDED_BY(mu_) = false;  // For a ticket.
  bool saving_ ABSL_GUARDED_BY(mu_) = false;   // The buffer is on its way to the disk.
};

}  // namespace resident

#endif  // RESIDENT_SERVER_RPC_UPLOAD_STREAM_H_
