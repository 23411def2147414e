// Which tasks say that all their outputs are in device memory (kTaskDeviceOutputs), so that their
// completion need not wait until the host can see them.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "runtime/device/fake_device.h"
#include "server/admission/admission.h"
#include "server/workload/planner.h"

namespace resident {
namespace {

constexpr ClientId kClient = 1;
constexpr uint64_t kMemory = 1 << 20;

class DeviceOutputsTest : public ::testing::Test {
 protected:
  DeviceOutputsTest() : device_(0, kMemory, kMemory), registry_(*Registry::Create({})) {
    buffers_.AddOwner(kClient);
    admission_.AddDevice(kMemory);
    own_ = (*buffers_.Allocate({.shape = {4, 4}}, kClient, *device_.session()))->id;
    const auto map = [](EngineSession& session, uint64_t bytes) {
      return session.AllocateMemory(bytes);
    };
    const auto adopt = [&](Buffer::Place place) {
      return (*buffers_.Adopt({.shape = {4, 4}}, kClient, *device_.session(), place, map))->id;
    };
    shared_ = adopt(Buffer::Place::kHost);
    imported_ = adopt(Buffer::Place::kImportedDevice);
  }

  // A task of `name` without its output.
  v1::Batch Task(const std::string& name) const {
    v1::Batch batch;
    batch.mutable_tasks()->set_operator_(name);
    batch.mutable_tasks()->set_count(1);
    AddBuffer(own_, {4, 4}, batch);
    return batch;
  }
  static void AddBuffer(uint64_t id, const std::vector<uint64_t>& shape, v1::Batch& batch) {
    v1::BufferColumn* const column = batch.mutable_tasks()->add_arguments()->mutable_buffer();
    column->add_buffer_ids(id);
    column->mutable_shape()->Assign(shape.begin(), shape.end());
  }

  // Whether the batch's task has the flag.
  bool HasFlag(const v1::Batch& batch) {
    const Planner planner({&limits_, registry_.get(), &buffers_, {&device_}});
    auto work = planner.Plan(batch, kClient);
    EXPECT_TRUE(work.ok()) << work.status();
    if (!work.ok()) return false;
    auto ticket = admission_.TryAcquire(
        std::make_shared<ClientAccounts>(std::make_shared<Account>("anonymous", Rights{}), 1),
        (*work)->ResourcesNeeded());
    EXPECT_TRUE(ticket.ok()) << ticket.status();
    const auto made =
        Planner::Fill(batch, Clock::time_point::max(), *std::move(work), *std::move(ticket));
    EXPECT_EQ(made->tasks.size(), 1u);
    compact_ = made->tasks[0].flags & kTaskCompact;
    return made->tasks[0].flags & kTaskDeviceOutputs;
  }

  const Limits limits_;
  FakeDevice device_;
  const std::unique_ptr<Registry> registry_;
  BufferTable buffers_{limits_};
  DrainGate gate_;
  Admission admission_{limits_, &gate_, TimeSource::Steady()};
  uint64_t own_ = 0;
  uint64_t shared_ = 0;
  uint64_t imported_ = 0;
  bool compact_ = false;  // Of the last task.
};

// "silu" has the compact form, and sums of rows have arguments.
TEST_F(DeviceOutputsTest, OutputsInBuffersOfTheDevice) {
  v1::Batch compact = Task("silu");
  AddBuffer(own_, {4, 4}, compact);
  EXPECT_TRUE(HasFlag(compact));
  EXPECT_TRUE(compact_);
  v1::Batch sums = Task("sum_rows");
  AddBuffer(own_, {4}, sums);
  EXPECT_TRUE(HasFlag(sums));
  EXPECT_FALSE(compact_);
}

TEST_F(DeviceOutputsTest, OutputsThatOthersRead) {
  for (const char* name : {"silu", "sum_rows"}) {
    const std::vector<uint64_t> shape =
        std::string(name) == "silu" ? std::vector<uint64_t>{4, 4} : std::vector<uint64_t>{4};
    for (const uint64_t buffer : {shared_, imported_}) {
      v1::Batch in_memory_of_a_client = Task(name);
      AddBuffer(buffer, shape, in_memory_of_a_client);
      EXPECT_FALSE(HasFlag(in_memory_of_a_client)) << name;
    }

    v1::Batch in_the_result = Task(name);
    v1::ReturnedColumn* const returned =
        in_the_result.mutable_tasks()->add_arguments()->mutable_returned();
    returned->set_dtype(v1::DTYPE_F32);
    returned->mutable_shape()->Assign(shape.begin(), shape.end());
    EXPECT_FALSE(HasFlag(in_the_result)) << name;
  }
}

// What an input refers to does not matter.
TEST_F(DeviceOutputsTest, InputsInMemoryOfClients) {
  for (const uint64_t buffer : {shared_, imported_}) {
    v1::Batch sums;
    sums.mutable_tasks()->set_operator_("sum_rows");
    sums.mutable_tasks()->set_count(1);
    AddBuffer(buffer, {4, 4}, sums);
    AddBuffer(own_, {4}, sums);
    EXPECT_TRUE(HasFlag(sums));
  }
}

// It may store to any address, and a fault must be seen before its completion.
TEST_F(DeviceOutputsTest, AnInstalledOperatorIsNotTrusted) {
  const auto commit = [](const RegistryChange&) -> absl::StatusOr<uint64_t> { return 1; };
  VersionSpec spec;
  spec.signature = "x: in f32[R, C], out: out f32[R]";
  auto reserved = registry_->Reserve("rows", spec, std::nullopt, absl::Now() + absl::Seconds(60));
  ASSERT_TRUE(reserved.ok()) << reserved.status();
  ASSERT_TRUE(registry_->Load(*std::move(reserved), std::nullopt, commit).ok());
  ASSERT_TRUE(registry_->Activate("rows", 0, std::nullopt, /*force=*/false, commit).ok());
  v1::Batch batch = Task("rows");
  AddBuffer(own_, {4}, batch);
  EXPECT_FALSE(HasFlag(batch));
}

}  // namespace
}  // namespace resident
