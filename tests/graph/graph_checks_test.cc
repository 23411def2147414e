// Checks of graphs in a real daemon: places and threads for them are shared, a check ends with its
// call and with the daemon, and its memory is limited.
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "resident/v1/graphs.grpc.pb.h"
#include "runtime/graph/limits.h"
#include "tests/auth/auth_support.h"
#include "tests/daemon/messages.h"
#include "tests/graph/graph_maker.h"
#include "tests/support/eventually.h"

namespace resident::testing {
namespace {

using grpc::StatusCode;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

// Places that one caller can have: an eighth is kept for others.
constexpr int kPlacesOfOne = graph::kMaxChecks - (graph::kMaxChecks - 1) / 8 - 1;

// A graph of a few kilobytes whose check uses up its steps, in a second or more: columns that are
// written again and again.
v1::Graph MakeLarge() {
  constexpr int kRows = 1 << 14;
  GraphMaker g;
  g.State("s", {D(kRows), D(256)});
  for (int i = 0; i < 150; ++i) {
    g.Call("zero", {View("s", {D(kRows)}, i * 37 % 45 * 5, {256})});
  }
  return g.graph;
}

v1::Graph MakeOneNode() {
  GraphMaker g;
  g.State("s", {D(4)}).Call("zero", {"s"});
  return g.graph;
}

// `sum` over a view with repeats that interleave; the output is one element of the same state.
v1::Graph MakeInterleaved() {
  GraphMaker g;
  g.State("s", {D(3000)});
  g.Call("sum", {View("s", std::vector<Dim>(8, D(100)), 0, std::vector<int64_t>(8, 2)),
                 View("s", {}, 793), I(255)});
  g.node(0).clear_name();
  return g.graph;
}

class GraphChecksTest : public ::testing::Test {
 protected:
  static constexpr char kAlice[] = "a-token";
  static constexpr char kBob[] = "b-token";

  std::unique_ptr<Daemon> StartDaemon(std::vector<std::string> flags = {}) {
    flags.push_back("--policy=" + folder_.Write("policy.json", R"({"identities": {
      "alice": {"roles": ["submit"]}, "bob": {"roles": ["submit"]}}})"));
    flags.push_back("--token_file=" +
                    folder_.Write("tokens", TokenLine("alice", kAlice) + TokenLine("bob", kBob)));
    return std::make_unique<Daemon>(flags);
  }

  const Folder folder_;
};

// Calls of Graphs.Validate, each on a thread of its own.
class Calls {
 public:
  Calls(const Daemon& daemon, const char* token) : channel_(Open(daemon)), token_(token) {}
  ~Calls() { Join(); }

  void Start(const v1::Graph& graph, milliseconds deadline = std::chrono::minutes(2)) {
    calls_.push_back(std::make_unique<One>());
    One& call = *calls_.back();
    call.context.AddMetadata("authorization", Bearer(token_));
    call.context.set_deadline(std::chrono::system_clock::now() + deadline);
    call.thread = std::thread([this, &call, graph] {
      v1::ValidateGraphRequest request;
      *request.mutable_graph() = graph;
      v1::ValidateGraphResponse response;
      const grpc::Status status =
          v1::Graphs::NewStub(channel_)->Validate(&call.context, request, &response);
      call.status = status;
      if (status.error_code() == StatusCode::RESOURCE_EXHAUSTED) ++exhausted_;
      ++answered_;
    });
  }
  // One call, and its status.
  grpc::Status Run(const v1::Graph& graph) {
    Calls one(*this);
    one.Start(graph);
    one.Join();
    return one.calls_[0]->status;
  }
  void CancelAll() {
    for (const auto& call : calls_) call->context.TryCancel();
  }
  void Join() {
    for (const auto& call : calls_) {
      if (call->thread.joinable()) call->thread.join();
    }
  }
  int answered() const { return answered_; }
  // That were refused because no place was free.
  int exhausted() const { return exhausted_; }
  // REQUIRES: Join.
  int Count(StatusCode code) const {
    int count = 0;
    for (const auto& call : calls_) count += call->status.error_code() == code ? 1 : 0;
    return count;
  }
  // Takes all places that the caller can have, for checks of large graphs.
  void TakePlaces() {
    for (int i = 0; i < kPlacesOfOne + 3; ++i) Start(MakeLarge());
    EXPECT_TRUE(Eventually([&] { return exhausted() == 3; }));
  }

 private:
  struct One {
    grpc::ClientContext context;
    grpc::Status status;
    std::thread thread;
  };
  Calls(const Calls& other) : channel_(other.channel_), token_(other.token_) {}

