// Stream: sends batches one after the other, and delivers results as they arrive.
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/message_lite.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <array>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/random/random.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/connection.h"
#include "client/residentd_client.h"
#include "runtime/base/limits.h"
#include "runtime/base/status_macros.h"

namespace resident::client {

namespace {

// Messages are joined up to this size. A larger batch has a message of its own.
constexpr size_t kMaxJoinedBytes = 256 << 10;

// Of a call, before another one follows it.
constexpr absl::Duration kMinAge = absl::Milliseconds(1);

// The part of a SubmitRequest that `field`, a length-delimited one, contributes to its bytes.
grpc::Slice Encode(int field, const google::protobuf::MessageLite& message) {
  using google::protobuf::io::CodedOutputStream;
  const uint32_t tag = static_cast<uint32_t>(field) << 3 | 2;
  const size_t size = message.ByteSizeLong();
  const size_t header =
      CodedOutputStream::VarintSize32(tag) + CodedOutputStream::VarintSize64(size);
  grpc_slice slice = grpc_slice_malloc(header + size);
  uint8_t* at = GRPC_SLICE_START_PTR(slice);
  at = CodedOutputStream::WriteVarint32ToArray(tag, at);
  at = CodedOutputStream::WriteVarint64ToArray(size, at);
  message.SerializeWithCachedSizesToArray(at);
  return {slice, grpc::Slice::STEAL_REF};
}

// A call. Batches that are sent while a message is being written are joined in the next one, so
// that many small batches need few messages. Two threads handle the events of the call: one can
// deliver results while the other one sends. They are not gRPC's, so that a callback may own the
// last reference to anything except the stream, including a channel of gRPC; and an event is
// handled at once, whereas gRPC 1.51's own threads sleep for 100 ms after each second without
// events.
//
// The stream sends batches with its own ids, so that the ids of callers need not be unique.
class Call {
 public:
  using Callback = Stream::Callback;

  Call(std::shared_ptr<Connection> connection, const StreamOptions& options)
      : connection_(std::move(connection)), max_in_flight_(std::max(options.max_in_flight, 1u)) {}

  // Cancels the call if it has not ended, and waits for its end.
  ~Call() {
    if (call_ == nullptr) return;
    Cancel();
    for (std::thread& thread : threads_) thread.join();
  }

  absl::Status Open() {
    RETURN_IF_ERROR(connection_->Prepare(
        context_, /*needs_session=*/!connection_->options().balance, absl::InfiniteDuration()));
    v1::SubmitRequest settings;
    settings.set_max_results(kMaxMessageBatches);
    {
      absl::MutexLock lock(&mutex_);
      unsent_.emplace_back(settings.SerializeAsString());
    }
    call_ = grpc::GenericStub(connection_->channel())
                .PrepareCall(&context_, "/resident.v1.Executor/Submit", &events_);
    call_->StartCall(Tag(Event::kStarted));
    for (std::thread& thread : threads_) thread = std::thread([this] { HandleEvents(); });
    return absl::OkStatus();
  }

  absl::Status Send(Batch& batch, Callback done) {
    absl::MutexLock sending(&send_mutex_);
    const uint64_t caller_id = batch.message().id();
    const uint64_t wire_id = next_id_++;
    batch.set_id(wire_id);
    grpc::Slice bytes = Encode(v1::SubmitRequest::kBatchesFieldNumber, batch.message());
    batch.set_id(caller_id);

    bool write = false;
    {
      absl::MutexLock lock(&mutex_);
      const auto has_room = [this, size = bytes.size()]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        if (reads_ended_) return true;
        return pending_.size() < max_in_flight_ &&
               (unsent_batches_ == 0 ||
                (unsent_batches_ < kMaxMessageBatches && unsent_bytes_ + size <= kMaxJoinedBytes));
      };
      mutex_.Await(absl::Condition(&has_room));
      if (half_closed_) {
        return absl::FailedPreconditionError("Send after Finish. Fix: open another stream");
      }
      if (reads_ended_) {
        mutex_.Await(absl::Condition(&ended_));
        return EndedStatus();
      }
      pending_.emplace(wire_id, Pending{std::move(done), caller_id});
      unsent_bytes_ += bytes.size();
      unsent_.push_back(std::move(bytes));
      ++unsent_batches_;
      write = TakeMessage();
    }
    if (write) call_->Write(message_, Tag(Event::kWritten));
    return absl::OkStatus();
  }

