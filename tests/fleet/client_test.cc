// The C++ client of several daemons: what spreads, what sticks, and what happens when a node
// leaves.
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/residentd_client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/daemon/daemon.h"
#include "tests/support/eventually.h"

namespace resident::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::vector<float> kX = {1, 2};
const std::vector<std::string> kFlags = {"--drain_notice=10m"};

class NodesTest : public ::testing::Test {
 protected:
  // Nodes at 127.0.0.11 and the addresses after it, on one port.
  void SetUp() override {
    nodes_.push_back(std::make_unique<testing::Daemon>(kFlags, "127.0.0.11:0"));
    const std::string& first = nodes_[0]->address();
    const std::string port = first.substr(first.rfind(':') + 1);
    for (const char* host : {"127.0.0.12:", "127.0.0.13:"}) {
      nodes_.push_back(std::make_unique<testing::Daemon>(kFlags, absl::StrCat(host, port)));
    }
  }

  std::unique_ptr<Client> Connect(Options options = {}) {
    options.balance = true;
    auto client =
        Client::Connect(absl::StrCat("ipv4:", absl::StrJoin(nodes_, ",",
                                                            [](std::string* out, const auto& node) {
                                                              out->append(node->address());
                                                            })),
                        options);
    EXPECT_TRUE(client.ok()) << client.status();
    return client.ok() ? *std::move(client) : nullptr;
  }

  // Tasks that each node has completed.
  std::vector<uint64_t> Tasks() {
    std::vector<uint64_t> tasks;
    for (const auto& node : nodes_) tasks.push_back(node->Device().completed_tasks());
    return tasks;
  }

  // The node that has the session of a client.
  std::unique_ptr<testing::Daemon>& Home() {
    for (auto& node : nodes_) {
      const v1::StatusResponse status = node->Status();
      for (const v1::ClientStatus& client : status.clients()) {
        if (client.name() == "residentd client") return node;
      }
    }
    ADD_FAILURE() << "no node has a session";
    return nodes_[0];
  }

  static TaskBatch Sum() {
    TaskBatch batch("add");
    batch.Input(kX).Input(kX).Return<float>({2}).Scalar(1);
    return batch;
  }
  static TaskBatch Sum(const BufferHandle& x) {
    TaskBatch batch("add");
    batch.Use(x).Use(x).Return<float>({2}).Scalar(1);
    return batch;
  }

  static void ExpectLeft(const absl::Status& status, const std::string& node) {
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    const std::optional<ErrorInfo> info = FindErrorInfo(status);
    ASSERT_TRUE(info.has_value()) << status;
    EXPECT_EQ(info->reason, "NODE_LEFT");
    EXPECT_EQ(info->metadata, (std::map<std::string, std::string>{{"node", node}}));
    EXPECT_THAT(std::string(status.message()), HasSubstr("Fix: upload again"));
  }

  std::vector<std::unique_ptr<testing::Daemon>> nodes_;
};

TEST_F(NodesTest, BatchesWithoutBuffersSpreadAndNeedNoSession) {
  const auto client = Connect();
  ASSERT_NE(client, nullptr);
  const std::vector<uint64_t> before = Tasks();
  // Connections to the nodes come one after the other.
  EXPECT_TRUE(testing::Eventually([&] {
    TaskBatch batch = Sum();
    const auto result = client->Run(batch);
    EXPECT_TRUE(result.ok()) << result.status();
    EXPECT_THAT(result->Output<float>(), ElementsAre(2, 4));
    EXPECT_TRUE(client->DescribeOperator("add").ok());
    const std::vector<uint64_t> now = Tasks();
    return std::ranges::equal(now, before, std::greater<>());
  }));
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const v1::StatusResponse status = nodes_[i]->Status();
    for (const v1::ClientStatus& each : status.clients()) EXPECT_EQ(each.name(), "");
  }
}

TEST_F(NodesTest, HandlesStayOnTheirNodeAndNameItWhenItHasLeft) {
  const auto client = Connect();
  ASSERT_NE(client, nullptr);
  auto x = client->Upload(kX);
  ASSERT_TRUE(x.ok()) << x.status();
  auto stream = client->OpenStream();
  ASSERT_TRUE(stream.ok()) << stream.status();
  TaskBatch batch = Sum(*x);
  for (int i = 0; i < 6; ++i) {
    const auto result = client->Run(batch);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_THAT(result->Output<float>(), ElementsAre(2, 4));
    EXPECT_TRUE((*stream)->Send(batch).get().ok());
  }
  auto& home = Home();
  const std::string address = home->address();
  // A client of one further node.
  const auto pinned = client->Pin();
  ASSERT_TRUE(pinned.ok()) << pinned.status();
  EXPECT_NE((*pinned)->address(), address);
  EXPECT_TRUE((*pinned)->Upload(kX).ok());

  home->Kill(SIGKILL);
  home->Wait();
  ExpectLeft(x->Download().status(), address);
  ExpectLeft(client->Run(batch).status(), address);
  ExpectLeft((*stream)->Finish(), address);
  auto y = client->Upload(kX);
  ASSERT_TRUE(y.ok()) << y.status();
  EXPECT_THAT(*y->Download(), ElementsAre(1, 2));
  TaskBatch again = Sum(*y);
  EXPECT_TRUE(client->Run(again).ok());
  ExpectLeft(client->Run(batch).status(), address);
  again.Use(*x);
  EXPECT_TRUE(absl::IsInvalidArgument(client->Run(again).status()));
  TaskBatch spread = Sum();
  for (int i = 0; i < 6; ++i) EXPECT_TRUE(client->Run(spread).ok());
}

