// Batches whose descriptors and arguments would take more than a batch may.
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

// Version 2 serves, and all of its batches are run by version 1 beside.
void InstallOnTrial(Registry& registry, const std::string& name) {
  const auto commit = [](const RegistryChange&) -> absl::StatusOr<uint64_t> { return 1; };
  VersionSpec spec;
  spec.signature = "x: in f32[*S], out: out f32[*S]";
  spec.split = "out 4096";
  for (int version = 1; version <= 2; ++version) {
    auto reserved = registry.Reserve(name, spec, std::nullopt, absl::Now() + absl::Seconds(60));
    ASSERT_TRUE(reserved.ok()) << reserved.status();
    ASSERT_TRUE(registry.Stage(*std::move(reserved), std::nullopt, commit).ok());
    ASSERT_TRUE(registry.Activate(name, 0, std::nullopt, /*force=*/false, commit).ok());
  }
  ASSERT_TRUE(registry.SetTrial(name, 1, 0, 100, std::nullopt, commit).ok());
}

TEST_F(BatchLimitsTest, ATrialIsChargedWithItsCopyAndItsComparison) {
  InstallOnTrial(*registry_, "swish");
  constexpr uint32_t kTasks = 1000;
  constexpr uint64_t kComparison = sizeof(TaskDescriptor) + 2 * sizeof(Argument);
  const auto translate = [&](HostMemory& memory, uint64_t* lacking) {
    const BatchTranslator translator({&limits_,
                                      registry_.get(),
                                      &buffers_,
                                      {{&device_, std::make_shared<WindowGate>(kMemory)}},
                                      milliseconds(10'000)});
    Caller caller{kClient, &use_};
    caller.memory = &memory;
    caller.memory_use = std::make_shared<HostUse>();
    caller.lacking = lacking;
    return translator.Translate(Tasks("swish", kTasks, {{4}, {4}}), caller);
  };
  uint64_t lacking = 0;
  HostMemory enough(0, 0);
  uint64_t with_trial = 0;
  {
    const auto batch = translate(enough, &lacking);
    ASSERT_TRUE(batch.ok()) << batch.status();
    ASSERT_NE((*batch)->shadow, nullptr);
    with_trial = enough.used_bytes();
    const uint64_t made = (*batch)->tasks.size() * sizeof(TaskDescriptor) +
                          (*batch)->arguments.size() * sizeof(Argument);
    EXPECT_GE(with_trial, 2 * made + kTasks * kComparison);
  }
  EXPECT_EQ(enough.used_bytes(), 0u);

  // Where it does not fit, the client's batch does without it.
  HostMemory less(0, with_trial - 1);
  uint64_t alone = 0;
  {
    const auto batch = translate(less, &lacking);
    ASSERT_TRUE(batch.ok()) << batch.status();
    EXPECT_EQ((*batch)->shadow, nullptr);
    EXPECT_EQ(lacking, 0u);
    alone = less.used_bytes();
    EXPECT_LE(2 * alone, with_trial);
  }
  HostMemory little(0, alone - 1);
  EXPECT_EQ(translate(little, &lacking).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(lacking, alone);
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
