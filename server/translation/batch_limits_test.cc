// Batches whose descriptors and arguments would take more than a batch may.
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/flux/run_arguments.h"
#include "server/translation/batch_translator.h"
#include "server/translation/fake_device.h"
#include "server/translation/flux_programs.h"

namespace resident {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr ClientId kClient = 1;
constexpr uint64_t kMemory = 64 << 20;

class BatchLimitsTest : public ::testing::Test {
 protected:
  BatchLimitsTest() : device_(0, kMemory, kMemory), registry_(*Registry::Create({})) {
    buffers_.AddOwner(kClient);
    BufferSpec spec;
    spec.shape = {4};
    EXPECT_TRUE(buffers_.Allocate(spec, kClient, *device_.session()).ok());
  }

  absl::Status Translate(const v1::Batch& batch, milliseconds time_limit = milliseconds(10'000)) {
    const BatchTranslator translator({&limits_,
                                      registry_.get(),
                                      &buffers_,
                                      {{&device_, std::make_shared<WindowGate>(kMemory)}},
                                      time_limit});
    return translator.Translate(batch, {kClient, &use_}).status();
  }

  const Limits limits_;
  FakeDevice device_;
  const std::unique_ptr<Registry> registry_;
  BufferTable buffers_{limits_};
  const std::vector<std::shared_ptr<WindowUse>> use_{std::make_shared<WindowUse>()};
};

// Tasks of an operator of which all use the same tensors of the first buffer.
v1::Batch Tasks(const std::string& name, uint32_t count,
                const std::vector<std::vector<uint64_t>>& shapes) {
  v1::Batch batch;
  batch.mutable_tasks()->set_operator_(name);
  batch.mutable_tasks()->set_count(count);
  for (const std::vector<uint64_t>& shape : shapes) {
    v1::BufferColumn* const column = batch.mutable_tasks()->add_arguments()->mutable_buffer();
    column->add_buffer_ids(1);
    column->mutable_shape()->Assign(shape.begin(), shape.end());
  }
  return batch;
}

v1::Batch Programs(uint32_t runs, uint64_t max_cycles) {
  v1::Batch batch;
  batch.mutable_programs()->set_bytecode(std::string(1, '\0'));  // HALT
  batch.mutable_programs()->set_count(runs);
  batch.mutable_programs()->set_max_cycles(max_cycles);
  return batch;
}

TEST_F(BatchLimitsTest, TasksWithTooManyArguments) {
  constexpr uint64_t kTaskBytes = sizeof(TaskDescriptor) + 2 * sizeof(Argument);
  constexpr uint32_t kTooMany = kMaxBatchDescriptorBytes / kTaskBytes + 1;
  ASSERT_LT(kTooMany, limits_.max_batch_tasks);
  const absl::Status refused = Translate(Tasks("sum_rows", kTooMany, {{2, 2}, {2}}));
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr(std::to_string(kTooMany * kTaskBytes) + " bytes of descriptors"),
                    HasSubstr("limit of " + std::to_string(kMaxBatchDescriptorBytes)),
                    HasSubstr("Fix: send fewer tasks in a batch")));
  // Compact ones have no arguments beside.
  EXPECT_TRUE(Translate(Tasks("copy", kTooMany, {{4}, {4}})).ok());
}

TEST_F(BatchLimitsTest, ProgramsThatAreTooManyTasks) {
  constexpr uint64_t kTaskBytes = sizeof(TaskDescriptor) + flux::kRunArguments * sizeof(Argument);
  constexpr uint32_t kMost = kMaxBatchDescriptorBytes / kTaskBytes;
  // Each run may take as long as a task: it is one.
  constexpr milliseconds kTimeLimit(1'000);
  const EngineInfo engine = device_.session()->info();
  const uint64_t cycles = SplitFlux({kMost, 1, 1}, engine, kTimeLimit).most_cycles;
  ASSERT_LT(kMost, limits_.max_batch_tasks);

  const absl::Status refused = Translate(Programs(kMost + 1, cycles), kTimeLimit);
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr(std::to_string(kMost + 1) + " runs of up to " +
                              std::to_string(cycles) + " cycles"),
                    HasSubstr("over the limit of " + std::to_string(kMost)),
                    HasSubstr("Fix: send fewer runs in a batch, or a lower max_cycles")));
  // Runs that end sooner share tasks.
  EXPECT_TRUE(Translate(Programs(kMost + 1, 1'000), kTimeLimit).ok());
  // As many tasks as there may be.
  const v1::Batch most = Programs(kMost, cycles);
  FluxPrograms programs(most.programs(), nullptr);
  ASSERT_TRUE(programs.Check(limits_).ok());
  EXPECT_TRUE(programs.CheckSplit(programs.Split(engine, kTimeLimit)).ok());
}

}  // namespace
}  // namespace resident
