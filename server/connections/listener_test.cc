#include "server/connections/listener.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "tests/support/eventually.h"

namespace resident {
namespace {

using testing::Eventually;
using ::testing::HasSubstr;

// Takes the place of gRPC: keeps accepted connections until the test closes them.
class FakeGrpc {
 public:
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> Acceptor() {
    return std::make_unique<Acceptor_>(this);
  }
  // Called for each connection, before it is kept. Set it before the first connection.
  std::function<void()> on_connection;
  // While this is held, no connection is accepted.
  absl::Mutex& mu() { return mu_; }
  size_t count() {
    absl::MutexLock lock(&mu_);
    return fds_.size();
  }
  // Reads and discards all received data.
  void ReadAll() {
    absl::MutexLock lock(&mu_);
    char bytes[64 << 10];
    for (const int fd : fds_) {
      while (recv(fd, bytes, sizeof(bytes), MSG_DONTWAIT) > 0) {
      }
    }
  }
  // Sends a byte over each connection, like a ping.
  void SendToAll() {
    absl::MutexLock lock(&mu_);
    for (const int fd : fds_) EXPECT_EQ(send(fd, "p", 1, MSG_NOSIGNAL), 1);
  }
  void CloseOne() {
    absl::MutexLock lock(&mu_);
    close(fds_.back());
    fds_.pop_back();
  }
  void CloseAll() {
    absl::MutexLock lock(&mu_);
    for (const int fd : fds_) close(fd);
    fds_.clear();
  }
  ~FakeGrpc() { CloseAll(); }

 private:
  class Acceptor_ final : public grpc::experimental::ExternalConnectionAcceptor {
   public:
    explicit Acceptor_(FakeGrpc* grpc) : grpc_(grpc) {}
    void HandleNewConnection(NewConnectionParameters* connection) override {
      if (grpc_->on_connection) grpc_->on_connection();
      absl::MutexLock lock(&grpc_->mu_);
      grpc_->fds_.push_back(connection->fd);
    }

   private:
    FakeGrpc* const grpc_;
  };

  absl::Mutex mu_;
  std::vector<int> fds_ ABSL_GUARDED_BY(mu_);
};

class ListenerTest : public ::testing::Test {
 protected:
  ~ListenerTest() override {
    for (const int fd : clients_) close(fd);
  }

  // Opens a connection of this family to the loopback address; -1: refused.
  static int Connect(sa_family_t family, uint16_t port, const char* source = nullptr) {
    sockaddr_in6 v6{};
    v6.sin6_family = AF_INET6;
    v6.sin6_addr = in6addr_loopback;
    v6.sin6_port = htons(port);
    sockaddr_in v4{};
    v4.sin_family = AF_INET;
    v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    v4.sin_port = htons(port);
    const int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (source != nullptr) {
      sockaddr_in from{};
      from.sin_family = AF_INET;
      inet_pton(AF_INET, source, &from.sin_addr);
      EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&from), sizeof(from)), 0) << strerror(errno);
    }
    const bool connected = family == AF_INET6
                               ? connect(fd, reinterpret_cast<sockaddr*>(&v6), sizeof(v6)) == 0
                               : connect(fd, reinterpret_cast<sockaddr*>(&v4), sizeof(v4)) == 0;
    if (connected) return fd;
    close(fd);
    return -1;
  }
  int Connect(const char* source = nullptr) {
    clients_.push_back(Connect(AF_INET, listener_->port(), source));
    EXPECT_GE(clients_.back(), 0) << strerror(errno);
    return clients_.back();
  }
  void Listen(const std::string& address, uint32_t max_connections) {
    Listen(address, ConnectionLimits{.max_connections = max_connections});
  }
  void Listen(const std::string& address, const ConnectionLimits& limits) {
    auto listener = Listener::Bind("address", address);
    ASSERT_TRUE(listener.ok()) << listener.status();
    listener_ = *std::move(listener);
    const absl::Status started = listener_->Start(limits, grpc_.Acceptor());
    ASSERT_TRUE(started.ok()) << started;
  }

  // The peer address that gRPC reports for a call over the connection.
  static std::string ReadPeer(int client) {
    sockaddr_storage own;
    socklen_t size = sizeof(own);
    EXPECT_EQ(getsockname(client, reinterpret_cast<sockaddr*>(&own), &size), 0);
    char text[INET6_ADDRSTRLEN];
    if (own.ss_family == AF_INET) {
      const auto& v4 = reinterpret_cast<sockaddr_in&>(own);
      inet_ntop(AF_INET, &v4.sin_addr, text, sizeof(text));
      return absl::StrCat("ipv4:", text, ":", ntohs(v4.sin_port));
    }
    const auto& v6 = reinterpret_cast<sockaddr_in6&>(own);
    inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof(text));
    return absl::StrCat("ipv6:%5B", text, "%5D:", ntohs(v6.sin6_port));
  }
  // Whether the server side has closed the connection.
  static bool Closed(int client) {
    char byte;
    const ssize_t bytes = recv(client, &byte, 1, MSG_DONTWAIT | MSG_PEEK);
    return bytes == 0 || (bytes < 0 && errno != EAGAIN);
  }
  // The same for one that has sent data.
  static bool ClosedAfterData(int client) {
    char bytes[512];
    while (recv(client, bytes, sizeof(bytes), MSG_DONTWAIT) > 0) {
    }
    return Closed(client);
  }
  // Sends this many bytes, which are read as gRPC would. False: the connection was closed
  // meanwhile.
  bool Send(int client, size_t bytes) {
    const std::string piece(64 << 10, 'x');
    ssize_t sent = 0;
    EXPECT_TRUE(Eventually([&] {
      grpc_.ReadAll();
      sent = send(client, piece.data(), std::min(bytes, piece.size()), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent > 0) bytes -= static_cast<size_t>(sent);
      return bytes == 0 || (sent < 0 && errno != EAGAIN);
    }));
    return sent > 0;
  }
  // Waits until the listener has accepted this many.
  void AwaitAccepted(size_t count) {
    EXPECT_TRUE(Eventually([&] { return listener_->Figures().open >= count; }));
  }

  FakeGrpc grpc_;
  std::vector<int> clients_;
  std::unique_ptr<Listener> listener_;  // Destroyed before grpc_, which it uses.
};

