// Stream: sends batches one after the other, and delivers results as they arrive.
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/message_lite.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "client/connection.h"
#include "client/residentd_client.h"
#include "runtime/base/limits.h"
#include "runtime/base/status_macros.h"

namespace resident::client {

namespace {

// Messages are joined up to this size. A larger batch has a message of its own.
constexpr size_t kMaxJoinedBytes = 256 << 10;

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

}  // namespace

// The call's reactor. Batches that are sent while a message is being written are joined in the next
// one, so that many small batches need few messages. gRPC's threads call the callbacks, one at a
// time.
//
// The stream sends batches with its own ids, so that the ids of callers need not be unique.
class Stream::Impl final : public grpc::ClientBidiReactor<grpc::ByteBuffer, v1::SubmitResponse> {
 public:
  Impl(std::shared_ptr<Connection> connection, StreamOptions options)
      : connection_(std::move(connection)), max_in_flight_(std::max(options.max_in_flight, 1u)) {}

  absl::Status Open() {
    RETURN_IF_ERROR(
        connection_->Prepare(context_, /*needs_session=*/true, absl::InfiniteDuration()));
    v1::SubmitRequest settings;
    settings.set_max_results(kMaxMessageBatches);
    {
      absl::MutexLock lock(&mutex_);
      unsent_.emplace_back(settings.SerializeAsString());
    }
    grpc::TemplatedGenericStub<grpc::ByteBuffer, v1::SubmitResponse> stub(connection_->channel());
    stub.PrepareBidiStreamingCall(&context_, "/resident.v1.Executor/Submit", {}, this);
    opened_ = true;
    AddHold();  // Until the reads have ended and nothing is being written.
    StartRead(&response_);
    StartCall();
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
    if (write) StartWrite(&message_);
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
    if (half_close) StartWritesDone();
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&ended_));
    return status_;
  }

  void Cancel() { context_.TryCancel(); }

  // Cancels the call if it has not ended, and waits for its end. The caller's thread, not one of
  // gRPC's, destroys this object: the call's context can be the last user of its channel, and a
  // channel waits for gRPC's threads when it is destroyed.
  ~Impl() override {
    if (!opened_) return;
    Cancel();
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&ended_));
  }

 private:
  struct Pending {
    Callback done;
    uint64_t caller_id;
  };

  void OnWriteDone(bool /*ok*/) override {
    bool write = false;
    bool half_close = false;
    bool ended = false;
    {
      absl::MutexLock lock(&mutex_);
      writing_ = false;
      write = TakeMessage();
      half_close = !write && TakeHalfClose();
      ended = reads_ended_;
    }
    if (write) StartWrite(&message_);
    if (half_close) StartWritesDone();
    if (ended) RemoveHold();
  }

  void OnWritesDoneDone(bool /*ok*/) override {
    bool ended = false;
    {
      absl::MutexLock lock(&mutex_);
      writing_ = false;
      ended = reads_ended_;
    }
    if (ended) RemoveHold();
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      bool writing = false;
      {
        absl::MutexLock lock(&mutex_);
        reads_ended_ = true;
        writing = writing_;
      }
      if (!writing) RemoveHold();
      return;
    }
    if (response_.has_result()) Deliver(*response_.mutable_result());
    for (v1::BatchResult& result : *response_.mutable_results()) Deliver(result);
    StartRead(&response_);
  }

  void OnDone(const grpc::Status& status) override {
    absl::flat_hash_map<uint64_t, Pending> unanswered;
    absl::Status why = FromGrpc(status);
    {
      absl::MutexLock lock(&mutex_);
      unanswered.swap(pending_);
      status_ = why;
    }
    if (why.ok()) why = absl::InternalError("the server ended the stream without answering");
    for (auto& [id, pending] : unanswered) pending.done(why);
    absl::MutexLock lock(&mutex_);
    ended_ = true;  // From the end of this lock on, this object may be destroyed.
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
  grpc::ClientContext context_;
  bool opened_ = false;
  v1::SubmitResponse response_;  // Of the read that is under way.
  grpc::ByteBuffer message_;     // Of the write that is under way.

  // Held by Send and Finish, whose batches are sent in their order; taken before mutex_.
  absl::Mutex send_mutex_;
  uint64_t next_id_ ABSL_GUARDED_BY(send_mutex_) = 1;

  absl::Mutex mutex_;
  absl::flat_hash_map<uint64_t, Pending> pending_ ABSL_GUARDED_BY(mutex_);
  // The next message: its parts, and the bytes and the number of its batches.
  std::vector<grpc::Slice> unsent_ ABSL_GUARDED_BY(mutex_);
  size_t unsent_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  uint32_t unsent_batches_ ABSL_GUARDED_BY(mutex_) = 0;
  // A write or the half-close is under way, or about to be started by the thread that set it.
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool half_closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool writes_done_ ABSL_GUARDED_BY(mutex_) = false;
  // The stream is ending: nothing can be written any more.
  bool reads_ended_ ABSL_GUARDED_BY(mutex_) = false;
  // The stream is over and everything pending has been answered.
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

absl::StatusOr<std::unique_ptr<Stream>> Stream::Open(std::shared_ptr<Connection> connection,
                                                     StreamOptions options) {
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
