#include "server/connections/local_socket.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <system_error>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/cleanup/cleanup.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "runtime/base/errors/daemon_errors.h"
#include "runtime/base/process/descriptor_message.h"
#include "runtime/base/process/wake_event.h"
#include "runtime/base/status_macros.h"
#include "server/connections/errors.h"

namespace resident {
namespace {

using Clock = PassedDescriptors::Clock;

constexpr absl::string_view kMagic = "residfd1";
constexpr absl::string_view kDeviceMagic = "residcu1";
static_assert(kMagic.size() == kDeviceMagic.size());
constexpr absl::string_view kLaneMagic = "residln1";
constexpr int kLocalBacklog = 64;
// Interval of sweeps for expired descriptors, while there are any.
constexpr int kSweepMs = 500;
// Wait while the process has no file descriptor left.
constexpr int kLocalRetryMs = 100;
// How long Stop waits for threads that a client's descriptor blocks.
constexpr absl::Duration kStopTimeout = absl::Seconds(2);
// How long to wait for another daemon that is creating its socket at the same path.
constexpr int kLockMs = 2'000;
constexpr int kLockPollMs = 10;

absl::Status CannotListenOnPath(const std::string& path, const std::string& why,
                                const std::string& fix) {
  return absl::UnavailableError(
      absl::StrCat("cannot listen on --local_address=", path, ": ", why, ". Fix: ", fix));
}

absl::Status FolderError(const std::string& path, int error) {
  return CannotListenOnPath(
      path, strerror(error),
      "use a path in a folder that exists and that the daemon's user can read "
      "and write");
}

// Returns -1 and sets errno on failure.
int NewSocket() { return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); }

// REQUIRES: the path fits.
sockaddr_un MakeAddress(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  memcpy(address.sun_path, path.data(), path.size());
  return address;
}

int BindTo(int socket, const sockaddr_un& address) {
  return bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
}

// Whether no process listens at a socket's path any more.
bool IsAbandoned(const sockaddr_un& address) {
  const int fd = NewSocket();
  if (fd < 0) return false;
  const bool refused =
      connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 &&
      errno == ECONNREFUSED;
  close(fd);
  return refused;
}

// Removes an existing socket at the path, if a daemon of this user left it there when it ended.
// REQUIRES: the path is locked (PathLock).
absl::Status RemoveAbandoned(const std::string& path, const sockaddr_un& address) {
  struct stat file;
  if (lstat(path.c_str(), &file) != 0) return absl::OkStatus();
  const std::string fix = "remove it, or set another path";
  if (!S_ISSOCK(file.st_mode)) {
    return CannotListenOnPath(path, "there is a file that is not a socket", fix);
  }
  if (!IsAbandoned(address)) {
    return CannotListenOnPath(path, "the socket is in use by a live process",
                              "stop that process, or set another path");
  }
  if (file.st_uid != geteuid()) {
    return CannotListenOnPath(path, absl::StrCat("the socket belongs to user ", file.st_uid), fix);
  }
  if (unlink(path.c_str()) != 0) return FolderError(path, errno);
  return absl::OkStatus();
}

// The lock for creating a socket at a path: two daemons that start at the same time must
// not both find the socket abandoned. It is on a file next to the socket that only this user
// can open: any user who may list the folder could lock the folder.
class PathLock {
 public:
  explicit PathLock(const std::string& path) : path_(path), file_(path + ".lock") {}
  PathLock(const PathLock&) = delete;
  PathLock& operator=(const PathLock&) = delete;
  ~PathLock() {
    if (fd_ < 0) return;
    // The file is still locked: a waiter detects that it is no longer at its path.
    unlink(file_.c_str());
    close(fd_);
  }

