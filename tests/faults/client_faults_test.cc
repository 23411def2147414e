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

#include "resident/v1/graphs.grpc.pb.h"
#include "resident/v1/operators.grpc.pb.h"
#include "runtime/base/process/child_process.h"
#include "tests/daemon/client.h"
#include "tests/daemon/counting_client.h"
#include "tests/daemon/daemon.h"
#include "tests/daemon/nothing_left.h"
#include "tests/graph/loaded_graphs.h"

namespace resident::testing {
namespace {

using std::chrono::seconds;
using ::testing::AnyOf;
using ::testing::HasSubstr;

// The floats of each buffer and state of a client that vanishes.
constexpr uint64_t kVanishingFloats = 1 << 20;

// A session with a buffer, in a process of its own.
class VanishingSession {
 public:
  explicit VanishingSession(const std::string& address)
      : channel_(grpc::CreateChannel(address, grpc::InsecureChannelCredentials())),
        sessions_(v1::Sessions::NewStub(channel_)) {}

  bool Open() {
    v1::OpenSessionRequest open;
    open.set_client_name("vanishing");
    session_ = sessions_->Open(&session_context_, open);
    if (!session_->Read(&opened_)) return false;
    grpc::ClientContext context;
    AddSession(context);
    v1::AllocateRequest allocate;
    allocate.set_dtype(v1::DTYPE_F32);
    allocate.add_shape(kVanishingFloats);
    v1::AllocateResponse allocated;
    if (!v1::Buffers::NewStub(channel_)->Allocate(&context, allocate, &allocated).ok()) {
      return false;
    }
    buffer_ = allocated.buffer().id();
    return true;
  }

  void AddSession(grpc::ClientContext& context) const {
    context.AddMetadata("resident-session", opened_.session_id());
  }
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }
  uint64_t buffer() const { return buffer_; }

