// InstallStream: one Operators.Install.
//
//   reading ──half-close──▶ waiting for a thread ──▶ installing ──▶ last answers ──▶ end
//      └──────── refused, or the client has gone ───────────────────────────────────▶ end
//
// The manager installs on a thread of Pools::installs; each state that it reports is sent as an
// answer. If the client has gone or the daemon stops, the install is withdrawn: the manager checks
// for that before it loads anything.
//
// An install holds one of Limits::max_installs slots from its beginning, because its data is kept
// in memory (server/core/shared_slots.h). So that incomplete installs cannot hold slots, the call
// ends with DEADLINE_EXCEEDED if the header has not arrived after Limits::max_install_header_ms, or
// the whole install after Limits::max_install_upload_ms.
//
// Thread safety: see BidiStream. The manager calls it from a thread of Pools::installs.
#ifndef RESIDENT_SERVER_OPERATORS_INSTALL_STREAM_H_
#define RESIDENT_SERVER_OPERATORS_INSTALL_STREAM_H_

#include <atomic>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "grpcpp/alarm.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "server/operators/install_collector.h"
#include "server/operators/installs.h"
#include "server/rpc/bidi_stream.h"

namespace resident {

class InstallStream final : public BidiStream<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  InstallStream(Transport& transport, Installs& installs)
      : BidiStream(transport, installs.core), installs_(installs) {}
  void Open(const grpc::CallbackServerContext& context);
  // A compilation or a validation may take minutes, and little is lost: compiled code is in the
  // cache.
  bool ends_at_drain() const override { return true; }

 private:
  void OnRequest(grpc::ByteBuffer& bytes) override;
  // Passes the install to the manager.
  void OnHalfClose() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnEnd(const absl::Status& status) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Waits for an install that was withdrawn, because the manager still calls back.
  bool Busy() const override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return installing_; }
  // Before the status is sent, so that the client's next install finds the slot free.
  void OnFinish() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { slot_.Release(); }

  absl::Status TakeSlot(const std::string& peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Ends the call after this time unless it has been half-closed, or (`header`) its header has
  // arrived.
  void EndIfNotSent(grpc::Alarm& alarm, uint64_t limit_ms, bool header);
  // Adds a message. Its header names the operator, for which the caller's permission is checked.
  absl::Status Accept(grpc::ByteBuffer& bytes);
  // Runs on a thread that may block.
  void Install(const InstallRequest& request);
  void Answer(const InstallProgress& progress) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Installs& installs_;
  const Clock::time_point started_ = Clock::now();
  // The caller. An error ends the call. Set before the first operation.
  absl::StatusOr<std::shared_ptr<Identity>> identity_;
  InstallCollector collector_;  // Used only by the reads.
  DrainGate::Entry entry_;      // From the half-close until the install has ended.
  std::atomic<bool> withdrawn_{false};
  grpc::Alarm header_alarm_;
  grpc::Alarm upload_alarm_;

  SharedSlots::Ticket slot_ ABSL_GUARDED_BY(mu_);
  bool has_header_ ABSL_GUARDED_BY(mu_) = false;
  bool installing_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status withdrawn_why_ ABSL_GUARDED_BY(mu_);
};

}  // namespace resident

#endif  // RESIDENT_SERVER_OPERATORS_INSTALL_STREAM_H_
