// InstallStream: one Operators.Install.
//
//   reading ──half-close──▶ waiting for a thread ──▶ installing ──▶ last answers ──▶ end
//      └──────── refused, or the client is gone ────────────────────────────────────▶ end
//
// The manager installs on a thread of Core::installs; each state that it reports becomes
// an answer. A client that is gone, or a daemon that stops, withdraws the install: the
// manager sees that before it stages anything.
//
// An install holds one of Limits::max_installs slots from its beginning on, since what it
// sends is kept in memory (server/rpc/shared_slots.h). So that nobody holds slots with installs
// that are never sent, the call ends DEADLINE_EXCEEDED if the header has not come after
// Limits::max_install_header_ms, or all of it after Limits::max_install_upload_ms.
//
// Thread safety: gRPC and the manager call its members from any thread. mu_ guards what
// both see. Operations are started under mu_, and none after Finish.
#ifndef RESIDENT_SERVER_RPC_INSTALL_STREAM_H_
#define RESIDENT_SERVER_RPC_INSTALL_STREAM_H_

#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/alarm.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "server/rpc/core.h"
#include "server/rpc/install_collector.h"
#include "server/rpc/live_streams.h"

namespace resident {

class InstallStream final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                            public LiveStream,
                            public std::enable_shared_from_this<InstallStream> {
 public:
  // Owns itself until gRPC and the manager are done with it.
  static InstallStream* Start(Core& core, const grpc::CallbackServerContext& context);
  ~InstallStream() override;

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override { self_.reset(); }
  void End(const absl::Status& status) override;
  // A compiler or a validation may take minutes, and nothing of it is lost that counts: what
  // was compiled is in the cache.
  bool ends_at_drain() const override { return true; }

 private:
  InstallStream(Core& core, const grpc::CallbackServerContext& context);
  void Open();
  absl::Status TakeSlot() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Ends the call after this time unless it has been half-closed, or (`header`) its header
  // has come.
  void EndIfNotSent(grpc::Alarm& alarm, uint64_t limit_ms, bool header);
  // Takes a message. The header says what is installed, and so whether the caller may.
  absl::Status Accept();
  // (after the half-close) Hands what was sent to the manager.
  void Launch() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // On a thread that may block.
  void Install(const InstallRequest& request);
  void Answer(const InstallProgress& progress);
  // The call ends with `status` once what is answered has been sent.
  void Conclude(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Core& core_;
  // Valid until Finish.
  const grpc::CallbackServerContext& context_;
  // Who installs. An error ends the call.
  const absl::StatusOr<std::shared_ptr<Identity>> identity_;
  const Clock::time_point started_ = Clock::now();
  std::shared_ptr<InstallStream> self_;  // Until OnDone.

  grpc::ByteBuffer message_bytes_;  // gRPC's while it is read.
  InstallCollector collector_;      // The reader's.
  std::atomic<bool> withdrawn_{false};
  // They hold no reference to the stream.
  grpc::Alarm header_alarm_;
  grpc::Alarm upload_alarm_;

  absl::Mutex mu_;
  SharedSlots::Ticket slot_ ABSL_GUARDED_BY(mu_);
  bool has_header_ ABSL_GUARDED_BY(mu_) = false;
  bool installing_ ABSL_GUARDED_BY(mu_) = false;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status withdrawn_why_ ABSL_GUARDED_BY(mu_);
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mu_);  // How the call ends.
  std::deque<grpc::ByteBuffer> responses_ ABSL_GUARDED_BY(mu_);
};

}  // namespace resident

#endif  // RESIDENT_SERVER_RPC_INSTALL_STREAM_H_
