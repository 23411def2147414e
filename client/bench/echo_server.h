// A bare gRPC server: the floor under the daemon's latency.
//
// It takes the daemon's own Run messages and answers each at once with a result of
// the size that the daemon's has, so what differs between the two is what residentd
// does, not what gRPC costs. It listens on a free port of the loopback interface.
#ifndef RESIDENT_CLIENT_BENCH_ECHO_SERVER_H_
#define RESIDENT_CLIENT_BENCH_ECHO_SERVER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace resident::bench {

class EchoServer {
 public:
  static absl::StatusOr<std::unique_ptr<EchoServer>> Start();
  ~EchoServer();

  // host:port.
  const std::string& address() const { return address_; }

 private:
  struct Impl;
  EchoServer(std::unique_ptr<Impl> impl, std::string address);
  std::unique_ptr<Impl> impl_;
  std::string address_;
};

}  // namespace resident::bench

#endif  // RESIDENT_CLIENT_BENCH_ECHO_SERVER_H_
