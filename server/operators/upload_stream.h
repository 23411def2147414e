// UploadStream: a call that uploads what the daemon then works on: Operators.Install and
// Models.Load.
//
//   reading ──half-close──▶ waiting for a thread ──▶ working ──▶ last answers ──▶ end
//      └──────── refused, or the client has gone ──────────────────────────────▶ end
//
// The work runs on a thread of Pools::installs and may send answers. If the client has gone or the
// daemon stops, it is withdrawn: the daemon does not wait for it, because a compilation may take
// minutes and little is lost.
//
// An upload holds one of Limits::max_installs slots from its beginning, because its data is kept in
// memory (server/core/shared_slots.h). So that incomplete uploads cannot hold slots, the call ends
// with DEADLINE_EXCEEDED if the header has not arrived after Limits::max_install_header_ms, or the
// whole upload after Limits::max_install_upload_ms.
//
// Thread safety: see BidiStream. A derived class uses its own members in Begin, Add and Finish,
// which are called one after the other, and then in Work.
#ifndef RESIDENT_SERVER_OPERATORS_UPLOAD_STREAM_H_
#define RESIDENT_SERVER_OPERATORS_UPLOAD_STREAM_H_

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "grpcpp/alarm.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "server/operators/installs.h"
#include "server/rpc/bidi_stream.h"
#include "server/rpc/call.h"
#include "server/rpc/message_bytes.h"

namespace resident {

class UploadStream : public BidiStream<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  void Open(const grpc::CallbackServerContext& context);
  bool ends_at_drain() const override { return true; }

 protected:
  struct Caller {
    std::shared_ptr<Identity> identity;
    std::string holder;  // NameHolder.
  };

  // `method`: "resident.v1.Operators/Install".
  UploadStream(Transport& transport, Installs& installs, const char* method)
      : BidiStream(transport, installs.core), installs_(installs), method_(method) {}

  // The call is accepted; messages follow. An error ends the call.
  virtual absl::Status Begin(const grpc::CallbackServerContext& context, const Caller& caller) = 0;
  // Adds a message. An error ends the call.
  virtual absl::Status Add(grpc::ByteBuffer& bytes) = 0;
  // Everything was added: returns the first answer. An error ends the call.
  virtual absl::StatusOr<grpc::ByteBuffer> Finish() = 0;
  // Runs on a thread that may block; returns the status of the call. CANCELLED after Withdraw.
  virtual absl::Status Work() = 0;
  // Ends Work soon, if it runs. Any thread; may be called before Work.
  virtual void Withdraw() = 0;

  template <typename Message>
  absl::Status Parse(grpc::ByteBuffer& bytes, Message* message) {
    return ParseMessage(bytes, FindMessageLimits(core_, absl::StrCat("/", method_)), message);
  }
  // Sends an answer. Called by Work.
  template <typename Message>
  void Answer(const Message& response) ABSL_LOCKS_EXCLUDED(mu_) {
    grpc::ByteBuffer bytes = ToBytes(response);
    absl::MutexLock lock(&mu_);
    Send(bytes);
  }

  // To which answers are charged; null: they are not, because they are few and small. Set by Begin.
  std::shared_ptr<Client> client_;

 private:
  void OnRequest(grpc::ByteBuffer& bytes) override;
  void OnHalfClose() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnEnd(const absl::Status& status) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Waits for work that was withdrawn, because it still sends answers.
  bool Busy() const override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return working_; }
  // Before the status is sent, so that the client's next upload finds the slot free.
  void OnFinish() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { slot_.Release(); }

  absl::Status Enter(const grpc::CallbackServerContext& context) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Ends the call after this time unless it has been half-closed, or (`header`) its header has
  // arrived.
  void EndIfNotSent(grpc::Alarm& alarm, uint64_t limit_ms, bool header);
  void RunWork() ABSL_LOCKS_EXCLUDED(mu_);
  void Send(grpc::ByteBuffer bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Installs& installs_;
  const char* const method_;
  DrainGate::Entry entry_;  // From the half-close until the work has ended.
  grpc::Alarm header_alarm_;
  grpc::Alarm upload_alarm_;

  SharedSlots::Ticket slot_ ABSL_GUARDED_BY(mu_);
  bool has_header_ ABSL_GUARDED_BY(mu_) = false;
  bool working_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status withdrawn_why_ ABSL_GUARDED_BY(mu_);
};

}  // namespace resident

#endif  // RESIDENT_SERVER_OPERATORS_UPLOAD_STREAM_H_
