// Copies as tasks: what they need, that they are the tasks of the same copies as a client's
// messages, and when they are refused.
#include "server/workload/copy_workload.h"

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "runtime/device/fake_device.h"
#include "server/admission/admission.h"
#include "server/workload/planner.h"
#include "server/workload/result_builder.h"

namespace resident {
namespace {

constexpr ClientId kClient = 1;
constexpr ClientId kOther = 2;
constexpr uint64_t kMemory = 1 << 20;
constexpr int64_t kBytes = 300'000;  // Three chunks.

class CopyWorkloadTest : public ::testing::Test {
 protected:
  using Part = CopyWorkload::Part;

  CopyWorkloadTest()
      : device_(0, kMemory, kMemory),
        second_(1, kMemory, kMemory),
        registry_(*Registry::Create({.devices = 2})),
        planner_({&limits_, registry_.get(), &buffers_, {&device_, &second_}}) {
    buffers_.AddOwner(kClient);
    buffers_.AddOwner(kOther);
    for (int i = 0; i < 2; ++i) admission_.AddDevice(kMemory);
    buffer_ = Allocate(device_);
    to_ = Allocate(device_);
  }

  std::shared_ptr<const Buffer> Allocate(FakeDevice& device) {
    BufferSpec spec;
    spec.dtype = DType::kU8;
    spec.shape = {kBytes};
    spec.device = device.index();
    return *buffers_.Allocate(spec, kClient, *device.session());
  }
  const PlanSources& sources() const { return planner_.sources(); }

  Ticket AcquireTicket(const Needs& needs) {
    auto ticket = admission_.TryAcquire(account_, needs);
    EXPECT_TRUE(ticket.ok()) << ticket.status();
    return ticket.ok() ? *std::move(ticket) : Ticket();
  }
  // The batch of a copy that is a task of its client.
  std::shared_ptr<RequestBatch> Fill(std::unique_ptr<CopyWorkload> copy) {
    const absl::Status checked = copy->Check();
    EXPECT_TRUE(checked.ok()) << checked;
    if (!checked.ok()) return nullptr;
    Ticket ticket = AcquireTicket(copy->ResourcesNeeded());
    return Planner::Fill(Clock::time_point::max(), std::move(copy), std::move(ticket));
  }
  // The same for a client's message with a task of `op`.
  std::shared_ptr<RequestBatch> FillMessage(const v1::Batch& message) {
    auto work = planner_.Plan(message, kClient);
    EXPECT_TRUE(work.ok()) << work.status();
    if (!work.ok()) return nullptr;
    Ticket ticket = AcquireTicket((*work)->ResourcesNeeded());
    return Planner::Fill(message, Clock::time_point::max(), *std::move(work), std::move(ticket));
  }
  static v1::OperatorTasks* StartMessage(const std::string& op, v1::Batch& message) {
    message.mutable_tasks()->set_operator_(op);
    message.mutable_tasks()->set_count(1);
    return message.mutable_tasks();
  }
  static void AddBuffer(const Buffer& buffer, uint64_t offset, uint64_t bytes,
                        v1::OperatorTasks* tasks) {
    v1::BufferColumn* const column = tasks->add_arguments()->mutable_buffer();
    column->add_buffer_ids(buffer.id);
    column->add_offsets(offset);
    column->set_dtype(v1::DTYPE_U8);
    column->add_shape(bytes);
  }

  // Expects the task that the message has. `staging`: the argument in staging memory, if any.
  void ExpectTaskOf(const v1::Batch& message, RequestBatch& batch, int staging = -1) {
    const auto expected = FillMessage(message);
    ASSERT_EQ(batch.tasks.size(), 1u);
    EXPECT_EQ(std::memcmp(&batch.tasks[0], &expected->tasks[0], sizeof(TaskDescriptor)), 0);
    ASSERT_EQ(batch.arguments_per_task, expected->arguments_per_task);
    ASSERT_EQ(batch.arguments.size(), expected->arguments.size());
    for (size_t i = 0; i < batch.arguments.size(); ++i) {
      Argument argument = batch.arguments[i];
      if (static_cast<int>(i) == staging) {
        EXPECT_EQ(argument.tensor.address, batch.ticket.staging()->address);
        argument.tensor.address = expected->arguments[i].tensor.address;
      }
      EXPECT_EQ(std::memcmp(&argument, &expected->arguments[i], sizeof(Argument)), 0) << i;
    }
    EXPECT_EQ(batch.device, expected->device);
    EXPECT_EQ(batch.epoch, expected->epoch);
    EXPECT_EQ(batch.operator_name, expected->operator_name);
    EXPECT_EQ(batch.version, expected->version);
    EXPECT_EQ(batch.stats, expected->stats);
    EXPECT_EQ(batch.keep_alive.size(), expected->keep_alive.size());
  }

