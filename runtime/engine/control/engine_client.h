// EngineClient: the front end's end of an engine process's control plane.
//
// A call either blocks its thread until the engine answers, at most for the time stated, or is
// started and asked for its answer later (EngineCall): who watches over an engine must not wait
// for it. An engine that ends meanwhile ends the call at once, with UNAVAILABLE.
//
// Thread safety: all members may be called from any thread. The engine serves Prepare,
// Start, AwaitPark, Resume and Switch one at a time; Stage, MapShared and UnmapShared beside them.
#ifndef RESIDENT_RUNTIME_ENGINE_CONTROL_ENGINE_CLIENT_H_
#define RESIDENT_RUNTIME_ENGINE_CONTROL_ENGINE_CLIENT_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "runtime/engine/engine.h"

namespace resident {

namespace internal {
class Generation;  // Message of resident/internal/engine.proto.
}

// Shared memory that the engine has mapped.
struct SharedMapping {
  uint64_t id;       // What it is released by.
  uint64_t address;  // As operators see it.
};

// A call to the engine that has been started. Destroying the object cancels the call; the engine
// may carry it out all the same.
//
// Thread safety: answered() from any thread; the rest from one at a time.
// Memory ordering: what the answer says is visible to the thread that has seen answered().
class EngineCall {
 public:
  virtual ~EngineCall() = default;
  virtual bool answered() const = 0;
  // REQUIRES: answered(). The times are those of a Switch, otherwise 0.
  virtual const absl::StatusOr<SwitchTimes>& answer() const = 0;
};

class EngineClient {
 public:
  // Called when a started call is answered, on a thread of gRPC's: it must not block.
  using OnAnswer = std::function<void()>;

  // Pinning a large object takes 4 ms for each MiB at worst.
  static constexpr std::chrono::milliseconds kMapLimit{30'000};

  // Takes both sockets over: the stream for calls and the channel for descriptors. `map_limit` is
  // how long MapShared may take; tests give less.
  EngineClient(int control_socket, int descriptor_socket,
               std::chrono::milliseconds map_limit = kMapLimit);
  ~EngineClient();
  EngineClient(const EngineClient&) = delete;
  EngineClient& operator=(const EngineClient&) = delete;

  // The calls of Engine (runtime/engine/engine.h), with their errors, and
  // DEADLINE_EXCEEDED when the engine does not answer in time.
  absl::StatusOr<std::vector<EnginePhase>> Prepare(int ordinal, std::chrono::milliseconds most);
  absl::StatusOr<EngineInfo> Start(const EngineOptions& options, std::chrono::milliseconds most);
  absl::StatusOr<std::vector<OperatorResources>> Stage(const Generation& generation);
  // Blocks for the whole change. How it gets on is seen in shared memory (SwitchSignals).
  absl::StatusOr<SwitchTimes> Switch(uint64_t change, bool launch, std::chrono::nanoseconds most);
  // A mapping that the engine completes after the call has failed is undone.
  absl::StatusOr<SharedMapping> MapShared(int fd, uint64_t bytes);

  // The same without waiting. The answer is DEADLINE_EXCEEDED also when the kernel has not left
  // within `most`.
  std::unique_ptr<EngineCall> StartAwaitPark(std::chrono::nanoseconds most, OnAnswer on_answer);
  std::unique_ptr<EngineCall> StartResume(std::chrono::milliseconds most, OnAnswer on_answer);
  std::unique_ptr<EngineCall> StartSwitch(uint64_t change, bool launch,
                                          std::chrono::nanoseconds most, OnAnswer on_answer);
  // Nobody learns the result: what an engine does not unmap it keeps until it ends.
  void StartUnmapShared(uint64_t mapping);
  // Asks the process to end. UNAVAILABLE: it did so before it answered.
  absl::Status Shutdown(std::chrono::milliseconds most);

 private:
  struct Stub;  // gRPC's, kept out of this header.

  // Sends the generation's bytes ahead and completes its message.
  absl::Status SendGeneration(const Generation& generation, internal::Generation* message);

  const std::unique_ptr<Stub> stub_;
  const int descriptor_socket_;
  const std::chrono::milliseconds map_limit_;
  std::atomic<uint64_t> last_token_{0};
  // One call of a kind at a time: no more descriptors are under way than the engine keeps.
  absl::Mutex map_mu_;
  absl::Mutex stage_mu_;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_ENGINE_CONTROL_ENGINE_CLIENT_H_
