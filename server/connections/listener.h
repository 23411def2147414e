// Listener: takes connections for gRPC's server, and no more than a limit of them.
//
// gRPC's own listener has no limit, and stops for good the first time that a connection
// cannot be taken because the process has no file descriptor left. This one closes what
// comes over the limit, which its client sees at once, and goes on after any error. Its thread
// also closes connections over which nobody has shown a credential;
// connection_table.h says how many there may be, and which are closed.
//
// Thread safety: Start and Stop belong to one thread; OnCall and Figures may be called from any.
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

// Whether an address can be listened on, asked before anything costly is started. Errors:
// as of Listener::Bind.
absl::Status CheckListen(const std::string& flag, const std::string& address);

class Listener {
 public:
  // Takes the address ("host:port" or "[v6]:port"; port 0: any), all of them if a name has
  // several. "0.0.0.0" and "[::]" both mean all of the machine's, of IPv4 and IPv6. Nobody can
  // connect yet.
  // INVALID_ARGUMENT: not host:port. UNAVAILABLE: in use, or not this machine's. `flag` is
  // named in the message.
  static absl::StatusOr<std::unique_ptr<Listener>> Bind(const std::string& flag,
                                                        const std::string& address);
  // Stops.
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  uint16_t port() const { return port_; }

  // From here on connections go to `grpc`, whose server has been started. UNAVAILABLE:
  // another process listens there meanwhile.
  absl::Status Start(const ConnectionLimits& limits,
                     std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> grpc);
  // No more connections. Those that are open stay.
  void Stop();

  // A call came over the connection from `peer`: see ConnectionTable::OnCall.
  void OnCall(std::string_view peer, bool admitted);
  // See ConnectionTable::OnWatch.
  void OnWatch(std::string_view peer, bool open);
  ConnectionFigures Figures();

 private:
  using Clock = std::chrono::steady_clock;

  Listener(std::string flag, std::string address)
      : flag_(std::move(flag)), address_(std::move(address)) {}

  absl::Status BindAll();
  void AcceptAll();
  // What waits at one socket. False: the process can take no more for now.
  bool Accept(int socket);
  void Take(int socket, int fd);
  // On a thread of its own: the thread that hands a connection to gRPC goes on to read it, inside
  // gRPC, as long as its peer sends without a pause. A flood would keep it from closing floods.
  void SweepAll();
  // Closes what is over a limit, and says once a minute what was closed or refused. How long
  // poll() may wait until this has to be called again; -1: for ever.
  int Sweep();
  int Report();
  void ReportNoRoom(int error);

  const std::string flag_;
  const std::string address_;
  uint16_t port_ = 0;
  std::vector<int> sockets_;
  // From Start on. Written by Start (release) and read by any thread (acquire).
  std::unique_ptr<ConnectionTable> owned_table_;
  std::atomic<ConnectionTable*> table_{nullptr};
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> grpc_;
  WakeEvent stop_;
  std::thread thread_;
  WakeEvent came_;  // A connection came.
  WakeEvent stop_sweeper_;
  std::thread sweeper_;

  // Of the thread that accepts.
  std::optional<Clock::time_point> reported_no_room_;
  // Of the thread that sweeps.
  std::optional<Clock::time_point> reported_;
  ConnectionFigures reported_figures_;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_CONNECTIONS_LISTENER_H_