  // Waits for a limited time. Call it once.
  absl::Status Acquire() {
    int waited = 0;
    while (true) {
      const int fd = open(file_.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK,
                          S_IRUSR | S_IWUSR);
      if (fd < 0) return Unusable(errno);
      absl::Cleanup close_fd = [fd] { close(fd); };
      struct stat file;
      if (fstat(fd, &file) != 0) return Unusable(errno);
      if (file.st_uid != geteuid()) {
        return CannotListenOnPath(path_, absl::StrCat(file_, " belongs to user ", file.st_uid),
                                  "remove it, or set another path");
      }
      while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EINTR && errno != EWOULDBLOCK) return Unusable(errno);
        if (waited >= kLockMs) {
          return CannotListenOnPath(
              path_, absl::StrCat("another process has locked ", file_),
              "wait until the daemon that is starting there has started, or end "
              "the process (fuser shows it)");
        }
        poll(nullptr, 0, kLockPollMs);
        waited += kLockPollMs;
      }
      if (!IsAtItsPath(file)) continue;
      fd_ = fd;
      std::move(close_fd).Cancel();
      return absl::OkStatus();
    }
  }

 private:
  absl::Status Unusable(int error) const {
    if (error != ELOOP) return FolderError(path_, error);
    return CannotListenOnPath(path_, absl::StrCat(file_, " is a symbolic link"),
                              "remove it, or set another path");
  }
  bool IsAtItsPath(const struct stat& file) const {
    struct stat there;
    return lstat(file_.c_str(), &there) == 0 && there.st_dev == file.st_dev &&
           there.st_ino == file.st_ino;
  }

  const std::string path_;
  const std::string file_;
  int fd_ = -1;
};

// A received packet with its descriptors.
struct Received {
  ssize_t bytes = 0;
  char packet[kMaxLocalPacketBytes];
  DescriptorMessage message;
};

// False: nothing was received.
bool Receive(int connection, Received* received) {
  do {
    received->bytes = ReceiveDescriptorMessage(
        connection, received->packet, sizeof(received->packet), MSG_DONTWAIT, &received->message);
  } while (received->bytes < 0 && errno == EINTR);
  return received->bytes >= 0;
}

// Never blocks; a peer that does not read loses the answer.
void SendAnswer(int connection, const absl::StatusOr<std::string>& token) {
  const uint32_t code = static_cast<uint32_t>(token.status().code());
  const absl::string_view text = token.ok() ? absl::string_view(*token) : token.status().message();
  std::string packet;
  for (int byte = 0; byte < 4; ++byte) packet.push_back(static_cast<char>(code >> 8 * byte));
  absl::StrAppend(&packet, text);
  (void)!send(connection, packet.data(), packet.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
}

}  // namespace

absl::Status CheckSharedDescriptor(int fd, bool sealed) {
  // Check the seals first: unlike fstat, this does not access the file system, which could
  // block for FUSE. Only shared memory has seals.
  const int seals = fcntl(fd, F_GET_SEALS);
  struct stat object;
  struct statfs file_system;
  if (seals < 0 || fstat(fd, &object) != 0 || !S_ISREG(object.st_mode) ||
      fstatfs(fd, &file_system) != 0 ||
      // Memory of huge pages is mapped in units of another size.
      file_system.f_type != TMPFS_MAGIC) {
    return errors::DescriptorIsNotSharedMemory();
  }
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || (flags & O_ACCMODE) != O_RDWR) {
    return errors::DescriptorIsNotWritable("the descriptor is not open for reading and writing");
  }
  if ((seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)) != 0) {
    return errors::DescriptorIsNotWritable("the memory is sealed against writing");
  }
  if (sealed && (seals & F_SEAL_SHRINK) == 0) return errors::DescriptorIsNotSealed();
  return absl::OkStatus();
}

absl::Status CheckDeviceDescriptor(int fd) {
  struct stat file;
  if (fstat(fd, &file) != 0 || !S_ISCHR(file.st_mode)) return errors::DescriptorIsNotDeviceMemory();
  return absl::OkStatus();
}

class LocalSocket::State : public std::enable_shared_from_this<LocalSocket::State> {
 public:
  State(int socket, Options options, std::shared_ptr<PassedDescriptors> passed)
      : socket_(socket), options_(std::move(options)), passed_(std::move(passed)) {}

  void Start() {
    absl::MutexLock lock(&mu_);
    accepting_ = true;
    std::thread([state = shared_from_this()] {
      pthread_setname_np(pthread_self(), "resident-local");
      state->AcceptAll();
      absl::MutexLock lock(&state->mu_);
      state->accepting_ = false;
    }).detach();
  }

  void Stop() ABSL_LOCKS_EXCLUDED(mu_) {
    stop_.Signal();
    absl::MutexLock lock(&mu_);
    stopping_ = true;
    // End the connections that wait for a packet.
    for (const int connection : connections_) shutdown(connection, SHUT_RDWR);
    mu_.AwaitWithTimeout(absl::Condition(this, &State::IsIdle), kStopTimeout);
    is_session_open_ = false;
  }

