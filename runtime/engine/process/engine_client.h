// EngineClient: the front end's end of an engine process's control plane.
//
// Each call blocks its thread until the engine answers, at most for the time stated.
// An engine that ends meanwhile ends the call at once, with UNAVAILABLE.
//
// Thread safety: all members may be called from any thread; the engine serves one
// call at a time.
#ifndef RESIDENT_RUNTIME_ENGINE_PROCESS_ENGINE_CLIENT_H_
#define RESIDENT_RUNTIME_ENGINE_PROCESS_ENGINE_CLIENT_H_

#include <chrono>
#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "runtime/engine/engine.h"

namespace resident {

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
  absl::StatusOr<uint64_t> MapShared(int fd, uint64_t bytes);
  absl::Status UnmapShared(uint64_t address);
  // Asks the process to end. UNAVAILABLE: it did so before it answered.
  absl::Status Shutdown(std::chrono::milliseconds most);

 private:
  struct Stub;  // gRPC's, kept out of this header.

  const std::unique_ptr<Stub> stub_;
  const int descriptor_socket_;
  // Held from sending a descriptor to the end of its call, so that tokens arrive in
  // rising order.
  absl::Mutex descriptor_mu_;
  uint64_t last_token_ ABSL_GUARDED_BY(descriptor_mu_) = 0;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_ENGINE_PROCESS_ENGINE_CLIENT_H_
