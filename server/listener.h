// Listener: takes connections for gRPC's server, and no more than a limit of them.
//
// gRPC's own listener has no limit, and stops for good the first time that a connection
// cannot be taken because the process has no file descriptor left. This one closes what
// comes over the limit, which its client sees at once, and goes on after any error.
//
// How connections are counted: gRPC owns a connection from the moment it is handed over,
// and does not say when it closes it. Its descriptor then names another file, or none,
// which the file's inode tells. Who has closed is looked for when the limit is reached,
// and when somebody asks.
//
// Thread safety: Start and Stop belong to one thread; the counts may be asked from any.
//
//   ASSIGN_OR_RETURN(auto listener, Listener::Bind("address", "127.0.0.1:0"));
//   ... start gRPC's server with an acceptor ...
//   RETURN_IF_ERROR(listener->Start(4096, std::move(acceptor)));
#ifndef RESIDENT_SERVER_LISTENER_H_
#define RESIDENT_SERVER_LISTENER_H_

#include <grpcpp/server_builder.h>
#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "runtime/process/wake_event.h"

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
  absl::Status Start(uint32_t max_connections,
                     std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> grpc);
  // No more connections. Those that are open stay.
  void Stop();

  // Open now, and closed because of the limit.
  uint64_t connections() ABSL_LOCKS_EXCLUDED(mu_);
  uint64_t refused() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  using Clock = std::chrono::steady_clock;
  using File = std::pair<dev_t, ino_t>;

  Listener(std::string flag, std::string address)
      : flag_(std::move(flag)), address_(std::move(address)) {}

  absl::Status BindAll();
  void AcceptAll();
  // What waits at one socket. False: the process can take no more for now.
  bool Accept(int socket);
  void Take(int socket, int fd);
  // Whether there is room for it; counts it then.
  bool Count(int fd) ABSL_LOCKS_EXCLUDED(mu_);
  void ForgetClosed() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Until those that were refused are to be told of; -1: there are none. Once a minute.
  int UntilReportMs() const;
  void ReportRefused();
  void ReportNoRoom(int error);

  const std::string flag_;
  const std::string address_;
  uint16_t port_ = 0;
  std::vector<int> sockets_;
  uint32_t max_connections_ = 0;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> grpc_;
  WakeEvent stop_;
  std::thread thread_;

  mutable absl::Mutex mu_;
  // What was handed over, by descriptor.
  absl::flat_hash_map<int, File> open_ ABSL_GUARDED_BY(mu_);
  uint64_t refused_ ABSL_GUARDED_BY(mu_) = 0;

  // Of the thread that accepts.
  Clock::time_point looked_;  // For closed ones.
  std::optional<Clock::time_point> reported_;
  uint64_t reported_refused_ = 0;
  std::optional<Clock::time_point> reported_no_room_;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_LISTENER_H_
