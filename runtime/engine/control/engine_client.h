// EngineClient: the front end's end of an engine process's control plane.
//
// Each call blocks its thread until the engine answers, at most for the time stated.
// An engine that ends meanwhile ends the call at once, with UNAVAILABLE.
//
// Thread safety: all members may be called from any thread. The engine serves Start,
// AwaitPark, Resume and Switch one at a time; Stage, MapShared and UnmapShared beside them.
#ifndef RESIDENT_RUNTIME_ENGINE_CONTROL_ENGINE_CLIENT_H_
#define RESIDENT_RUNTIME_ENGINE_CONTROL_ENGINE_CLIENT_H_

#include <atomic>
#include <chrono>
#include <cstdint>
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

class EngineClient {
 public:
  // Takes both sockets over: the stream for calls and the channel for descriptors.
  EngineClient(int control_socket, int descriptor_socket);
  ~EngineClient();
  EngineClient(const EngineClient&) = delete;
  EngineClient& operator=(const EngineClient&) = delete;

  // The calls of Engine (runtime/engine/engine.h), with their errors, and
  // DEADLINE_EXCEEDED when the engine does not answer in time.
  absl::StatusOr<EngineInfo> Start(bool cuda, const EngineOptions& options,
                                   std::chrono::milliseconds most);
  // DEADLINE_EXCEEDED also when the kernel has not left within `most`.
  absl::Status AwaitPark(std::chrono::nanoseconds most);
  absl::Status Resume(std::chrono::milliseconds most);
  absl::StatusOr<std::vector<OperatorResources>> Stage(const Generation& generation);
  // Blocks for the whole change. How it gets on is seen in shared memory (SwitchSignals).
  absl::StatusOr<SwitchTimes> Switch(uint64_t change, bool launch, std::chrono::nanoseconds most);
  absl::StatusOr<uint64_t> MapShared(int fd, uint64_t bytes);
  absl::Status UnmapShared(uint64_t address);
  // Asks the process to end. UNAVAILABLE: it did so before it answered.
  absl::Status Shutdown(std::chrono::milliseconds most);

 private:
  struct Stub;  // gRPC's, kept out of this header.

  // Sends the generation's bytes ahead and completes its message.
  absl::Status SendGeneration(const Generation& generation, internal::Generation* message);

  const std::unique_ptr<Stub> stub_;
  const int descriptor_socket_;
  std::atomic<uint64_t> last_token_{0};
  // One call of a kind at a time: no more descriptors are under way than the engine keeps.
  absl::Mutex map_mu_;
  absl::Mutex stage_mu_;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_ENGINE_CONTROL_ENGINE_CLIENT_H_