TEST_F(ListenerTest, InvalidAddressesAreNamed) {
  for (const char* address : {"", "127.0.0.1", "127.0.0.1:", ":1", "127.0.0.1:99999", "a:b"}) {
    const absl::Status status = CheckListen("metrics_address", address);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << address;
    EXPECT_THAT(std::string(status.message()), HasSubstr("--metrics_address="));
  }
  // Longer than a name may be: no name server is queried for it.
  EXPECT_EQ(CheckListen("address", std::string(64, 'a') + ":1").code(),
            absl::StatusCode::kUnavailable);
  // An address reserved for documentation: no machine has it.
  EXPECT_EQ(CheckListen("address", "192.0.2.1:0").code(), absl::StatusCode::kUnavailable);
}

TEST_F(ListenerTest, AnAddressInUseIsRefused) {
  Listen("127.0.0.1:0", 1);
  const std::string taken = absl::StrCat("127.0.0.1:", listener_->port());
  const absl::Status status = CheckListen("address", taken);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr(taken));
}

TEST_F(ListenerTest, OnlyOneOfTwoBoundListenersStarts) {
  auto first = Listener::Bind("address", "127.0.0.1:0");
  ASSERT_TRUE(first.ok());
  auto second = Listener::Bind("address", absl::StrCat("127.0.0.1:", (*first)->port()));
  ASSERT_TRUE(second.ok());
  EXPECT_TRUE((*first)->Start({}, grpc_.Acceptor()).ok());
  EXPECT_EQ((*second)->Start({}, grpc_.Acceptor()).code(), absl::StatusCode::kUnavailable);
}

TEST_F(ListenerTest, EveryAddressOfANameHasTheSamePort) {
  Listen("localhost:0", 10);
  // Which addresses it has depends on the machine; it has at least one.
  size_t connected = 0;
  for (const sa_family_t family : {AF_INET, AF_INET6}) {
    const int fd = Connect(family, listener_->port());
    if (fd < 0) continue;
    ++connected;
    clients_.push_back(fd);
  }
  EXPECT_GE(connected, 1u);
  EXPECT_TRUE(Eventually([&] { return grpc_.count() == connected; }));
}

TEST_F(ListenerTest, BothWildcardsMeanEveryAddress) {
  for (const char* address : {"0.0.0.0:0", "[::]:0"}) {
    Listen(address, 10);
    const size_t before = grpc_.count();
    size_t connected = 1;
    Connect();
    if (const int fd = Connect(AF_INET6, listener_->port()); fd >= 0) {
      ++connected;
      clients_.push_back(fd);
    } else {
      EXPECT_NE(errno, ECONNREFUSED) << address;  // Otherwise the machine has no IPv6.
    }
    EXPECT_TRUE(Eventually([&] { return grpc_.count() == before + connected; })) << address;
  }
}

