// UploadStream: one Buffers.Upload.
//
// Each message is cut into pieces, which go through staging memory to the buffer, two of
// them under way at a time: one is copied into staging memory while the device copies
// the other out of it. The next message is read once the last piece of the one before
// is under way. Where staging memory is full, the upload waits for it.
//
// Thread safety: gRPC and the copies' answers call its members from any thread; mu_
// guards everything.
#ifndef RESIDENT_SERVER_RPC_UPLOAD_STREAM_H_
#define RESIDENT_SERVER_RPC_UPLOAD_STREAM_H_

#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "resident/v1/buffers.pb.h"
#include "server/rpc/core.h"
#include "server/rpc/live_streams.h"

namespace resident {

class UploadStream final : public grpc::ServerReadReactor<grpc::ByteBuffer>,
                           public LiveStream,
                           public std::enable_shared_from_this<UploadStream> {
 public:
  // Owns itself until gRPC is done with it and its last copy has ended.
  static UploadStream* Start(Core& core, const grpc::CallbackServerContext& context,
                             grpc::ByteBuffer& response);
  ~UploadStream() override;

  void OnReadDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override { self_.reset(); }
  // A message that is awaited does not hold it up; pieces that are under way do.
  void End(const absl::Status& status) override;

 private:
  UploadStream(Core& core, const grpc::CallbackServerContext& context, grpc::ByteBuffer& response)
      : core_(core), context_(context), response_(response) {}
  void Open();
  // Takes the message that was read.
  absl::Status Accept() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status SendPiece() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnPieceDone(const absl::Status& copied, uint64_t offset, uint64_t bytes,
                   const uint8_t* host);
  // Sends the piece that needs_ is about.
  absl::Status Send(Ticket ticket) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AwaitTicket() ABSL_LOCKS_EXCLUDED(mu_);
  // Gives the message's memory back and reads the next one, or waits for room for it.
  void ReadOn() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Fail(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Puts what was uploaded into the durable copy and saves that, if it is a durable buffer.
  void FinishUpload() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Core& core_;
  const grpc::CallbackServerContext& context_;
  grpc::ByteBuffer& response_;
  std::shared_ptr<UploadStream> self_;  // Until OnDone.
  std::shared_ptr<Client> client_;
  bool entered_ = false;  // Counted by the gate.

  absl::Mutex mu_;
  grpc::ByteBuffer message_bytes_ ABSL_GUARDED_BY(mu_);  // gRPC's while reading_.
  v1::UploadRequest message_ ABSL_GUARDED_BY(mu_);
  Budget::Charge message_charge_ ABSL_GUARDED_BY(mu_);
  bool reading_ ABSL_GUARDED_BY(mu_) = false;
  bool reads_ended_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<const Buffer> buffer_ ABSL_GUARDED_BY(mu_);  // From the first message on.
  // Durable buffers: committed once all of the upload is on the device. Shared with the pieces.
  std::shared_ptr<DurableWrite> durable_write_ ABSL_GUARDED_BY(mu_);
  uint64_t position_ ABSL_GUARDED_BY(mu_) = 0;  // In message_'s data.
  uint64_t offset_ ABSL_GUARDED_BY(mu_) = 0;    // Of position_, in the buffer.
  uint64_t written_ ABSL_GUARDED_BY(mu_) = 0;
  int under_way_ ABSL_GUARDED_BY(mu_) = 0;
  Needs needs_ ABSL_GUARDED_BY(mu_);           // Of the next piece.
  bool waiting_ ABSL_GUARDED_BY(mu_) = false;  // For a ticket.
};

}  // namespace resident

#endif  // RESIDENT_SERVER_RPC_UPLOAD_STREAM_H_
