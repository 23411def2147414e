// LocalSocket: the Unix socket over which clients on this machine pass descriptors of shared
// memory (--local_address). proto/resident/v1/buffers.proto has the protocol, at ImportShared.
//
// What proves what: the session's id, which is secret, says for whom the descriptor is; the
// descriptor proves that its sender may use the memory. Every local user may connect. The peer's
// user (SO_PEERCRED) decides nothing but the limits: one user cannot take all connections.
//
// Each connection has a thread of its own, for at most Options::packet_timeout. Receiving and
// closing somebody else's descriptor can block for as long as its owner likes (a file of FUSE, a
// socket with SO_LINGER). Nothing else waits for such a thread, Stop included, and it counts
// towards the limit of its user until it ends. What this does not prevent: the thread that accepts
// closes the connections over a limit, and with them a descriptor that was sent already, so that a
// local user can delay others' new connections to this socket.
//
// Thread safety: Start and Stop belong to one thread.
//
//   ASSIGN_OR_RETURN(auto socket, LocalSocket::Bind("/run/residentd/residentd.sock"));
//   socket->Start({.is_session = ...}, passed_descriptors);
#ifndef RESIDENT_SERVER_CONNECTIONS_LOCAL_SOCKET_H_
#define RESIDENT_SERVER_CONNECTIONS_LOCAL_SOCKET_H_

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/base/limits.h"
#include "server/connections/passed_descriptors.h"

namespace resident {

// Whether a descriptor may become a buffer: shared memory that is open for reading and writing
// and not sealed against writing. `sealed`: it must have F_SEAL_SHRINK too, so that nobody can
// truncate it. Never blocks, whatever the descriptor is. Errors: INVALID_ARGUMENT,
// PERMISSION_DENIED, FAILED_PRECONDITION (not sealed).
absl::Status CheckSharedDescriptor(int fd, bool sealed);

class LocalSocket {
 public:
  struct Options {
    // Whether a session is open. Called from any thread until Stop has returned.
    std::function<bool(const std::string& session)> is_session;
    // Whether memory must have F_SEAL_SHRINK.
    bool sealed = true;
    std::chrono::milliseconds packet_timeout{kLocalPacketMs};
    uint32_t max_connections = kMaxLocalConnections;
    uint32_t max_connections_of_user = kMaxLocalConnectionsOfUser;
  };

  // Makes the socket. A socket that its daemon left behind is replaced if it belongs to this
  // user. Every local user may connect, whatever the umask; connections wait until Start. While
  // the socket is made there is a file `path`.lock beside it.
  // INVALID_ARGUMENT: `path` is not absolute, or too long. UNAVAILABLE: something else is there,
  // a socket in use among others, or the folder cannot be used.
  static absl::StatusOr<std::unique_ptr<LocalSocket>> Bind(const std::string& path);
  // Stops.
  ~LocalSocket();
  LocalSocket(const LocalSocket&) = delete;
  LocalSocket& operator=(const LocalSocket&) = delete;

  void Start(Options options, std::shared_ptr<PassedDescriptors> passed);
  // Ends the connections, and removes the socket if it is still this one.
  void Stop();

 private:
  // What the threads share; lives as long as the last of them.
  class State;

  LocalSocket(std::string path, int socket, dev_t device, ino_t inode)
      : path_(std::move(path)), socket_(socket), device_(device), inode_(inode) {}

  const std::string path_;
  int socket_;
  // Of the path when it was made.
  const dev_t device_;
  const ino_t inode_;
  std::shared_ptr<State> state_;  // Null: not started.
};

}  // namespace resident

#endif  // RESIDENT_SERVER_CONNECTIONS_LOCAL_SOCKET_H_
