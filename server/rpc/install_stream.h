// InstallStream: one Operators.Install.
//
//   reading ──half-close──▶ waiting for a thread ──▶ installing ──▶ last answers ──▶ end
//      └──────── refused, or the client is gone ────────────────────────────────────▶ end
//
// The manager installs on a thread of Core::installs; each state that it reports becomes
// an answer. A client that is gone, or a daemon that stops, withdraws the install: the
// manager sees that before it loads anything.
//
// An install holds one of Limits::max_installs slots from its beginning on, since what it
// sends is kept in memory (server/rpc/shared_slots.h). So that nobody holds slots with installs
// that are never sent, the call ends DEADLINE_EXCEEDED if the header has not come after
// Limits::max_install_header_ms, or all of it after Limits::max_install_upload_ms.
//
// Thread safety: as BidiStream. The manager calls it from a thread of Core::installs.
#ifndef RESIDENT_SERVER_RPC_INSTALL_STREAM_H_
#define RESIDENT_SERVER_RPC_INSTALL_STREAM_H_

#include <atomic>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "grpcpp/alarm.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "server/rpc/bidi_stream.h"
#include "server/rpc/install_collector.h"

namespace resident {

class InstallStream final : public BidiStream<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  InstallStream(Transport& transport, Core& core) : BidiStream(transport, core) {}
  void Open(const grpc::CallbackServerContext& context);
  // A compiler or a validation may take minutes, and nothing of it is lost that counts: what
  // was compiled is in the cache.
  bool ends_at_drain() const override { return true; }

 private:
  void OnRequest(grpc::ByteBuffer& bytes) override;
  // Hands what was sent to the manager.
  void OnHalfClose() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnEnd(const absl::Status& status) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // An install that was withdrawn is waited for: the manager still calls back.
  bool Busy() const override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return installing_; }
  // Before the client has the status: its next install must find the slot.
  void OnFinish() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { slot_.Release(); }

  absl::Status TakeSlot(const std::string& peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Ends the call after this time unless it has been half-closed, or (`header`) its header
  // has come.
  void EndIfNotSent(grpc::Alarm& alarm, uint64_t limit_ms, bool header);
  // Takes a message. The header says what is installed, and so whether the caller may.
  absl::Status Accept(grpc::ByteBuffer& bytes);
  // On a thread that may block.
  void Install(const InstallRequest& request);
  void Answer(const InstallProgress& progress) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Clock::time_point started_ = Clock::now();
  // Who installs. An error ends the call. Set before the first operation.
  absl::StatusOr<std::shared_ptr<Identity>> identity_;
  InstallCollector collector_;  // The reader's.
  std::atomic<bool> withdrawn_{false};
  grpc::Alarm header_alarm_;
  grpc::Alarm upload_alarm_;

  SharedSlots::Ticket slot_ ABSL_GUARDED_BY(mu_);
  bool has_header_ ABSL_GUARDED_BY(mu_) = false;
  bool installing_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status withdrawn_why_ ABSL_GUARDED_BY(mu_);
};

}  // namespace resident

#endif  // RESIDENT_SERVER_RPC_INSTALL_STREAM_H_
