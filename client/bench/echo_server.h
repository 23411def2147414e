// A bare gRPC server: the lower bound of the daemon's latency, and the upper bound of its rate.
//
// It accepts the daemon's messages for Run and Submit, and answers each immediately with a result
// of the same size as the daemon's. Therefore the difference between the two is the cost of
// residentd, without the cost of gRPC. It listens on a free port of the loopback interface,
// in a separate process like the daemon: in the client's process, gRPC would serve the call
// on the calling thread, and no thread would have to wake up.
#ifndef RESIDENT_CLIENT_BENCH_ECHO_SERVER_H_
#define RESIDENT_CLIENT_BENCH_ECHO_SERVER_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace resident::bench {

// The hidden command of residentctl that runs the echo server.
inline constexpr char kEchoServerCommand[] = "__echo_server";
// Serves until standard input ends; prints its port on standard output.
int RunEchoServer();

class EchoServer {
 public:
  // Starts this program as an echo server in a new process.
  static absl::StatusOr<std::unique_ptr<EchoServer>> Start();
  ~EchoServer();

  // host:port.
  const std::string& address() const { return address_; }

 private:
  EchoServer(int pid, int stdin_fd, std::string address)
      : pid_(pid), stdin_fd_(stdin_fd), address_(std::move(address)) {}
  EchoServer(const EchoServer&) = delete;
  EchoServer& operator=(const EchoServer&) = delete;

  const int pid_;
  const int stdin_fd_;
  const std::string address_;
};

}  // namespace resident::bench

#endif  // RESIDENT_CLIENT_BENCH_ECHO_SERVER_H_