TEST_F(ListenerTest, ClosingAConnectionMakesRoom) {
  Listen("127.0.0.1:0", 3);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(Send(Connect(), 1));
  ASSERT_TRUE(Eventually([&] { return grpc_.count() == 3; }));
  const int fourth = Connect();
  char byte;
  EXPECT_EQ(recv(fourth, &byte, 1, 0), 0);
  EXPECT_EQ(listener_->Figures().refused, 1u);
  EXPECT_EQ(listener_->Figures().open, 3u);

  grpc_.CloseOne();
  EXPECT_EQ(listener_->Figures().open, 2u);
  Connect();
  EXPECT_TRUE(Eventually([&] { return grpc_.count() == 3; }));
  EXPECT_EQ(listener_->Figures().refused, 1u);
}

// Limits that no test reaches by accident.
ConnectionLimits WideLimits() {
  return {.max_connections = 100, .max_unadmitted_idle = std::chrono::hours(1)};
}

TEST_F(ListenerTest, WithoutACallAConnectionIsClosedAfterATime) {
  ConnectionLimits limits = WideLimits();
  limits.max_unadmitted_idle = std::chrono::seconds(2);
  Listen("127.0.0.1:0", limits);
  const int silent = Connect(), refused = Connect(), admitted = Connect();
  AwaitAccepted(3);
  listener_->OnCall(ReadPeer(admitted), true);
  // Calls that were not admitted keep a connection open, but only while they continue.
  ASSERT_TRUE(Eventually([&] {
    listener_->OnCall(ReadPeer(refused), false);
    return Closed(silent);
  }));
  EXPECT_FALSE(Closed(refused));
  EXPECT_EQ(listener_->Figures().closed_idle, 1u);
  ASSERT_TRUE(Eventually([&] { return Closed(refused); }));
  EXPECT_FALSE(Closed(admitted));
  EXPECT_EQ(listener_->Figures().closed_idle, 2u);
  // gRPC closes connections that were shut down; only the silent one had no call.
  grpc_.CloseAll();
  EXPECT_EQ(listener_->Figures().open, 0u);
  EXPECT_EQ(listener_->Figures().without_call, 1u);
}

TEST_F(ListenerTest, UnadmittedConnectionThatSendsTooMuchIsClosed) {
  ConnectionLimits limits = WideLimits();
  limits.max_unadmitted_bytes = 256 << 10;
  Listen("127.0.0.1:0", limits);
  const int flood = Connect(), refused = Connect(), honest = Connect(), admitted = Connect();
  AwaitAccepted(4);
  EXPECT_TRUE(Send(honest, 200 << 10));
  listener_->OnCall(ReadPeer(admitted), true);
  EXPECT_TRUE(Send(admitted, 1 << 20));
  EXPECT_TRUE(Send(flood, 300 << 10));
  EXPECT_TRUE(Eventually([&] { return Closed(flood); }));
  // Calls that were not admitted do not raise the limit.
  for (int i = 0; i < 30; ++i) {
    listener_->OnCall(ReadPeer(refused), false);
    if (!Send(refused, 32 << 10)) break;
  }
  EXPECT_TRUE(Eventually([&] { return Closed(refused); }));
  EXPECT_FALSE(Closed(honest));
  EXPECT_FALSE(Closed(admitted));
  EXPECT_EQ(listener_->Figures().closed_bytes, 2u);
}

TEST_F(ListenerTest, AllUnadmittedConnectionsHaveACommonLimit) {
  ConnectionLimits limits = WideLimits();
  limits.max_unadmitted_bytes = 1 << 20;
  Listen("127.0.0.1:0", limits);
  const int small = Connect();
  std::vector<int> many;
  constexpr size_t kEach = 900 << 10;
  for (size_t i = 0; i <= ConnectionTable::kMaxAllUnadmittedBytes / kEach + 5; ++i) {
    many.push_back(Connect());
  }
  AwaitAccepted(many.size() + 1);
  EXPECT_TRUE(Send(small, 100 << 10));
  for (const int client : many) Send(client, kEach);
  EXPECT_TRUE(Eventually([&] { return listener_->Figures().closed_bytes > 0; }));
  EXPECT_FALSE(Closed(small));
}

