#include "server/connections/local_socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "tests/support/eventually.h"
#include "tests/support/local_packets.h"
#include "tests/support/temp_folder.h"

namespace resident {
namespace {

using testing::ConnectLocal;
using enum PassedDescriptors::Kind;
using testing::Eventually;
using ::testing::HasSubstr;
using testing::LocalAnswer;
using testing::NewMemory;
using testing::PassDescriptors;
using testing::ReceiveLocal;
using testing::TempFolder;

constexpr char kRequest[] = "residfd1session";

size_t Descriptors() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& fd : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

void ExpectError(const absl::Status& status, absl::StatusCode code, const std::string& part) {
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  EXPECT_THAT(std::string(status.message()), HasSubstr("Fix: "));
}

void ExpectRefused(const LocalAnswer& answer, absl::StatusCode code, const std::string& part) {
  EXPECT_EQ(answer.code, static_cast<int>(code)) << answer.text;
  EXPECT_THAT(answer.text, HasSubstr(part));
  EXPECT_THAT(answer.text, HasSubstr("Fix: "));
}

class LocalSocketTest : public ::testing::Test {
 protected:
  static LocalSocket::Options Defaults() {
    return {.is_session = [](const std::string& session) { return session == "session"; }};
  }
  void Start(LocalSocket::Options options = Defaults()) {
    auto socket = LocalSocket::Bind(path_);
    ASSERT_TRUE(socket.ok()) << socket.status();
    socket_ = *std::move(socket);
    socket_->Start(std::move(options), passed_);
  }
  LocalAnswer Pass(const std::vector<int>& fds, const std::string& packet = kRequest) {
    return PassDescriptors(path_, packet, fds);
  }
  // Passes one descriptor and closes it.
  LocalAnswer PassAndClose(int fd) {
    EXPECT_GE(fd, 0);
    LocalAnswer answer = Pass({fd});
    close(fd);
    return answer;
  }

