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
#include "tests/support/eventually.h"

namespace resident {
namespace {

using testing::Eventually;
using ::testing::HasSubstr;

// Where gRPC would be: it keeps what it is given, until the test closes it.
class Taken {
 public:
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> Acceptor() {
    return std::make_unique<Acceptor_>(this);
  }
  // Called for each connection, before it is kept. Set before there is any.
  std::function<void()> on_connection;
  // Nothing is taken by whoever wants it, while another holds it.
  absl::Mutex& mu() { return mu_; }
  size_t count() {
    absl::MutexLock lock(&mu_);
    return fds_.size();
  }
  // Reads and drops what has come.
  void ReadAll() {
    absl::MutexLock lock(&mu_);
    char bytes[64 << 10];
    for (const int fd : fds_) {
      while (recv(fd, bytes, sizeof(bytes), MSG_DONTWAIT) > 0) {
      }
    }
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
  ~Taken() { CloseAll(); }

 private:
  class Acceptor_ final : public grpc::experimental::ExternalConnectionAcceptor {
   public:
    explicit Acceptor_(Taken* taken) : taken_(taken) {}
    void HandleNewConnection(NewConnectionParameters* connection) override {
      if (taken_->on_connection) taken_->on_connection();
      absl::MutexLock lock(&taken_->mu_);
      taken_->fds_.push_back(connection->fd);
    }

   private:
    Taken* const taken_;
  };

  absl::Mutex mu_;
  std::vector<int> fds_ ABSL_GUARDED_BY(mu_);
};

class ListenerTest : public ::testing::Test {
 protected:
  ~ListenerTest() override {
    for (const int fd : clients_) close(fd);
  }

  // A connection of this family to the loopback address; -1: refused.
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
  void Listen(const std::string& address, uint32_t most) {
    Listen(address, ConnectionLimits{.max_connections = most});
  }
  void Listen(const std::string& address, const ConnectionLimits& limits) {
    auto listener = Listener::Bind("address", address);
    ASSERT_TRUE(listener.ok()) << listener.status();
    listener_ = *std::move(listener);
    const absl::Status started = listener_->Start(limits, taken_.Acceptor());
    ASSERT_TRUE(started.ok()) << started;
  }

