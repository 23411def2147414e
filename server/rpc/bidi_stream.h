// BidiStream: a call that streams requests, responses, or both. It applies the rules of the
// transport, so that a handler contains only what its method does.
//
// A handler derives from BidiStream. It calls Read(), Write() and Conclude(), and overrides the
// hooks On...() and Busy(). It uses no reactor of gRPC: a Transport starts the operations and
// reports their ends. server/rpc/grpc_call.h is the transport over gRPC, and
// server/rpc/fake_call.h the one for tests. A unary call needs neither
// (server/rpc/run_call.h).
//
//   open ──Conclude──▶ ending ──everything written, not Busy()──▶ finished ──OnDone──▶ destroyed
//    │  ▲
//    └──┘ Read ─▶ OnRequest or OnHalfClose; Write ─▶ OnWritten
//
// A stream that is cancelled (the client has gone, or a write failed) drops the queued responses,
// and calls OnEnd, which normally concludes.
//
// Invariants:
//   1. At most one read and one write are under way. Responses are written in the order of Write,
//      several in one write if the handler joins them.
//   2. The transport gets exactly one Finish, when no write is under way, and no operation after
//      it except Cancel. A read may be under way at that time.
//   3. The first Conclude decides the status.
//   4. Each Write is followed by exactly one OnWritten, also if its response is dropped. The
//      memory charged for the response is released before it.
//
// Thread safety: the public members may be called from any thread. mu_ guards the state of this
// class and that of the handler; operations are started while it is held. OnRequest and OnDone
// are called without mu_, all other hooks with it.
//
// Memory ordering: the handler owns the request from OnRequest until its next Read, on any
// thread. What happens before Read is visible to the following OnRequest.
//
//   class EchoStream final : public BidiStream<Ping, Pong> {
//    public:
//     EchoStream(Transport& transport, Core& core) : BidiStream(transport, core) {}
//     void Open(const grpc::CallbackServerContext&) { absl::MutexLock lock(&mu_); Read(); }
//     void OnRequest(Ping& ping) override { absl::MutexLock lock(&mu_); Write(Answer(ping)); }
//     void OnWritten() override { Read(); }
//   };
//   return StartBidiCall<EchoStream>(*context, core_);  // In the service's method.
#ifndef RESIDENT_SERVER_RPC_BIDI_STREAM_H_
#define RESIDENT_SERVER_RPC_BIDI_STREAM_H_

#include <atomic>
#include <cassert>
#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/alarm.h"
#include "runtime/base/errors/daemon_errors.h"
#include "server/core/core.h"
#include "server/core/live_streams.h"