  absl::Status Finish() {
    absl::MutexLock sending(&send_mutex_);
    bool half_close = false;
    {
      absl::MutexLock lock(&mutex_);
      half_closed_ = true;
      half_close = TakeHalfClose();
    }
    if (half_close) call_->WritesDone(Tag(Event::kWritten));
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&ended_));
    return status_;
  }

  void Cancel() { context_.TryCancel(); }

 private:
  struct Pending {
    Callback done;
    uint64_t caller_id;
  };

  // Ends of operations. A write of a message and the half-close are kWritten.
  enum class Event : uintptr_t { kStarted = 1, kRead, kWritten, kFinished };
  // NOLINTNEXTLINE(performance-no-int-to-ptr): gRPC's tags are pointers.
  static void* Tag(Event event) { return reinterpret_cast<void*>(event); }

  void HandleEvents() {
    void* tag = nullptr;
    bool ok = false;
    while (events_.Next(&tag, &ok)) {
      switch (static_cast<Event>(reinterpret_cast<uintptr_t>(tag))) {
        case Event::kStarted:
          ReadNext(ok);
          OnWritten();
          break;
        case Event::kRead:
          ReadNext(ok && Receive());
          break;
        case Event::kWritten:
          OnWritten();
          break;
        case Event::kFinished:
          OnFinished();
          break;
      }
    }
  }

  // Starts a read, or, if the call has ended or failed, asks for its status.
  void ReadNext(bool ok) {
    if (ok) {
      call_->Read(&response_, Tag(Event::kRead));
      return;
    }
    {
      absl::MutexLock lock(&mutex_);
      reads_ended_ = true;
    }
    call_->Finish(&finished_status_, Tag(Event::kFinished));
  }

  void OnWritten() {
    bool write = false;
    bool half_close = false;
    bool ended = false;
    {
      absl::MutexLock lock(&mutex_);
      writing_ = false;
      write = TakeMessage();
      half_close = !write && TakeHalfClose();
      ended = finished_;
    }
    if (write) call_->Write(message_, Tag(Event::kWritten));
    if (half_close) call_->WritesDone(Tag(Event::kWritten));
    if (ended) End();
  }

  void OnFinished() {
    {
      absl::MutexLock lock(&mutex_);
      finished_ = true;
      if (writing_) return;  // OnWritten follows.
    }
    End();
  }

  // No operation is under way, and none will be started.
  void End() {
    absl::flat_hash_map<uint64_t, Pending> unanswered;
    absl::Status why = unreadable_.ok() ? connection_->FromCall(finished_status_) : unreadable_;
    {
      absl::MutexLock lock(&mutex_);
      unanswered.swap(pending_);
      status_ = why;
    }
    if (why.ok()) why = absl::InternalError("the server ended the stream without answering");
    for (auto& [id, pending] : unanswered) pending.done(why);
    unanswered.clear();  // And what the callbacks own.
    {
      absl::MutexLock lock(&mutex_);
      ended_ = true;
    }
    events_.Shutdown();
  }

  // Whether the caller must write message_, after it has released mutex_: starting a write takes as
  // long as sending it.
  bool TakeMessage() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (writing_ || reads_ended_ || unsent_batches_ == 0) return false;
    message_ = grpc::ByteBuffer(unsent_.data(), unsent_.size());
    unsent_.clear();
    unsent_bytes_ = 0;
    unsent_batches_ = 0;
    writing_ = true;
    return true;
  }
  // The same with the half-close.
  bool TakeHalfClose() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!half_closed_ || writing_ || reads_ended_ || std::exchange(writes_done_, true))
      return false;
    writing_ = true;
    return true;
  }

  absl::Status EndedStatus() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!status_.ok()) return status_;
    return absl::UnavailableError("the server ended the stream");
  }

  // Delivers the results of the response that was read. False: it cannot be read, and the call is
  // cancelled.
  bool Receive() {
    v1::SubmitResponse response;
    if (!grpc::SerializationTraits<v1::SubmitResponse>::Deserialize(&response_, &response).ok()) {
      unreadable_ = absl::InternalError(
          "the server sent a response that cannot be parsed. Fix: use a client and a server of the "
          "same version");
      Cancel();
      return false;
    }
    if (response.has_result()) Deliver(*response.mutable_result());
    for (v1::BatchResult& result : *response.mutable_results()) Deliver(result);
    return true;
  }

  void Deliver(v1::BatchResult& message) ABSL_LOCKS_EXCLUDED(mutex_) {
    Pending pending;
    {
      absl::MutexLock lock(&mutex_);
      auto found = pending_.find(message.id());
      if (found == pending_.end()) return;  // Unknown id: there is no callback.
      pending = std::move(found->second);
      pending_.erase(found);
    }
    message.set_id(pending.caller_id);
    if (message.has_refused()) {
      pending.done(FromRefusal(message.refused()));
    } else {
      pending.done(Result(std::move(message)));
    }
  }

  const std::shared_ptr<Connection> connection_;
  const size_t max_in_flight_;
  grpc::CompletionQueue events_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;  // Null: it was not started.
  std::array<std::thread, 2> threads_;
  grpc::ByteBuffer response_;     // Of the read that is under way.
  grpc::ByteBuffer message_;      // Of the write that is under way.
  grpc::Status finished_status_;  // Valid at kFinished.
  absl::Status unreadable_;       // Written by Receive, and read once there are no more reads.

  // Held by Send and Finish, whose batches are sent in their order; taken before mutex_.
  absl::Mutex send_mutex_;
  uint64_t next_id_ ABSL_GUARDED_BY(send_mutex_) = 1;

  absl::Mutex mutex_;
  absl::flat_hash_map<uint64_t, Pending> pending_ ABSL_GUARDED_BY(mutex_);
  // The next message: its parts, and the bytes and the number of its batches.
  std::vector<grpc::Slice> unsent_ ABSL_GUARDED_BY(mutex_);
  size_t unsent_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  uint32_t unsent_batches_ ABSL_GUARDED_BY(mutex_) = 0;
  // A write or the half-close is under way, or about to be started by the thread that set it; or
  // the call has not started.
  bool writing_ ABSL_GUARDED_BY(mutex_) = true;
  bool half_closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool writes_done_ ABSL_GUARDED_BY(mutex_) = false;
  // The stream is ending: nothing can be written any more.
  bool reads_ended_ ABSL_GUARDED_BY(mutex_) = false;
  // The status of the call has arrived.
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  // The stream is over and everything pending has been answered.
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

