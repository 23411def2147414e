// EngineService: serves the requests of the control protocol (proto/resident/internal/engine.proto)
// with an Engine, and keeps the process's heartbeat. engine_server.h reads the requests.
//
// Thread safety: Serve is called by one thread for each Lane, concurrently with the other lanes;
// all other members may be called from any thread.
#ifndef RESIDENT_RUNTIME_ENGINE_CONTROL_ENGINE_SERVICE_H_
#define RESIDENT_RUNTIME_ENGINE_CONTROL_ENGINE_SERVICE_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "resident/internal/engine.pb.h"
#include "runtime/base/process/unique_fd.h"
#include "runtime/engine/engine.h"
#include "runtime/ring/shared_region.h"

namespace resident {

class EngineService {
 public:
  using EngineFactory = std::function<absl::StatusOr<std::unique_ptr<Engine>>(int ordinal)>;

  // Requests of one lane are served in order, concurrently with those of the other lanes:
  // preloading a generation and pinning a client's memory take long, and a park must not wait for
  // them.
  enum class Lane : uint8_t { kKernel, kPreload, kMappings };
  static constexpr size_t kLanes = 3;

  // Takes ownership of the descriptor of the shared region. `confine` is called once, when the
  // engine is prepared; if it fails, Prepare fails.
  EngineService(
      int region_fd, EngineFactory factory,
      std::function<absl::Status()> confine = [] { return absl::OkStatus(); });
  EngineService(const EngineService&) = delete;
  EngineService& operator=(const EngineService&) = delete;

  // nullopt: the request is served without delay and may be served concurrently with all lanes.
  static std::optional<Lane> FindLane(const internal::EngineRequest& request);
  // `fd`: the descriptor that came with the request; -1: none.
  internal::EngineResponse Serve(const internal::EngineRequest& request, int fd);

  // Waits up to `timeout` for a shutdown request; returns earlier if BeatEvery changes. Returns
  // whether there was a shutdown request.
  bool AwaitShutdown(std::chrono::milliseconds timeout);

  // Increments the heartbeat in the shared region and queries the engine's health. An error: the
  // device's context has failed, and the region's exit_reason says why.
  absl::Status Beat();
  // How long to wait before the next heartbeat.
  std::chrono::milliseconds BeatEvery();

 private:
  enum class Progress : uint8_t { kNew, kPreparing, kPrepared, kStarting, kRunning };

  // Each serves one kind of request.
  absl::Status Prepare(const internal::PrepareRequest& request,
                       internal::PrepareResponse* response);
  absl::Status Start(const internal::StartRequest& request, int fd,
                     internal::StartResponse* response);
  absl::Status Preload(const internal::PreloadRequest& request, int fd,
                       internal::PreloadResponse* response);
  absl::Status Switch(const internal::SwitchRequest& request, internal::SwitchResponse* response);
  // `id`: the id of the request.
  absl::Status MapShared(const internal::MapSharedRequest& request, uint64_t id, int fd,
                         internal::MapSharedResponse* response);
  absl::Status UnmapShared(const internal::UnmapSharedRequest& request);
  absl::Status ServeCall(const internal::EngineRequest& request, int fd,
                         internal::EngineResponse* response);

  // Returns the engine for a request that requires it to run.
  absl::StatusOr<Engine*> FindRunning();
  // Changes the state `from` to `to`. Returns false if it is not `from`.
  bool Enter(Progress from, Progress to) ABSL_LOCKS_EXCLUDED(mu_);

  const EngineFactory factory_;
  const std::function<absl::Status()> confine_;
  UniqueFd region_fd_;  // Until the region is attached. Used by kKernel only.
  // Addresses of mappings, by the id of the request. Used by kMappings only.
  std::map<uint64_t, uint64_t> mapped_;

  // Held by Preload and by Switch.
  absl::Mutex preload_mu_ ABSL_ACQUIRED_BEFORE(mu_);

  absl::Mutex mu_;
  // Set by Prepare, then never changed.
  std::unique_ptr<SharedRegion> region_ ABSL_GUARDED_BY(mu_);
  // Never destroyed, because the destructor would wait for a kernel on the device. When the process
  // ends, the system releases everything.
  Engine* engine_ ABSL_GUARDED_BY(mu_) = nullptr;
  std::chrono::milliseconds beat_every_ ABSL_GUARDED_BY(mu_){0};
  Progress progress_ ABSL_GUARDED_BY(mu_) = Progress::kNew;
  // Whether progress_ has changed since AwaitShutdown returned.
  bool changed_ ABSL_GUARDED_BY(mu_) = false;
  bool shutdown_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_ENGINE_CONTROL_ENGINE_SERVICE_H_
