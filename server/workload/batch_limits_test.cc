// Batches whose descriptors and arguments exceed the limit.
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/flux/run_arguments.h"
#include "runtime/base/status_macros.h"
#include "runtime/device/fake_device.h"
#include "server/admission/admission.h"
#include "server/workload/flux_programs.h"
#include "server/workload/planner.h"

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

  // Plans the batch and fills it, with all resources that it needs.
  absl::StatusOr<std::shared_ptr<RequestBatch>> Make(const v1::Batch& batch, Admission& admission,
                                                     milliseconds time_limit) {
    const Planner planner({&limits_, registry_.get(), &buffers_, {&device_}, time_limit});
    ASSIGN_OR_RETURN(auto work, planner.Plan(batch, kClient));
    ASSIGN_OR_RETURN(auto ticket,
                     admission.TryAcquire(std::make_shared<ClientAccounts>(
                                              std::make_shared<Account>("anonymous", Rights{}), 1),
                                          work->ResourcesNeeded()));
    return Planner::Fill(batch, Clock::time_point::max(), std::move(work), std::move(ticket));
  }
  absl::Status Translate(const v1::Batch& batch, milliseconds time_limit = milliseconds(10'000)) {
    Admission admission(limits_, &gate_, TimeSource::Steady());
    admission.AddDevice(kMemory);
    return Make(batch, admission, time_limit).status();
  }

  const Limits limits_;
  FakeDevice device_;
  const std::unique_ptr<Registry> registry_;
  BufferTable buffers_{limits_};
  DrainGate gate_;
};

// Tasks of an operator that all use the same tensors of the first buffer.
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
  // Compact tasks have no separate arguments.
  EXPECT_TRUE(Translate(Tasks("copy", kTooMany, {{4}, {4}})).ok());
}

// Version 2 is active, and version 1 runs all of its batches too, as a shadow.
void InstallOnTrial(Registry& registry, const std::string& name) {
  const auto commit = [](const RegistryChange&) -> absl::StatusOr<uint64_t> { return 1; };
  VersionSpec spec;
  spec.signature = "x: in f32[*S], out: out f32[*S]";
  spec.split = "out 4096";
  for (int version = 1; version <= 2; ++version) {
    auto reserved = registry.Reserve(name, spec, std::nullopt, absl::Now() + absl::Seconds(60));
    ASSERT_TRUE(reserved.ok()) << reserved.status();
    ASSERT_TRUE(registry.Load(*std::move(reserved), std::nullopt, commit).ok());
    ASSERT_TRUE(registry.Activate(name, 0, std::nullopt, /*force=*/false, commit).ok());
  }
  ASSERT_TRUE(registry.SetTrial(name, 1, 0, 100, std::nullopt, commit).ok());
}

TEST_F(BatchLimitsTest, ATrialIsChargedWithItsCopyAndItsComparison) {
  InstallOnTrial(*registry_, "swish");
  constexpr uint32_t kTasks = 1000;
  constexpr uint64_t kComparison = sizeof(TaskDescriptor) + 2 * sizeof(Argument);
  const v1::Batch message = Tasks("swish", kTasks, {{4}, {4}});
  uint64_t with_trial = 0, alone = 0;
  {
    const Planner planner({&limits_, registry_.get(), &buffers_, {&device_}});
    auto work = planner.Plan(message, kClient);
    ASSERT_TRUE(work.ok()) << work.status();
    const Needs needs = (*work)->ResourcesNeeded();
    alone = needs.host_bytes;
    with_trial = alone + needs.trial_bytes;
  }
  const uint64_t made = kTasks * sizeof(TaskDescriptor);
  EXPECT_GE(alone, made);
  EXPECT_GE(with_trial, 2 * made + kTasks * kComparison);

  Limits limits;
  limits.max_host_mib = 1;
  Admission admission(limits, &gate_, TimeSource::Steady());
  admission.AddDevice(kMemory);
  ASSERT_LT(with_trial, 1u << 20);
  {
    const auto batch = Make(message, admission, milliseconds(10'000));
    ASSERT_TRUE(batch.ok()) << batch.status();
    EXPECT_NE((*batch)->shadow, nullptr);
    EXPECT_EQ(admission.host().used(), with_trial);
    EXPECT_EQ((*batch)->tasks.size() * sizeof(TaskDescriptor) +
                  (*batch)->arguments.size() * sizeof(Argument),
              made);
  }
  EXPECT_EQ(admission.host().used(), 0u);

  // If the trial does not fit, the client's batch runs without it.
  const auto other = std::make_shared<Budget::Account>();
  auto taken = admission.host().Acquire(other, (1 << 20) - with_trial - alone);
  ASSERT_TRUE(taken.has_value());
  const auto without = Make(message, admission, milliseconds(10'000));
  ASSERT_TRUE(without.ok()) << without.status();
  EXPECT_EQ((*without)->shadow, nullptr);
  EXPECT_EQ(admission.host().used(), taken->amount() + alone);
}

TEST_F(BatchLimitsTest, ProgramsThatNeedTooManyTasks) {
  constexpr uint64_t kTaskBytes = sizeof(TaskDescriptor) + flux::kRunArguments * sizeof(Argument);
  constexpr uint32_t kMax = kMaxBatchDescriptorBytes / kTaskBytes;
  // Each run may take as long as a task may, so each run is one task.
  constexpr milliseconds kTimeLimit(1'000);
  const EngineInfo engine = device_.session()->info();
  const uint64_t cycles = SplitFlux({kMax, 1, 1}, engine, kTimeLimit).max_cycles_of_run;
  ASSERT_LT(kMax, limits_.max_batch_tasks);

  const absl::Status refused = Translate(Programs(kMax + 1, cycles), kTimeLimit);
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr(std::to_string(kMax + 1) + " runs of up to " +
                              std::to_string(cycles) + " cycles"),
                    HasSubstr("over the limit of " + std::to_string(kMax)),
                    HasSubstr("Fix: send fewer runs in a batch, or a lower max_cycles")));
  // Runs that end sooner share tasks.
  EXPECT_TRUE(Translate(Programs(kMax + 1, 1'000), kTimeLimit).ok());
  // The largest number of tasks.
  const v1::Batch largest = Programs(kMax, cycles);
  FluxPrograms programs(largest.programs(), nullptr);
  ASSERT_TRUE(programs.Check(limits_).ok());
  EXPECT_TRUE(programs.CheckSplit(programs.Split(engine, kTimeLimit)).ok());
}

}  // namespace
}  // namespace resident
