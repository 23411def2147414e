// LocalSocket: the Unix socket over which clients on this machine pass descriptors of shared memory
// and of device memory, and get the memory of their lanes (--local_address). The protocols are in
// proto/resident/v1/buffers.proto, at ImportShared and ImportCuda, and in
// proto/resident/v1/lanes.proto.
//
// Authentication: the session's id, which is secret, identifies the session that the
// descriptor is for; the descriptor proves that its sender may use the memory. Every local
// user may connect. The peer's user (SO_PEERCRED) is only used for limits: one user cannot
// use up all connections. The memory of a lane goes to the process that sends its token, once; its
// connection is handed over to the lane, and does not count here any more.
//
// Each connection has its own thread, for at most Options::packet_timeout. Receiving and
// closing a client's descriptor can block for as long as its owner chooses (a file of FUSE,
// a socket with SO_LINGER). Nothing else waits for such a thread, including Stop, and it
// counts towards the limit of its user until it ends. Not prevented: the thread that
// accepts closes the connections over a limit, with descriptors that were already sent, so
// that a local user can delay other users' new connections to this socket.
//
// Thread safety: call Start and Stop from one thread.
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
#include "runtime/base/process/unique_fd.h"
#include "server/connections/passed_descriptors.h"

namespace resident {

// Checks whether a descriptor may become a buffer: shared memory that is open for reading
// and writing and not sealed against writing. With `sealed`, it must also have
// F_SEAL_SHRINK, so that it cannot be truncated. Never blocks, for any descriptor. Errors:
// INVALID_ARGUMENT, PERMISSION_DENIED, FAILED_PRECONDITION (not sealed).
absl::Status CheckSharedDescriptor(int fd, bool sealed);
// Checks whether a descriptor may be one of device memory: that of a character device. The engine
// checks the rest. Errors: INVALID_ARGUMENT. It can block: only on the connection's thread.
absl::Status CheckDeviceDescriptor(int fd);

class LocalSocket {
 public:
  // What a client gets for its token.
  struct HandOver {
    UniqueFd memory;
    std::string answer;
    // Takes the connection once the answer was sent; without a descriptor: it could not be sent, or
    // this daemon stops.
    std::function<void(UniqueFd connection)> adopt;
  };
  struct Options {
    // Returns whether a session is open. Called from any thread until Stop has returned.
    std::function<bool(const std::string& session)> is_session;
    // Returns the memory of the lane with this token. Called as is_session is. Null: no lanes.
    std::function<absl::StatusOr<HandOver>(const std::string& token)> attach = nullptr;
    // Whether memory must have F_SEAL_SHRINK.
    bool sealed = true;
    std::chrono::milliseconds packet_timeout{kLocalPacketMs};
    uint32_t max_connections = kMaxLocalConnections;
    uint32_t max_connections_of_user = kMaxLocalConnectionsPerUser;
  };

  // Creates the socket. A socket of a daemon that has ended is replaced if it belongs
  // to this user. Every local user may connect, for any umask; connections wait until Start.
  // During this call there is a file `path`.lock next to the socket.
  // INVALID_ARGUMENT: `path` is not absolute, or too long. UNAVAILABLE: another file or a
  // socket in use is at the path, or the folder cannot be used.
  static absl::StatusOr<std::unique_ptr<LocalSocket>> Bind(const std::string& path);
  // Calls Stop.
  ~LocalSocket();
  LocalSocket(const LocalSocket&) = delete;
  LocalSocket& operator=(const LocalSocket&) = delete;

  void Start(Options options, std::shared_ptr<PassedDescriptors> passed);
  // Ends the connections, and removes the socket if it is still at the path.
  void Stop();

 private:
  // State shared by the threads; lives as long as the last of them.
  class State;

  LocalSocket(std::string path, int socket, dev_t device, ino_t inode)
      : path_(std::move(path)), socket_(socket), device_(device), inode_(inode) {}

  const std::string path_;
  int socket_;
  // Device and inode of the socket.
  const dev_t device_;
  const ino_t inode_;
  std::shared_ptr<State> state_;  // Null: not started.
};

}  // namespace resident

#endif  // RESIDENT_SERVER_CONNECTIONS_LOCAL_SOCKET_H_