TEST_F(ListenerTest, TheOldestUnadmittedConnectionMakesRoom) {
  ConnectionLimits limits = WideLimits();
  limits.max_connections = 3;
  Listen("127.0.0.1:0", limits);
  const int admitted = Connect(), older = Connect(), younger = Connect();
  AwaitAccepted(3);
  listener_->OnCall(ReadPeer(admitted), true);
  listener_->OnCall(ReadPeer(older), false);
  // During the grace period no connection is closed: new ones have time to be admitted.
  EXPECT_TRUE(Send(younger, 1));
  const int early = Connect();
  EXPECT_TRUE(Eventually([&] { return Closed(early); }));
  EXPECT_EQ(listener_->Figures().refused, 1u);
  // A refused client connects again, as real clients do.
  int late = -1;
  EXPECT_TRUE(Eventually([&] {
    late = Connect();
    return Eventually([&] { return Closed(late) || listener_->Figures().closed_for_room > 0; }) &&
           listener_->Figures().closed_for_room == 1;
  }));
  EXPECT_TRUE(Eventually([&] { return Closed(older); }));
  EXPECT_FALSE(Closed(admitted));
  EXPECT_FALSE(Closed(younger));
  EXPECT_FALSE(Closed(late));
}

TEST_F(ListenerTest, SilentConnectionsMakeRoomOldestFirst) {
  ConnectionLimits limits = WideLimits();
  limits.max_connections = 4;
  Listen("127.0.0.1:0", limits);
  const int speaks = Connect(), first = Connect(), second = Connect(), called = Connect();
  AwaitAccepted(4);
  EXPECT_TRUE(Send(speaks, 1));
  listener_->OnCall(ReadPeer(called), false);
  // The silent ones have no grace period.
  const int third = Connect();
  EXPECT_TRUE(Eventually([&] { return Closed(first); }));
  const int fourth = Connect();
  EXPECT_TRUE(Eventually([&] { return Closed(second); }));
  EXPECT_EQ(listener_->Figures().closed_for_room, 2u);
  EXPECT_EQ(listener_->Figures().refused, 0u);
  for (const int open : {speaks, called, third, fourth}) EXPECT_FALSE(Closed(open));
}

TEST_F(ListenerTest, AConnectionWhoseUnfinishedMessagesHoldTooMuchIsClosed) {
  ConnectionLimits limits = WideLimits();
  limits.max_unfinished_bytes = 8 << 20;
  limits.max_message_bytes = 64 << 20;
  Listen("127.0.0.1:0", limits);
  const int unfinished = Connect(), finished = Connect(), idle = Connect();
  AwaitAccepted(3);
  const auto awaiting = listener_->OnCall(ReadPeer(unfinished), true);
  const auto complete = listener_->OnCall(ReadPeer(finished), true);
  listener_->OnCall(ReadPeer(idle), true);
  awaiting->BeginMessage();
  constexpr size_t kPiece = 1 << 20;
  for (int i = 0; i < 40; ++i) {
    complete->BeginMessage();
    EXPECT_TRUE(Send(finished, kPiece));
    complete->EndMessage(kPiece);
    // No message of this one is awaited.
    EXPECT_TRUE(Send(idle, kPiece));
  }
  complete->BeginMessage();
  for (int i = 0; i < 40 && Send(unfinished, kPiece); ++i) {
  }
  EXPECT_TRUE(Eventually([&] { return Closed(unfinished); }));
  EXPECT_FALSE(Closed(finished));
  EXPECT_FALSE(Closed(idle));
  EXPECT_EQ(listener_->Figures().closed_unfinished, 1u);
}

TEST_F(ListenerTest, OnlyAPeerThatDoesNotAnswerIsClosedNotOneThatIsNotRead) {
  ConnectionLimits limits = WideLimits();
  limits.ping_after = std::chrono::milliseconds(500);
  limits.answer_within = std::chrono::milliseconds(100);
  Listen("127.0.0.1:0", limits);
  const int gone = Connect(), not_read = Connect();
  AwaitAccepted(2);
  for (const int client : {gone, not_read}) listener_->OnCall(ReadPeer(client), true);
  // Nothing is read here, so that this answer stays with the kernel.
  EXPECT_EQ(send(not_read, "a", 1, MSG_NOSIGNAL), 1);
  // A ping is due once both were silent for longer than ping_after.
  absl::SleepFor(absl::Milliseconds(700));
  grpc_.SendToAll();
  EXPECT_TRUE(Eventually([&] { return listener_->Figures().closed_silent > 0; }));
  EXPECT_TRUE(Eventually([&] { return ClosedAfterData(gone); }));
  EXPECT_FALSE(ClosedAfterData(not_read));
  EXPECT_EQ(listener_->Figures().closed_silent, 1u);
}

