// SubmitStream: one Executor.Submit.
//
//            ┌──────────── answered or refused ────────────┐
//            ▼                                             │
//   reading ─┴▶ admitted ──▶ in the runtime ──▶ answered ──▶ written
//      │ ▲
//      ▼ │ an answer was written / a batch of the client's completed /
//        │ memory was given back / the client read an answer
//   paused, waiting
//
// Flow control: a stream is not read from while max_stream_batches of its batches are
// not written back (paused), nor while the batch that it has read waits: because it does
// not fit the client's queue (it is tried again when a batch of the client's completes) or
// staging memory (when its turn in the line for that has come) or the daemon's memory for
// batches (when enough is given back), or because the client leaves too many answers unread
// (when it has read some). Batches that wait and answers
// that are not written count as the client's host memory; while that is full
// (runtime/base/host_memory.h), none of its streams is read from (paused). A batch whose
// time is over while it waits for memory, or for answers to be read, is refused.
//
// Thread safety: gRPC and the runner call its members from any thread. One thread at
// a time holds the right to read and admit (the reader's turn); mu_ guards the rest.
// Operations are started under mu_, and none after Finish.
#ifndef RESIDENT_SERVER_RPC_SUBMIT_STREAM_H_
#define RESIDENT_SERVER_RPC_SUBMIT_STREAM_H_

#include <deque>
#include <functional>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/alarm.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "resident/v1/executor.pb.h"
#include "server/rpc/core.h"
#include "server/rpc/live_streams.h"

namespace resident {

class SubmitStream final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                           public LiveStream,
                           public WindowWaiter,
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

  // (reader's turn) Admits request_, answers its refusal, or lets it wait.
  void Admit();
  // `*waits`: in line for staging memory; the turn is gone, to whoever wakes it.
  // `*lacking`: bytes of batch memory that it was refused for.
  absl::Status TryAdmit(bool* waits, uint64_t* lacking);
  std::function<void()> WindowWake() override;
  // Takes the turn from what the batch waits for, if it is memory or answers.
  bool LeaveLine();
  // The batch waits: at its deadline it does so no longer.
  void ArmExpiry(Clock::time_point expires);
  // (reader's turn) request_ is done with: its memory is given back. Returns its batch's id.
  uint64_t DropRequest();
  // (reader's turn) True: the client has as many answers unread as it may; the turn is gone,
  // to whoever takes it.
  bool AwaitAnswersRead();
  // (reader's turn) The same until so much memory for batches is given back.
  bool AwaitBatchMemory(uint64_t bytes);
  // `wait` says whether `wake` follows.
  bool AwaitMemory(absl::FunctionRef<bool(std::function<void()> wake)> wait);
  // Whether the caller has taken the turn of a batch that waits for memory, or for answers to
  // be read.
  bool TakeTurnFromMemory();
  // The client's memory for requests or answers is full, and the stream is woken when it is
  // not.
  bool HostFull();
  // (reader's turn) Gives the turn back: reads on, or pauses.
  void ReadOn() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Answer(RequestBatch& batch);
  void Refuse(uint64_t id, const absl::Status& why);
  void Write(const v1::SubmitResponse& response);
  void Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CancelRunning();

  Core& core_;
  std::shared_ptr<SubmitStream> self_;  // Until OnDone.
  std::shared_ptr<Client> client_;
  Clock::time_point deadline_ = Clock::time_point::max();

  // The reader's.
  grpc::ByteBuffer request_bytes_;  // gRPC's while it reads.
  v1::SubmitRequest request_;
  uint64_t request_space_ = 0;  // Bytes that request_ takes.
  Clock::time_point expires_;   // request_'s deadline.
  bool waited_ = false;         // It is not admitted at the first try.
  HostMemory::Charge request_charge_;

  absl::Mutex mu_;
  // Admitted or refused, and not yet written.
  uint32_t unanswered_ ABSL_GUARDED_BY(mu_) = 0;
  bool paused_ ABSL_GUARDED_BY(mu_) = false;
  // For memory of batches to be given back, or answers to be read.
  bool awaits_memory_ ABSL_GUARDED_BY(mu_) = false;
  std::unique_ptr<grpc::Alarm> expiry_ ABSL_GUARDED_BY(mu_);  // Holds no reference to this.
  bool reads_ended_ ABSL_GUARDED_BY(mu_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status end_ ABSL_GUARDED_BY(mu_);  // How the stream ends.
  struct Unwritten {
    grpc::ByteBuffer response;
    HostMemory::Charge charge;
  };
  std::deque<Unwritten> responses_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<RequestBatch*, std::shared_ptr<RequestBatch>> running_ ABSL_GUARDED_BY(mu_);
};

}  // namespace resident

#endif  // RESIDENT_SERVER_RPC_SUBMIT_STREAM_H_
