// BatchStream: one streaming call that runs batches. A derived class knows the messages of its
// protocol: Executor.Submit (server/rpc/executor_service.h) and ModelStreamInfer
// (server/inference/infer_calls.h).
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
// further tickets. A batch whose deadline passes while it waits to be admitted is refused. The
// batches of one request are planned and admitted one after the other before the next request is
// read, so that more than max_stream_batches can be unanswered by those of one request.
//
// Thread safety: see BidiStream. One thread at a time owns the read loop, from OnRequest until the
// next Read; a batch that waits to be admitted passes the ownership to the callback, or to the
// thread that cancels the wait.
#ifndef RESIDENT_SERVER_RPC_BATCH_STREAM_H_
#define RESIDENT_SERVER_RPC_BATCH_STREAM_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "resident/v1/executor.pb.h"
#include "server/rpc/bidi_stream.h"
#include "server/rpc/call.h"
#include "server/rpc/message_bytes.h"

namespace resident {

class BatchStream : public BidiStream<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  // What the answer to a request needs of it.
  class Context {
   public:
    virtual ~Context() = default;
  };

  void Open(const grpc::CallbackServerContext& context);

 protected:
  // Tells the client to which request an answer belongs.
  struct RequestId {
    uint64_t number = 0;
    std::string text = {};
  };
  // `method`: its name for the policy, such as "resident.v1.Executor/Submit".
  BatchStream(Transport& transport, Core& core, const char* method)
      : BidiStream(transport, core),
        method_(method),
        message_limits_(FindMessageLimits(core, absl::StrCat("/", method))),
        wait_(core.admission) {}

  const MessageLimits& message_limits() const { return message_limits_; }

  // Hooks. Those marked (read loop) are called by the owner of the read loop.

  // (read loop) Reads a request, and consumes its bytes. If it cannot be parsed, its id is unknown:
  // the stream then ends with the error.
  virtual absl::Status Parse(grpc::ByteBuffer& bytes) = 0;
  // (read loop) Goes to the next batch of the request. False: there is none.
  virtual bool NextBatch() { return false; }
  // (read loop) Creates the batch of the request that was parsed; an error refuses the request.
  virtual absl::Status Translate() { return absl::OkStatus(); }
  // (read loop) The current batch; empty if Translate failed.
  virtual const v1::Batch& message() const = 0;
  virtual RequestId request_id() const = 0;
  virtual std::shared_ptr<Context> TakeContext() { return nullptr; }
  // Bytes that the request takes, with what Translate created. `waits`: its batch waits to be
  // admitted; otherwise an estimate suffices if the request is small.
  virtual uint64_t RequestBytes(bool waits) = 0;
  // (read loop) The request is not needed any more. `release`: it is large, so that its memory
  // should not be kept for the next one.
  virtual void Drop(bool release) = 0;
  // The owner of the buffers that a batch names.
  virtual ClientId FindBufferOwner(const Client& client) const { return client.id(); }
  // Sets the answer to a batch whose tasks have ended, or to a request that was refused. An error
  // ends the stream.
  virtual absl::Status BuildAnswer(RequestBatch& batch, Context* context,
                                   grpc::ByteBuffer& answer) = 0;
  virtual absl::Status BuildRefusal(const RequestId& id, const absl::Status& why,
                                    grpc::ByteBuffer& answer) = 0;

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

  struct Answered {
    absl::Status built;
    grpc::ByteBuffer bytes;
    Budget::Charge charge;
  };

  // The members marked (read loop) are called by the owner of the read loop.

  // (read loop) Runs the batches of the request, from the current one on, until one must wait for
  // its ticket.
  void RunBatches();
  // (read loop) Acquires the ticket of the current batch. nullopt: it waits for it asynchronously.
  std::optional<absl::StatusOr<Ticket>> AcquireTicket();
  // (read loop) Sets work_ and expires_.
  absl::Status Plan();
  // (read loop) Waits asynchronously for the batch's ticket.
  void AwaitTicket(const Needs& needs);
  // (read loop) Launches the current batch, or answers that it was refused, and goes to the next
  // one. False: that was the last one, and the stream continues to read.
  bool Admit(absl::StatusOr<Ticket> ticket);
  absl::Status Launch(Ticket ticket);
  // (read loop) Goes to the next batch. False: that was the last one; the memory of the request,
  // which is no longer needed, is released.
  bool NextOrDrop();
  // (read loop) For a stream that is ending: refuses the batches of the request from the current
  // one on.
  void RefuseRequest(const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // (read loop) Continues to read, or pauses.
  void ReadOn() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ConcludeIfAnswered() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Answer(RequestBatch& batch, Context* context);
  // Writes answered_ until there is no more.
  void WriteAnswers();
  // Launches no more batches. Returns those that are running.
  std::vector<std::shared_ptr<RequestBatch>> Stop();
  // Answers that the batch was refused; if the stream is ending, with the reason for that.
  void Refuse(const RequestId& id, const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const char* const method_;
  const MessageLimits message_limits_;
  std::shared_ptr<Client> client_;
  Clock::time_point deadline_ = Clock::time_point::max();
  Admission::Wait wait_;  // For the ticket of the current batch; cancelled when the stream ends.

  // State of the read loop.
  uint64_t request_space_ = 0;  // Bytes that the request takes.
  bool first_batch_ = false;    // The current batch is the first of its request.
  Clock::time_point arrived_;   // When the request was read.
  Clock::time_point expires_;   // The batch's deadline.
  Budget::Charge request_charge_;
  std::unique_ptr<Workload> work_;  // Refers to message().

  // Batches that are admitted or refused and not yet written, and one for the request while it has
  // batches that are neither. Increased before the batch is in running_, by the owner of the read
  // loop, or with mu_; decreased with mu_.
  std::atomic<uint32_t> unanswered_ = 0;
  bool paused_ ABSL_GUARDED_BY(mu_) = false;
  bool half_closed_ ABSL_GUARDED_BY(mu_) = false;

  // The state of batches in the runtime. Writes are started with mu_ held, which takes as long as
  // sending; neither the read loop nor the threads that answer wait for that. Taken after mu_.
  absl::Mutex batches_mu_;
  bool stopped_ ABSL_GUARDED_BY(batches_mu_) = false;
  absl::flat_hash_map<RequestBatch*, std::shared_ptr<RequestBatch>> running_
      ABSL_GUARDED_BY(batches_mu_);
  std::vector<Answered> answered_ ABSL_GUARDED_BY(batches_mu_);
  bool writing_answers_ ABSL_GUARDED_BY(batches_mu_) = false;  // A thread is in WriteAnswers.
};

}  // namespace resident

#endif  // RESIDENT_SERVER_RPC_BATCH_STREAM_H_
