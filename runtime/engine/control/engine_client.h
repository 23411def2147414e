// EngineClient: the front end's side of the control protocol of an engine process
// (proto/resident/internal/engine.proto).
//
// A call either blocks its thread until the engine has answered, at most for the time given, or is
// started, and its answer is polled (EngineCall): the supervisor of an engine must not wait for it.
// If the engine ends, its calls end at once, with UNAVAILABLE. No call waits to send its request:
// an engine that has not read the requests before it counts as ended.
//
// Thread safety: all members may be called from any thread, but the object must not be destroyed
// from within OnAnswer. proto/resident/internal/engine.proto says which calls the engine serves
// beside each other.
#ifndef RESIDENT_RUNTIME_ENGINE_CONTROL_ENGINE_CLIENT_H_
#define RESIDENT_RUNTIME_ENGINE_CONTROL_ENGINE_CLIENT_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
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
  uint64_t address;  // As operators see it.
};

// A call to the engine that has been started. It is answered DEADLINE_EXCEEDED if the engine does
// not answer in time. When the object is destroyed nothing waits for the answer any more; the
// engine serves the call all the same.
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
  // Called when the engine has answered a started call or has ended, on a thread that serves all
  // calls to this engine: it must not block. It is not called when the call's time is over.
  using OnAnswer = std::function<void()>;

  // Pinning a large object takes 4 ms for each MiB at worst.
  static constexpr std::chrono::milliseconds kMapLimit{30'000};

  // Owns the socket from now on. `map_limit` is how long MapShared may take; tests give less.
  explicit EngineClient(int control_socket, std::chrono::milliseconds map_limit = kMapLimit);
  ~EngineClient();
  EngineClient(const EngineClient&) = delete;
  EngineClient& operator=(const EngineClient&) = delete;

  // The calls of Engine (runtime/engine/engine.h), with their errors, and
  // DEADLINE_EXCEEDED when the engine does not answer in time.
  absl::StatusOr<std::vector<EnginePhase>> Prepare(int ordinal, std::chrono::milliseconds timeout);
  absl::StatusOr<EngineInfo> Start(const EngineOptions& options, std::chrono::milliseconds timeout);
  absl::Status Resume(std::chrono::milliseconds timeout);
  absl::StatusOr<std::vector<OperatorResources>> Preload(const Generation& generation);
  // Blocks for the whole change. Its progress is published in shared memory (SwitchSignals).
  absl::StatusOr<SwitchTimes> Switch(uint64_t change, bool launch,
                                     std::chrono::nanoseconds park_timeout);
  // A mapping that the engine completes after the call has failed is undone.
  absl::StatusOr<SharedMapping> MapShared(int fd, uint64_t bytes);

  // The same without waiting. The answer is DEADLINE_EXCEEDED also when the kernel has not left
  // within `park_timeout`. `on_answer` may be null.
  std::unique_ptr<EngineCall> StartAwaitPark(std::chrono::nanoseconds park_timeout,
                                             OnAnswer on_answer);
  std::unique_ptr<EngineCall> StartResume(std::chrono::milliseconds timeout, OnAnswer on_answer);
  std::unique_ptr<EngineCall> StartSwitch(uint64_t change, bool launch,
                                          std::chrono::nanoseconds park_timeout,
                                          OnAnswer on_answer);
  // The result is not reported: memory that an engine fails to unmap stays mapped until it ends.
  void StartUnmapShared(uint64_t mapping);
  // Ends the process. UNAVAILABLE: it ended before it had answered.
  absl::Status Shutdown(std::chrono::milliseconds timeout);

 private:
  // Sends the request, with the descriptor if it is not -1, and waits for the answer.
  absl::StatusOr<internal::EngineResponse> Call(internal::EngineRequest request,
                                                std::chrono::nanoseconds timeout, int fd = -1);
  std::unique_ptr<EngineCall> StartCall(internal::EngineRequest request,
                                        std::chrono::nanoseconds timeout, OnAnswer on_answer);

  const std::shared_ptr<EngineConnection> connection_;
  const std::chrono::milliseconds map_limit_;
  std::thread reader_;  // Runs EngineConnection::ReadResponses.
  // The engine maps one object at a time: the time limit of the next begins when it is its turn.
  absl::Mutex map_mu_;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_ENGINE_CONTROL_ENGINE_CLIENT_H_
