// GrpcCall: the transport of a BidiStream over gRPC's callback API, for each of its three kinds of
// streaming calls.
//
// The reactor owns the stream until OnDone, and destroys itself then. Work of the stream that is
// still under way may keep the stream alive longer, but not the call.
//
// Thread safety: gRPC calls the reactions from any thread, OnDone last. The stream starts
// operations with its mutex held; gRPC keeps those that are started before it has the reactor.
//
//   return StartBidiCall<SubmitStream>(*context, core_);
//   return StartReadCall<UploadStream>(*context, core_, *response);    // Open(context, response)
//   return StartWriteCall<WatchStream>(*context, core_, *request);     // Open(context, request)
#ifndef RESIDENT_SERVER_RPC_GRPC_CALL_H_
#define RESIDENT_SERVER_RPC_GRPC_CALL_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "server/core/status.h"
#include "server/rpc/bidi_stream.h"
#include "server/rpc/call_memory.h"

namespace resident {

// The part that the three kinds have in common.
template <typename Stream, typename Reactor>
class GrpcCall : public Reactor, public Stream::Transport {
 public:
  // `owner`: the second argument of the stream's constructor.
  template <typename Owner>
  GrpcCall(const grpc::CallbackServerContext& context, Owner& owner)
      : context_(context), stream_(std::make_shared<Stream>(*this, owner)) {}

  Stream& stream() { return *stream_; }

  void OnCancel() final { stream_->OnCancel(); }
  void OnDone() final {
    stream_->OnCallDone();
    delete this;
  }

  void SendHeaders() final { this->StartSendInitialMetadata(); }
  void Finish(const absl::Status& status) final { Reactor::Finish(ToGrpc(status)); }
  void Cancel() final { context_.TryCancel(); }

 protected:
  const grpc::CallbackServerContext& context_;  // Valid until OnDone.
  const std::shared_ptr<Stream> stream_;
};

// Adds reading to a reactor that has it. Requests are bytes, which the stream parses
// (message_bytes.h); large ones are handled on other threads (call_memory.h).
template <typename Stream, typename Base>
class WithReads : public Base {
 public:
  using Base::Base;
  void Read(grpc::ByteBuffer* request) final {
    request_ = request;
    if (call_ != nullptr) call_->BeginMessage();
    this->StartRead(request);
  }
  void OnReadDone(bool ok) final {
    const uint64_t length = ok ? request_->Length() : 0;
    if (call_ != nullptr) call_->EndMessage(length);
    if (ok) {
      Handle(length);
    } else if (this->context_.IsCancelled()) {
      // A broken connection ends the reads in the same way as a half-close. The requests until then
      // must not be treated as complete.
      this->stream_->OnCancel();
    } else {
      this->stream_->OnReadsEnded();
    }
  }

 private:
  void Handle(uint64_t length) {
    if (call_ == nullptr || length <= CallMemory::kLarge) return this->stream_->OnReadDone();
    CallMemory::HandleLarge(*call_, length, [stream = this->stream_] { stream->OnReadDone(); });
  }

  // Null in a test whose server has no CallMemory.
  const CallContext* const call_ = dynamic_cast<const CallContext*>(&this->context_);
  grpc::ByteBuffer* request_ = nullptr;  // Of the last read.
};

// Adds writing to a reactor that has it.
template <typename Stream, typename Base>
class WithWrites : public Base {
 public:
  using Base::Base;
  void Write(const typename Stream::Response* response, bool more_follow) final {
    grpc::WriteOptions options;
    if (more_follow) options.set_buffer_hint();
    this->StartWrite(response, options);
  }
  void OnWriteDone(bool ok) final { this->stream_->OnWriteDone(ok); }
};

// Creates the call of a stream and opens it. The service's method returns the result.
template <typename Stream, typename Call, typename Owner, typename... Args>
Call* StartCall(const grpc::CallbackServerContext& context, Owner& owner, Args&&... args) {
  Call* const call = new Call(context, owner);
  // gRPC destroys nothing before the service's method has returned.
  call->stream().Open(context, std::forward<Args>(args)...);
  return call;
}

template <typename Stream, typename... Args>
auto* StartBidiCall(Args&&... args) {
  using Reactor = grpc::ServerBidiReactor<typename Stream::Request, typename Stream::Response>;
  using Call = WithReads<Stream, WithWrites<Stream, GrpcCall<Stream, Reactor>>>;
  return StartCall<Stream, Call>(std::forward<Args>(args)...);
}

// A call whose client streams and gets one response.
template <typename Stream, typename... Args>
auto* StartReadCall(Args&&... args) {
  using Reactor = grpc::ServerReadReactor<typename Stream::Request>;
  return StartCall<Stream, WithReads<Stream, GrpcCall<Stream, Reactor>>>(
      std::forward<Args>(args)...);
}

// A call whose client sends one request and gets a stream.
template <typename Stream, typename... Args>
auto* StartWriteCall(Args&&... args) {
  using Reactor = grpc::ServerWriteReactor<typename Stream::Response>;
  return StartCall<Stream, WithWrites<Stream, GrpcCall<Stream, Reactor>>>(
      std::forward<Args>(args)...);
}

}  // namespace resident

#endif  // RESIDENT_SERVER_RPC_GRPC_CALL_H_