 private:
  bool IsIdle() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return !accepting_ && threads_ == 0; }

  bool IsSession(const std::string& session) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::ReaderMutexLock lock(&mu_);
    return is_session_open_ && options_.is_session(session);
  }

  void AcceptAll() {
    pollfd polled[] = {{stop_.fd(), POLLIN, 0}, {socket_, POLLIN, 0}};
    while (true) {
      // A descriptor can only be passed while its connection is open.
      const bool idle = CountThreads() == 0 && passed_->size() == 0;
      if (poll(polled, 2, idle ? -1 : kSweepMs) < 0) continue;
      if (polled[0].revents != 0) return;
      passed_->Sweep(Clock::now(), [this](const std::string& s) { return IsSession(s); });
      if (polled[1].revents == 0) continue;
      const int connection = accept4(socket_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
      if (connection >= 0) {
        Serve(connection);
      } else if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
        // No file descriptor is left. Waiting connections would make poll() return
        // immediately.
        poll(polled, 1, kLocalRetryMs);
      }
    }
  }

  uint32_t CountThreads() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::ReaderMutexLock lock(&mu_);
    return threads_;
  }

  void Serve(int connection) {
    ucred peer{};
    socklen_t bytes = sizeof(peer);
    if (getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0) {
      close(connection);
      return;
    }
    absl::Status room = Count(connection, peer.uid);
    if (room.ok()) {
      try {
        std::thread([state = shared_from_this(), connection, user = peer.uid] {
          pthread_setname_np(pthread_self(), "resident-local");
          state->ReceivePacket(connection, user);
          state->Forget(user);
        }).detach();
        return;
      } catch (const std::system_error&) {
        room = errors::TooManyLocalConnections(CountThreads() - 1, false, peer.uid);
        Uncount(connection);
        Forget(peer.uid);
      }
    }
    SendAnswer(connection, room);
    close(connection);
  }

  absl::Status Count(int connection, uid_t user) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    if (stopping_) return errors::Draining();
    if (of_user_[user] >= options_.max_connections_of_user) {
      return errors::TooManyLocalConnections(options_.max_connections_of_user, true, user);
    }
    if (threads_ >= options_.max_connections) {
      if (of_user_[user] == 0) of_user_.erase(user);
      return errors::TooManyLocalConnections(options_.max_connections, false, user);
    }
    ++of_user_[user];
    ++threads_;
    connections_.insert(connection);
    return absl::OkStatus();
  }

  // Call it before the connection is closed.
  void Uncount(int connection) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    connections_.erase(connection);
  }

  // Call it when all resources of a connection were released.
  void Forget(uid_t user) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    --threads_;
    if (--of_user_[user] == 0) of_user_.erase(user);
  }

  void ReceivePacket(int connection, uid_t user) {
    pollfd polled{connection, POLLIN, 0};
    Received received;
    int ready;
    const auto deadline = Clock::now() + options_.packet_timeout;
    do {
      const auto left =
          std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
      ready = poll(&polled, 1, static_cast<int>(std::max<int64_t>(left, 0)));
    } while (ready < 0 && errno == EINTR);
    if (ready > 0 && Receive(connection, &received)) {
      if (IsForLane(received)) return HandOverLane(connection, received);
      absl::StatusOr<std::string> token = AddDescriptor(received, user);
      // passed_ owns the descriptor now.
      if (token.ok()) received.message.fds[0].Release();
      SendAnswer(connection, token);
    }
    Uncount(connection);
    close(connection);
    received.message.fds.clear();  // Last: closing a client's descriptor can block.
  }

  static bool IsForLane(const Received& received) {
    return static_cast<size_t>(received.bytes) > kLaneMagic.size() &&
           absl::string_view(received.packet, kLaneMagic.size()) == kLaneMagic;
  }

  // Answers a packet with a lane's token, and gives the connection away.
  void HandOverLane(int connection, Received& received) ABSL_LOCKS_EXCLUDED(mu_) {
    Uncount(connection);
    UniqueFd own(connection);
    const std::string token(received.packet + kLaneMagic.size(),
                            static_cast<size_t>(received.bytes) - kLaneMagic.size());
    const bool clean =
        received.message.fds.empty() && !received.message.fds_lost && !received.message.truncated;
    received.message.fds.clear();  // Closing a client's descriptor can block: without a lock.
    // Stop waits for this lock before the daemon's lanes end.
    absl::ReaderMutexLock lock(&mu_);
    if (!is_session_open_) return;
    absl::StatusOr<HandOver> lane = errors::LanePacket(clean);
    if (clean && options_.attach != nullptr) lane = options_.attach(token);
    if (!lane.ok()) return SendAnswer(connection, lane.status());
    const ssize_t sent = SendDescriptorMessage(connection, lane->answer, lane->memory.get());
    if (sent != static_cast<ssize_t>(lane->answer.size())) own.Reset();
    lane->adopt(std::move(own));
  }

  absl::StatusOr<std::string> AddDescriptor(const Received& received, uid_t user) {
    const absl::string_view packet(received.packet, static_cast<size_t>(received.bytes));
    const std::vector<UniqueFd>& fds = received.message.fds;
    if (received.message.truncated) {
      return errors::LocalPacket(packet.size() + 1, sizeof(received.packet));
    }
    const absl::string_view magic = packet.substr(0, kMagic.size());
    const bool device = magic == kDeviceMagic;
    if (packet.size() <= kMagic.size() || (magic != kMagic && !device)) {
      return errors::LocalPacket(packet.size(), sizeof(received.packet));
    }
    if (received.message.fds_lost && fds.size() < kMaxReceivedDescriptors) {
      return errors::NoFileDescriptorLeft();
    }
    if (fds.size() != 1) return errors::LocalPacketDescriptors(fds.size());
    const std::string session(packet.substr(kMagic.size()));
    if (!IsSession(session)) return errors::UnknownSession(session);
    using Kind = PassedDescriptors::Kind;
    RETURN_IF_ERROR(device ? CheckDeviceDescriptor(fds[0].get())
                           : CheckSharedDescriptor(fds[0].get(), options_.sealed));
    return passed_->Add(device ? Kind::kDeviceMemory : Kind::kSharedMemory, session, user,
                        fds[0].get(), Clock::now());
  }

  const int socket_;
  const Options options_;
  const std::shared_ptr<PassedDescriptors> passed_;
  WakeEvent stop_;

  absl::Mutex mu_;
  bool accepting_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  // Whether Options::is_session may still be called.
  bool is_session_open_ ABSL_GUARDED_BY(mu_) = true;
  uint32_t threads_ ABSL_GUARDED_BY(mu_) = 0;
  absl::flat_hash_map<uid_t, uint32_t> of_user_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_set<int> connections_ ABSL_GUARDED_BY(mu_);
};