  // Where gRPC says that a call over the connection comes from.
  static std::string PeerOf(int client) {
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
  // Whether the daemon has ended the connection.
  static bool Closed(int client) {
    char byte;
    const ssize_t bytes = recv(client, &byte, 1, MSG_DONTWAIT | MSG_PEEK);
    return bytes == 0 || (bytes < 0 && errno != EAGAIN);
  }
  // Sends so much, which is read as gRPC reads it. False: the connection has ended meanwhile.
  bool Send(int client, size_t bytes) {
    const std::string piece(64 << 10, 'x');
    ssize_t sent = 0;
    EXPECT_TRUE(Eventually([&] {
      taken_.ReadAll();
      sent = send(client, piece.data(), std::min(bytes, piece.size()), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent > 0) bytes -= static_cast<size_t>(sent);
      return bytes == 0 || (sent < 0 && errno != EAGAIN);
    }));
    return sent > 0;
  }
  // The listener has taken them all.
  void AwaitTaken(size_t count) {
    EXPECT_TRUE(Eventually([&] { return listener_->Figures().open >= count; }));
  }

  Taken taken_;
  std::vector<int> clients_;
  std::unique_ptr<Listener> listener_;  // Ends before what it gives to.
};

TEST_F(ListenerTest, AddressesThatAreNoneAreNamed) {
  for (const char* address : {"", "127.0.0.1", "127.0.0.1:", ":1", "127.0.0.1:99999", "a:b"}) {
    const absl::Status status = CheckListen("metrics_address", address);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << address;
    EXPECT_THAT(std::string(status.message()), HasSubstr("--metrics_address="));
  }
  // Longer than a name may be: nobody is asked for it.
  EXPECT_EQ(CheckListen("address", std::string(64, 'a') + ":1").code(),
            absl::StatusCode::kUnavailable);
  // An address for documents: no machine has it.
  EXPECT_EQ(CheckListen("address", "192.0.2.1:0").code(), absl::StatusCode::kUnavailable);
}

TEST_F(ListenerTest, OneListensAtAnAddress) {
  Listen("127.0.0.1:0", 1);
  const std::string taken = absl::StrCat("127.0.0.1:", listener_->port());
  const absl::Status status = CheckListen("address", taken);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr(taken));
}

TEST_F(ListenerTest, OfTwoThatBindAtOnceOneStarts) {
  auto first = Listener::Bind("address", "127.0.0.1:0");
  ASSERT_TRUE(first.ok());
  auto second = Listener::Bind("address", absl::StrCat("127.0.0.1:", (*first)->port()));
  ASSERT_TRUE(second.ok());
  EXPECT_TRUE((*first)->Start({}, taken_.Acceptor()).ok());
  EXPECT_EQ((*second)->Start({}, taken_.Acceptor()).code(), absl::StatusCode::kUnavailable);
}

TEST_F(ListenerTest, EveryAddressOfANameHasTheSamePort) {
  Listen("localhost:0", 10);
  // Which ones it has is the machine's affair; one of them at least.
  size_t connected = 0;
  for (const sa_family_t family : {AF_INET, AF_INET6}) {
    const int fd = Connect(family, listener_->port());
    if (fd < 0) continue;
    ++connected;
    clients_.push_back(fd);
  }
  EXPECT_GE(connected, 1u);
  EXPECT_TRUE(Eventually([&] { return taken_.count() == connected; }));
}

TEST_F(ListenerTest, BothWildcardsMeanEveryAddress) {
  for (const char* address : {"0.0.0.0:0", "[::]:0"}) {
    Listen(address, 10);
    const size_t before = taken_.count();
    size_t connected = 1;
    Connect();
    if (const int fd = Connect(AF_INET6, listener_->port()); fd >= 0) {
      ++connected;
      clients_.push_back(fd);
    } else {
      EXPECT_NE(errno, ECONNREFUSED) << address;  // Else it has no IPv6.
    }
    EXPECT_TRUE(Eventually([&] { return taken_.count() == before + connected; })) << address;
  }
}

TEST_F(ListenerTest, APlaceIsFreeOnceOneIsClosed) {
  Listen("127.0.0.1:0", 3);
  for (int i = 0; i < 3; ++i) Connect();
  ASSERT_TRUE(Eventually([&] { return taken_.count() == 3; }));
  const int fourth = Connect();
  char byte;
  EXPECT_EQ(recv(fourth, &byte, 1, 0), 0);
  EXPECT_EQ(listener_->Figures().refused, 1u);
  EXPECT_EQ(listener_->Figures().open, 3u);

  taken_.CloseOne();
  EXPECT_EQ(listener_->Figures().open, 2u);
  Connect();
  EXPECT_TRUE(Eventually([&] { return taken_.count() == 3; }));
  EXPECT_EQ(listener_->Figures().refused, 1u);
}

// Limits that no test reaches but by what it does.
ConnectionLimits WideLimits() {
  return {.max_connections = 100, .max_unadmitted_idle = std::chrono::hours(1)};
}

TEST_F(ListenerTest, WithoutACallAConnectionIsClosedAfterATime) {
  ConnectionLimits limits = WideLimits();
  limits.max_unadmitted_idle = std::chrono::milliseconds(300);
  Listen("127.0.0.1:0", limits);
  const int silent = Connect(), refused = Connect(), admitted = Connect();
  AwaitTaken(3);
  listener_->OnCall(PeerOf(admitted), true);
  // Calls that were not admitted keep a connection open, but it ends once there are no more.
  ASSERT_TRUE(Eventually([&] {
    listener_->OnCall(PeerOf(refused), false);
    return Closed(silent);
  }));
  EXPECT_FALSE(Closed(refused));
  EXPECT_EQ(listener_->Figures().closed_idle, 1u);
  ASSERT_TRUE(Eventually([&] { return Closed(refused); }));
  EXPECT_FALSE(Closed(admitted));
  EXPECT_EQ(listener_->Figures().closed_idle, 2u);
  // gRPC closes what was shut down; only the silent one had no call.
  taken_.CloseAll();
  EXPECT_EQ(listener_->Figures().open, 0u);
  EXPECT_EQ(listener_->Figures().without_call, 1u);
}

TEST_F(ListenerTest, WhoIsNotAdmittedAndSendsMuchIsClosed) {
  ConnectionLimits limits = WideLimits();
  limits.max_unadmitted_bytes = 256 << 10;
  Listen("127.0.0.1:0", limits);
  const int flood = Connect(), refused = Connect(), honest = Connect(), admitted = Connect();
  AwaitTaken(4);
  EXPECT_TRUE(Send(honest, 200 << 10));
  listener_->OnCall(PeerOf(admitted), true);
  EXPECT_TRUE(Send(admitted, 1 << 20));
  EXPECT_TRUE(Send(flood, 300 << 10));
  EXPECT_TRUE(Eventually([&] { return Closed(flood); }));
  // Calls that were not admitted give it no more.
  for (int i = 0; i < 30; ++i) {
    listener_->OnCall(PeerOf(refused), false);
    if (!Send(refused, 32 << 10)) break;
  }
  EXPECT_TRUE(Eventually([&] { return Closed(refused); }));
  EXPECT_FALSE(Closed(honest));
  EXPECT_FALSE(Closed(admitted));
  EXPECT_EQ(listener_->Figures().closed_bytes, 2u);
}

TEST_F(ListenerTest, AllThatAreNotAdmittedHaveALimitTogether) {
  ConnectionLimits limits = WideLimits();
  limits.max_unadmitted_bytes = 1 << 20;
  Listen("127.0.0.1:0", limits);
  const int small = Connect();
  std::vector<int> many;
  constexpr size_t kEach = 900 << 10;
  for (size_t i = 0; i <= ConnectionTable::kMaxAllUnadmittedBytes / kEach + 5; ++i) {
    many.push_back(Connect());
  }
  AwaitTaken(many.size() + 1);
  EXPECT_TRUE(Send(small, 100 << 10));
  for (const int client : many) Send(client, kEach);
  EXPECT_TRUE(Eventually([&] { return listener_->Figures().closed_bytes > 0; }));
  EXPECT_FALSE(Closed(small));
}

TEST_F(ListenerTest, TheOldestWithoutAnAdmittedCallMakesRoom) {
  ConnectionLimits limits = WideLimits();
  limits.max_connections = 3;
  Listen("127.0.0.1:0", limits);
  const int admitted = Connect(), older = Connect(), younger = Connect();
  AwaitTaken(3);
  listener_->OnCall(PeerOf(admitted), true);
  listener_->OnCall(PeerOf(older), false);
  // For a moment nobody makes room: a new one has time to be admitted.
  const int early = Connect();
  EXPECT_TRUE(Eventually([&] { return Closed(early); }));
  EXPECT_EQ(listener_->Figures().refused, 1u);
  // Each that is refused asks again, as clients do.
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

TEST_F(ListenerTest, AnAddressHasAShare) {
  ConnectionLimits limits = WideLimits();
  limits.max_address_connections = 2;
  Listen("127.0.0.1:0", limits);
  const int first = Connect("127.0.0.2"), second = Connect("127.0.0.2");
  AwaitTaken(2);
  listener_->OnCall(PeerOf(first), true);
  listener_->OnCall(PeerOf(second), true);
  const int third = Connect("127.0.0.2");
  EXPECT_TRUE(Eventually([&] { return Closed(third); }));
  const int other = Connect("127.0.0.3");
  AwaitTaken(3);
  EXPECT_FALSE(Closed(other));
  EXPECT_EQ(listener_->Figures().refused, 1u);
  // A place of the share is free again once one is closed.
  close(second);
  clients_.erase(std::find(clients_.begin(), clients_.end(), second));
  EXPECT_TRUE(Eventually([&] { return taken_.count() == 3; }));  // Handed over, not only counted.
  taken_.CloseAll();
  EXPECT_TRUE(Eventually([&] { return listener_->Figures().open == 0; }));
  const int fourth = Connect("127.0.0.2");
  EXPECT_TRUE(Eventually([&] { return listener_->Figures().open == 1; }));
  EXPECT_FALSE(Closed(fourth));
}

TEST_F(ListenerTest, WithoutALimitOfAnAddressTheLoopbackInterfaceHasNone) {
  Listen("127.0.0.1:0", 8);
  for (int i = 0; i < 8; ++i) Connect();
  EXPECT_TRUE(Eventually([&] { return listener_->Figures().open == 8; }));
  EXPECT_EQ(listener_->Figures().refused, 0u);
}

TEST_F(ListenerTest, PeersOfBothFamiliesAreFound) {
  ConnectionLimits limits = WideLimits();
  limits.max_unadmitted_idle = std::chrono::milliseconds(200);
  Listen("[::]:0", limits);
  std::vector<int> admitted = {Connect()};
  if (const int fd = Connect(AF_INET6, listener_->port()); fd >= 0) {
    clients_.push_back(fd);
    admitted.push_back(fd);
  }
  AwaitTaken(admitted.size());
  for (const int client : admitted) listener_->OnCall(PeerOf(client), true);
  // What is no peer changes nothing.
  for (const char* peer : {"", "ipv4:", "ipv6:%5B", "unix:/a", "ipv4:1.2.3.4", "ipv4:a:1",
                           "ipv6:%5Bfe80::1%25x%5D:1", "ipv4:1.2.3.4:99999"}) {
    listener_->OnCall(peer, true);
  }
  const int silent = Connect();
  EXPECT_TRUE(Eventually([&] { return Closed(silent); }));
  for (const int client : admitted) EXPECT_FALSE(Closed(client));
}

TEST_F(ListenerTest, AConnectionThatIsResetBeforeItIsTakenIsNobodys) {
  Listen("127.0.0.1:0", 10);
  {
    // The first one holds the thread that takes them, so that the others wait.
    const absl::MutexLock held(&taken_.mu());
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
  EXPECT_TRUE(Eventually([&] { return taken_.count() >= 2; }));
  EXPECT_EQ(taken_.count(), 2u);
  EXPECT_EQ(listener_->Figures().refused, 0u);
}

TEST_F(ListenerTest, StopsWhileConnectionsKeepComing) {
  // Each that is taken brings the next: there is always one that waits.
  std::atomic<uint64_t> brought{0};
  taken_.on_connection = [&] {
    taken_.CloseAll();
    const int fd = Connect(AF_INET, listener_->port());
    if (fd >= 0) close(fd);
    ++brought;
  };
  Listen("127.0.0.1:0", 1000);
  Connect();
  EXPECT_TRUE(Eventually([&] { return brought > 100; }));
  listener_->Stop();
  EXPECT_GT(brought, 100u);
}

}  // namespace
}  // namespace resident