TEST_F(NodesTest, OnlyCallsInFlightOnAKilledNodeFail) {
  constexpr int kThreads = 2;
  Options options;
  options.retry = Retry::kIfNotRun;
  const auto client = Connect(options);
  ASSERT_NE(client, nullptr);
  std::atomic<bool> stop = false;
  std::atomic<int> done = 0;
  std::atomic<int> failed = 0;
  std::vector<std::thread> threads(kThreads);
  for (std::thread& thread : threads) {
    thread = std::thread([&] {
      while (!stop) {
        TaskBatch batch = Sum();
        const auto result = client->Run(batch);
        if (!result.ok() || !result->ok()) {
          ++failed;
          EXPECT_TRUE(absl::IsUnavailable(result.status())) << result.status();
        }
        ++done;
      }
    });
  }
  for (auto& node : nodes_) {
    for (const int signal : {SIGTERM, SIGKILL}) {
      EXPECT_TRUE(testing::Eventually([&] { return node->Device().completed_tasks() > 10; }));
      const int before = failed;
      if (signal == SIGTERM) {
        node->Kill(SIGTERM);
        // The notice, during which clients look for other nodes, ends with another signal.
        EXPECT_TRUE(testing::Eventually([&] {
          const uint64_t tasks = node->Device().completed_tasks();
          const int now = done;
          return testing::Eventually([&] { return done > now + 50; }) &&
                 node->Device().completed_tasks() == tasks;
        }));
      }
      node->Kill(signal);
      node->Wait();
      const int calls = done;
      EXPECT_TRUE(testing::Eventually([&] { return done > calls + 50; }));
      EXPECT_LE(failed - before, signal == SIGKILL ? kThreads : 0);
      const std::string address = node->address();
      node = nullptr;
      node = std::make_unique<testing::Daemon>(kFlags, address);
    }
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
}

TEST_F(NodesTest, AStreamWithAnAgeOutlivesTheNodesThatDrain) {
  const auto client = Connect();
  ASSERT_NE(client, nullptr);
  for (const absl::Duration age :
       {-absl::Seconds(1), absl::ZeroDuration(), absl::Microseconds(999)}) {
    EXPECT_EQ(client->OpenStream({.max_age = age}).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  auto stream = client->OpenStream({.max_age = absl::Milliseconds(50)});
  ASSERT_TRUE(stream.ok()) << stream.status();
  std::atomic<bool> stop = false;
  std::atomic<int> done = 0;
  std::vector<std::thread> threads(2);
  for (std::thread& thread : threads) {
    thread = std::thread([&] {
      while (!stop) {
        TaskBatch batch = Sum();
        const auto result = (*stream)->Send(batch).get();
        EXPECT_TRUE(result.ok()) << result.status();
        if (result.ok()) {
          EXPECT_THAT(result->Output<float>(), ElementsAre(2, 4));
        }
        ++done;
      }
    });
  }
  for (auto& node : nodes_) {
    // Also the node that was restarted last.
    EXPECT_TRUE(testing::Eventually(
        [&] { return std::ranges::all_of(Tasks(), [](uint64_t tasks) { return tasks > 10; }); }));
    node->Kill(SIGTERM);
    // As above.
    EXPECT_TRUE(testing::Eventually([&] {
      const uint64_t tasks = node->Device().completed_tasks();
      const int now = done;
      return testing::Eventually([&] { return done > now + 500; }) &&
             node->Device().completed_tasks() == tasks;
    }));
    node->Kill(SIGTERM);
    node->Wait();
    const std::string address = node->address();
    node = nullptr;
    node = std::make_unique<testing::Daemon>(kFlags, address);
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  // A buffer is on one node.
  const auto x = client->Upload(kX);
  ASSERT_TRUE(x.ok()) << x.status();
  TaskBatch batch = Sum(*x);
  EXPECT_TRUE(absl::IsInvalidArgument((*stream)->Send(batch).get().status()));
  EXPECT_TRUE((*stream)->Finish().ok());
  TaskBatch late = Sum();
  EXPECT_TRUE(absl::IsFailedPrecondition((*stream)->Send(late).get().status()));
}

TEST_F(NodesTest, MistakesAreExplained) {
  const auto plain = Client::Connect(nodes_[0]->address());
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_THAT(std::string((*plain)->Pin().status().message()), HasSubstr("Options::balance"));
  const auto client = Connect();
  for (auto& node : nodes_) {
    node->Kill(SIGKILL);
    node->Wait();
  }
  const absl::Status none = client->Upload(kX).status();
  EXPECT_TRUE(absl::IsUnavailable(none)) << none;
  EXPECT_THAT(std::string(none.message()), HasSubstr(nodes_[0]->address()));
  EXPECT_THAT(std::string(none.message()), HasSubstr("residentctl status --targets"));
}

}  // namespace
}  // namespace resident::client