// The call that takes batches now. When it is older than max_age, another one follows it.
class Stream::Impl {
 public:
  Impl(std::shared_ptr<Connection> connection, const StreamOptions& options)
      : connection_(std::move(connection)), options_(options) {}

  absl::Status Open() {
    absl::WriterMutexLock handing_over(&hand_over_mutex_);
    RETURN_IF_ERROR(Begin());
    if (options_.max_age == absl::InfiniteDuration()) only_call_ = call();
    return absl::OkStatus();
  }

  absl::Status Send(Batch& batch, Callback done) {
    if (only_call_ != nullptr) return only_call_->Send(batch, std::move(done));
    if (connection_->options().balance && UsesBuffers(batch.message())) {
      return absl::InvalidArgumentError(
          "a stream with max_age moves between nodes, and a buffer is on one of them. Fix: pass "
          "values, or leave out StreamOptions::max_age");
    }
    while (true) {
      {
        absl::ReaderMutexLock sending(&hand_over_mutex_);
        if (absl::Now() < ends_) return call()->Send(batch, std::move(done));
      }
      absl::WriterMutexLock handing_over(&hand_over_mutex_);
      if (absl::Now() < ends_) continue;
      // Its callbacks have the error, if it has ended with one.
      call()->Finish().IgnoreError();
      RETURN_IF_ERROR(Begin());
    }
  }

  absl::Status Finish() {
    {
      absl::WriterMutexLock handing_over(&hand_over_mutex_);
      ends_ = absl::InfiniteFuture();
    }
    return call()->Finish();
  }

  void Cancel() {
    absl::MutexLock lock(&mutex_);
    cancelled_ = true;
    call_->Cancel();
  }

 private:
  absl::Status Begin() ABSL_EXCLUSIVE_LOCKS_REQUIRED(hand_over_mutex_) {
    auto call = std::make_shared<Call>(connection_, options_);
    RETURN_IF_ERROR(call->Open());
    // Not all streams of a program at the same time.
    absl::BitGen random;
    ends_ = absl::Now() + options_.max_age * absl::Uniform(random, 0.9, 1.1);
    absl::MutexLock lock(&mutex_);
    if (cancelled_) call->Cancel();
    call_.swap(call);
    return absl::OkStatus();
  }

  std::shared_ptr<Call> call() const {
    absl::MutexLock lock(&mutex_);
    return call_;
  }

  const std::shared_ptr<Connection> connection_;
  const StreamOptions options_;
  std::shared_ptr<Call> only_call_;  // Set by Open if max_age is infinite.

  // Shared by Send, and exclusive while a call follows another one; taken before mutex_.
  absl::Mutex hand_over_mutex_ ABSL_ACQUIRED_BEFORE(mutex_);
  absl::Time ends_ ABSL_GUARDED_BY(hand_over_mutex_);

  mutable absl::Mutex mutex_;
  std::shared_ptr<Call> call_ ABSL_GUARDED_BY(mutex_);
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
};

absl::StatusOr<std::unique_ptr<Stream>> Stream::Open(std::shared_ptr<Connection> connection,
                                                     StreamOptions options) {
  if (options.max_age < kMinAge) {
    return absl::InvalidArgumentError(
        absl::StrCat("StreamOptions::max_age of ", absl::FormatDuration(options.max_age),
                     " is below 1 ms. Fix: give more, such as absl::Minutes(5)"));
  }
  auto impl = std::make_unique<Impl>(std::move(connection), options);
  RETURN_IF_ERROR(impl->Open());
  return std::unique_ptr<Stream>(new Stream(std::move(impl)));
}

Stream::Stream(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Stream::~Stream() = default;

absl::Status Stream::Send(Batch& batch, Callback done) {
  return impl_->Send(batch, std::move(done));
}

std::future<absl::StatusOr<Result>> Stream::Send(Batch& batch) {
  auto promise = std::make_shared<std::promise<absl::StatusOr<Result>>>();
  std::future<absl::StatusOr<Result>> future = promise->get_future();
  absl::Status status = impl_->Send(
      batch, [promise](absl::StatusOr<Result> result) { promise->set_value(std::move(result)); });
  if (!status.ok()) promise->set_value(status);
  return future;
}

absl::Status Stream::Finish() { return impl_->Finish(); }
void Stream::Cancel() { impl_->Cancel(); }

}  // namespace resident::client
