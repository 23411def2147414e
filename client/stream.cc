// Stream: sends batches one after the other, and delivers results as they arrive.
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "client/connection.h"
#include "client/residentd_client.h"
#include "runtime/base/status_macros.h"

namespace resident::client {

// One thread reads results and calls the callbacks; any thread writes, one at a time.
//
// The stream sends batches with its own ids, so that the ids of callers need not be unique.
class Stream::Impl {
 public:
  Impl(std::shared_ptr<Connection> connection, StreamOptions options)
      : connection_(std::move(connection)), max_in_flight_(std::max(options.max_in_flight, 1u)) {}

  ~Impl() {
    if (!reader_.joinable()) return;
    context_.TryCancel();
    reader_.join();
  }

  absl::Status Open() {
    RETURN_IF_ERROR(
        connection_->Prepare(context_, /*needs_session=*/true, absl::InfiniteDuration()));
    rpc_ = connection_->executor->Submit(&context_);
    reader_ = std::thread([this] { ReadResults(); });
    return absl::OkStatus();
  }

  absl::Status Send(Batch& batch, Callback done) {
    absl::MutexLock writing(&write_mutex_);
    const uint64_t wire_id = next_id_++;
    {
      absl::MutexLock lock(&mutex_);
      const auto has_room = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return ended_ || pending_.size() < max_in_flight_;
      };
      mutex_.Await(absl::Condition(&has_room));
      if (ended_) return EndedStatus();
      if (half_closed_) {
        return absl::FailedPreconditionError("Send after Finish. Fix: open another stream");
      }
      pending_.emplace(wire_id, Pending{std::move(done), batch.message().id()});
    }
    const uint64_t caller_id = batch.message().id();
    batch.set_id(wire_id);
    // The request refers to the caller's batch during the write, so that it is not copied.
    request_.unsafe_arena_set_allocated_batch(&batch.message());
    const bool written = rpc_->Write(request_);
    (void)request_.unsafe_arena_release_batch();
    batch.set_id(caller_id);
    if (written) return absl::OkStatus();
    // The stream has ended; the reader gets its status, and answers all pending batches.
    absl::MutexLock lock(&mutex_);
    if (!ended_ && pending_.erase(wire_id) == 1) {
      mutex_.Await(absl::Condition(&ended_));
      return EndedStatus();
    }
    return absl::OkStatus();
  }

  absl::Status Finish() {
    {
      absl::MutexLock writing(&write_mutex_);
      bool close = false;
      {
        absl::MutexLock lock(&mutex_);
        close = !half_closed_;
        half_closed_ = true;
      }
      if (close) rpc_->WritesDone();
    }
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

  absl::Status EndedStatus() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!status_.ok()) return status_;
    return absl::UnavailableError("the server ended the stream");
  }

  void ReadResults() {
    v1::SubmitResponse response;
    while (rpc_->Read(&response)) {
      v1::BatchResult& message = *response.mutable_result();
      Pending pending;
      {
        absl::MutexLock lock(&mutex_);
        auto found = pending_.find(message.id());
        if (found == pending_.end()) continue;  // Unknown id: there is no callback.
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
    const absl::Status status = FromGrpc(rpc_->Finish());
    absl::flat_hash_map<uint64_t, Pending> unanswered;
    {
      absl::MutexLock lock(&mutex_);
      unanswered.swap(pending_);
      status_ = status;
    }
    const absl::Status why =
        status.ok() ? absl::InternalError("the server ended the stream without answering") : status;
    for (auto& [id, pending] : unanswered) pending.done(why);
    absl::MutexLock lock(&mutex_);
    ended_ = true;
  }

  const std::shared_ptr<Connection> connection_;
  const size_t max_in_flight_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::SubmitRequest, v1::SubmitResponse>> rpc_;
  std::thread reader_;

  // Held while writing; taken before mutex_.
  absl::Mutex write_mutex_;
  uint64_t next_id_ ABSL_GUARDED_BY(write_mutex_) = 1;
  v1::SubmitRequest request_ ABSL_GUARDED_BY(write_mutex_);

  absl::Mutex mutex_;
  absl::flat_hash_map<uint64_t, Pending> pending_ ABSL_GUARDED_BY(mutex_);
  bool half_closed_ ABSL_GUARDED_BY(mutex_) = false;
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
