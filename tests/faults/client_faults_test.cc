// Clients that disappear, do not read, or request too much must not disturb others.
#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "resident/v1/operators.grpc.pb.h"
#include "runtime/base/process/child_process.h"
#include "tests/daemon/client.h"
#include "tests/daemon/counting_client.h"
#include "tests/daemon/daemon.h"
#include "tests/daemon/nothing_left.h"

namespace resident::testing {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

// A client with buffers and a lot of queued work that writes to descriptor 3 when it is
// ready, and then waits to be killed.
int VanishingClient(const std::string& address) {
  const auto channel = grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
  grpc::ClientContext session_context;
  v1::OpenSessionRequest open;
  open.set_client_name("vanishing");
  const auto session = v1::Sessions::NewStub(channel)->Open(&session_context, open);
  v1::OpenSessionResponse opened;
  if (!session->Read(&opened)) return 1;

  grpc::ClientContext allocate_context;
  allocate_context.AddMetadata("resident-session", opened.session_id());
  v1::AllocateRequest allocate;
  allocate.set_dtype(v1::DTYPE_F32);
  allocate.add_shape(1 << 20);
  v1::AllocateResponse allocated;
  if (!v1::Buffers::NewStub(channel)->Allocate(&allocate_context, allocate, &allocated).ok()) {
    return 2;
  }
  grpc::ClientContext submit_context;
  submit_context.AddMetadata("resident-session", opened.session_id());
  const auto stream = v1::Executor::NewStub(channel)->Submit(&submit_context);
  for (int i = 0; i < 10; ++i) {
    v1::SubmitRequest request;
    *request.mutable_batch() =
        FloatTasks("test.spin", allocated.buffer().id(), 0, 20'000, 5'000'000);
    if (!stream->Write(request)) return 3;
  }
  if (write(3, "r", 1) != 1) return 4;
  while (true) pause();
}

// The daemon's status of the client of that name; null if there is none.
std::unique_ptr<v1::ClientStatus> Find(const Daemon& daemon, const std::string& name) {
  const v1::StatusResponse status = daemon.Status();
  for (const v1::ClientStatus& client : status.clients()) {
    if (client.name() == name) return std::make_unique<v1::ClientStatus>(client);
  }
  return nullptr;
}

TEST(ClientFaultsTest, VanishesMidStream) {
  Daemon daemon;
  const Baseline before(daemon);
  {
    CountingClient others(daemon);
    const Client other(daemon, "other");
    const Counters counters(other, 1000);
    EXPECT_TRUE(other.Run(counters.Batch(0, 10)).all_ok());

    int ready[2];
    ASSERT_EQ(pipe(ready), 0);
    ChildOptions options;
    options.program = "/proc/self/exe";
    options.arguments = {"client_faults_test", "--vanishing_client", daemon.address()};
    options.environment = PickEnvironment({"*"});
    options.fds = {{ready[1], 3}};
    auto vanishing = ChildProcess::Spawn(options);
    ASSERT_TRUE(vanishing.ok()) << vanishing.status();
    close(ready[1]);
    char byte;
    ASSERT_EQ(read(ready[0], &byte, 1), 1) << "the client failed";
    close(ready[0]);
    ASSERT_TRUE(Eventually([&] {
      const auto client = Find(daemon, "vanishing");
      return client != nullptr && client->queued_tasks() > 0 && client->buffers() == 1;
    }));
    const uint64_t used = daemon.Device().memory_used_bytes();
    EXPECT_GE(used, uint64_t{4} << 20);
    // Another client's task does not wait for all of that work.
    EXPECT_TRUE(other.Run(counters.Batch(10, 10)).all_ok());

    (*vanishing)->Kill(SIGKILL);
    EXPECT_TRUE(Eventually([&] { return Find(daemon, "vanishing") == nullptr; }));
    EXPECT_TRUE(Eventually([&] { return daemon.Device().queued_tasks() == 0; }));
    EXPECT_TRUE(Eventually([&] { return daemon.Device().memory_used_bytes() < (4u << 20); }));
    EXPECT_TRUE(other.Run(counters.Batch(20, 10)).all_ok());
    for (uint32_t i = 0; i < 30; ++i) EXPECT_EQ(counters.value(i), 1.0f);
    EXPECT_TRUE(others.KeepsRunning());
    EXPECT_EQ(others.interruptions(), 0u);
  }
  EXPECT_EQ(daemon.Device().restarts(), 0u);
  ExpectNothingLeft(daemon, before);
}

TEST(ClientFaultsTest, NeverReadsItsResults) {
  Daemon daemon({"--max_stream_batches=8"});
  const Baseline before(daemon);
  {
    CountingClient others(daemon);
    const Client silent(daemon, "silent");
    const auto context = silent.Context();
    const auto stream = silent.executor().Submit(context.get());
    std::atomic<uint64_t> written{0};
    std::atomic<bool> ended{false};
    std::thread writer([&] {
      v1::SubmitRequest request;
      v1::OperatorTasks* const tasks = request.mutable_batch()->mutable_tasks();
      tasks->set_operator_("fill");
      tasks->set_count(1);
      v1::ReturnedColumn* const out = tasks->add_arguments()->mutable_returned();
      out->set_dtype(v1::DTYPE_F32);
      out->add_shape(64 << 10);  // 256 KiB are returned.
      tasks->add_arguments()->mutable_scalar()->add_f64(1);
      while (stream->Write(request)) ++written;
      ended = true;
    });
    // The daemon stops reading from the client once its results cannot be sent. gRPC
    // buffers about a hundred of these small requests, but not an unlimited number.
    uint64_t last = 0;
    auto since = std::chrono::steady_clock::now();
    EXPECT_TRUE(Eventually([&] {
      if (const uint64_t now = written; now != last) {
        last = now;
        since = std::chrono::steady_clock::now();
      }
      return last > 0 && std::chrono::steady_clock::now() - since > seconds(1);
    })) << written
        << " batches were accepted from a client that reads nothing";
    EXPECT_FALSE(ended);
    for (int i = 0; i < 10; ++i) EXPECT_TRUE(others.KeepsRunning());
    EXPECT_EQ(others.interruptions(), 0u);
    context->TryCancel();
    writer.join();
    stream->Finish();
    EXPECT_TRUE(Eventually([&] { return daemon.Device().queued_tasks() == 0; }));
  }
  ExpectNothingLeft(daemon, before);
}

TEST(ClientFaultsTest, QueueIsFull) {
  Daemon daemon({"--max_queued_tasks=1000"});
  const Baseline before(daemon);
  const auto queued = [&](const std::string& name) {
    const auto client = Find(daemon, name);
    return client == nullptr ? 0 : client->queued_tasks();
  };
  {
    CountingClient others(daemon);
    ASSERT_TRUE(Park(daemon).ok());
    const Client client(daemon, "eager"), other(daemon, "other");
    const Counters counters(client, 4000), of_other(other, 100);
    RunOutcome waiting;
    std::thread waiter([&] { waiting = client.Run(counters.Batch(0, 900)); });
    EXPECT_TRUE(Eventually([&] { return queued("eager") == 900; }));
    const RunOutcome refused = client.Run(counters.Batch(900, 200));
    EXPECT_EQ(refused.call.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_THAT(refused.message(), HasSubstr("--max_queued_tasks"));
    // The limit applies to each client separately.
    RunOutcome another;
    std::thread another_waiter([&] { another = other.Run(of_other.Batch(0, 100)); });
    EXPECT_TRUE(Eventually([&] { return queued("other") == 100; }));
    EXPECT_TRUE(Resume(daemon).ok());
    waiter.join();
    another_waiter.join();
    EXPECT_TRUE(waiting.all_ok()) << waiting.message();
    EXPECT_TRUE(another.all_ok()) << another.message();
    EXPECT_TRUE(client.Run(counters.Batch(900, 200)).all_ok());
    for (uint32_t i = 0; i < 1100; ++i) EXPECT_EQ(counters.value(i), 1.0f);
    // Clients within their limit only waited for the device.
    EXPECT_TRUE(others.KeepsRunning());
    EXPECT_EQ(others.interruptions(), 0u);
  }
  ExpectNothingLeft(daemon, before);
}

TEST(ClientFaultsTest, DeviceMemoryIsExhausted) {
  Daemon daemon;  // 64 MiB.
  const Baseline before(daemon);
  uint64_t id = 0;
  {
    CountingClient others(daemon);
    const Client greedy(daemon, "greedy");
    for (int i = 0; i < 15; ++i) ASSERT_TRUE(greedy.Allocate(1 << 20, &id).ok()) << i;
    const grpc::Status refused = greedy.Allocate(16 << 20, &id);
    EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_THAT(refused.error_message(), HasSubstr("--device_memory_mib"));
    EXPECT_TRUE(greedy.Allocate(1 << 10, &id).ok());
    EXPECT_TRUE(others.KeepsRunning());
    EXPECT_EQ(others.interruptions(), 0u);
  }
  // All memory is released when the client disconnects.
  ExpectNothingLeft(daemon, before);
  const Client next(daemon, "next");
  EXPECT_TRUE(next.Allocate(15 << 20, &id).ok());
}

TEST(ClientFaultsTest, ManyShortConnectionsLeaveNothingBehind) {
  const Daemon daemon;
  const Baseline before(daemon);
  const auto visit = [&] {
    const Client client(daemon, "visitor");
    const Counters counters(client, 100);
    uint64_t id = 0;
    EXPECT_TRUE(client.Allocate(1000, &id).ok());
    EXPECT_TRUE(client.Run(counters.Batch(0, 100)).all_ok());
  };
  for (int i = 0; i < 10; ++i) visit();  // Until gRPC's pools have reached their size.
  // gRPC's two executors grow to twice the number of processors each, and never shrink. A
  // leak of one thread per visit would exceed that.
  const size_t growth = 4 * std::thread::hardware_concurrency();
  const size_t threads = daemon.Threads();
  for (size_t i = 0; i < std::max<size_t>(200, 2 * growth); ++i) visit();
  ExpectNothingLeft(daemon, before);
  EXPECT_TRUE(Eventually([&] { return daemon.Threads() <= threads + growth; }))
      << daemon.Threads() << " threads, " << threads << " before";
}

// Connections on which nothing is sent.
class BareConnections {
 public:
  BareConnections(const Daemon& daemon, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      fds_.push_back(ConnectTcp(daemon.address()));
      EXPECT_GE(fds_.back(), 0) << strerror(errno);
    }
  }
  ~BareConnections() {
    for (const int fd : fds_) close(fd);
  }

  // Number of connections that the daemon has closed.
  size_t Closed() const {
    size_t closed = 0;
    for (const int fd : fds_) {
      char byte;
      const ssize_t bytes = recv(fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK);
      if (bytes == 0 || (bytes < 0 && errno != EAGAIN)) ++closed;
    }
    return closed;
  }

 private:
  std::vector<int> fds_;
};

TEST(ClientFaultsTest, ConnectionsOverTheLimitAreClosedAndTheOthersServed) {
  const Daemon daemon({"--max_connections=20"});
  const Baseline before(daemon);
  const auto has_metric = [&](const std::string& line) {
    return Eventually([&] { return daemon.Metrics().find(line) != std::string::npos; });
  };
  {
    const Client first(daemon, "first");
    const Counters counters(first, 100);
    ASSERT_TRUE(has_metric("\nresident_connections 1\n")) << daemon.Metrics();
    {
      const BareConnections many(daemon, 50);
      EXPECT_TRUE(has_metric("\nresident_connections_refused_total 31\n")) << daemon.Metrics();
      EXPECT_TRUE(Eventually([&] { return many.Closed() == 31; })) << many.Closed();
      EXPECT_TRUE(first.Run(counters.Batch(0, 100)).all_ok());
    }
    EXPECT_TRUE(has_metric("\nresident_connections 1\n")) << daemon.Metrics();
    ExpectServes(daemon);
  }
  ExpectNothingLeft(daemon, before);
  EXPECT_THAT(daemon.Output(), HasSubstr("--max_connections"));
}

TEST(ClientFaultsTest, AConnectionLimitAboveTheDescriptorLimitCausesAWarning) {
  const Daemon daemon({"--max_connections=4000000000"});
  EXPECT_THAT(daemon.Output(), HasSubstr("connections, not --max_connections=4000000000"));
  ExpectServes(daemon);
}

TEST(ClientFaultsTest, TheDaemonContinuesWithoutDescriptorsForConnections) {
  const Daemon daemon;
  const Baseline before(daemon);
  {
    CountingClient others(daemon);
    rlimit limit{};
    ASSERT_EQ(prlimit(daemon.pid(), RLIMIT_NOFILE, nullptr, &limit), 0);
    const size_t max_descriptors = daemon.Descriptors() + 6;
    const rlimit small{max_descriptors, limit.rlim_max};
    ASSERT_EQ(prlimit(daemon.pid(), RLIMIT_NOFILE, &small, nullptr), 0);
    {
      const BareConnections many(daemon, 30);
      EXPECT_TRUE(Eventually([&] { return daemon.Descriptors() >= max_descriptors; }));
      EXPECT_TRUE(others.KeepsRunning());
      EXPECT_TRUE(Eventually([&] {
        return daemon.Output().find("Too many open files") != std::string::npos;
      })) << daemon.Output();
    }
    // Clients are served while the limit is still reduced.
    const Client another(daemon, "another");
    const Counters counters(another, 100);
    EXPECT_TRUE(another.Run(counters.Batch(0, 100)).all_ok());
    EXPECT_EQ(others.interruptions(), 0u);
    ASSERT_EQ(prlimit(daemon.pid(), RLIMIT_NOFILE, &limit, nullptr), 0);
  }
  ExpectNothingLeft(daemon, before);
}

// Calls that wait for a state occupy no thread: others continue, however many were
// abandoned.
TEST(ClientFaultsTest, AbandonedParksDoNotBlockOtherCalls) {
  const Daemon daemon({"--task_time_limit=1h"});
  const Client client(daemon);
  const Counters counters(client, 1);
  std::thread spin([&] {
    client.Run(FloatTasks("test.spin", counters.buffer(), 0, 1, int64_t{3'600} * 1'000'000'000));
  });
  ASSERT_TRUE(Eventually([&] { return daemon.Device().ring().in_flight() == 1; }));
  const auto admin = v1::Admin::NewStub(daemon.Connect());
  for (int i = 0; i < 8; ++i) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(100));
    v1::ParkResponse response;
    EXPECT_EQ(admin->Park(&context, v1::ParkRequest(), &response).error_code(),
              grpc::StatusCode::DEADLINE_EXCEEDED);
  }
  const Counters imported(client, 1);
  grpc::ClientContext audit_context;
  v1::AuditResponse audit;
  EXPECT_TRUE(v1::Operators::NewStub(daemon.Connect())
                  ->Audit(&audit_context, v1::AuditRequest(), &audit)
                  .ok());
  EXPECT_EQ(daemon.Device().ring().in_flight(), 1u);

  const pid_t pid = daemon.engine_pid();
  kill(pid, SIGKILL);
  spin.join();
  ASSERT_TRUE(Eventually([&] {
    const v1::DeviceStatus device = daemon.Device();
    return device.engine_pid() != 0 && device.engine_pid() != pid &&
           device.state() == v1::DeviceStatus::STATE_PARKED;
  }));
  EXPECT_TRUE(Resume(daemon).ok());
}

// The same for drains. A later drain succeeds when the accepted work has ended.
TEST(ClientFaultsTest, AbandonedDrainsDoNotBlockOtherCalls) {
  const Daemon daemon({"--task_time_limit=1h"});
  const Client client(daemon);
  const Counters counters(client, 1);
  std::thread spin([&] {
    client.Run(FloatTasks("test.spin", counters.buffer(), 0, 1, int64_t{3'600} * 1'000'000'000));
  });
  ASSERT_TRUE(Eventually([&] { return daemon.Device().ring().in_flight() == 1; }));
  const auto admin = v1::Admin::NewStub(daemon.Connect());
  v1::DrainRequest request;
  request.set_timeout_ms(3'600'000);
  v1::DrainResponse response;
  for (int i = 0; i < 8; ++i) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(100));
    EXPECT_EQ(admin->Drain(&context, request, &response).error_code(),
              grpc::StatusCode::DEADLINE_EXCEEDED);
  }
  grpc::ClientContext audit_context;
  v1::AuditResponse audit;
  EXPECT_TRUE(v1::Operators::NewStub(daemon.Connect())
                  ->Audit(&audit_context, v1::AuditRequest(), &audit)
                  .ok());
  grpc::ClientContext short_context;
  request.set_timeout_ms(50);
  EXPECT_EQ(admin->Drain(&short_context, request, &response).error_code(),
            grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_EQ(daemon.Device().ring().in_flight(), 1u);

  kill(daemon.engine_pid(), SIGKILL);
  spin.join();
  grpc::ClientContext last_context;
  request.set_timeout_ms(60'000);
  EXPECT_TRUE(admin->Drain(&last_context, request, &response).ok());
}

}  // namespace
}  // namespace resident::testing

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--vanishing_client") {
    return resident::testing::VanishingClient(argv[2]);
  }
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
