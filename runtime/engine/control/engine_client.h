// EngineClient: the front end's side of the control protocol of an engine process
// (proto/resident/internal/engine.proto).
//
// A call either blocks its thread until the engine responds, with a timeout, or is started and its
// response is polled (EngineCall), because the supervisor of an engine must not wait for it.
// If the engine ends, its calls fail at once with UNAVAILABLE. No call waits to send its request:
// a thread sends requests in order, and those that the engine has not read wait in memory.
//
// Thread safety: all members may be called from any thread, but the object must not be destroyed
// from within OnAnswer. See proto/resident/internal/engine.proto for the calls that the engine
// serves concurrently.
#ifndef RESIDENT_RUNTIME_ENGINE_CONTROL_ENGINE_CLIENT_H_
#define RESIDENT_RUNTIME_ENGINE_CONTROL_ENGINE_CLIENT_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "runtime/engine/engine.h"

namespace resident {

namespace internal {
class EngineRequest;  // Messages of resident/internal/engine.proto.
class EngineResponse;
class Generation;
}  // namespace internal

class EngineConnection;

// Shared memory that the engine has mapped.
struct SharedMapping {
  uint64_t id;       // For StartUnmapShared.
  uint64_t address;  // Address for operators.
};

// A call to the engine that has been started. Its answer is DEADLINE_EXCEEDED if the engine does
// not respond in time. If the object is destroyed earlier, the response is dropped, but the engine
// still serves the call.
//
// Thread safety: all members may be called from any thread.
// Memory ordering: what the engine did before it answered is visible to the thread for which
// answered() returned true.
class EngineCall {
 public:
  ~EngineCall();
  EngineCall(const EngineCall&) = delete;
  EngineCall& operator=(const EngineCall&) = delete;

  bool answered() const;
  // REQUIRES: answered(). The times are those of a Switch, otherwise 0.
  absl::StatusOr<SwitchTimes> answer() const;

 private:
  friend class EngineClient;
  friend class EngineConnection;
  struct Pending;
  EngineCall(std::shared_ptr<EngineConnection> connection, uint64_t id,
             std::shared_ptr<const Pending> pending, std::chrono::steady_clock::time_point deadline)
      : connection_(std::move(connection)),
        id_(id),
        pending_(std::move(pending)),
        deadline_(deadline) {}

  const std::shared_ptr<EngineConnection> connection_;
  const uint64_t id_;
  const std::shared_ptr<const Pending> pending_;
  const std::chrono::steady_clock::time_point deadline_;
};

class EngineClient {
 public:
  // Called once, when the engine has answered a started call or has ended: on any thread, possibly
  // before the function that starts the call returns. It must not block. A time-out does not call
  // it; a response after the time-out does. If the EngineCall is destroyed first, it is not called,
  // except by a response that is being delivered at that moment.
  using OnAnswer = std::function<void()>;

  // Pinning a large object takes 4 ms for each MiB at worst.
  static constexpr std::chrono::milliseconds kMapLimit{30'000};

  // Limit of the requests that wait to be sent; further calls fail with UNAVAILABLE. It bounds the
  // memory. It is far more than the default of --max_buffers, because a session that ends releases
  // all its mappings at once.
  static constexpr size_t kMaxUnsentRequests = size_t{1} << 20;

  // Takes ownership of the socket, which may block. `map_limit` is how long a mapping may take.
  // Tests use lower limits.
  explicit EngineClient(int control_socket, std::chrono::milliseconds map_limit = kMapLimit,
                        size_t max_unsent = kMaxUnsentRequests);
  ~EngineClient();
  EngineClient(const EngineClient&) = delete;
  EngineClient& operator=(const EngineClient&) = delete;

  // The calls of Engine (runtime/engine/engine.h), with their errors, and
  // DEADLINE_EXCEEDED if the engine does not respond in time.
  absl::StatusOr<std::vector<EnginePhase>> Prepare(int ordinal, std::chrono::milliseconds timeout);
  absl::StatusOr<EngineInfo> Start(const EngineOptions& options, std::chrono::milliseconds timeout);
  absl::Status Resume(std::chrono::milliseconds timeout);
  absl::StatusOr<std::vector<OperatorResources>> Preload(const Generation& generation);
  // Blocks for the whole change. Its progress is published in shared memory (SwitchSignals).
  absl::StatusOr<SwitchTimes> Switch(uint64_t change, bool launch,
                                     std::chrono::nanoseconds park_timeout);
  // If the engine completes a mapping after the call has failed, the mapping is removed.
  absl::StatusOr<SharedMapping> MapShared(int fd, uint64_t bytes);
  absl::StatusOr<SharedMapping> MapSharedDevice(const std::string& handle, uint64_t bytes);
  absl::StatusOr<SharedMapping> MapDeviceDescriptor(int fd, uint64_t allocation_bytes);

  // The same without waiting. The answer is also DEADLINE_EXCEEDED if the kernel has not returned
  // within `park_timeout`. `on_answer` may be null.
  std::unique_ptr<EngineCall> StartAwaitPark(std::chrono::nanoseconds park_timeout,
                                             OnAnswer on_answer);
  std::unique_ptr<EngineCall> StartResume(std::chrono::milliseconds timeout, OnAnswer on_answer);
  std::unique_ptr<EngineCall> StartSwitch(uint64_t change, bool launch,
                                          std::chrono::nanoseconds park_timeout,
                                          OnAnswer on_answer);
  // The result is ignored: memory that an engine fails to unmap stays mapped until the engine ends.
  void StartUnmapShared(uint64_t mapping);
  // Ends the process. UNAVAILABLE: it ended before it sent a response.
  absl::Status Shutdown(std::chrono::milliseconds timeout);

 private:
  // Sends the request, with the descriptor if it is not -1, and waits for the response.
  absl::StatusOr<internal::EngineResponse> Call(internal::EngineRequest request,
                                                std::chrono::nanoseconds timeout, int fd = -1);
  // Sends the request, with the descriptor if it is not -1, and waits for the mapping.
  absl::StatusOr<SharedMapping> Map(internal::EngineRequest request, int fd);
  std::unique_ptr<EngineCall> StartCall(internal::EngineRequest request,
                                        std::chrono::nanoseconds timeout, OnAnswer on_answer);

  const std::shared_ptr<EngineConnection> connection_;
  const std::chrono::milliseconds map_limit_;
  std::thread reader_;  // Runs EngineConnection::ReadResponses.
  std::thread writer_;  // Runs EngineConnection::SendRequests.
  // The engine maps one object at a time, so a call's time limit begins after the previous call.
  absl::Mutex map_mu_;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_ENGINE_CONTROL_ENGINE_CLIENT_H_
