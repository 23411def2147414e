// Executor: the results of batches, and how their columns become tasks.
#include <signal.h>

#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/daemon/messages.h"

namespace resident::testing {
namespace {

class ExecutorTest : public DaemonTest {
 protected:
  v1::BatchResult MustRun(const v1::Batch& batch) {
    const RunOutcome outcome = client_.Run(batch);
    EXPECT_TRUE(outcome.all_ok()) << outcome.message();
    return outcome.result;
  }
};

TEST_F(ExecutorTest, EveryElementwiseOperatorIsCorrect) {
  struct Case {
    std::string name;
    std::vector<std::vector<float>> inputs;
    std::vector<float> expected;
  };
  const float inf = std::numeric_limits<float>::infinity();
  for (const Case& c : std::vector<Case>{
           {"copy", {{1, -2}}, {1, -2}},
           {"add", {{1, -2}, {3, 4}}, {4, 2}},
           {"sub", {{1, -2}, {3, 4}}, {-2, -6}},
           {"mul", {{1, -2}, {3, 4}}, {3, -8}},
           {"div", {{1, -2}, {4, 0}}, {0.25, -inf}},
           {"relu", {{1, -2}}, {1, 0}},
           {"silu", {{0, 100}}, {0, 100}},
       }) {
    v1::Batch batch = Tasks(c.name, 1);
    for (const auto& input : c.inputs) Inline(batch, {2}, input);
    Returned(batch, {2});
    EXPECT_EQ(Floats(MustRun(batch)), c.expected) << c.name;
  }
}

TEST_F(ExecutorTest, FillScaleAndSumOfRows) {
  v1::Batch fill = Tasks("fill", 2);
  Returned(fill, {3});
  Scalar(fill, {1.5, -2});
  EXPECT_EQ(Floats(MustRun(fill)), (std::vector<float>{1.5, 1.5, 1.5, -2, -2, -2}));

  v1::Batch scale = Tasks("scale", 1);
  Inline(scale, {2, 2}, {1, 2, 3, 4});
  Returned(scale, {2, 2});
  Scalar(scale, {10});
  EXPECT_EQ(Floats(MustRun(scale)), (std::vector<float>{10, 20, 30, 40}));

  v1::Batch rows = Tasks("sum_rows", 2);
  Inline(rows, {2, 3}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12});
  Returned(rows, {2});
  EXPECT_EQ(Floats(MustRun(rows)), (std::vector<float>{6, 15, 24, 33}));
}

TEST_F(ExecutorTest, DefaultScalarsAndNanScalarsAreAccepted) {
  v1::Batch with = SmallAdd();
  Scalar(with, {10});
  EXPECT_EQ(Floats(MustRun(with)), std::vector<float>{21});
  v1::Batch nan = SmallAdd();
  Scalar(nan, {std::nan("")});
  EXPECT_TRUE(std::isnan(Floats(MustRun(nan))[0]));
}

TEST_F(ExecutorTest, OneInlineTensorIsSharedByAllTasks) {
  v1::Batch batch = Tasks("add", 3);
  Inline(batch, {2}, {1, 2, 3, 4, 5, 6});
  Inline(batch, {2}, {10, 20});
  Returned(batch, {2});
  EXPECT_EQ(Floats(MustRun(batch)), (std::vector<float>{11, 22, 13, 24, 15, 26}));
}

TEST_F(ExecutorTest, BufferColumnsByStrideOffsetsAndIds) {
  const uint64_t x = MustAllocate(8);
  const uint64_t y = MustAllocate(8);
  std::vector<float> values = {0, 1, 2, 3, 4, 5, 6, 7};
  const std::string bytes(reinterpret_cast<const char*>(values.data()), 32);
  ASSERT_TRUE(Upload(client_, x, bytes).ok());
  ASSERT_TRUE(Upload(client_, y, bytes).ok());

  v1::Batch stride = Tasks("copy", 3);
  v1::BufferColumn* column = Buffers(stride, {x});
  column->set_stride_bytes(8);
  column->add_shape(2);
  Returned(stride, {2});
  EXPECT_EQ(Floats(MustRun(stride)), (std::vector<float>{0, 1, 2, 3, 4, 5}));

  v1::Batch offsets = Tasks("copy", 3);
  column = Buffers(offsets, {x});
  for (const uint64_t offset : {28, 0, 12}) column->add_offsets(offset);
  column->add_shape(1);
  Returned(offsets, {1});
  EXPECT_EQ(Floats(MustRun(offsets)), (std::vector<float>{7, 0, 3}));

  v1::Batch ids = Tasks("add", 2);
  Buffers(ids, {x, y});
  Buffers(ids, {y});
  Returned(ids, {8});
  const std::vector<float> sums = Floats(MustRun(ids));
  ASSERT_EQ(sums.size(), 16u);
  EXPECT_EQ(sums[7], 14);
  EXPECT_EQ(sums[15], 14);
}

TEST_F(ExecutorTest, TensorLargerThanAChunkIsSplitAndComplete) {
  constexpr uint64_t kElements = 300'001;
  std::vector<float> x(kElements);
  for (uint64_t i = 0; i < kElements; ++i) x[i] = static_cast<float>(i % 1000);
  v1::Batch batch = Tasks("add", 1);
  Inline(batch, {kElements}, x);
  Inline(batch, {kElements}, x);
  Returned(batch, {kElements});
  const std::vector<float> sums = Floats(MustRun(batch));
  ASSERT_EQ(sums.size(), kElements);
  for (uint64_t i = 0; i < kElements; ++i) ASSERT_EQ(sums[i], 2 * x[i]) << i;
}

TEST_F(ExecutorTest, EmptyTensorsAreLegal) {
  v1::Batch batch = Tasks("add", 2);
  Inline(batch, {0}, {});
  Inline(batch, {0}, {});
  Returned(batch, {0});
  EXPECT_TRUE(Floats(MustRun(batch)).empty());
}

TEST_F(ExecutorTest, TensorOfRankZeroIsOneElement) {
  v1::Batch batch = Tasks("copy", 2);
  Inline(batch, {}, {5, 6});
  Returned(batch, {});
  EXPECT_EQ(Floats(MustRun(batch)), (std::vector<float>{5, 6}));
}

TEST_F(ExecutorTest, InOrderTasksSeeEarlierResults) {
  const uint64_t x = MustAllocate(1);
  ASSERT_TRUE(Upload(client_, x, std::string(4, '\0')).ok());
  v1::Batch batch = Tasks("add", 500);
  batch.mutable_options()->set_ordering(v1::BatchOptions::ORDERING_IN_ORDER);
  Buffers(batch, {x});
  Inline(batch, {1}, {1});
  Buffers(batch, {x});
  MustRun(batch);
  std::string bytes;
  ASSERT_TRUE(Download(client_, x, &bytes).ok());
  EXPECT_EQ(*reinterpret_cast<const float*>(bytes.data()), 500);
}

TEST_F(ExecutorTest, ResultHasIdDeviceVersionAndTimes) {
  v1::Batch batch = SmallAdd(77);
  const v1::BatchResult result = MustRun(batch);
  EXPECT_EQ(result.id(), 77u);
  EXPECT_EQ(result.device(), 0u);
  EXPECT_EQ(result.version(), 1u);
  EXPECT_EQ(result.device_ns_size(), 1);
}

TEST_F(ExecutorTest, TaskThatTheOperatorRefusesHasAnErrorAndNoBytes) {
  v1::Batch batch = Tasks("test.refuse", 40);
  Returned(batch, {4});
  Integer(batch, {7});
  const RunOutcome outcome = client_.Run(batch);
  ASSERT_TRUE(outcome.call.ok());
  ASSERT_EQ(outcome.result.status_size(), 40);
  EXPECT_EQ(outcome.result.status(39), v1::TASK_STATUS_INVALID_ARGUMENT);
  EXPECT_EQ(outcome.result.errors_size(), 16);
  EXPECT_NE(outcome.result.errors(0).message().find("detail 7"), std::string::npos)
      << outcome.result.errors(0).message();
  EXPECT_EQ(outcome.result.outputs(0), std::string(40 * 16, '\0'));
}

TEST_F(ExecutorTest, FluxProgramsRunWithTheirOwnInputsAndErrors) {
  // MOVI R0, 41; INC R0; HALT | DIV R0, R1, R2 with R2 = 0 | JMP to itself.
  v1::Batch batch =
      Programs({std::string("\x18\x00\x29\x08\x00\x00", 6), std::string("\x23\x00\x01\x02", 4),
                std::string("\x43\x00\x00\x00", 4)});
  batch.mutable_programs()->set_max_cycles(100);
  const v1::BatchResult result = MustRun(batch);
  EXPECT_EQ(Integers(result.flux().registers()), (std::vector<int32_t>{42, 0, 0}));
  EXPECT_EQ(result.flux().errors(), std::string("\x00\x01\x05", 3));
  EXPECT_EQ(Integers(result.flux().cycles()), (std::vector<int32_t>{3, 1, 100}));
  EXPECT_EQ(result.device_ns_size(), 1);
}

TEST_F(ExecutorTest, OneFluxProgramOverManyInputs) {
  v1::Batch batch;
  v1::FluxPrograms* flux = batch.mutable_programs();
  flux->set_bytecode(std::string("\x22\x00\x00\x01\x00", 5));  // MUL R0, R0, R1; HALT
  constexpr int kRuns = 5000;
  flux->set_count(kRuns);
  flux->set_initial_width(2);
  std::vector<int32_t> initial;
  for (int32_t i = 0; i < kRuns; ++i) {
    initial.push_back(i);
    initial.push_back(3);
  }
  flux->set_initial(std::string(reinterpret_cast<const char*>(initial.data()), kRuns * 8));
  flux->add_wanted(1);
  flux->add_wanted(0);
  const v1::BatchResult result = MustRun(batch);
  const std::vector<int32_t> registers = Integers(result.flux().registers());
  ASSERT_EQ(registers.size(), 2u * kRuns);
  for (int i = 0; i < kRuns; ++i) {
    ASSERT_EQ(registers[2 * i], 3);
    ASSERT_EQ(registers[2 * i + 1], 3 * i);
  }
  EXPECT_TRUE(result.flux().errors().empty());
}

TEST_F(ExecutorTest, LargeFluxProgramsAreStagedAndGiveTheSameResults) {
  // 100 programs of 4 KiB: NOPs, then MOVI R0, p.
  std::vector<std::string> programs;
  for (int p = 0; p < 100; ++p) {
    std::string program(4096, '\x01');
    program += std::string("\x18\x00", 2) + static_cast<char>(p);
    programs.push_back(program);
  }
  const v1::BatchResult result = MustRun(Programs(programs));
  const std::vector<int32_t> registers = Integers(result.flux().registers());
  ASSERT_EQ(registers.size(), 100u);
  for (int p = 0; p < 100; ++p) EXPECT_EQ(registers[p], p);
  EXPECT_EQ(Integers(result.flux().cycles())[0], 4097);
  EXPECT_EQ(result.device_ns_size(), 1);
}

// A high cycle limit splits the batch into several tasks, without effect on the results.
TEST_F(ExecutorTest, FluxBatchThatMightTakeLongIsSplitAndGivesTheSameResults) {
  constexpr int kRuns = 40'000;  // Enough for several tasks, also on a GPU.
  std::vector<std::string> programs;
  std::vector<int32_t> initial;
  for (int32_t i = 0; i < kRuns; ++i) {
    // ADDI R0, i % 100; LOOP R1, back to it; HALT.
    programs.push_back(std::string("\x19\x00", 2) + static_cast<char>(i % 100) +
                       std::string("\x46\x01\x03\x00\x00", 5));
    initial.push_back(i);
    initial.push_back(1 + i % 50);
  }
  v1::Batch batch = Programs(programs);
  batch.mutable_programs()->set_initial_width(2);
  batch.mutable_programs()->set_initial(
      std::string(reinterpret_cast<const char*>(initial.data()), initial.size() * 4));
  batch.mutable_options()->set_device(0);
  const uint64_t before = daemon_->Device().completed_tasks();
  batch.mutable_programs()->set_max_cycles(2'000);
  const v1::BatchResult whole = MustRun(batch);
  const uint64_t after_whole = daemon_->Device().completed_tasks();
  EXPECT_EQ(after_whole - before, 1u);
  batch.mutable_programs()->set_max_cycles(3'000'000);
  const v1::BatchResult split = MustRun(batch);
  EXPECT_GT(daemon_->Device().completed_tasks() - after_whole, 1u);
  EXPECT_EQ(split.flux().registers(), whole.flux().registers());
  EXPECT_EQ(split.flux().cycles(), whole.flux().cycles());
  EXPECT_EQ(split.device_ns_size(), 1);
  const std::vector<int32_t> registers = Integers(split.flux().registers());
  for (int32_t i = 0; i < kRuns; ++i) {
    ASSERT_EQ(registers[i], i + (i % 100) * (1 + i % 50)) << i;
  }
}

TEST_F(ExecutorTest, FluxRunsSelectTheirProgramByIndex) {
  v1::Batch batch = Programs({std::string("\x18\x00\x01", 3), std::string("\x18\x00\x02", 3)});
  for (const uint32_t program : {1, 0, 1, 1}) batch.mutable_programs()->add_program_index(program);
  batch.mutable_programs()->set_count(4);
  EXPECT_EQ(Integers(MustRun(batch).flux().registers()), (std::vector<int32_t>{2, 1, 2, 2}));
}

// The daemon groups the runs of a program; every column of the answer is in the client's order.
TEST_F(ExecutorTest, ResultsOfProgramsSelectedByIndexAreInTheOrderOfTheRequest) {
  constexpr int32_t kRuns = 5000;
  // Program 0 adds 100 to R0, program 1 adds twice, program 2 divides by zero after two cycles.
  v1::Batch batch = Programs({std::string("\x18\x02\x64\x20\x00\x00\x02\x00", 8),
                              std::string("\x18\x02\x64\x20\x00\x00\x02\x20\x00\x00\x02\x00", 12),
                              std::string("\x09\x00\x23\x00\x00\x03\x00", 7)});
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  std::vector<int32_t> initial;
  std::vector<uint32_t> index;
  for (int32_t i = 0; i < kRuns; ++i) {
    index.push_back(random() % 3);
    initial.insert(initial.end(), {i, static_cast<int32_t>(random())});
    batch.mutable_programs()->add_program_index(index.back());
  }
  batch.mutable_programs()->set_count(kRuns);
  batch.mutable_programs()->set_initial_width(2);
  batch.mutable_programs()->set_initial(
      std::string(reinterpret_cast<const char*>(initial.data()), initial.size() * 4));
  batch.mutable_programs()->add_wanted(1);
  batch.mutable_programs()->add_wanted(0);
  batch.mutable_programs()->set_max_cycles(100);
  const v1::BatchResult result = MustRun(batch);
  const std::vector<int32_t> registers = Integers(result.flux().registers());
  const std::vector<int32_t> cycles = Integers(result.flux().cycles());
  ASSERT_EQ(registers.size(), 2u * kRuns);
  ASSERT_EQ(result.flux().errors().size(), static_cast<size_t>(kRuns));
  constexpr int32_t kAdded[] = {100, 200, -1};
  constexpr int32_t kCycles[] = {3, 4, 2};
  for (int32_t i = 0; i < kRuns; ++i) {
    ASSERT_EQ(registers[2 * i], initial[2 * i + 1]) << i;
    ASSERT_EQ(registers[2 * i + 1], i + kAdded[index[i]]) << i;
    ASSERT_EQ(cycles[i], kCycles[index[i]]) << i;
    ASSERT_EQ(result.flux().errors()[i], index[i] == 2 ? 1 : 0) << i;
  }
}

// Of small additions: those with an id of 3 modulo 10 name an operator that does not exist.
void ExpectEveryTenthIsRefused(const std::map<uint64_t, v1::BatchResult>& results) {
  for (const auto& [id, result] : results) {
    if (id % 10 == 3) {
      EXPECT_EQ(result.refused().code(), grpc::StatusCode::NOT_FOUND);
    } else {
      EXPECT_FALSE(result.has_refused());
      EXPECT_EQ(Floats(result), std::vector<float>{3});
    }
  }
}

TEST_F(ExecutorTest, StreamAnswersEveryBatchAndEndsWhenTheClientHalfCloses) {
  const auto context = client_.Context();
  const auto stream = client_.executor().Submit(context.get());
  constexpr uint64_t kBatches = 300;
  std::thread writer([&] {
    for (uint64_t id = 0; id < kBatches; ++id) {
      v1::SubmitRequest request;
      *request.mutable_batch() = SmallAdd(id);
      if (id % 10 == 3) request.mutable_batch()->mutable_tasks()->set_operator_("nothing");
      ASSERT_TRUE(stream->Write(request));
    }
    stream->WritesDone();
  });
  std::map<uint64_t, v1::BatchResult> results;
  v1::SubmitResponse response;
  while (stream->Read(&response)) {
    EXPECT_TRUE(results.emplace(response.result().id(), response.result()).second);
  }
  writer.join();
  EXPECT_TRUE(stream->Finish().ok());
  ASSERT_EQ(results.size(), kBatches);
  ExpectEveryTenthIsRefused(results);
}

// Messages of several batches, of any number up to the limit; some batches are refused. A response
// has as many results as there are.
TEST_F(ExecutorTest, StreamAnswersEveryBatchOfMessagesWithSeveral) {
  const auto context = client_.Context();
  const auto stream = client_.executor().Submit(context.get());
  constexpr uint64_t kMessages = 100;
  constexpr uint64_t kMaxBatches = 64;  // Of a message.
  uint64_t sent = 0;
  std::thread writer([&] {
    for (uint64_t message = 0; message < kMessages; ++message) {
      v1::SubmitRequest request;
      request.set_max_results(16);
      for (uint64_t i = 0; i < 1 + message * 7 % kMaxBatches; ++i) {
        *request.add_batches() = SmallAdd(sent);
        if (sent++ % 10 == 3) request.mutable_batches(i)->mutable_tasks()->set_operator_("nothing");
      }
      ASSERT_TRUE(stream->Write(request));
    }
    stream->WritesDone();
  });
  std::map<uint64_t, v1::BatchResult> results;
  uint64_t responses = 0;
  v1::SubmitResponse response;
  while (stream->Read(&response)) {
    ++responses;
    EXPECT_FALSE(response.has_result());
    EXPECT_LE(response.results_size(), 16);
    for (const v1::BatchResult& result : response.results()) {
      EXPECT_TRUE(results.emplace(result.id(), result).second);
    }
  }
  writer.join();
  EXPECT_TRUE(stream->Finish().ok());
  ASSERT_EQ(results.size(), sent);
  EXPECT_LT(responses, sent) << "no results were joined";
  ExpectEveryTenthIsRefused(results);
}

TEST_F(ExecutorTest, StreamAnswersInTheOrderOfCompletion) {
  // A second worker for the fast batch. The test ends the slow one, by killing the engine.
  const Daemon daemon({"--cpu_workers=2", "--task_time_limit=0"});
  const Client client(daemon);
  const auto context = client.Context();
  const auto stream = client.executor().Submit(context.get());
  v1::SubmitRequest request;
  *request.mutable_batch() = Tasks("test.never_returns", 1);
  request.mutable_batch()->set_id(1);
  Returned(*request.mutable_batch(), {1});
  ASSERT_TRUE(stream->Write(request));
  ASSERT_TRUE(Eventually([&] { return daemon.Device().ring().in_flight() == 1; }));
  *request.mutable_batch() = SmallAdd(/*id=*/2);
  ASSERT_TRUE(stream->Write(request));
  stream->WritesDone();
  v1::SubmitResponse response;
  for (const uint64_t id : {2, 1}) {
    ASSERT_TRUE(stream->Read(&response));
    EXPECT_EQ(response.result().id(), id);
    EXPECT_FALSE(response.result().has_refused()) << response.result().refused().message();
    if (id == 2) kill(daemon.engine_pid(), SIGKILL);
  }
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(ExecutorTest, StreamThatSendsNothingEndsOk) {
  const auto context = client_.Context();
  const auto stream = client_.executor().Submit(context.get());
  stream->WritesDone();
  v1::SubmitResponse response;
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(ExecutorTest, CallsWithoutASessionAreAlsoServed) {
  const auto stub = v1::Executor::NewStub(daemon_->Connect());
  grpc::ClientContext context;
  v1::RunRequest request;
  *request.mutable_batch() = SmallAdd();
  v1::RunResponse response;
  ASSERT_TRUE(stub->Run(&context, request, &response).ok());
  EXPECT_EQ(Floats(response.result()), std::vector<float>{3});
}

}  // namespace
}  // namespace resident::testing
