// SubmitStream: one Executor.Submit.
//
//            ┌─────────────────── answered or refused ───────────────────┐
//            ▼                                                           │
//   reading ─┴▶ planned ──▶ admitted ──▶ in the runtime ──▶ answered ──▶ written
//      │ ▲
//      ▼ │ an answer was written / the daemon has memory for requests
//     paused
//
// Flow control: a stream is not read while answers to max_stream_batches of its batches are not yet
// written, or while the client's requests that wait use too much of the daemon's memory (paused),
// or while the batch that it has read waits to be admitted (server/admission). A ticket covers the
// batch's answer until it is written, so that a client that does not read its answers gets no
// further tickets. A batch whose deadline passes before it is admitted is refused.
//
// Thread safety: see BidiStream. One thread at a time owns the read loop, from OnRequest until the
// next Read; a batch that waits to be admitted passes the ownership to the callback, or to the
// thread that cancels the wait.
#ifndef RESIDENT_SERVER_RPC_SUBMIT_STREAM_H_
#define RESIDENT_SERVER_RPC_SUBMIT_STREAM_H_

#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "resident/v1/executor.pb.h"
#include "server/rpc/bidi_stream.h"

namespace resident {

class SubmitStream final : public BidiStream<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  SubmitStream(Transport& transport, Core& core) : BidiStream(transport, core) {}
  void Open(const grpc::CallbackServerContext& context);

 private:
  void OnRequest(grpc::ByteBuffer& bytes) override;
  void OnHalfClose() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnWritten() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnMayRead() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnEnd(const absl::Status& status) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Each batch must be answered, unless the call is cancelled: its batches then keep this object
  // alive, but not the call.
  bool Busy() const override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return unanswered_ > 0 && !cancelled();
  }

  // The members marked (read loop) are called by the owner of the read loop.

  // (read loop) Waits asynchronously for the batch's ticket.
  void AwaitTicket(const Needs& needs);
  // (read loop) Launches the batch, or answers that it was refused, and continues to read.
  void Admit(absl::StatusOr<Ticket> ticket);
  absl::Status Launch(Ticket ticket);
  // (read loop) Releases the memory of request_, which is no longer needed. Returns its batch's id.
  uint64_t DropRequest();
  // (read loop) Continues to read, or pauses.
  void ReadOn() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ConcludeIfAnswered() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Answer(RequestBatch& batch);
  // Answers that the batch was refused; if the stream is ending, with the reason for that.
  void Refuse(uint64_t id, const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  std::shared_ptr<Client> client_;
  Clock::time_point deadline_ = Clock::time_point::max();

  // State of the read loop.
  v1::SubmitRequest request_;
  uint64_t request_space_ = 0;  // Bytes that request_ takes.
  Clock::time_point expires_;   // request_'s deadline.
  Budget::Charge request_charge_;
  std::unique_ptr<Workload> work_;  // Refers to request_.

  // Admitted or refused, and not yet written.
  uint32_t unanswered_ ABSL_GUARDED_BY(mu_) = 0;
  bool paused_ ABSL_GUARDED_BY(mu_) = false;
  bool half_closed_ ABSL_GUARDED_BY(mu_) = false;
  absl::flat_hash_map<RequestBatch*, std::shared_ptr<RequestBatch>> running_ ABSL_GUARDED_BY(mu_);
};

}  // namespace resident

#endif  // RESIDENT_SERVER_RPC_SUBMIT_STREAM_H_