 private:
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::Sessions::Stub> sessions_;
  grpc::ClientContext session_context_;
  std::unique_ptr<grpc::ClientReader<v1::OpenSessionResponse>> session_;
  v1::OpenSessionResponse opened_;
  uint64_t buffer_ = 0;
};

// A client with a buffer and a lot of queued work that writes to descriptor 3 when it is
// ready, and then waits to be killed.
int VanishingClient(const std::string& address) {
  VanishingSession session(address);
  if (!session.Open()) return 1;
  grpc::ClientContext context;
  session.AddSession(context);
  const auto stream = v1::Executor::NewStub(session.channel())->Submit(&context);
  for (int i = 0; i < 10; ++i) {
    v1::SubmitRequest request;
    *request.mutable_batch() = FloatTasks("test.spin", session.buffer(), 0, 20'000, 5'000'000);
    if (!stream->Write(request)) return 2;
  }
  if (write(3, "r", 1) != 1) return 3;
  while (true) pause();
}

// A loop of a million steps of at least 5 ms, with two states and a stream.
GraphMaker VanishingLoop() {
  GraphMaker maker = SummingLoop(1'000'000);
  const auto floats = static_cast<int64_t>(kVanishingFloats);
  maker.State("own", {floats}).State("bound", {floats}).Activation("a", {1});
  maker.Call("test.spin", {"a", I(5'000'000)})
      .Call("fill", {"own", S("pos")})
      .Call("copy", {"own", "bound"});
  return maker;
}

// A client that reads the records of a run in a graph session, and writes to descriptor 3 when
// some have arrived. It is to be killed: the run takes more than an hour.
int VanishingGraphClient(const std::string& address) {
  VanishingSession session(address);
  if (!session.Open()) return 1;
  const auto graphs = v1::Graphs::NewStub(session.channel());
  grpc::ClientContext load_context;
  session.AddSession(load_context);
  v1::LoadGraphRequest load;
  *load.mutable_graph() = VanishingLoop().graph;
  v1::LoadGraphResponse loaded;
  if (!graphs->Load(&load_context, load, &loaded).ok()) return 2;
  grpc::ClientContext open_context;
  session.AddSession(open_context);
  v1::OpenGraphSessionRequest open;
  open.set_graph_id(loaded.graph_id());
  Bind(open, "bound").set_buffer_id(session.buffer());
  v1::OpenGraphSessionResponse opened;
  if (!graphs->OpenSession(&open_context, open, &opened).ok()) return 3;
  grpc::ClientContext context;
  session.AddSession(context);
  v1::RunGraphRequest run;
  run.set_graph_session(opened.session().session_id());
  const auto stream = graphs->Run(&context, run);
  v1::RunGraphResponse response;
  for (int steps = 0; stream->Read(&response);) {
    steps += response.has_step();
    if (steps == 10 && write(3, "r", 1) != 1) return 4;
  }
  return 5;
}

// Starts this program as that client; returns it once it is ready, or null.
std::unique_ptr<ChildProcess> StartVanishing(const std::string& client, const Daemon& daemon) {
  int ready[2];
  EXPECT_EQ(pipe(ready), 0);
  ChildOptions options;
  options.program = "/proc/self/exe";
  options.arguments = {"client_faults_test", client, daemon.address()};
  options.environment = PickEnvironment({"*"});
  options.fds = {{ready[1], 3}};
  auto vanishing = ChildProcess::Spawn(options);
  EXPECT_TRUE(vanishing.ok()) << vanishing.status();
  close(ready[1]);
  char byte;
  const bool is_ready = read(ready[0], &byte, 1) == 1;
  close(ready[0]);
  EXPECT_TRUE(is_ready) << "the client failed";
  return vanishing.ok() && is_ready ? *std::move(vanishing) : nullptr;
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

    const auto vanishing = StartVanishing("--vanishing_client", daemon);
    ASSERT_NE(vanishing, nullptr);
    ASSERT_TRUE(Eventually([&] {
      const auto client = Find(daemon, "vanishing");
      return client != nullptr && client->queued_tasks() > 0 && client->buffers() == 1;
    }));
    const uint64_t used = daemon.Device().memory_used_bytes();
    EXPECT_GE(used, uint64_t{4} << 20);
    // Another client's task does not wait for all of that work.
    EXPECT_TRUE(other.Run(counters.Batch(10, 10)).all_ok());

    vanishing->Kill(SIGKILL);
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

TEST(ClientFaultsTest, VanishesWhileItsGraphRunStreams) {
  Daemon daemon;
  const Baseline before(daemon);
  {
    CountingClient others(daemon);
    const Client other(daemon, "other");
    const GraphCalls calls(daemon, other);
    const std::string id = calls.MustLoad(VanishingLoop());
    const std::string summing = calls.MustLoad(SummingLoop(50));
    std::vector<double> sums;
    for (int k = 0; k < 50; ++k) sums.push_back(k * (k + 1) / 2);
    EXPECT_EQ(calls.RunLoaded(summing).stream(), sums);
    ASSERT_TRUE(Eventually([&] { return daemon.Device().memory_used_bytes() < (4u << 20); }));
    const uint64_t device_memory = daemon.Device().memory_used_bytes();
    const auto host_memory = [&] {
      return daemon.Figure("resident_host_memory_used_bytes{purpose=\"batches\"}");
    };
    const uint64_t host_memory_before = host_memory();

    const auto vanishing = StartVanishing("--vanishing_graph_client", daemon);
    ASSERT_NE(vanishing, nullptr);
    const auto client = Find(daemon, "vanishing");
    ASSERT_NE(client, nullptr);
    EXPECT_GE(client->buffers(), 1u);
    EXPECT_EQ(calls.MustDescribe(id).sessions(), 1u);
    EXPECT_GE(daemon.Device().memory_used_bytes(),
              device_memory + 2 * kVanishingFloats * sizeof(float));
    // Another client's run does not wait for the end of that one.
    EXPECT_EQ(calls.RunLoaded(summing).stream(), sums);
    EXPECT_EQ(calls.MustDescribe(id).sessions(), 1u);

    vanishing->Kill(SIGKILL);
    EXPECT_TRUE(Eventually([&] { return Find(daemon, "vanishing") == nullptr; }));
    EXPECT_TRUE(Eventually([&] { return calls.MustDescribe(id).sessions() == 0; }));
    EXPECT_TRUE(Eventually([&] { return daemon.Device().memory_used_bytes() <= device_memory; }))
        << daemon.Device().memory_used_bytes() << " bytes, " << device_memory << " before";
    EXPECT_TRUE(Eventually([&] { return host_memory() <= host_memory_before; }))
        << host_memory() << " bytes, " << host_memory_before << " before";
    EXPECT_EQ(calls.RunLoaded(summing).stream(), sums);
    EXPECT_EQ(calls.RunIn(calls.MustOpen(summing).session_id(), 0).stream(), sums);
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
      // What the daemon sent before it closed the connection comes first.
      char data[512];
      ssize_t bytes = 0;
      do {
        bytes = recv(fd, data, sizeof(data), MSG_DONTWAIT);
      } while (bytes > 0);
      if (bytes == 0 || errno != EAGAIN) ++closed;
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
      // A connection that sends nothing is closed to make room for another one.
      EXPECT_TRUE(Eventually([&] {
        return daemon.Figure("resident_connections_refused_total") +
                   daemon.Figure("resident_connections_closed_total{reason=\"room\"}") ==
               31;
      })) << daemon.Metrics();
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

// Admin.Park with a deadline of the call.
grpc::Status ParkWithin(v1::Admin::Stub& admin, std::chrono::milliseconds timeout) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + timeout);
  v1::ParkResponse response;
  return admin.Park(&context, v1::ParkRequest(), &response);
}

// Parks a device whose task does not end, and does not wait for it.
void AbandonParks(v1::Admin::Stub& admin) {
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(ParkWithin(admin, std::chrono::milliseconds(100)).error_code(),
              grpc::StatusCode::DEADLINE_EXCEEDED);
  }
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
  AbandonParks(*admin);
  const Counters imported(client, 1);
  grpc::ClientContext audit_context;
  v1::AuditResponse audit;
  EXPECT_TRUE(v1::Operators::NewStub(daemon.Connect())
                  ->Audit(&audit_context, v1::AuditRequest(), &audit)
                  .ok());
  // The daemon answers a drain at the drain's own timeout, because the task does not end.
  grpc::ClientContext drain_context;
  v1::DrainRequest drain;
  drain.set_timeout_ms(50);
  v1::DrainResponse drained;
  const grpc::Status late = admin->Drain(&drain_context, drain, &drained);
  EXPECT_EQ(late.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED) << late.error_message();
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

// A resume withdraws parks that wait, and those that were abandoned, although the task for which
// they wait does not end.
TEST(ClientFaultsTest, AResumeWithdrawsAbandonedParks) {
  const Daemon daemon({"--task_time_limit=1h", "--cpu_workers=2"});
  const Client client(daemon);
  const Counters counters(client, 1);
  std::thread spin([&] {
    client.Run(FloatTasks("test.spin", counters.buffer(), 0, 1, int64_t{3'600} * 1'000'000'000));
  });
  ASSERT_TRUE(Eventually([&] { return daemon.Device().ring().in_flight() == 1; }));
  const auto admin = v1::Admin::NewStub(daemon.Connect());
  AbandonParks(*admin);
  grpc::Status waited;
  std::atomic<bool> answered{false};
  std::thread waiting([&] {
    waited = ParkWithin(*admin, seconds(60));
    answered = true;
  });
  // The park has begun when a further task is not started.
  v1::Batch further = counters.Batch(0, 1);
  further.mutable_options()->set_timeout_us(500'000);
  EXPECT_TRUE(Eventually(
      [&] { return client.Run(further).status(0) == v1::TASK_STATUS_DEADLINE_EXCEEDED; }));
  EXPECT_TRUE(Eventually([&] {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + seconds(5));
    v1::ResumeResponse response;
    const grpc::Status resumed = admin->Resume(&context, v1::ResumeRequest(), &response);
    // Aborted if the park came after it: then the next one withdraws the park.
    EXPECT_TRUE(resumed.ok() || resumed.error_code() == grpc::StatusCode::ABORTED)
        << resumed.error_message();
    return resumed.ok() && answered.load();
  }));
  waiting.join();
  EXPECT_EQ(waited.error_code(), grpc::StatusCode::ABORTED) << waited.error_message();
  EXPECT_EQ(daemon.Device().ring().in_flight(), 1u);
  EXPECT_EQ(daemon.Device().state(), v1::DeviceStatus::STATE_RESIDENT);
  EXPECT_TRUE(client.Run(counters.Batch(0, 1)).all_ok());  // On the other worker.

  const pid_t pid = daemon.engine_pid();
  kill(pid, SIGKILL);
  spin.join();
  EXPECT_TRUE(daemon.AwaitAnotherEngine(pid));  // No park is requested any more.
  ExpectServes(daemon);
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
  const std::string client = argc == 3 ? argv[1] : "";
  if (client == "--vanishing_client") return resident::testing::VanishingClient(argv[2]);
  if (client == "--vanishing_graph_client") {
    return resident::testing::VanishingGraphClient(argv[2]);
  }
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
