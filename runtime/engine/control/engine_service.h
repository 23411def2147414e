// EngineService: the engine process's end of the control plane. Turns calls into calls
// of an Engine and keeps the process's heart beating. What may take long beside a running
// kernel (staging a generation, pinning a client's memory) is served beside the other
// calls, so that a park that is due does not wait for it.
//
// Thread safety: all members may be called from any thread.
#ifndef RESIDENT_RUNTIME_ENGINE_CONTROL_ENGINE_SERVICE_H_
#define RESIDENT_RUNTIME_ENGINE_CONTROL_ENGINE_SERVICE_H_

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "resident/internal/engine.grpc.pb.h"
#include "runtime/engine/control/descriptor_channel.h"
#include "runtime/engine/engine.h"
#include "runtime/ring/shared_region.h"

namespace resident {

class EngineService : public internal::EngineControl::Service {
 public:
  using EngineFactory = std::function<absl::StatusOr<std::unique_ptr<Engine>>(int ordinal)>;

  // Takes both descriptors over: the shared region and the descriptor channel. `confine` is called
  // once, when the engine is prepared; if it fails, that does.
  EngineService(
      int region_fd, int descriptor_socket, EngineFactory factory,
      std::function<absl::Status()> confine = [] { return absl::OkStatus(); });
  // The engine is not destroyed: with a kernel on the device its destruction would
  // wait for it. The process ends, and the system takes everything back.
  ~EngineService() override;

  // Waits for a Shutdown call, at most for `most`, and not beyond a change of BeatEvery; whether
  // there was one.
  bool AwaitShutdown(std::chrono::milliseconds most);

  // Marks the shared region with a sign of life and asks the engine for its health.
  // Not OK: the device's context is gone, and the region's last words say so.
  absl::Status Beat();
  // How long to wait before the next one.
  std::chrono::milliseconds BeatEvery();

  grpc::Status Prepare(grpc::ServerContext* context, const internal::PrepareRequest* request,
                       internal::PrepareResponse* response) override;
  grpc::Status Start(grpc::ServerContext* context, const internal::StartRequest* request,
                     internal::StartResponse* response) override;
  grpc::Status AwaitPark(grpc::ServerContext* context, const internal::AwaitParkRequest* request,
                         internal::AwaitParkResponse* response) override;
  grpc::Status Resume(grpc::ServerContext* context, const internal::ResumeRequest* request,
                      internal::ResumeResponse* response) override;
  grpc::Status Stage(grpc::ServerContext* context, const internal::StageRequest* request,
                     internal::StageResponse* response) override;
  grpc::Status Switch(grpc::ServerContext* context, const internal::SwitchRequest* request,
                      internal::SwitchResponse* response) override;
  grpc::Status MapShared(grpc::ServerContext* context, const internal::MapSharedRequest* request,
                         internal::MapSharedResponse* response) override;
  grpc::Status UnmapShared(grpc::ServerContext* context,
                           const internal::UnmapSharedRequest* request,
                           internal::UnmapSharedResponse* response) override;
  grpc::Status Shutdown(grpc::ServerContext* context, const internal::ShutdownRequest* request,
                        internal::ShutdownResponse* response) override;

 private:
  enum class Progress : uint8_t { kNew, kPreparing, kPrepared, kStarting, kRunning };

  absl::StatusOr<std::vector<EnginePhase>> PrepareEngine(const internal::PrepareRequest& request)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(call_mu_);
  absl::StatusOr<EngineInfo> StartEngine(const internal::StartRequest& request)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(call_mu_);
  // Goes from one stage to another; false: it is not in the first one.
  bool Enter(Progress from, Progress to) ABSL_LOCKS_EXCLUDED(mu_);

  // The generation of a message, with its bytes.
  absl::StatusOr<std::shared_ptr<const Generation>> Receive(const internal::Generation& message);

  const int descriptor_socket_;
  const EngineFactory factory_;
  const std::function<absl::Status()> confine_;
  DescriptorInbox inbox_;

  // Held for the length of a call: one for what parks, launches and switches, one each for
  // what goes on beside. Beat() does without: it must go on during any of them.
  absl::Mutex call_mu_ ABSL_ACQUIRED_BEFORE(mu_);
  absl::Mutex stage_mu_ ABSL_ACQUIRED_BEFORE(call_mu_);
  absl::Mutex map_mu_ ABSL_ACQUIRED_BEFORE(mu_);
  int region_fd_ ABSL_GUARDED_BY(call_mu_);  // -1 once attached.
  absl::Mutex mapped_mu_ ABSL_ACQUIRED_AFTER(map_mu_);
  std::map<uint64_t, uint64_t> mapped_ ABSL_GUARDED_BY(mapped_mu_);  // Addresses, by token.

  absl::Mutex mu_;
  // Set by Prepare, then never changed.
  std::unique_ptr<SharedRegion> region_ ABSL_GUARDED_BY(mu_);
  Engine* engine_ ABSL_GUARDED_BY(mu_) = nullptr;  // Never destroyed.
  std::chrono::milliseconds beat_every_ ABSL_GUARDED_BY(mu_){0};
  Progress stage_ ABSL_GUARDED_BY(mu_) = Progress::kNew;
  bool changed_ ABSL_GUARDED_BY(mu_) = false;  // The stage has, since AwaitShutdown returned.
  bool shutdown_ ABSL_GUARDED_BY(mu_) = false;

  // The engine, for a call that needs it to run.
  absl::StatusOr<Engine*> Running();
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_ENGINE_CONTROL_ENGINE_SERVICE_H_