  // In /tmp: Bazel's folder may be too deep for a socket's path.
  const TempFolder folder_{"resident-local", "/tmp"};
  const std::string path_ = folder_.path() + "/socket";
  const std::shared_ptr<PassedDescriptors> passed_ = std::make_shared<PassedDescriptors>();
  std::unique_ptr<LocalSocket> socket_;
};

TEST_F(LocalSocketTest, ADescriptorIsStoredUnderItsToken) {
  Start();
  const int fd = NewMemory(4096, true);
  ASSERT_EQ(ftruncate(fd, 8192), 0);
  const LocalAnswer answer = Pass({fd});
  ASSERT_EQ(answer.code, 0) << answer.text;
  const auto taken =
      passed_->Take(kSharedMemory, answer.text, "session", PassedDescriptors::Clock::now());
  ASSERT_TRUE(taken.ok()) << taken.status();
  struct stat sent, received;
  ASSERT_EQ(fstat(fd, &sent), 0);
  ASSERT_EQ(fstat(*taken, &received), 0);
  EXPECT_EQ(sent.st_ino, received.st_ino);
  // Child processes of the daemon do not inherit it.
  EXPECT_EQ(fcntl(*taken, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
  close(*taken);
  close(fd);
}

TEST_F(LocalSocketTest, InvalidPacketsAreRefusedAndLeakNothing) {
  Start();
  const int fd = NewMemory(4096, true);
  const size_t before = Descriptors();
  const absl::StatusCode bad = absl::StatusCode::kInvalidArgument;
  for (const std::string& packet :
       {std::string("x"), std::string("residfd1"), std::string("residfd2session"),
        std::string("GET / HTTP/1.1\r\n\r\n"), std::string(15, '\0'), std::string(200, 'r'),
        "residfd1" + std::string(100'000, 's')}) {
    ExpectRefused(Pass({fd}, packet), bad, "not a request");
  }
  ExpectRefused(Pass({fd}, "residfd1other"), absl::StatusCode::kUnauthenticated, "'other'");
  ExpectRefused(Pass({fd}, std::string("residfd1\0\xff\n", 11)), absl::StatusCode::kUnauthenticated,
                "'\\x00\\xff\\n'");
  ExpectRefused(Pass({}), bad, "no descriptor");
  ExpectRefused(Pass({fd, fd}), bad, "more than one");
  ExpectRefused(Pass({fd, fd, fd}), bad, "more than one");
  ExpectRefused(Pass(std::vector<int>(200, fd)), bad, "more than one");
  ExpectRefused(Pass({fd}, ""), bad, "0 bytes");
  // Clients that disconnect immediately, with and without a packet.
  for (int i = 0; i < 10; ++i) {
    const int connection = ConnectLocal(path_);
    ASSERT_GE(connection, 0);
    if (i % 2 == 0) testing::SendLocal(connection, kRequest, {fd, fd});
    close(connection);
  }
  EXPECT_TRUE(Eventually([&] { return Descriptors() == before; })) << Descriptors() << before;
  EXPECT_EQ(passed_->size(), 0u);
  EXPECT_EQ(Pass({fd}).code, 0);
  close(fd);
}

TEST_F(LocalSocketTest, OnlySharedMemoryThatNobodyCanTruncateIsAccepted) {
  Start();
  const size_t before = Descriptors();
  const absl::StatusCode bad = absl::StatusCode::kInvalidArgument;
  const char* const kind = "not one of shared memory";
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  ExpectRefused(PassAndClose(ends[0]), bad, kind);
  ExpectRefused(PassAndClose(ends[1]), bad, kind);
  ExpectRefused(PassAndClose(socket(AF_UNIX, SOCK_STREAM, 0)), bad, kind);
  ExpectRefused(PassAndClose(ConnectLocal(path_)), bad, kind);
  for (const char* path : {"/", "/dev/shm"}) {
    ExpectRefused(PassAndClose(open(path, O_RDONLY | O_DIRECTORY)), bad, kind);
  }
  ExpectRefused(PassAndClose(open("/dev/zero", O_RDWR)), bad, kind);
  ExpectRefused(PassAndClose(open("/proc/self/maps", O_RDONLY)), bad, kind);
  const int huge = memfd_create("huge", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB);
  if (huge >= 0) ExpectRefused(PassAndClose(huge), bad, kind);

  // A file on a disk, or on tmpfs, which cannot be sealed.
  const std::string file = folder_.path() + "/file";
  EXPECT_GT(PassAndClose(open(file.c_str(), O_RDWR | O_CREAT, 0600)).code, 0);
  const std::string name = "/resident-local-" + std::to_string(getpid());
  const int object = shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
  shm_unlink(name.c_str());
  ExpectRefused(PassAndClose(object), absl::StatusCode::kFailedPrecondition, "F_SEAL_SHRINK");
  ExpectRefused(PassAndClose(NewMemory(4096, false)), absl::StatusCode::kFailedPrecondition,
                "F_SEAL_SHRINK");

  const int fd = NewMemory(4096, true);
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  for (const int flags : {O_RDONLY, O_WRONLY, O_PATH}) {
    const LocalAnswer answer = PassAndClose(open(link.c_str(), flags));
    // The kernel does not report the seals of a descriptor that was opened with O_PATH.
    if (flags == O_PATH) {
      EXPECT_GT(answer.code, 0);
    } else {
      ExpectRefused(answer, absl::StatusCode::kPermissionDenied, "reading and writing");
    }
  }
  for (const int seal : {F_SEAL_WRITE, F_SEAL_FUTURE_WRITE}) {
    const int sealed = NewMemory(4096, true);
    ASSERT_EQ(fcntl(sealed, F_ADD_SEALS, seal), 0);
    ExpectRefused(PassAndClose(sealed), absl::StatusCode::kPermissionDenied, "against writing");
  }
  close(fd);
  EXPECT_TRUE(Eventually([&] { return Descriptors() == before; }));
  EXPECT_EQ(passed_->size(), 0u);
}

// The engine checks whether a device file is one of device memory.
TEST_F(LocalSocketTest, OnlyADeviceFileIsAcceptedAsDeviceMemory) {
  Start();
  constexpr char kDevice[] = "residcu1session";
  const size_t before = Descriptors();
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  for (const int fd : {ends[0], ends[1], socket(AF_UNIX, SOCK_STREAM, 0), NewMemory(4096, true),
                       open("/", O_RDONLY | O_DIRECTORY), open("/proc/self/maps", O_RDONLY)}) {
    ASSERT_GE(fd, 0);
    ExpectRefused(Pass({fd}, kDevice), absl::StatusCode::kInvalidArgument,
                  "not one of device memory");
    close(fd);
  }
  const int device = open("/dev/null", O_RDWR | O_CLOEXEC);
  ExpectRefused(Pass({device, device}, kDevice), absl::StatusCode::kInvalidArgument,
                "more than one");
  ExpectRefused(Pass({device}, "residcu1other"), absl::StatusCode::kUnauthenticated, "'other'");
  ExpectRefused(Pass({device}, "residcu1"), absl::StatusCode::kInvalidArgument, "not a request");
  const LocalAnswer answer = Pass({device}, kDevice);
  close(device);
  ASSERT_EQ(answer.code, 0) << answer.text;
  const auto taken =
      passed_->Take(kDeviceMemory, answer.text, "session", PassedDescriptors::Clock::now());
  ASSERT_TRUE(taken.ok()) << taken.status();
  close(*taken);
  EXPECT_TRUE(Eventually([&] { return Descriptors() == before; })) << Descriptors() << before;
}

TEST_F(LocalSocketTest, WithoutIdentitiesMemoryDoesNotNeedSeals) {
  LocalSocket::Options options = Defaults();
  options.sealed = false;
  Start(std::move(options));
  EXPECT_EQ(PassAndClose(NewMemory(4096, false)).code, 0);
  const std::string name = "/resident-local-" + std::to_string(getpid());
  const int object = shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
  shm_unlink(name.c_str());
  EXPECT_EQ(PassAndClose(object).code, 0);
}

TEST_F(LocalSocketTest, SilentConnectionsAreClosed) {
  LocalSocket::Options options = Defaults();
  options.packet_timeout = std::chrono::milliseconds(20);
  Start(std::move(options));
  const size_t before = Descriptors();
  const int connection = ConnectLocal(path_);
  ASSERT_GE(connection, 0);
  EXPECT_EQ(ReceiveLocal(connection).code, -1);
  close(connection);
  EXPECT_TRUE(Eventually([&] { return Descriptors() == before; }));
}

TEST_F(LocalSocketTest, AUserOverTheLimitOfConnectionsIsRefusedUntilOneEnds) {
  LocalSocket::Options options = Defaults();
  options.max_connections_of_user = 2;
  Start(std::move(options));
  const int fd = NewMemory(4096, true);
  const int first = ConnectLocal(path_);
  const int second = ConnectLocal(path_);
  ASSERT_TRUE(first >= 0 && second >= 0);
  ExpectRefused(Pass({fd}), absl::StatusCode::kResourceExhausted,
                "2 connections to the local socket of user");
  close(first);
  EXPECT_TRUE(Eventually([&] { return Pass({fd}).code == 0; }));
  // The other connection is not affected.
  EXPECT_TRUE(testing::SendLocal(second, kRequest, {fd}));
  EXPECT_EQ(ReceiveLocal(second).code, 0);
  close(second);
  close(fd);
}

TEST_F(LocalSocketTest, TheLimitOfAllConnectionsIsEnforced) {
  LocalSocket::Options options = Defaults();
  options.max_connections = 1;
  Start(std::move(options));
  const int first = ConnectLocal(path_);
  ASSERT_GE(first, 0);
  ExpectRefused(Pass({}), absl::StatusCode::kResourceExhausted,
                "1 connections to the local socket, the limit");
  close(first);
  EXPECT_TRUE(Eventually(
      [&] { return Pass({}).code == static_cast<int>(absl::StatusCode::kInvalidArgument); }));
}

TEST_F(LocalSocketTest, DescriptorsOverTheLimitAreRefusedAndClosed) {
  Start();
  const int fd = NewMemory(4096, true);
  const size_t before = Descriptors();
  for (uint32_t i = 0; i < kMaxPassedDescriptorsPerSession; ++i) ASSERT_EQ(Pass({fd}).code, 0);
  ExpectRefused(Pass({fd}), absl::StatusCode::kResourceExhausted, "of this session");
  EXPECT_TRUE(
      Eventually([&] { return Descriptors() == before + kMaxPassedDescriptorsPerSession; }));
  EXPECT_EQ(passed_->size(), kMaxPassedDescriptorsPerSession);
  close(fd);
}

TEST_F(LocalSocketTest, DescriptorsOfASessionThatEndedAreClosed) {
  std::atomic<bool> open{true};
  LocalSocket::Options options = Defaults();
  options.is_session = [&](const std::string&) { return open.load(); };
  Start(std::move(options));
  const size_t before = Descriptors();
  EXPECT_EQ(PassAndClose(NewMemory(4096, true)).code, 0);
  EXPECT_EQ(passed_->size(), 1u);
  open = false;
  EXPECT_TRUE(Eventually([&] { return passed_->size() == 0; }));
  EXPECT_TRUE(Eventually([&] { return Descriptors() == before; }));
  socket_->Stop();
}

// A connection that cannot be closed immediately: its peer does not read, and because of
// SO_LINGER close() waits for it.
class LingeringConnection {
 public:
  LingeringConnection() {
    const int listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t bytes = sizeof(address);
    fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(bind(listening, reinterpret_cast<sockaddr*>(&address), bytes), 0);
    EXPECT_EQ(listen(listening, 1), 0);
    EXPECT_EQ(getsockname(listening, reinterpret_cast<sockaddr*>(&address), &bytes), 0);
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&address), bytes), 0);
    peer_ = accept4(listening, nullptr, nullptr, SOCK_CLOEXEC);
    close(listening);
    const std::string data(1 << 16, 'x');
    while (send(fd_, data.data(), data.size(), MSG_DONTWAIT) > 0) {
    }
    const linger hour{1, 3600};
    EXPECT_EQ(setsockopt(fd_, SOL_SOCKET, SO_LINGER, &hour, sizeof(hour)), 0);
  }
  ~LingeringConnection() {
    Release();
    if (fd_ >= 0) close(fd_);
  }

  // Sends the connection to the socket, which then has the last copy, unless passed() is false.
  LocalAnswer PassTo(const std::string& path) {
    const int connection = ConnectLocal(path);
    // close() only lingers for the last copy of a descriptor. If the socket is faster with its
    // copy, that is the one of this class, and is released after a second.
    absl::Notification closed;
    std::thread release([&] {
      passed_ = closed.WaitForNotificationWithTimeout(absl::Seconds(1));
      if (!passed_) Release();
    });
    EXPECT_TRUE(testing::SendLocal(connection, kRequest, {fd_}));
    close(std::exchange(fd_, -1));
    closed.Notify();
    release.join();
    LocalAnswer answer = ReceiveLocal(connection);
    close(connection);
    return answer;
  }
  // Whether the copy of this class was closed first.
  bool passed() const { return passed_; }
  // Allows the connection to be closed.
  void Release() {
    if (peer_ >= 0) close(std::exchange(peer_, -1));
  }

 private:
  int fd_ = -1;
  int peer_ = -1;
  bool passed_ = false;
};

TEST_F(LocalSocketTest, ADescriptorThatCannotBeClosedDelaysNeitherOthersNorStop) {
  Start();
  std::optional<LingeringConnection> lingering;
  do {
    lingering.emplace();
    ExpectRefused(lingering->PassTo(path_), absl::StatusCode::kInvalidArgument,
                  "not one of shared memory");
  } while (!lingering->passed() && !HasFailure());
  EXPECT_EQ(PassAndClose(NewMemory(4096, true)).code, 0);
  const auto begin = std::chrono::steady_clock::now();
  socket_->Stop();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
  lingering->Release();
}

TEST_F(LocalSocketTest, StopDoesNotWaitForSilentConnections) {
  LocalSocket::Options options = Defaults();
  options.packet_timeout = std::chrono::hours(1);
  Start(std::move(options));
  const int connection = ConnectLocal(path_);
  ASSERT_GE(connection, 0);
  socket_->Stop();
  EXPECT_EQ(ReceiveLocal(connection).code, -1);
  EXPECT_FALSE(std::filesystem::exists(path_));
  close(connection);
}

TEST_F(LocalSocketTest, EveryLocalUserMayConnectWhateverTheUmask) {
  const mode_t before = umask(0077);
  Start();
  umask(before);
  struct stat file;
  ASSERT_EQ(lstat(path_.c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 0777, 0666u);
}

TEST_F(LocalSocketTest, InvalidSocketPathsAreRefused) {
  for (const std::string& path : {std::string(""), std::string("socket"), folder_.path() + "/",
                                  std::string("@name"), path_ + std::string(1, '\0')}) {
    ExpectError(LocalSocket::Bind(path).status(), absl::StatusCode::kInvalidArgument,
                "not an absolute path");
  }
  const std::string folder = folder_.path() + "/";
  const size_t longest = sizeof(sockaddr_un::sun_path) - 1;
  const std::string fits = folder + std::string(longest - folder.size(), 'x');
  EXPECT_TRUE(LocalSocket::Bind(fits).ok());
  ExpectError(LocalSocket::Bind(fits + "x").status(), absl::StatusCode::kInvalidArgument,
              "108 bytes");
  ExpectError(LocalSocket::Bind(folder + "none/socket").status(), absl::StatusCode::kUnavailable,
              "No such file");
}

TEST_F(LocalSocketTest, FilesOfOthersAreNotReplaced) {
  std::ofstream(path_) << "text";
  ExpectError(LocalSocket::Bind(path_).status(), absl::StatusCode::kUnavailable, "not a socket");
  std::filesystem::remove(path_);
  std::filesystem::create_symlink("elsewhere", path_);
  ExpectError(LocalSocket::Bind(path_).status(), absl::StatusCode::kUnavailable, "not a socket");
  EXPECT_FALSE(std::filesystem::exists(folder_.path() + "/elsewhere"));
  std::filesystem::remove(path_);

  Start();
  ExpectError(LocalSocket::Bind(path_).status(), absl::StatusCode::kUnavailable, "in use");
  EXPECT_EQ(PassAndClose(NewMemory(4096, true)).code, 0);

  // A socket that has replaced this one is not removed when this one stops.
  std::filesystem::rename(path_, path_ + ".moved");
  auto next = LocalSocket::Bind(path_);
  ASSERT_TRUE(next.ok()) << next.status();
  socket_->Stop();
  EXPECT_TRUE(std::filesystem::exists(path_));
  *next = nullptr;
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(LocalSocketTest, ALockOnTheFolderDoesNotBlockBind) {
  // Any user who may list the folder can lock it.
  const int folder = open(folder_.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  ASSERT_GE(folder, 0);
  ASSERT_EQ(flock(folder, LOCK_SH | LOCK_NB), 0);
  Start();
  EXPECT_EQ(PassAndClose(NewMemory(4096, true)).code, 0);
  EXPECT_FALSE(std::filesystem::exists(path_ + ".lock"));
  close(folder);
}

TEST_F(LocalSocketTest, AnUnusableLockFileIsNamed) {
  const std::string lock = path_ + ".lock";
  const int held = open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_GE(held, 0);
  ASSERT_EQ(flock(held, LOCK_EX | LOCK_NB), 0);
  ExpectError(LocalSocket::Bind(path_).status(), absl::StatusCode::kUnavailable,
              "another process has locked " + lock);
  EXPECT_TRUE(std::filesystem::exists(lock));
  // A daemon that was killed meanwhile leaves an unlocked file.
  close(held);
  EXPECT_TRUE(LocalSocket::Bind(path_).ok());
  EXPECT_FALSE(std::filesystem::exists(lock));

  std::filesystem::create_symlink("elsewhere", lock);
  ExpectError(LocalSocket::Bind(path_).status(), absl::StatusCode::kUnavailable, "symbolic link");
  EXPECT_FALSE(std::filesystem::exists(folder_.path() + "/elsewhere"));
  std::filesystem::remove(lock);

  if (geteuid() != 0) return;  // Only root can change a file's owner.
  std::ofstream(lock) << "";
  ASSERT_EQ(chown(lock.c_str(), 1, 1), 0);
  ExpectError(LocalSocket::Bind(path_).status(), absl::StatusCode::kUnavailable,
              "belongs to user 1");
  EXPECT_TRUE(std::filesystem::exists(lock));
}

// Leaves a socket as a killed daemon does.
void LeaveSocket(const std::string& path) {
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  memcpy(address.sun_path, path.data(), path.size());
  EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  EXPECT_EQ(listen(fd, 1), 0);
  close(fd);
}

TEST_F(LocalSocketTest, AnAbandonedSocketIsReplaced) {
  LeaveSocket(path_);
  Start();
  EXPECT_EQ(PassAndClose(NewMemory(4096, true)).code, 0);
}

TEST_F(LocalSocketTest, AnAbandonedSocketOfAnotherUserIsLeftAlone) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can change a socket's owner";
  LeaveSocket(path_);
  ASSERT_EQ(chown(path_.c_str(), 1, 1), 0);
  ExpectError(LocalSocket::Bind(path_).status(), absl::StatusCode::kUnavailable,
              "belongs to user 1");
  EXPECT_TRUE(std::filesystem::exists(path_));
}

TEST_F(LocalSocketTest, OnlyOneOfSeveralConcurrentBindsGetsAnAbandonedPath) {
  constexpr int kThreads = 8;
  for (int round = 0; round < 20; ++round) {
    LeaveSocket(path_);
    std::vector<absl::StatusOr<std::unique_ptr<LocalSocket>>> sockets(kThreads);
    std::vector<std::thread> threads;
    for (auto& socket : sockets) {
      threads.emplace_back([&] { socket = LocalSocket::Bind(path_); });
    }
    for (std::thread& thread : threads) thread.join();
    int winners = 0;
    for (auto& socket : sockets) {
      winners += socket.ok();
      if (!socket.ok()) {
        EXPECT_THAT(std::string(socket.status().message()), HasSubstr("in use"));
      }
    }
    EXPECT_EQ(winners, 1);
    const int connection = ConnectLocal(path_);
    EXPECT_GE(connection, 0) << "the socket at the path is not that of the successful Bind";
    close(connection);
  }
}

}  // namespace
}  // namespace resident
