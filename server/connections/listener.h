// Listener: accepts connections for gRPC's server, up to a limit.
//
// gRPC's own listener has no limit, and stops permanently the first time that it cannot
// accept a connection because the process has no file descriptor left. This listener closes
// connections over the limit, which the client sees immediately, and continues after any
// error. One of its threads closes connections over which no credential was shown, and others
// that are over a limit; see connection_table.h.
//
// Thread safety: call Start and Stop from one thread; OnCall and Figures from any thread.
//
//   ASSIGN_OR_RETURN(auto listener, Listener::Bind("address", "127.0.0.1:0"));
//   ... start gRPC's server with an acceptor ...
//   RETURN_IF_ERROR(listener->Start({.max_connections = 4096}, std::move(acceptor)));
#ifndef RESIDENT_SERVER_CONNECTIONS_LISTENER_H_
#define RESIDENT_SERVER_CONNECTIONS_LISTENER_H_

#include <grpcpp/server_builder.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/base/process/wake_event.h"
#include "server/connections/connection_table.h"

namespace resident {

// Checks whether an address can be listened on, before anything expensive is started.
// Errors: see Listener::Bind.
absl::Status CheckListen(const std::string& flag, const std::string& address);

class Listener {
 public:
  // Binds to the address ("host:port" or "[v6]:port"; port 0: any free one), to all of them
  // if a name has several. "0.0.0.0" and "[::]" both mean all addresses of the machine,
  // IPv4 and IPv6. Clients cannot connect yet. INVALID_ARGUMENT: not host:port.
  // UNAVAILABLE: in use, or not an address of this machine. The message contains `flag`.
  static absl::StatusOr<std::unique_ptr<Listener>> Bind(const std::string& flag,
                                                        const std::string& address);
  // Calls Stop.
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  uint16_t port() const { return port_; }

  // From now on connections are passed to `grpc`, whose server must have been started.
  // UNAVAILABLE: another process has started to listen there.
  absl::Status Start(const ConnectionLimits& limits,
                     std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> grpc);
  // Stops accepting connections. Open connections are not affected.
  void Stop();

  // Records a call over the connection from `peer`: see ConnectionTable::OnCall.
  std::shared_ptr<ConnectionMeter> OnCall(std::string_view peer, bool admitted);
  // See ConnectionTable::OnWatch.
  void OnWatch(std::string_view peer, bool open);
  ConnectionFigures Figures();

 private:
  using Clock = std::chrono::steady_clock;

  Listener(std::string flag, std::string address)
      : flag_(std::move(flag)), address_(std::move(address)) {}

  absl::Status BindAll();
  void AcceptAll();
  // Accepts the connections that wait at one socket. False: no more can be accepted for
  // now.
  bool Accept(int socket);
  void PassOn(int socket, int fd);
  // Runs on its own thread: the thread that passes a connection to gRPC also reads it,
  // inside gRPC, as long as its peer sends without a pause. So a flood would prevent it
  // from closing floods.
  void SweepAll();
  // Closes connections over a limit, and logs once a minute what was closed or refused.
  // Returns how long poll() may wait until the next call is required; -1: indefinitely.
  int Sweep();
  int Report();
  void ReportNoRoom(int error);

  const std::string flag_;
  const std::string address_;
  uint16_t port_ = 0;
  std::vector<int> sockets_;
  // Valid after Start. Written by Start (release) and read by any thread (acquire).
  std::unique_ptr<ConnectionTable> owned_table_;
  std::atomic<ConnectionTable*> table_{nullptr};
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> grpc_;
  WakeEvent stop_;
  std::thread thread_;
  WakeEvent accepted_;  // A connection was accepted.
  WakeEvent stop_sweeper_;
  std::thread sweeper_;

  // Used by the thread that accepts.
  std::optional<Clock::time_point> reported_no_room_;
  // Used by the thread that sweeps.
  std::optional<Clock::time_point> reported_;
  ConnectionFigures reported_figures_;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_CONNECTIONS_LISTENER_H_
