// SubmitStream: one Executor.Submit.
//
//            ┌─────────────────── answered or refused ───────────────────┐
//            ▼                                                           │
//   reading ─┴▶ planned ──▶ admitted ──▶ in the runtime ──▶ answered ──▶ written
//      │ ▲
//      ▼ │ an answer was written / the daemon has memory for requests
//     paused
//
// Flow control: a stream is not read from while max_stream_batches of its batches are
// not written back, or the client's requests that wait take too much of the daemon's memory
// (paused), nor while the batch that it has read waits to be admitted (server/admission). A
// ticket covers the batch's answer until it is written: a client that does not read its answers
// gets no further tickets. A batch whose time is over before it is admitted is refused.
//
// Thread safety: gRPC, the admission and the runner call its members from any thread. One thread
// at a time owns the read loop, from a read until the next one is started; a batch that waits to
// be admitted passes the ownership to the callback, or to whoever cancels it. mu_ guards the
// rest. Operations are started under mu_, and none after Finish.
#ifndef RESIDENT_SERVER_RPC_SUBMIT_STREAM_H_
#define RESIDENT_SERVER_RPC_SUBMIT_STREAM_H_

#include <deque>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "resident/v1/executor.pb.h"
#include "server/rpc/core.h"
#include "server/rpc/live_streams.h"

namespace resident {

class SubmitStream final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                           public LiveStream,
                           public std::enable_shared_from_this<SubmitStream> {
 public:
  // Owns itself until gRPC is done with it and its last batch is answered.
  static SubmitStream* Start(Core& core, const grpc::CallbackServerContext& context);
  ~SubmitStream() override;

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override { self_.reset(); }
  void End(const absl::Status& status) override;

 private:
  explicit SubmitStream(Core& core) : core_(core) {}
  void Open(const grpc::CallbackServerContext& context);

  // The members marked (read loop) are called by the owner of the read loop.

  // (read loop) Has the batch admitted, at once or later.
  void Acquire();
  // (read loop) Launches the batch, or answers its refusal, and reads on.
  void Admit(absl::StatusOr<Ticket> ticket);
  absl::Status Launch(Ticket ticket);
  // (read loop) request_ is done with: its memory is given back. Returns its batch's id.
  uint64_t DropRequest();
  // (read loop) Reads on, or pauses.
  void ReadOn() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The batch does not wait any more to be admitted: the call is cancelled, or the stream ends.
  void StopWaiting();
  void Answer(RequestBatch& batch);
  void Refuse(uint64_t id, const absl::Status& why);
  void Write(grpc::ByteBuffer response, Budget::Charge charge);
  void Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CancelRunning();

  Core& core_;
  std::shared_ptr<SubmitStream> self_;  // Until OnDone.
  std::shared_ptr<Client> client_;
  Clock::time_point deadline_ = Clock::time_point::max();

  // Of the read loop.
  grpc::ByteBuffer request_bytes_;  // gRPC's while it reads.
  v1::SubmitRequest request_;
  uint64_t request_space_ = 0;  // Bytes that request_ takes.
  Clock::time_point expires_;   // request_'s deadline.
  Budget::Charge request_charge_;
  std::unique_ptr<Workload> work_;  // Refers to request_.

  absl::Mutex mu_;
  // Admitted or refused, and not yet written.
  uint32_t unanswered_ ABSL_GUARDED_BY(mu_) = 0;
  bool paused_ ABSL_GUARDED_BY(mu_) = false;
  bool reads_ended_ ABSL_GUARDED_BY(mu_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status end_ ABSL_GUARDED_BY(mu_);  // How the stream ends.
  struct Unwritten {
    grpc::ByteBuffer response;
    Budget::Charge charge;
  };
  std::deque<Unwritten> responses_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<RequestBatch*, std::shared_ptr<RequestBatch>> running_ ABSL_GUARDED_BY(mu_);
};

}  // namespace resident

#endif  // RESIDENT_SERVER_RPC_SUBMIT_STREAM_H_