  const std::shared_ptr<grpc::Channel> channel_;
  const std::string token_;
  std::vector<std::unique_ptr<One>> calls_;
  std::atomic<int> answered_{0};
  std::atomic<int> exhausted_{0};
};

// How long a large graph's check takes on this machine.
steady_clock::duration MeasureLarge(Calls& calls) {
  const auto begin = steady_clock::now();
  EXPECT_TRUE(calls.Run(MakeLarge()).ok());
  return steady_clock::now() - begin;
}

TEST_F(GraphChecksTest, SmallMessagesWithManyCombinationsDoNotStopTheChecks) {
  const auto daemon = StartDaemon({"--drain_timeout=60s"});
  const v1::Graph graph = MakeInterleaved();
  EXPECT_LT(graph.ByteSizeLong(), 140u);
  Calls alice(*daemon, GraphChecksTest::kAlice);
  for (int i = 0; i < 2 * static_cast<int>(graph::kCheckThreads); ++i) alice.Start(graph);
  EXPECT_TRUE(Calls(*daemon, kBob).Run(MakeOneNode()).ok());
  alice.Join();
  EXPECT_EQ(alice.Count(StatusCode::OK), 2 * static_cast<int>(graph::kCheckThreads));
  daemon->Kill(SIGTERM);
  const auto exit = daemon->Wait();
  ASSERT_TRUE(exit.has_value());
}

TEST_F(GraphChecksTest, OneCallersLargeChecksLeaveAThreadAndPlacesToOthers) {
  const auto daemon = StartDaemon();
  Calls alice(*daemon, kAlice);
  alice.TakePlaces();
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(Calls(*daemon, kBob).Run(MakeOneNode()).ok());
  }
  // Bob did not wait for Alice.
  EXPECT_LT(alice.answered(), kPlacesOfOne);
  alice.CancelAll();
}

TEST_F(GraphChecksTest, ChecksEndWithTheirCalls) {
  const auto daemon = StartDaemon();
  Calls alice(*daemon, kAlice);
  const auto one = MeasureLarge(alice);
  alice.TakePlaces();
  const auto begin = steady_clock::now();
  alice.CancelAll();
  // Hers were the places and threads, which hold 14 checks of the time `one` on few threads.
  EXPECT_TRUE(Eventually([&] { return Calls(*daemon, kAlice).Run(MakeOneNode()).ok(); }));
  EXPECT_LT(steady_clock::now() - begin, one * kPlacesOfOne / graph::kCheckThreads / 2);
}

TEST_F(GraphChecksTest, ChecksEndAtTheirDeadlines) {
  const auto daemon = StartDaemon();
  Calls alice(*daemon, kAlice);
  const auto one = MeasureLarge(alice);
  const auto begin = steady_clock::now();
  for (int i = 0; i < kPlacesOfOne; ++i) {
    alice.Start(MakeLarge(), std::chrono::duration_cast<milliseconds>(one / 4));
  }
  alice.Join();
  EXPECT_EQ(alice.Count(StatusCode::OK), 0);
  EXPECT_TRUE(Eventually([&] { return Calls(*daemon, kAlice).Run(MakeOneNode()).ok(); }));
  EXPECT_LT(steady_clock::now() - begin, one * kPlacesOfOne / graph::kCheckThreads / 2);
}

TEST_F(GraphChecksTest, ADrainEndsRunningAndWaitingChecks) {
  const auto daemon = StartDaemon({"--drain_timeout=120s"});
  Calls alice(*daemon, kAlice);
  alice.TakePlaces();
  const auto begin = steady_clock::now();
  daemon->Kill(SIGTERM);
  alice.Join();
  EXPECT_LT(steady_clock::now() - begin, std::chrono::seconds(1));
  // Those that had not ended before.
  EXPECT_GE(alice.Count(StatusCode::UNAVAILABLE),
            kPlacesOfOne - 2 * static_cast<int>(graph::kCheckThreads));
  EXPECT_TRUE(daemon->Wait(std::chrono::seconds(30)).has_value());
}

// A place is free before its caller is answered.
TEST_F(GraphChecksTest, ACallerWithAsManyCallsAsPlacesIsNeverRefused) {
  const auto daemon = StartDaemon();
  std::vector<std::thread> threads;
  std::atomic<int> refused{0};
  for (int i = 0; i < kPlacesOfOne; ++i) {
    threads.emplace_back([&] {
      Calls alice(*daemon, kAlice);
      for (int k = 0; k < 50; ++k) refused += alice.Run(MakeOneNode()).ok() ? 0 : 1;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(refused, 0);
}

TEST_F(GraphChecksTest, TheMemoryOfChecksIsTakenFromTheHostBudget) {
  const auto daemon = StartDaemon({"--max_host_mib=128", "--max_client_host_mib=32"});
  Calls alice(*daemon, kAlice);
  for (int i = 0; i < 3; ++i) {
    ExpectRefused(alice.Run(MakeLarge()), StatusCode::RESOURCE_EXHAUSTED,
                  {"MiB", "--max_client_host_mib"});
    EXPECT_TRUE(alice.Run(MakeOneNode()).ok());
  }
}

// The check of a run ends with the run.
TEST_F(GraphChecksTest, TheCheckOfARunEndsWithIt) {
  const Daemon daemon;
  const Client client(daemon);
  const auto stub = v1::Graphs::NewStub(daemon.Connect());
  const auto run = [&](const v1::Graph& graph, milliseconds timeout) {
    v1::RunGraphRequest request;
    *request.mutable_graph() = graph;
    request.set_timeout_us(static_cast<uint64_t>(timeout.count()) * 1000);
    const auto context = client.Context();
    const auto stream = stub->Run(context.get(), request);
    v1::RunGraphResponse response;
    while (stream->Read(&response)) continue;
    return stream->Finish();
  };
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(run(MakeLarge(), milliseconds(50)).error_code(), StatusCode::DEADLINE_EXCEEDED);
  }
  // Twenty checks would take the threads for long.
  EXPECT_TRUE(run(MakeOneNode(), std::chrono::seconds(5)).ok());
}

}  // namespace
}  // namespace resident::testing
