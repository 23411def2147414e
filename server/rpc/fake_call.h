// FakeCall: the transport of a BidiStream for tests, without a network. The test ends the
// operations, and can check which ones the stream has started.
//
// It adds a failure to the test if the stream breaks a rule of the transport: a second read or
// write while one is under way, or any operation after Finish except Cancel.
//
// Thread safety: all members may be called from any thread, except the constructor and Done.
//
//   FakeCall<WatchStream> call(core);
//   call->Open(context, request);
//   ASSERT_TRUE(call.writing());
//   call.EndWrite();
//   call->End(errors::Draining());
//   EXPECT_EQ(call.finished(), errors::Draining());
//   call.Done();
#ifndef RESIDENT_SERVER_RPC_FAKE_CALL_H_
#define RESIDENT_SERVER_RPC_FAKE_CALL_H_

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "gtest/gtest.h"
#include "runtime/base/errors/daemon_errors.h"
#include "server/rpc/bidi_stream.h"

namespace resident {

template <typename Stream>
class FakeCall final : public Stream::Transport {
 public:
  using Request = typename Stream::Request;
  using Response = typename Stream::Response;

  // `owner`: the second argument of the stream's constructor.
  template <typename Owner>
  explicit FakeCall(Owner& owner) : stream_(std::make_shared<Stream>(*this, owner)) {}

  const std::shared_ptr<Stream>& stream() const { return stream_; }
  Stream* operator->() const { return stream_.get(); }

  // The operations that the stream has started.
  bool reading() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return reading_ != nullptr;
  }
  bool writing() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return writing_ != nullptr;
  }
  bool headers_sent() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return headers_sent_;
  }
  bool aborted() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return aborted_;
  }
  // nullopt until Finish.
  std::optional<absl::Status> finished() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return finished_;
  }
  // Copies of all responses, in the order of their writes.
  std::vector<Response> written() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return written_;
  }
  // What each of these writes said about following ones.
  std::vector<bool> more_follow() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return more_follow_;
  }

  // Ends of the operations that are under way.
  void EndRead(const Request& request) {
    *TakeRead() = request;
    stream_->OnReadDone();
  }
  void HalfClose() {
    TakeRead();
    stream_->OnReadsEnded();
  }
  void EndWrite(bool ok = true) {
    {
      absl::MutexLock lock(&mu_);
      if (writing_ == nullptr) ADD_FAILURE() << "no write is under way";
      writing_ = nullptr;
    }
    stream_->OnWriteDone(ok);
  }
  // The call is over: ends the operations under way, and releases the stream. REQUIRES: finished().
  void Done() {
    EXPECT_TRUE(finished().has_value());
    if (reading()) HalfClose();
    stream_->OnCallDone();
    stream_ = nullptr;
  }

  void Read(Request* request) override {
    absl::MutexLock lock(&mu_);
    if (finished_.has_value()) ADD_FAILURE() << "Read after Finish";
    if (reading_ != nullptr) ADD_FAILURE() << "Read while another one is under way";
    reading_ = request;
  }
  void Write(const Response* response, bool more_follow) override {
    absl::MutexLock lock(&mu_);
    more_follow_.push_back(more_follow);
    if (finished_.has_value()) ADD_FAILURE() << "Write after Finish";
    if (writing_ != nullptr) ADD_FAILURE() << "Write while another one is under way";
    writing_ = response;
    written_.push_back(*response);
  }
  void SendHeaders() override {
    absl::MutexLock lock(&mu_);
    if (finished_.has_value()) ADD_FAILURE() << "SendHeaders after Finish";
    if (headers_sent_ || !written_.empty()) ADD_FAILURE() << "the headers are sent already";
    headers_sent_ = true;
  }
  void Finish(const absl::Status& status) override {
    absl::MutexLock lock(&mu_);
    if (finished_.has_value()) ADD_FAILURE() << "Finish after Finish";
    if (writing_ != nullptr) ADD_FAILURE() << "Finish while a write is under way";
    finished_ = status;
  }
  void Cancel() override {
    absl::MutexLock lock(&mu_);
    aborted_ = true;
  }

 private:
  Request* TakeRead() {
    absl::MutexLock lock(&mu_);
    if (reading_ == nullptr) ADD_FAILURE() << "no read is under way";
    return std::exchange(reading_, nullptr);
  }

  std::shared_ptr<Stream> stream_;
  mutable absl::Mutex mu_;
  Request* reading_ ABSL_GUARDED_BY(mu_) = nullptr;
  const Response* writing_ ABSL_GUARDED_BY(mu_) = nullptr;
  bool headers_sent_ ABSL_GUARDED_BY(mu_) = false;
  bool aborted_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<absl::Status> finished_ ABSL_GUARDED_BY(mu_);
  std::vector<Response> written_ ABSL_GUARDED_BY(mu_);
  std::vector<bool> more_follow_ ABSL_GUARDED_BY(mu_);
};

}  // namespace resident

#endif  // RESIDENT_SERVER_RPC_FAKE_CALL_H_