namespace resident {

// The operations of one call. Each is started with the stream's mutex held and must not call the
// stream back before it returns. A transport of a call that only reads or only writes does not
// have the other operation.
template <typename Request, typename Response>
class StreamTransport {
 public:
  virtual ~StreamTransport() = default;
  // OnReadDone, OnReadsEnded or OnCancel follows.
  virtual void Read(Request* request) {}
  // OnWriteDone follows. `response` stays valid until then. `more_follow`: the next operation is
  // another Write, or Finish, so that both can be sent at once.
  virtual void Write(const Response* response, bool more_follow) {}
  // Sends the headers without waiting for the first response.
  virtual void SendHeaders() = 0;
  // OnDone follows, after the ends of all other operations.
  virtual void Finish(const absl::Status& status) = 0;
  // Aborts the call: operations under way fail. Allowed after Finish, too, until OnDone.
  virtual void Cancel() = 0;
};

// The request or response of a call that does not stream it.
struct NoMessage {};

template <typename RequestType, typename ResponseType>
class BidiStream : public LiveStream,
                   public std::enable_shared_from_this<BidiStream<RequestType, ResponseType>> {
 public:
  using Request = RequestType;
  using Response = ResponseType;
  using Transport = StreamTransport<Request, Response>;

  ~BidiStream() override {
    core_.streams.Remove(this);
    core_.admission.Cancel(&request_);
  }
  BidiStream(const BidiStream&) = delete;
  BidiStream& operator=(const BidiStream&) = delete;

  // For the transport: ends of operations, and other events of the call.

  // The read has filled the request.
  void OnReadDone() {
    assert(reading_.load(std::memory_order_relaxed));
    reading_.store(false, std::memory_order_relaxed);
    OnRequest(request_);
  }
  // The read found that the client sends no more requests.
  void OnReadsEnded() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    if (!ending()) OnHalfClose();
  }
  void OnWriteDone(bool ok) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    assert(writing());
    const size_t written = std::exchange(writing_, 0);
    queue_.erase(queue_.begin(), queue_.begin() + static_cast<std::ptrdiff_t>(written));
    if (!ok) HandleCancel();
    for (size_t i = 0; i < written; ++i) OnWritten();
    Advance();
  }
  // The client cancelled the call or has gone.
  void OnCancel() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    HandleCancel();
  }
  // The call is over: all operations have ended, and the transport must not be used any more.
  void OnCallDone() ABSL_LOCKS_EXCLUDED(mu_) {
    {
      absl::MutexLock lock(&mu_);
      assert(finished_ && !writing() && !done_);
      done_ = true;
    }
    OnDone();
  }

  // LiveStream: ends the stream from outside.
  void End(const absl::Status& status) final ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    if (!ending()) OnEnd(status);
  }

 protected:
  // `transport` must be valid until OnDone.
  BidiStream(Transport& transport, Core& core) : core_(core), transport_(transport) {}

  // Allows the daemon to end the stream when it stops or when `recheck` fails. REQUIRES: called
  // first, once.
  void Register(LiveStreams::Recheck recheck = nullptr) {
    const std::shared_ptr<LiveStream> self = this->shared_from_this();
    core_.streams.Add(self, std::move(recheck));
  }

  // Hooks.

  // A request was read.
  virtual void OnRequest(Request& request) {}
  // The client sends no more requests. Not called once the stream is ending.
  virtual void OnHalfClose() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { Conclude(absl::OkStatus()); }
  // A response was written, or dropped.
  virtual void OnWritten() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {}
  // The daemon ends the stream with `status`, or the call is cancelled. The default concludes.
  virtual void OnEnd(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    Conclude(status);
  }
  // WaitToRead need not wait any longer.
  virtual void OnMayRead() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {}
  // Whether a stream that is ending must wait for the handler's own work. When that changes, the
  // handler calls Advance.
  virtual bool Busy() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return false; }
  // Joins the first of the `queued` responses, so that one write sends them: sets response(0) to
  // all of them, and returns how many these are, at least 1. The default joins none.
  virtual size_t Join(size_t queued, absl::FunctionRef<Response&(size_t)> response)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return 1;
  }
  // The status is about to be sent.
  virtual void OnFinish() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {}
  // See OnCallDone.
  virtual void OnDone() {}

  // Operations.

  // Reads the next request. Does nothing while a read is under way or once the stream is ending.
  void Read() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (ending() || reading_.load(std::memory_order_relaxed)) return;
    reading_.store(true, std::memory_order_relaxed);
    transport_.Read(&request_);
  }
  // Returns true if the client's requests use too much of the daemon's memory, so that the stream
  // must not read now. OnMayRead is called when that has changed.
  bool WaitToRead(const std::shared_ptr<ClientAccounts>& accounts)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    // Without the lock and the allocation of WaitToRead, because most reads need not wait.
    if (!core_.admission.host().Full(*accounts->host())) return false;
    return core_.admission.WaitToRead(&request_, accounts, [weak = this->weak_from_this()] {
      const std::shared_ptr<BidiStream> self = weak.lock();
      if (self == nullptr) return;
      absl::MutexLock lock(&self->mu_);
      if (!self->ending()) self->OnMayRead();
    });
  }
  // Queues a response: a Protobuf message or a grpc::ByteBuffer. It is swapped out of `response`,
  // because moving a grpc::ByteBuffer copies it. `charge`: the memory of the response, released
  // when it is written. Once the stream is cancelled or finished, the response is dropped.
  void Write(Response&& response, Budget::Charge charge = {}) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (cancelled_ || finished_) {
      charge.Clear();
      OnWritten();
      return;
    }
    Unwritten& last = queue_.emplace_back();
    last.response.Swap(&response);
    last.charge = std::move(charge);
    Advance();
  }
  // Drops the responses that are queued and not being written.
  void DropQueued() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    while (queue_.size() > writing_) {
      queue_.pop_back();
      OnWritten();
    }
  }
  // For a stream that ends early: drops the queued responses, and aborts the call if its client
  // does not read soon what was written, because gRPC sends no status before it. That can be the
  // response that is being written, and the end of one whose write has ended: gRPC ends a write
  // when the rest of the response fits into its own buffer.
  void DropUnread() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    DropQueued();
    may_be_unread_ = true;
    if (writing() && !cancelled_) AbortUnlessRead();
  }
  void SendHeaders() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (!finished_) transport_.SendHeaders();
  }
  // The stream ends with `status` once everything is written and it is not Busy().
  void Conclude(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (!end_.has_value()) end_ = status;
    Advance();
  }
  // Starts the next operation: a write, or the end.
  void Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (finished_ || writing()) return;
    if (!queue_.empty()) {
      writing_ = 1;
      if (queue_.size() > 1) {
        const auto response = [this](size_t i) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) -> Response& {
          return queue_[i].response;
        };
        writing_ = Join(queue_.size(), response);
        assert(writing_ >= 1 && writing_ <= queue_.size());
      }
      transport_.Write(&queue_.front().response, /*more_follow=*/queue_.size() > writing_);
    } else if (end_.has_value() && !Busy()) {
      finished_ = true;
      OnFinish();
      transport_.Finish(*end_);
      if (may_be_unread_) AbortUnlessRead();
    }
  }
  // Aborts the call.
  void CancelCall() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (!finished_) transport_.Cancel();
  }
  // Calls `act` with mu_ held after `delay`, unless the stream has finished or `alarm`, which the
  // handler owns, is cancelled or destroyed by then.
  void CallAfter(grpc::Alarm& alarm, std::chrono::milliseconds delay, std::function<void()> act) {
    alarm.Set(std::chrono::system_clock::now() + delay,
              [weak = this->weak_from_this(), act = std::move(act)](bool passed) {
                const std::shared_ptr<BidiStream> self = weak.lock();
                if (!passed || self == nullptr) return;
                absl::MutexLock lock(&self->mu_);
                if (!self->finished_) act();
              });
  }

  // State.

  bool writing() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return writing_ > 0; }
  bool cancelled() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return cancelled_; }
  // Whether it was concluded or cancelled: nothing is read any more.
  bool ending() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return cancelled_ || end_.has_value(); }
  // The status of Conclude.
  const std::optional<absl::Status>& end() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return end_; }

  // A reference to a handler, for a callback that outlives the call: `[self = Ref(this)]`.
  template <typename Stream>
  static std::shared_ptr<Stream> Ref(Stream* stream) {
    return std::static_pointer_cast<Stream>(stream->shared_from_this());
  }

  Core& core_;
  absl::Mutex mu_;

 private:
  struct Unwritten {
    Response response;
    Budget::Charge charge;
  };

  void HandleCancel() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (cancelled_ || finished_) return;
    cancelled_ = true;
    DropQueued();
    OnEnd(errors::Cancelled());
    Advance();
  }

  // Aborts the call if its client does not read soon. Before the status was sent: unless it is sent
  // in time; afterwards: unless the call is over in time.
  void AbortUnlessRead() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    unread_alarm_ = std::make_unique<grpc::Alarm>();  // Cancels the earlier one.
    unread_alarm_->Set(std::chrono::system_clock::now() + kLastWrite,
                       [weak = this->weak_from_this(), finished = finished_](bool passed) {
                         const std::shared_ptr<BidiStream> self = weak.lock();
                         if (!passed || self == nullptr) return;
                         absl::MutexLock lock(&self->mu_);
                         if (self->finished_ == finished && !self->done_) self->transport_.Cancel();
                       });
  }

  // How long DropUnread waits for the client, before the status is sent and after it.
  static constexpr std::chrono::milliseconds kLastWrite{500};

  Transport& transport_;
  Request request_;  // Owned by the transport during a read, otherwise by the handler.
  std::atomic<bool> reading_{false};
  std::deque<Unwritten> queue_ ABSL_GUARDED_BY(mu_);
  size_t writing_ ABSL_GUARDED_BY(mu_) = 0;  // How many, from the first, are being written.
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  bool done_ ABSL_GUARDED_BY(mu_) = false;
  bool may_be_unread_ ABSL_GUARDED_BY(mu_) = false;  // See DropUnread.
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<grpc::Alarm> unread_alarm_ ABSL_GUARDED_BY(mu_);  // Null: none was needed.
};

}  // namespace resident

#endif  // RESIDENT_SERVER_RPC_BIDI_STREAM_H_
