// A bare gRPC server: the floor under the daemon's latency.
//
// It takes the daemon's own Run messages and answers each at once with a result of
// the size that the daemon's has, so what differs between the two is what residentd
// does, not what gRPC costs. It listens on a free port of the loopback interface, in a
// process of its own, as the daemon does: in the client's process, gRPC serves the call
// on the thread that makes it, and no thread has to wake up.
#ifndef RESIDENT_CLIENT_BENCH_ECHO_SERVER_H_
#define RESIDENT_CLIENT_BENCH_ECHO_SERVER_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace resident::bench {

// The hidden command of residentctl whose process is the echo server.
inline constexpr char kEchoServerCommand[] = "__echo_server";
// Serves until standard input ends; says its port on standard output.
int RunEchoServer();

class EchoServer {
 public:
  // Starts this program again, as an echo server.
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
