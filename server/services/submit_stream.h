// SubmitStream: one Executor.Submit.
//
//            ┌──────────── answered or refused ────────────┐
//            ▼                                             │
//   reading ─┴▶ admitted ──▶ in the runtime ──▶ answered ──▶ written
//      │ ▲
//      ▼ │ an answer was written / a batch of the client's completed /
//        │ staging memory was given back / the client read an answer
//   paused, stalled
//
// Flow control: a stream is not read from while max_stream_batches of its batches are
// not written back (paused), nor while a batch does not fit the client's queue (stalled:
// the batch is kept and tried again when one of the client's completes) or staging
// memory (the same, when its turn in the line for that has come). Batches that wait and
// answers that are not written count as the client's host memory; while that is full
// (runtime/memory/host_memory.h), none of its streams is read from (paused).
//
// Thread safety: gRPC and the runner call its members from any thread. One thread at
// a time holds the right to read and admit (the reader's turn); mu_ guards the rest.
// Operations are started under mu_, and none after Finish.
#ifndef RESIDENT_SERVER_SERVICES_SUBMIT_STREAM_H_
#define RESIDENT_SERVER_SERVICES_SUBMIT_STREAM_H_

#include <deque>
#include <functional>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/support/server_callback.h"
#include "resident/v1/executor.pb.h"
#include "server/core.h"
#include "server/live_streams.h"

namespace resident {

class SubmitStream final : public grpc::ServerBidiReactor<v1::SubmitRequest, v1::SubmitResponse>,
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

  // (reader's turn) Admits request_, answers its refusal, or stalls.
  void Admit();
  // `*waits`: in line for staging memory; the turn is gone, to whoever wakes it.
  absl::Status TryAdmit(bool* waits);
  std::function<void()> WindowWake() override;
  // Takes the turn from the line for staging memory, or from a stall, if it is there.
  bool LeaveLine();
  // (reader's turn) request_ is done with: its memory is given back. Returns its batch's id.
  uint64_t DropRequest();
  // (reader's turn) True: the client has as many answers unread as it may; the turn is gone,
  // to whoever ends the stall.
  bool AwaitAnswersRead();
  // Whether the caller has ended a stall, and so has the turn.
  bool EndStall();
  // The client's memory for requests or answers is full, and the stream is woken when it is
  // not.
  bool HostFull();
  // (reader's turn) Gives the turn back: reads on, or pauses.
  void ReadOn() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Answer(RequestBatch& batch);
  void Refuse(uint64_t id, const absl::Status& why);
  void Write(std::unique_ptr<v1::SubmitResponse> response);
  void Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CancelRunning();

  Core& core_;
  std::shared_ptr<SubmitStream> self_;  // Until OnDone.
  std::shared_ptr<Client> client_;
  Clock::time_point deadline_ = Clock::time_point::max();

  // The reader's.
  v1::SubmitRequest request_;
  uint64_t request_bytes_ = 0;
  HostMemory::Charge request_charge_;

  absl::Mutex mu_;
  // Admitted or refused, and not yet written.
  uint32_t unanswered_ ABSL_GUARDED_BY(mu_) = 0;
  bool paused_ ABSL_GUARDED_BY(mu_) = false;
  bool stalled_ ABSL_GUARDED_BY(mu_) = false;
  bool reads_ended_ ABSL_GUARDED_BY(mu_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status end_ ABSL_GUARDED_BY(mu_);  // How the stream ends.
  struct Unwritten {
    std::unique_ptr<v1::SubmitResponse> response;
    HostMemory::Charge charge;
  };
  std::deque<Unwritten> responses_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<RequestBatch*, std::shared_ptr<RequestBatch>> running_ ABSL_GUARDED_BY(mu_);
};

}  // namespace resident

#endif  // RESIDENT_SERVER_SERVICES_SUBMIT_STREAM_H_