TEST_F(ListenerTest, AnAddressHasAShare) {
  ConnectionLimits limits = WideLimits();
  limits.max_address_connections = 2;
  Listen("127.0.0.1:0", limits);
  const int first = Connect("127.0.0.2"), second = Connect("127.0.0.2");
  AwaitAccepted(2);
  listener_->OnCall(ReadPeer(first), true);
  listener_->OnCall(ReadPeer(second), true);
  const int third = Connect("127.0.0.2");
  EXPECT_TRUE(Eventually([&] { return Closed(third); }));
  const int other = Connect("127.0.0.3");
  AwaitAccepted(3);
  EXPECT_FALSE(Closed(other));
  EXPECT_EQ(listener_->Figures().refused, 1u);
  // There is room in the share again once a connection is closed.
  close(second);
  clients_.erase(std::find(clients_.begin(), clients_.end(), second));
  EXPECT_TRUE(Eventually([&] { return grpc_.count() == 3; }));  // Passed on, not only counted.
  grpc_.CloseAll();
  EXPECT_TRUE(Eventually([&] { return listener_->Figures().open == 0; }));
  const int fourth = Connect("127.0.0.2");
  EXPECT_TRUE(Eventually([&] { return listener_->Figures().open == 1; }));
  EXPECT_FALSE(Closed(fourth));
}

TEST_F(ListenerTest, ByDefaultTheLoopbackInterfaceHasNoAddressLimit) {
  Listen("127.0.0.1:0", 8);
  for (int i = 0; i < 8; ++i) Connect();
  EXPECT_TRUE(Eventually([&] { return listener_->Figures().open == 8; }));
  EXPECT_EQ(listener_->Figures().refused, 0u);
}

TEST_F(ListenerTest, PeersOfBothFamiliesAreFound) {
  ConnectionLimits limits = WideLimits();
  limits.max_unadmitted_idle = std::chrono::seconds(2);
  Listen("[::]:0", limits);
  std::vector<int> admitted = {Connect()};
  if (const int fd = Connect(AF_INET6, listener_->port()); fd >= 0) {
    clients_.push_back(fd);
    admitted.push_back(fd);
  }
  AwaitAccepted(admitted.size());
  for (const int client : admitted) listener_->OnCall(ReadPeer(client), true);
  // Invalid peer addresses are ignored.
  for (const char* peer : {"", "ipv4:", "ipv6:%5B", "unix:/a", "ipv4:1.2.3.4", "ipv4:a:1",
                           "ipv6:%5Bfe80::1%25x%5D:1", "ipv4:1.2.3.4:99999"}) {
    listener_->OnCall(peer, true);
  }
  const int silent = Connect();
  EXPECT_TRUE(Eventually([&] { return Closed(silent); }));
  for (const int client : admitted) EXPECT_FALSE(Closed(client));
}

TEST_F(ListenerTest, AConnectionThatIsResetBeforeItIsAcceptedIsIgnored) {
  Listen("127.0.0.1:0", 10);
  {
    // The first one blocks the accepting thread, so that the others wait.
    const absl::MutexLock held(&grpc_.mu());
    Connect();
    const linger reset{1, 0};
    for (int i = 0; i < 100; ++i) {
      const int fd = Connect(AF_INET, listener_->port());
      ASSERT_GE(fd, 0) << strerror(errno);
      setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
      close(fd);
    }
    Connect();
  }
  EXPECT_TRUE(Eventually([&] { return grpc_.count() >= 2; }));
  EXPECT_EQ(grpc_.count(), 2u);
  EXPECT_EQ(listener_->Figures().refused, 0u);
}

TEST_F(ListenerTest, StopsWhileConnectionsKeepComing) {
  // Each accepted connection opens the next: there is always one that waits.
  std::atomic<uint64_t> opened{0};
  grpc_.on_connection = [&] {
    grpc_.CloseAll();
    const int fd = Connect(AF_INET, listener_->port());
    if (fd >= 0) close(fd);
    ++opened;
  };
  Listen("127.0.0.1:0", 1000);
  Connect();
  EXPECT_TRUE(Eventually([&] { return opened > 100; }));
  listener_->Stop();
  EXPECT_GT(opened, 100u);
}

}  // namespace
}  // namespace resident
