#include "server/listener.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
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
  static int Connect(sa_family_t family, uint16_t port) {
    sockaddr_in6 v6{};
    v6.sin6_family = AF_INET6;
    v6.sin6_addr = in6addr_loopback;
    v6.sin6_port = htons(port);
    sockaddr_in v4{};
    v4.sin_family = AF_INET;
    v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    v4.sin_port = htons(port);
    const int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool connected = family == AF_INET6
                               ? connect(fd, reinterpret_cast<sockaddr*>(&v6), sizeof(v6)) == 0
                               : connect(fd, reinterpret_cast<sockaddr*>(&v4), sizeof(v4)) == 0;
    if (connected) return fd;
    close(fd);
    return -1;
  }
  int Connect() {
    clients_.push_back(Connect(AF_INET, listener_->port()));
    EXPECT_GE(clients_.back(), 0) << strerror(errno);
    return clients_.back();
  }
  void Listen(const std::string& address, uint32_t most) {
    auto listener = Listener::Bind("address", address);
    ASSERT_TRUE(listener.ok()) << listener.status();
    listener_ = *std::move(listener);
    const absl::Status started = listener_->Start(most, taken_.Acceptor());
    ASSERT_TRUE(started.ok()) << started;
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
  EXPECT_TRUE((*first)->Start(1, taken_.Acceptor()).ok());
  EXPECT_EQ((*second)->Start(1, taken_.Acceptor()).code(), absl::StatusCode::kUnavailable);
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
  EXPECT_EQ(listener_->refused(), 1u);
  EXPECT_EQ(listener_->connections(), 3u);

  taken_.CloseOne();
  EXPECT_EQ(listener_->connections(), 2u);
  Connect();
  EXPECT_TRUE(Eventually([&] { return taken_.count() == 3; }));
  EXPECT_EQ(listener_->refused(), 1u);
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
  EXPECT_EQ(listener_->refused(), 0u);
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