absl::StatusOr<std::unique_ptr<LocalSocket>> LocalSocket::Bind(const std::string& path) {
  if (path.empty() || path[0] != '/' || path.back() == '/' ||
      path.find('\0') != std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat("--local_address=", path,
                                                   " is not an absolute path of a file. Fix: use "
                                                   "for example /run/residentd/residentd.sock"));
  }
  constexpr size_t kMaxPathBytes = sizeof(sockaddr_un::sun_path) - 1;
  if (path.size() > kMaxPathBytes) {
    return absl::InvalidArgumentError(absl::StrCat("--local_address=", path, " has ", path.size(),
                                                   " bytes; a socket's path has at most ",
                                                   kMaxPathBytes, ". Fix: use a shorter path"));
  }
  const sockaddr_un address = MakeAddress(path);
  PathLock path_lock(path);
  RETURN_IF_ERROR(path_lock.Acquire());
  RETURN_IF_ERROR(RemoveAbandoned(path, address));
  const int fd = NewSocket();
  if (fd < 0) return FolderError(path, errno);
  struct stat file {};
  if (BindTo(fd, address) != 0) {
    const int error = errno;
    close(fd);
    return FolderError(path, error);
  }
  // Before clients can connect. Only this daemon's user can have replaced the file.
  if (lstat(path.c_str(), &file) != 0 || chmod(path.c_str(), 0666) != 0 ||
      listen(fd, kLocalBacklog) != 0) {
    const int error = errno;
    close(fd);
    unlink(path.c_str());
    return FolderError(path, error);
  }
  return std::unique_ptr<LocalSocket>(new LocalSocket(path, fd, file.st_dev, file.st_ino));
}

LocalSocket::~LocalSocket() { Stop(); }

void LocalSocket::Start(Options options, std::shared_ptr<PassedDescriptors> passed) {
  state_ = std::make_shared<State>(socket_, std::move(options), std::move(passed));
  state_->Start();
}

void LocalSocket::Stop() {
  if (socket_ < 0) return;
  if (state_ != nullptr) state_->Stop();
  // While the socket is open, no other daemon replaces it or gets its inode number.
  struct stat file;
  if (lstat(path_.c_str(), &file) == 0 && file.st_dev == device_ && file.st_ino == inode_) {
    unlink(path_.c_str());
  }
  close(socket_);
  socket_ = -1;
}

}  // namespace resident
