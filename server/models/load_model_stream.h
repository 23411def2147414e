// LoadModelStream: one Models.Load.
//
//   reading ──half-close──▶ waiting for a thread ──▶ loading ──▶ last answers ──▶ end
//      └──────── refused, or the client has gone ──────────────────────────────▶ end
//
// A load has the place, the quota and the time limits of an install (server/operators/
// install_stream.h), because its contents are kept in memory too, and it runs on the same threads.
//
// Thread safety: see BidiStream. ModelLoader calls it from a thread of Pools::installs.
#ifndef RESIDENT_SERVER_MODELS_LOAD_MODEL_STREAM_H_
#define RESIDENT_SERVER_MODELS_LOAD_MODEL_STREAM_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "grpcpp/alarm.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "server/models/model_loader.h"
#include "server/models/models.h"
#include "server/rpc/bidi_stream.h"

namespace resident {

class LoadModelStream final : public BidiStream<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  LoadModelStream(Transport& transport, Models& models)
      : BidiStream(transport, models.core), models_(models) {}
  void Open(const grpc::CallbackServerContext& context);
  bool ends_at_drain() const override { return true; }

 private:
  void OnRequest(grpc::ByteBuffer& bytes) override;
  void OnHalfClose() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnEnd(const absl::Status& status) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Waits for a load that was withdrawn, because the loader still calls back.
  bool Busy() const override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return loading_; }
  // Before the status is sent, so that the client's next load finds the slot free.
  void OnFinish() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { slot_.Release(); }

  absl::Status Enter(const grpc::CallbackServerContext& context) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Ends the call after this time unless it has been half-closed, or (`header`) its header has
  // arrived.
  void EndIfNotSent(grpc::Alarm& alarm, uint64_t limit_ms, bool header);
  absl::Status Accept(grpc::ByteBuffer& bytes);
  // Runs on a thread that may block.
  void Load();
  void Answer(const v1::LoadModelResponse& response) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Models& models_;
  std::shared_ptr<Client> client_;     // The one of the call, to which its answers are charged.
  std::optional<ModelLoader> loader_;  // Set by Open; used by the reads, and then by Load.
  DrainGate::Entry entry_;             // From the half-close until the load has ended.
  grpc::Alarm header_alarm_;
  grpc::Alarm upload_alarm_;

  SharedSlots::Ticket slot_ ABSL_GUARDED_BY(mu_);
  bool has_header_ ABSL_GUARDED_BY(mu_) = false;
  bool loading_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status withdrawn_why_ ABSL_GUARDED_BY(mu_);
};

}  // namespace resident

#endif  // RESIDENT_SERVER_MODELS_LOAD_MODEL_STREAM_H_
