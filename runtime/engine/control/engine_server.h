// EngineServer: reads the requests of the control protocol from the socket to the front end, serves
// them with an EngineService, and sends the responses. It has a thread for each lane of the
// service, and one that reads.
//
// If the front end closes its socket or sends data that is not a request, the server stops reading
// and calls `on_closed`: without the connection the front end cannot control the engine.
//
// Thread safety: belongs to one thread.
#ifndef RESIDENT_RUNTIME_ENGINE_CONTROL_ENGINE_SERVER_H_
#define RESIDENT_RUNTIME_ENGINE_CONTROL_ENGINE_SERVER_H_

#include <array>
#include <deque>
#include <functional>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "resident/internal/engine.pb.h"
#include "runtime/base/process/unique_fd.h"
#include "runtime/engine/control/engine_service.h"

namespace resident {

class EngineServer {
 public:
  // Takes ownership of the socket. The service must outlive the object.
  // `on_closed`, if not null, is called on the thread that reads.
  EngineServer(int control_socket, EngineService* service,
               std::function<void()> on_closed = nullptr);
  // Serves the requests that were received, then ends the threads.
  ~EngineServer();
  EngineServer(const EngineServer&) = delete;
  EngineServer& operator=(const EngineServer&) = delete;

 private:
  struct Received {
    internal::EngineRequest request;
    UniqueFd fd;
  };
  struct Lane {
    absl::Mutex mu;
    std::deque<Received> requests ABSL_GUARDED_BY(mu);
    bool ended ABSL_GUARDED_BY(mu) = false;  // No more requests are added.
    std::thread thread;
  };

  void ReadRequests();
  void ServeRequests(Lane& lane);
  void Respond(const internal::EngineResponse& response);

  const UniqueFd socket_;
  EngineService* const service_;
  const std::function<void()> on_closed_;
  absl::Mutex write_mu_;  // Serializes writes to the socket.
  std::array<Lane, EngineService::kLanes> lanes_;
  std::thread reader_;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_ENGINE_CONTROL_ENGINE_SERVER_H_
