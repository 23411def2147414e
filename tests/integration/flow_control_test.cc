// Flow control and fairness: a client's load affects itself, and not other clients.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <future>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/daemon/messages.h"
#include "tests/daemon/nothing_left.h"

namespace resident::testing {
namespace {

using grpc::StatusCode;

// `count` tasks that keep a worker busy for `ns` each.
v1::Batch Spin(uint32_t count, int64_t ns) {
  v1::Batch batch = Tasks("test.spin", count);
  Returned(batch, {1});
  Integer(batch, {ns});
  return batch;
}

TEST(FlowControlTest, HugeQueueOfOneClientDoesNotDelayAnothersLoneTask) {
  const Daemon daemon;
  const Baseline before(daemon);
  {
    const Client greedy(daemon);
    const Client modest(daemon);
    constexpr uint32_t kTasks = 1'000'000;
    // About 40 seconds of work, for any number of workers. The test cancels what is left.
    const int64_t ns = int64_t{40'000} * daemon.Device().blocks();
    const auto context = greedy.Context();
    v1::RunRequest request;
    *request.mutable_batch() = Spin(kTasks, ns);
    v1::RunResponse response;
    auto flood = std::async(std::launch::async, [&] {
      return greedy.executor().Run(context.get(), request, &response);
    });
    ASSERT_TRUE(Eventually([&] { return daemon.Device().queued_tasks() > kTasks / 2; }));
    for (int i = 0; i < 20; ++i) {
      const RunOutcome outcome = modest.Run(SmallAdd());
      ASSERT_TRUE(outcome.all_ok()) << outcome.message();
    }
    // All of the modest client's tasks have ended while most of the other's still wait.
    EXPECT_GT(daemon.Device().queued_tasks(), kTasks / 4);
    context->TryCancel();
    EXPECT_EQ(flood.get().error_code(), StatusCode::CANCELLED);
    // A flood that nobody cancels ends well.
    EXPECT_TRUE(greedy.Run(Spin(kTasks / 5, ns / 40)).all_ok());
  }
  ExpectNothingLeft(daemon, before);
}

// A program that only ends at its cycle limit. On the CPU most of its cycles are divisions, which
// take several times as long as other instructions.
std::string EndlessProgram() {
  if (OnGpu()) return std::string("\x43\x00\x00\x00", 4);              // JMP to itself.
  std::string program("\x40\x00\xff\x7f\x18\x01\x01", 7);              // R0 = 32767, R1 = 1.
  for (int i = 0; i < 13; ++i) program.append("\x23\x00\x00\x01", 4);  // DIV R0, R0, R1.
  return program.append("\x43\x00\xcc\xff", 4);                        // JMP to the first DIV.
}

// `runs` runs of an endless program.
v1::Batch EndlessRuns(uint32_t runs, uint64_t max_cycles) {
  v1::Batch batch = Programs({EndlessProgram()});
  batch.mutable_programs()->set_count(runs);
  batch.mutable_programs()->set_max_cycles(max_cycles);
  return batch;
}

// Sends all batches over one stream.
class ManyBatches {
 public:
  ManyBatches(const Client& client, const std::vector<v1::Batch>& batches)
      : context_(client.Context()), stream_(client.executor().Submit(context_.get())) {
    v1::SubmitRequest request;
    for (const v1::Batch& batch : batches) {
      *request.mutable_batch() = batch;
      EXPECT_TRUE(stream_->Write(request));
    }
  }
  ~ManyBatches() {
    context_->TryCancel();
    (void)stream_->Finish();
  }

 private:
  const std::unique_ptr<grpc::ClientContext> context_;
  const std::unique_ptr<grpc::ClientReaderWriter<v1::SubmitRequest, v1::SubmitResponse>> stream_;
};

// The number of other clients' queued tasks that enter the ring while a lone task of this
// client is sent and answered.
uint64_t CountTasksBeforeALoneTask(const Daemon& daemon, const Client& client) {
  const uint64_t before = daemon.Device().queued_tasks();
  const RunOutcome outcome = client.Run(SmallAdd());
  EXPECT_TRUE(outcome.all_ok()) << outcome.message();
  const uint64_t after = daemon.Device().queued_tasks();
  return before - after;
}

// One stream may then keep all workers of a GPU busy.
const std::vector<std::string> kManyBatchesOfAStream = {"--max_stream_batches=4096"};

TEST(FlowControlTest, InOrderBatchesOfOneClientDoNotDelayAnothersLoneTask) {
  const Daemon daemon(kManyBatchesOfAStream);
  const Client greedy(daemon), modest(daemon);
  // Tasks so long that few end between two queries of the queue, also on a busy machine. Still
  // longer ones would not occupy all workers (runtime/queue/ring_backlog.h).
  v1::Batch batch = Spin(50, 240'000'000);
  batch.mutable_options()->set_ordering(v1::BatchOptions::ORDERING_IN_ORDER);
  const uint32_t workers = daemon.Device().blocks();
  const uint32_t tasks = 50 * 3 * workers;
  const ManyBatches many(greedy, std::vector<v1::Batch>(3 * workers, batch));
  // All batches are admitted, and their tasks end: their number falls.
  ASSERT_TRUE(Eventually([&] {
    const uint64_t before = daemon.Device().queued_tasks();
    const uint64_t queued = daemon.Device().queued_tasks();
    return queued > tasks / 2 && queued < before && queued < tasks - 3 * workers;
  }));
  // The tasks that were in the ring, at most two for each worker, and those that entered it
  // between the queries of the queue.
  EXPECT_LE(CountTasksBeforeALoneTask(daemon, modest), 6 * workers);
}

TEST(FlowControlTest, InOrderBatchesOfOneClientDoNotDelayAnothersUpload) {
  constexpr uint64_t kElements = 1 << 20;
  constexpr uint32_t kBatches = 6;
  const uint32_t tasks = OnGpu() ? 50'000 : 5'000;  // Of one batch: seconds of work.
  const Daemon daemon(kManyBatchesOfAStream);
  const Client greedy(daemon), modest(daemon);
  uint64_t x = 0, small = 0;
  ASSERT_TRUE(greedy.Allocate(kElements, &x).ok());
  ASSERT_TRUE(modest.Allocate(1024, &small).ok());
  std::vector<v1::Batch> batches;
  for (uint32_t i = 0; i < kBatches; ++i) {
    uint64_t out = 0;
    ASSERT_TRUE(greedy.Allocate(kElements, &out).ok());
    v1::Batch batch = Tasks("silu", tasks);
    Buffers(batch, {x});
    Buffers(batch, {out});
    batch.mutable_options()->set_ordering(v1::BatchOptions::ORDERING_IN_ORDER);
    batches.push_back(batch);
  }
  const std::string bytes(4096, 'u');
  {
    const ManyBatches many(greedy, batches);
    const uint64_t all = uint64_t{kBatches} * tasks;
    ASSERT_TRUE(Eventually([&] {
      const v1::DeviceStatus device = daemon.Device();
      return device.queued_tasks() > all / 4 * 3 && device.ring().in_flight() > 0;
    }));
    const grpc::Status uploaded = Upload(modest, small, bytes);
    EXPECT_TRUE(uploaded.ok()) << uploaded.error_message();
    // Long before the batches have ended: at most a third of what was queued has run.
    EXPECT_GT(daemon.Device().queued_tasks(), all / 2);
  }
  std::string stored;
  ASSERT_TRUE(Download(modest, small, &stored).ok());
  EXPECT_EQ(stored, bytes);
}

TEST(FlowControlTest, EndlessProgramsOfOneClientDoNotDelayAnothersLoneTask) {
  const Daemon daemon;
  const Client greedy(daemon), modest(daemon);
  const uint32_t workers = daemon.Device().blocks();
  // Each batch has more tasks than there is room for in the ring.
  const uint32_t runs = std::max(300u, 256 * workers);
  const uint32_t runs_of_task = OnGpu() ? 128 : 5;
  constexpr uint32_t kBatches = 3;
  const ManyBatches many(greedy, std::vector<v1::Batch>(kBatches, EndlessRuns(runs, 20'000'000)));
  // All are admitted: the queue does not grow any more.
  ASSERT_TRUE(Eventually([&] {
    const v1::DeviceStatus device = daemon.Device();
    return device.queued_tasks() > std::max(60u, workers) &&
           device.queued_tasks() + device.ring().next_sequence() >=
               kBatches * (runs / runs_of_task);
  })) << daemon.Device().ShortDebugString();
  EXPECT_LE(CountTasksBeforeALoneTask(daemon, modest), 3 * workers);
}

TEST(FlowControlTest, QuickProgramsDoNotAffectTheEstimateForOtherPrograms) {
  const Daemon daemon(kManyBatchesOfAStream);
  const Client greedy(daemon), modest(daemon);
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(modest.Run(EndlessRuns(1, 10)).all_ok());
  // Each batch is one task. They are more work than the test waits for: it cancels what is left.
  const uint32_t batches = 200 + 3 * daemon.Device().blocks();
  const uint32_t runs = OnGpu() ? 1 : 5;
  // A GPU executes a run of so many cycles within --task_time_limit.
  const ManyBatches many(greedy, std::vector<v1::Batch>(batches, EndlessRuns(runs, 20'000'000)));
  // All are admitted, and wait in the queue and not in the ring.
  ASSERT_TRUE(Eventually([&] {
    const v1::DeviceStatus device = daemon.Device();
    return device.queued_tasks() > 40 &&
           device.queued_tasks() + device.ring().in_flight() + device.completed_tasks() >=
               50 + batches;
  })) << daemon.Device().ShortDebugString();
  EXPECT_LE(CountTasksBeforeALoneTask(daemon, modest), 6 * daemon.Device().blocks());
}

TEST(FlowControlTest, BatchWhoseDeadlinePassesWhileItWaitsForQueueSpaceIsRefused) {
  const Daemon daemon({"--max_queued_tasks=1000"});
  const Client client(daemon);
  ASSERT_TRUE(Park(daemon).ok());
  v1::Batch batch = Spin(1000, 1);
  batch.mutable_options()->set_device(0);
  const auto context = client.Context();
  const auto stream = client.executor().Submit(context.get());
  v1::SubmitRequest request;
  *request.mutable_batch() = batch;
  ASSERT_TRUE(stream->Write(request));
  ASSERT_TRUE(Eventually([&] { return daemon.Device().queued_tasks() == 1000; }));
  request.mutable_batch()->set_id(7);
  request.mutable_batch()->mutable_options()->set_timeout_us(100'000);
  ASSERT_TRUE(stream->Write(request));
  v1::SubmitResponse response;
  ASSERT_TRUE(stream->Read(&response));  // The device is still parked.
  EXPECT_EQ(response.result().id(), 7u);
  EXPECT_EQ(response.result().refused().code(), static_cast<int>(StatusCode::DEADLINE_EXCEEDED));
  // The stream continues.
  ASSERT_TRUE(Resume(daemon).ok());
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_FALSE(response.result().has_refused()) << response.result().refused().message();
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
}

// Number of the client's tasks that have ended.
uint64_t CountCompleted(const Daemon& daemon, const Client& client) {
  const v1::StatusResponse status = daemon.Status();
  for (const auto& shown : status.clients()) {
    if (client.session().rfind(shown.id(), 0) == 0) return shown.completed_tasks();
  }
  return 0;
}

TEST(FlowControlTest, UnreadAnswersAreLimitedInBytes) {
  const Daemon daemon({"--max_client_host_mib=16", "--staging_mib=32"});
  const Client client(daemon);
  constexpr int kBatches = 64;
  constexpr uint64_t kFloats = 1 << 20;  // 4 MiB.
  const auto context = client.Context();
  const auto stream = client.executor().Submit(context.get());
  for (int i = 0; i < kBatches; ++i) {
    v1::SubmitRequest request;
    *request.mutable_batch() = Fill(i, kFloats);
    ASSERT_TRUE(stream->Write(request));
  }
  stream->WritesDone();
  // The stream stops: nothing more completes while another client is served a hundred
  // times.
  const Client other(daemon);
  uint64_t before = 0;
  ASSERT_TRUE(Eventually([&] {
    const uint64_t now = CountCompleted(daemon, client);
    const bool stable = now != 0 && now == before;
    before = now;
    for (int i = 0; i < 100; ++i) {
      if (!other.Run(SmallAdd()).all_ok()) return false;
    }
    return stable;
  }));
  // The client's limit of unread answers, the contents of staging memory at that time, and
  // gRPC's buffers.
  EXPECT_LE(before, (16 + 32) / 4 + 4);
  // A second stream of the client continues once the first one is read.
  const auto second_context = client.Context();
  const auto second = client.executor().Submit(second_context.get());
  std::thread writer([&] {
    for (int i = 0; i < 4; ++i) {
      v1::SubmitRequest request;
      *request.mutable_batch() = SmallAdd(i);
      ASSERT_TRUE(second->Write(request));
    }
    second->WritesDone();
  });
  v1::SubmitResponse response;
  int answered = 0;
  while (stream->Read(&response)) {
    EXPECT_FALSE(response.result().has_refused()) << response.result().refused().message();
    ++answered;
  }
  EXPECT_EQ(answered, kBatches);
  EXPECT_TRUE(stream->Finish().ok());
  answered = 0;
  while (second->Read(&response)) ++answered;
  writer.join();
  EXPECT_EQ(answered, 4);
  EXPECT_TRUE(second->Finish().ok());
}

TEST(FlowControlTest, CancelledStreamReleasesItsUnreadAnswers) {
  const Daemon daemon({"--max_client_host_mib=1"});
  const Client client(daemon);
  const auto context = client.Context();
  const auto stream = client.executor().Submit(context.get());
  for (int i = 0; i < 8; ++i) {
    v1::SubmitRequest request;
    *request.mutable_batch() = Fill(i, 1 << 20);
    ASSERT_TRUE(stream->Write(request));
  }
  ASSERT_TRUE(Eventually([&] { return CountCompleted(daemon, client) >= 1; }));
  const auto next_context = client.Context();
  const auto next = client.executor().Submit(next_context.get());
  for (int i = 0; i < 3; ++i) {
    v1::SubmitRequest request;
    *request.mutable_batch() = SmallAdd(i);
    ASSERT_TRUE(next->Write(request));
  }
  next->WritesDone();
  context->TryCancel();
  EXPECT_EQ(stream->Finish().error_code(), StatusCode::CANCELLED);
  v1::SubmitResponse response;
  int answered = 0;
  while (next->Read(&response)) ++answered;
  EXPECT_EQ(answered, 3);
  EXPECT_TRUE(next->Finish().ok());
}

TEST(FlowControlTest, QueuedArgumentsAreLimitedInBytes) {
  const Daemon daemon({"--max_client_host_mib=1"});
  const Client client(daemon);
  // One batch uses less than 1 MiB, two use more.
  constexpr uint32_t kTasks = 12'000;
  v1::Batch batch = Spin(kTasks, 1);
  batch.mutable_options()->set_device(0);
  // So that each task has a descriptor of its own.
  batch.mutable_options()->set_ordering(v1::BatchOptions::ORDERING_IN_ORDER);
  ASSERT_TRUE(Park(daemon).ok());
  auto queued = std::async(std::launch::async, [&] { return client.Run(batch); });
  ASSERT_TRUE(Eventually([&] { return daemon.Device().queued_tasks() == kTasks; }));
  const RunOutcome refused = client.Run(batch);
  ExpectRefused(refused.call, StatusCode::RESOURCE_EXHAUSTED, {"--max_client_host_mib"});
  // A stream waits instead.
  const auto context = client.Context();
  const auto stream = client.executor().Submit(context.get());
  for (int i = 0; i < 3; ++i) {
    v1::SubmitRequest request;
    *request.mutable_batch() = batch;
    ASSERT_TRUE(stream->Write(request));
  }
  stream->WritesDone();
  ASSERT_TRUE(Resume(daemon).ok());
  EXPECT_TRUE(queued.get().all_ok());
  v1::SubmitResponse response;
  int answered = 0;
  while (stream->Read(&response)) {
    EXPECT_FALSE(response.result().has_refused()) << response.result().refused().message();
    ++answered;
  }
  EXPECT_EQ(answered, 3);
  EXPECT_TRUE(stream->Finish().ok());
}

// A batch of a few bytes with `count` tasks of one float each, on the first device.
v1::Batch FewBytes(uint64_t buffer, uint32_t count) {
  v1::Batch batch = Tasks("copy", count);
  Buffers(batch, {buffer});
  Buffers(batch, {buffer});
  batch.mutable_options()->set_device(0);
  EXPECT_LT(batch.ByteSizeLong(), 100u);
  return batch;
}

// Private memory of the front end in bytes, without the memory that it shares with the
// engine.
uint64_t PrivateMemory(const Daemon& daemon) {
  std::ifstream status("/proc/" + std::to_string(daemon.pid()) + "/status");
  for (std::string word; status >> word;) {
    uint64_t kib = 0;
    if (word == "RssAnon:" && status >> kib) return kib << 10;
  }
  ADD_FAILURE() << "no RssAnon";
  return 0;
}

double HostMemory(const Daemon& daemon, const std::string& purpose) {
  const std::string page = daemon.Metrics();
  const std::string name = "resident_host_memory_used_bytes{purpose=\"" + purpose + "\"} ";
  const size_t at = page.find(name);
  EXPECT_NE(at, std::string::npos);
  return at == std::string::npos ? -1 : std::stod(page.substr(at + name.size()));
}

double BatchMemory(const Daemon& daemon) { return HostMemory(daemon, "batches"); }

TEST(FlowControlTest, TasksAreChargedBeforeAFewBytesExpandIntoThem) {
  constexpr uint64_t kLimit = 128 << 20;
  const Daemon daemon({"--max_host_mib=128"});
  ASSERT_TRUE(Park(daemon).ok());
  const uint64_t before = PrivateMemory(daemon);
  // A batch that would use all of the memory, from clients that use none.
  {
    const Client client(daemon);
    uint64_t buffer = 0;
    ASSERT_TRUE(client.Allocate(1, &buffer).ok());
    for (int i = 0; i < 4; ++i) {
      ExpectRefused(client.Run(FewBytes(buffer, 4u << 20)).call, StatusCode::RESOURCE_EXHAUSTED,
                    {"--max_host_mib", "128 MiB"});
    }
    // A stream returns the same error, and continues.
    v1::Batch huge = FewBytes(buffer, 4u << 20);
    huge.set_id(7);
    const auto context = client.Context();
    const auto stream = client.executor().Submit(context.get());
    v1::SubmitRequest request;
    *request.mutable_batch() = huge;
    ASSERT_TRUE(stream->Write(request));
    v1::SubmitResponse response;
    ASSERT_TRUE(stream->Read(&response));
    EXPECT_EQ(response.result().id(), 7u);
    EXPECT_EQ(response.result().refused().code(), static_cast<int>(StatusCode::RESOURCE_EXHAUSTED));
    EXPECT_NE(response.result().refused().message().find("--max_host_mib"), std::string::npos);
    stream->WritesDone();
    EXPECT_TRUE(stream->Finish().ok());
  }
  // Many batches that each fit: many sessions together do not exceed the limit either.
  constexpr uint32_t kTasks = 400'000;
  std::vector<std::unique_ptr<Client>> clients;
  std::vector<std::future<RunOutcome>> calls;
  for (int i = 0; i < 12; ++i) {
    clients.push_back(std::make_unique<Client>(daemon));
    uint64_t buffer = 0;
    ASSERT_TRUE(clients.back()->Allocate(1, &buffer).ok());
    calls.push_back(std::async(std::launch::async, [client = clients.back().get(), buffer] {
      return client->Run(FewBytes(buffer, kTasks));
    }));
  }
  // A refused call ends immediately; the others wait for the device.
  std::vector<bool> counted(calls.size());
  size_t refused = 0;
  EXPECT_TRUE(Eventually([&] {
    for (size_t i = 0; i < calls.size(); ++i) {
      if (counted[i] || calls[i].wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
        continue;
      }
      counted[i] = true;
      ++refused;
      ExpectRefused(calls[i].get().call, StatusCode::RESOURCE_EXHAUSTED, {"--max_host_mib"});
    }
    return daemon.Device().queued_tasks() == (calls.size() - refused) * kTasks;
  }));
  EXPECT_GT(refused, 0u);
  EXPECT_LT(refused, calls.size());
  EXPECT_LE(BatchMemory(daemon), kLimit);
  EXPECT_LT(PrivateMemory(daemon), before + kLimit + (64 << 20));
  // A stream waits for the memory, although the client has no other work in progress.
  const Client patient(daemon);
  uint64_t buffer = 0;
  ASSERT_TRUE(patient.Allocate(1, &buffer).ok());
  const auto context = patient.Context();
  const auto stream = patient.executor().Submit(context.get());
  for (int i = 0; i < 3; ++i) {
    v1::SubmitRequest request;
    *request.mutable_batch() = FewBytes(buffer, kTasks);
    ASSERT_TRUE(stream->Write(request));
  }
  stream->WritesDone();
  // Another stream also waits, and is cancelled after a timeout: it leaves the queue.
  v1::SubmitRequest impatient;
  *impatient.mutable_batch() = FewBytes(buffer, kTasks);
  impatient.mutable_batch()->mutable_options()->set_timeout_us(100'000);
  const auto other_context = patient.Context();
  const auto other = patient.executor().Submit(other_context.get());
  ASSERT_TRUE(other->Write(impatient));
  v1::SubmitResponse response;
  ASSERT_TRUE(other->Read(&response));
  EXPECT_EQ(response.result().refused().code(), static_cast<int>(StatusCode::DEADLINE_EXCEEDED));
  other_context->TryCancel();
  (void)other->Finish();

  ASSERT_TRUE(Resume(daemon).ok());
  int answered = 0;
  while (stream->Read(&response)) {
    EXPECT_FALSE(response.result().has_refused()) << response.result().refused().message();
    ++answered;
  }
  EXPECT_EQ(answered, 3);
  EXPECT_TRUE(stream->Finish().ok());
  for (size_t i = 0; i < calls.size(); ++i) {
    if (counted[i]) continue;
    EXPECT_TRUE(calls[i].get().all_ok());
  }
  EXPECT_TRUE(Eventually([&] { return BatchMemory(daemon) == 0; }));
}

// Processor time of the front end, in clock ticks.
uint64_t ProcessorTicks(const Daemon& daemon) {
  std::ifstream file("/proc/" + std::to_string(daemon.pid()) + "/stat");
  std::string line;
  std::getline(file, line);
  std::istringstream fields(line.substr(line.rfind(')') + 1));
  std::string skipped;
  for (int field = 3; field < 14; ++field) fields >> skipped;
  uint64_t user = 0, system = 0;
  EXPECT_TRUE(fields >> user >> system);
  return user + system;
}

TEST(FlowControlTest, BatchesThatWaitAreTranslatedOnce) {
  constexpr uint32_t kTasks = 400'000;
  constexpr int kStreams = 16, kCompletions = 50;
  const Daemon daemon({"--max_queued_tasks=600000"});
  const Client client(daemon);
  uint64_t buffer = 0;
  ASSERT_TRUE(client.Allocate(1, &buffer).ok());
  ASSERT_TRUE(Park(daemon).ok());
  v1::Batch batch = FewBytes(buffer, kTasks);
  for (v1::Column& column : *batch.mutable_tasks()->mutable_arguments()) {
    column.mutable_buffer()->mutable_offsets()->Resize(kTasks, 0);
  }
  // The first batch fills the queue, and the others wait.
  const uint64_t begin = ProcessorTicks(daemon);
  std::vector<std::unique_ptr<ManyBatches>> streams;
  for (int i = 0; i < 1 + kStreams; ++i) {
    streams.push_back(std::make_unique<ManyBatches>(client, std::vector<v1::Batch>{batch}));
  }
  const double all = kStreams * 2 * 8.0 * kTasks;
  ASSERT_TRUE(Eventually([&] { return HostMemory(daemon, "requests") > all; }));
  const uint64_t sent = ProcessorTicks(daemon);
  // Each of these completes a batch of the client, after which waiting batches are retried.
  v1::Batch late = SmallAdd();
  late.mutable_options()->set_device(0);
  late.mutable_options()->set_timeout_us(1);
  for (int i = 0; i < kCompletions; ++i) {
    const RunOutcome outcome = client.Run(late);
    ASSERT_TRUE(outcome.call.ok()) << outcome.message();
    EXPECT_FALSE(outcome.all_ok());
  }
  // If the waiting batches were translated again each time, this would take kCompletions
  // times as long.
  EXPECT_LT(ProcessorTicks(daemon) - sent, 50 + 4 * (sent - begin));
}

TEST(FlowControlTest, TheAnswerOfARunIsChargedFromItsAdmission) {
  const Daemon daemon;
  const Client client(daemon);
  ASSERT_TRUE(Park(daemon).ok());
  auto run = std::async(std::launch::async, [&] { return client.Run(Fill(0, 1 << 20)); });
  ASSERT_TRUE(Eventually([&] { return daemon.Device().queued_tasks() == 1; }));
  EXPECT_GE(BatchMemory(daemon), 4 << 20);
  ASSERT_TRUE(Resume(daemon).ok());
  EXPECT_TRUE(run.get().all_ok());
  EXPECT_TRUE(
      Eventually([&] { return BatchMemory(daemon) == 0 && HostMemory(daemon, "answers") == 0; }));
}

TEST(FlowControlTest, CallsOfOneConnectionBeyondTheLimitWaitAtTheClient) {
  const Daemon daemon({"--max_connection_streams=2"});
  ASSERT_TRUE(Park(daemon).ok());
  // One connection without a session, since a session would also be a call.
  const auto stub = v1::Executor::NewStub(daemon.Connect());
  v1::RunRequest request;
  *request.mutable_batch() = SmallAdd();
  request.mutable_batch()->mutable_options()->set_device(0);
  std::vector<std::future<grpc::Status>> calls;
  for (int i = 0; i < 6; ++i) {
    calls.push_back(std::async(std::launch::async, [&] {
      grpc::ClientContext context;
      v1::RunResponse response;
      return stub->Run(&context, request, &response);
    }));
  }
  ASSERT_TRUE(Eventually([&] { return daemon.Device().queued_tasks() == 2; }));
  // No more arrive while another connection is served.
  for (int i = 0; i < 100; ++i) EXPECT_EQ(daemon.Device().queued_tasks(), 2u);
  ASSERT_TRUE(Resume(daemon).ok());
  for (auto& call : calls) EXPECT_TRUE(call.get().ok());
}

TEST(FlowControlTest, FullQueuePausesAStreamAndLosesNothing) {
  const Daemon daemon({"--max_queued_tasks=1000"});
  const Baseline before(daemon);
  {
    const Client client(daemon);
    const auto context = client.Context();
    const auto stream = client.executor().Submit(context.get());
    constexpr int kBatches = 100;
    std::thread writer([&] {
      for (int i = 0; i < kBatches; ++i) {
        v1::SubmitRequest request;
        *request.mutable_batch() = Spin(400, 1000);
        request.mutable_batch()->set_id(i);
        ASSERT_TRUE(stream->Write(request));
      }
      stream->WritesDone();
    });
    std::vector<bool> answered(kBatches);
    v1::SubmitResponse response;
    while (stream->Read(&response)) {
      EXPECT_FALSE(response.result().has_refused()) << response.result().refused().message();
      EXPECT_FALSE(answered[response.result().id()]);
      answered[response.result().id()] = true;
    }
    writer.join();
    EXPECT_TRUE(stream->Finish().ok());
    EXPECT_EQ(std::count(answered.begin(), answered.end(), true), kBatches);
  }
  ExpectNothingLeft(daemon, before);
}

TEST(FlowControlTest, TwoStreamsOfOneClientShareItsQueueWithoutStarving) {
  const Daemon daemon({"--max_queued_tasks=500"});
  const Client client(daemon);
  const auto run = [&] {
    const auto context = client.Context();
    const auto stream = client.executor().Submit(context.get());
    std::thread writer([&] {
      for (int i = 0; i < 60; ++i) {
        v1::SubmitRequest request;
        *request.mutable_batch() = Spin(300, 1000);
        if (!stream->Write(request)) break;
      }
      stream->WritesDone();
    });
    int answered = 0;
    v1::SubmitResponse response;
    while (stream->Read(&response)) {
      EXPECT_FALSE(response.result().has_refused()) << response.result().refused().message();
      ++answered;
    }
    writer.join();
    EXPECT_TRUE(stream->Finish().ok());
    return answered;
  };
  auto first = std::async(std::launch::async, run);
  auto second = std::async(std::launch::async, run);
  EXPECT_EQ(first.get(), 60);
  EXPECT_EQ(second.get(), 60);
}

TEST(FlowControlTest, CancelledStreamSkipsTasksThatAreNotInTheRing) {
  const Daemon daemon;
  const Baseline before(daemon);
  {
    const Client client(daemon);
    ASSERT_TRUE(Park(daemon).ok());
    {
      const auto context = client.Context();
      const auto stream = client.executor().Submit(context.get());
      for (int i = 0; i < 10; ++i) {
        v1::SubmitRequest request;
        *request.mutable_batch() = Spin(1000, 1'000'000'000);
        request.mutable_batch()->mutable_options()->set_device(0);
        ASSERT_TRUE(stream->Write(request));
      }
      ASSERT_TRUE(Eventually([&] { return daemon.Device().queued_tasks() == 10'000; }));
      context->TryCancel();
      EXPECT_EQ(stream->Finish().error_code(), StatusCode::CANCELLED);
    }
    EXPECT_TRUE(Eventually([&] { return daemon.Device().queued_tasks() == 0; }));
    ASSERT_TRUE(Resume(daemon).ok());
    EXPECT_TRUE(client.Run(SmallAdd()).all_ok());
  }
  ExpectNothingLeft(daemon, before);
}

TEST(FlowControlTest, DaemonStopsReadingFromAClientThatNeverReads) {
  const Daemon daemon({"--max_stream_batches=4"});
  const Baseline before(daemon);
  {
    const Client client(daemon);
    const auto context = client.Context();
    const auto stream = client.executor().Submit(context.get());
    std::atomic<int> written{0};
    std::thread writer([&] {
      for (int i = 0; i < 200; ++i) {
        v1::SubmitRequest request;
        v1::Batch& batch = *request.mutable_batch();
        batch = Tasks("copy", 1);
        Inline(batch, {1 << 16}, std::vector<float>(1 << 16, 1.0f));
        Returned(batch, {1 << 16});
        if (!stream->Write(request)) return;
        ++written;
      }
      stream->WritesDone();
    });
    // The flow stops when the answers fill the connection: nothing is written while another
    // client is served a thousand times.
    const Client other(daemon);
    int last = -1;
    ASSERT_TRUE(Eventually([&] {
      const int now = written;
      const bool stable = now == last;
      last = now;
      for (int i = 0; i < 1000; ++i) {
        if (!other.Run(SmallAdd()).all_ok()) return false;
      }
      return stable;
    }));
    EXPECT_LT(written, 200);
    int answered = 0;
    v1::SubmitResponse response;
    while (stream->Read(&response)) ++answered;
    writer.join();
    EXPECT_EQ(answered, 200);
    EXPECT_TRUE(stream->Finish().ok());
  }
  ExpectNothingLeft(daemon, before);
}

TEST(FlowControlTest, EndOfASessionDropsItsQueuedTasks) {
  const Daemon daemon;
  const Baseline before(daemon);
  {
    ASSERT_TRUE(Park(daemon).ok());
    std::future<RunOutcome> outcome;
    {
      auto client = std::make_unique<Client>(daemon);
      const auto stub = v1::Executor::NewStub(daemon.Connect());
      auto context = std::make_shared<grpc::ClientContext>();
      context->AddMetadata("resident-session", client->session());
      auto call = std::async(std::launch::async, [&stub, context] {
        v1::RunRequest request;
        *request.mutable_batch() = SmallAdd();
        v1::RunResponse response;
        return stub->Run(context.get(), request, &response);
      });
      ASSERT_TRUE(Eventually([&] { return daemon.Device().queued_tasks() == 1; }));
      client.reset();  // Ends the session; the call itself is not cancelled.
      EXPECT_EQ(call.get().error_code(), StatusCode::CANCELLED);
    }
    EXPECT_TRUE(Eventually([&] { return daemon.Device().queued_tasks() == 0; }));
  }
  ASSERT_TRUE(Resume(daemon).ok());
  ExpectNothingLeft(daemon, before);
}

}  // namespace
}  // namespace resident::testing