  const Limits limits_;
  FakeDevice device_;
  FakeDevice second_;
  const std::unique_ptr<Registry> registry_;
  BufferTable buffers_{limits_};
  const Planner planner_;
  DrainGate gate_;
  Admission admission_{limits_, &gate_, TimeSource::Steady()};
  const std::shared_ptr<ClientAccounts> account_ =
      std::make_shared<ClientAccounts>(std::make_shared<Account>("anonymous", Rights{}), 2);
  std::shared_ptr<const Buffer> buffer_;
  std::shared_ptr<const Buffer> to_;
};

TEST_F(CopyWorkloadTest, AWriteOfDataIsTheTaskOfItsMessage) {
  std::string data(200'000, 'x');
  data[7] = 'y';
  v1::Batch message;
  v1::OperatorTasks* const tasks = StartMessage("copy_bytes", message);
  v1::InlineColumn* const from = tasks->add_arguments()->mutable_inline_();
  from->set_dtype(v1::DTYPE_U8);
  from->add_shape(data.size());
  from->set_data(data);
  AddBuffer(*buffer_, 64, data.size(), tasks);
  const auto batch = Fill(CopyWorkload::WriteData(sources(), Part(kClient, buffer_->id, 64), data));
  ASSERT_NE(batch, nullptr);
  ExpectTaskOf(message, *batch, /*staging=*/0);
  EXPECT_EQ(std::memcmp(batch->ticket.staging()->host, data.data(), data.size()), 0);
}

TEST_F(CopyWorkloadTest, ACopyBetweenBuffersIsTheTaskOfItsMessage) {
  v1::Batch message;
  v1::OperatorTasks* const tasks = StartMessage("copy_bytes", message);
  AddBuffer(*buffer_, 16, 1000, tasks);
  AddBuffer(*to_, 32, 1000, tasks);
  const auto batch = Fill(CopyWorkload::Copy(sources(), {buffer_, 16}, {to_, 32}, 1000));
  ASSERT_NE(batch, nullptr);
  EXPECT_EQ(batch->ticket.staging(), nullptr);
  ExpectTaskOf(message, *batch);
}

TEST_F(CopyWorkloadTest, AClearIsTheTaskOfItsMessage) {
  v1::Batch message;
  AddBuffer(*buffer_, 0, kBytes, StartMessage("zero", message));
  const auto batch = Fill(CopyWorkload::Clear(sources(), {buffer_, 0}, kBytes));
  ASSERT_NE(batch, nullptr);
  EXPECT_EQ(batch->ticket.staging(), nullptr);
  ExpectTaskOf(message, *batch);
}

TEST_F(CopyWorkloadTest, NoBytesNeedNoStagingMemory) {
  const auto batch = Fill(CopyWorkload::WriteData(sources(), {buffer_, kBytes}, ""));
  ASSERT_NE(batch, nullptr);
  EXPECT_EQ(batch->ticket.staging(), nullptr);
  EXPECT_EQ(batch->arguments[0].tensor.shape[0], 0);
}

TEST_F(CopyWorkloadTest, APieceOfATransferTakesStagingMemoryOnly) {
  for (const bool write : {true, false}) {
    auto piece = write ? CopyWorkload::Write(sources(), {buffer_, 100}, 5000)
                       : CopyWorkload::Read(sources(), {buffer_, 100}, 5000);
    ASSERT_TRUE(piece->Check().ok());
    EXPECT_EQ(piece->bytes(), 5000u);
    EXPECT_EQ(piece->ResourcesNeeded().tasks, 1u);
    const Needs needs = piece->TransferNeeds();
    EXPECT_EQ(needs.tasks, 0u);
    EXPECT_EQ(needs.host_bytes, 0u);
    EXPECT_EQ(needs.staging_bytes, 5000u);
    const auto batch =
        Planner::Fill(Clock::time_point::max(), std::move(piece), AcquireTicket(needs));
    const uint64_t of_buffer = batch->arguments[write ? 1 : 0].tensor.address;
    const uint64_t of_staging = batch->arguments[write ? 0 : 1].tensor.address;
    EXPECT_EQ(of_buffer, buffer_->memory->address + 100);
    EXPECT_EQ(of_staging, batch->ticket.staging()->address);
    // The host reads what a download writes.
    EXPECT_EQ(batch->tasks[0].flags & kTaskDeviceOutputs, write ? kTaskDeviceOutputs : 0);
  }
}

TEST_F(CopyWorkloadTest, AWriteToSharedMemoryIsNotCompletedEarly) {
  const auto map = [](EngineSession& session, uint64_t bytes) {
    return session.AllocateMemory(bytes);
  };
  const auto shared =
      *buffers_.Adopt({.shape = {64}}, kClient, *device_.session(), Buffer::Place::kHost, map);
  const auto batch = Fill(CopyWorkload::Clear(sources(), {shared, 0}, 256));
  ASSERT_NE(batch, nullptr);
  EXPECT_EQ(batch->tasks[0].flags & kTaskDeviceOutputs, 0);
}

TEST_F(CopyWorkloadTest, ABatchKeepsItsBuffers) {
  const std::weak_ptr<const Buffer> freed = buffer_;
  auto batch = Fill(CopyWorkload::Clear(sources(), Part(kClient, buffer_->id, 0), 8));
  ASSERT_NE(batch, nullptr);
  ASSERT_TRUE(buffers_.Free(kClient, buffer_->id).ok());
  buffer_ = nullptr;
  EXPECT_FALSE(freed.expired());
  batch = nullptr;
  EXPECT_TRUE(freed.expired());
}

TEST_F(CopyWorkloadTest, ChecksItsBuffers) {
  const auto check = [&](Part part, uint64_t bytes) {
    return CopyWorkload::Clear(sources(), std::move(part), bytes)->Check().code();
  };
  EXPECT_EQ(check(Part(kClient, buffer_->id, 8), kBytes - 8), absl::StatusCode::kOk);
  EXPECT_EQ(check(Part(kOther, buffer_->id, 0), 8), absl::StatusCode::kNotFound);
  EXPECT_EQ(check(Part(kClient, 12345, 0), 8), absl::StatusCode::kNotFound);
  EXPECT_EQ(check({buffer_, 8}, kBytes - 7), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(check({buffer_, kBytes + 1}, 0), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(check({buffer_, 1}, UINT64_MAX), absl::StatusCode::kOutOfRange);
  const auto elsewhere = Allocate(second_);
  EXPECT_EQ(CopyWorkload::Copy(sources(), {buffer_, 0}, {elsewhere, 0}, 8)->Check().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(CopyWorkloadTest, RefusesABufferOfAnEarlierEngine) {
  const auto check = [&] {
    return CopyWorkload::Read(sources(), Part(kClient, buffer_->id, 0), 8)->Check();
  };
  const auto next = std::make_shared<FakeSession>(2, kMemory, kMemory);
  device_.set_session(nullptr);
  EXPECT_EQ(check().code(), absl::StatusCode::kUnavailable);
  device_.set_session(next);
  EXPECT_EQ(check().code(), absl::StatusCode::kUnavailable);
  buffers_.OnRestart(0, *next, "it crashed", nullptr);
  EXPECT_EQ(check().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(check().message().find("it crashed"), std::string::npos);
}

TEST_F(CopyWorkloadTest, TheResultHasTheErrorOfItsTask) {
  const auto batch = Fill(CopyWorkload::Clear(sources(), {buffer_, 0}, 8));
  ASSERT_NE(batch, nullptr);
  batch->status = {TaskStatus::kUnavailable};
  batch->detail = {0};
  batch->device_ns = {5};
  batch->finished = batch->failed = 1;
  batch->cause = "it crashed";
  v1::BatchResult result;
  BuildResult(*batch, &result);
  EXPECT_EQ(result.status(0), v1::TASK_STATUS_UNAVAILABLE);
  EXPECT_NE(result.errors(0).message().find("it crashed"), std::string::npos);
}

}  // namespace
}  // namespace resident
