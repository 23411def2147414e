#include "runtime/device/device_harness.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "kernels/ops/builtin.h"
#include "runtime/engine/engines.h"

namespace resident {

const EngineType* TestEngineType() {
  const char* engine = std::getenv("RESIDENT_TEST_ENGINE");
  const auto type = FindEngineType(engine == nullptr ? "cpu" : engine);
  if (!type.ok()) {
    std::fprintf(stderr, "RESIDENT_TEST_ENGINE: %s\n", type.status().ToString().c_str());
    std::abort();
  }
  return *type;
}

bool TestOnCuda() { return std::string_view(TestEngineType()->name) == "cuda"; }

std::string EngineProgramForTest() {
  const char* sources = std::getenv("TEST_SRCDIR");
  const char* workspace = std::getenv("TEST_WORKSPACE");
  if (sources != nullptr && workspace != nullptr) {
    return std::string(sources) + "/" + workspace + "/runtime/device/engine_for_test";
  }
  // Outside Bazel (tests/gpu/run): the daemon's own binary, or a program next to this one.
  if (const char* residentd = std::getenv("RESIDENTD")) return residentd;
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / "engine_for_test";
}

uint16_t OperatorSlot(std::string_view name) {
  if (const std::optional<unsigned> slot = FindBuiltinSlot(name)) return *slot;
  std::fprintf(stderr, "no operator '%s'\n", std::string(name).c_str());
  std::abort();
}

bool Submission::Await() const {
  return Eventually([this] { return done->load() > 0; });
}

DeviceOptions DeviceHarness::Options() {
  DeviceOptions options;
  options.engine_type = TestEngineType();
  options.engine.test_operators = true;
  options.limits.ring_slots = 1024;
  options.limits.staging_mib = 8;
  options.limits.device_memory_mib = 64;
  options.park_after = std::chrono::milliseconds(0);
  options.engine_program = EngineProgramForTest();
  return options;
}

DeviceHarness::DeviceHarness(const DeviceOptions& options) {
  auto device = DeviceControl::Create(options);
  if (!device.ok()) {
    ADD_FAILURE() << "no device: " << device.status();
    std::abort();
  }
  device_ = *std::move(device);
  device_->queue().AddClient(kClient);
}

DeviceHarness::~DeviceHarness() = default;

bool DeviceHarness::AwaitState(Device::State state) {
  return Eventually([&] { return device_->snapshot().state == state; });
}

bool DeviceHarness::AwaitAnotherEngine(pid_t than) {
  return Eventually([&] {
    const Device::Snapshot snapshot = device_->snapshot();
    return snapshot.engine_pid != 0 && snapshot.engine_pid != than &&
           snapshot.state == Device::State::kResident && device_->session() != nullptr;
  });
}

Floats DeviceHarness::MakeFloats(uint32_t count, float value) {
  const auto session = device_->session();
  if (session == nullptr) {
    ADD_FAILURE() << "the device has no session";
    return {};
  }
  auto memory = session->AllocateStaging(uint64_t{count} * sizeof(float));
  if (!memory.ok()) {
    ADD_FAILURE() << memory.status();
    return {};
  }
  Floats floats{*std::move(memory), count};
  for (uint32_t i = 0; i < count; ++i) floats.host()[i] = value;
  return floats;
}

TaskDescriptor DeviceHarness::Task(std::string_view operator_name, uint64_t n,
                                   const std::vector<uint64_t>& arguments) {
  TaskDescriptor task{};
  task.operator_slot = OperatorSlot(operator_name);
  task.flags = kTaskCompact;
  task.set_elements(n);
  for (uint32_t i = 0; i < arguments.size(); ++i) task.set_compact_argument(i, arguments[i]);
  return task;
}

std::shared_ptr<Batch> DeviceHarness::MakeBatch(std::vector<TaskDescriptor> tasks) {
  auto batch = std::make_shared<Batch>();
  batch->tasks = std::move(tasks);
  const auto session = device_->session();
  batch->epoch = session == nullptr ? 0 : session->epoch();
  return batch;
}

std::shared_ptr<Batch> DeviceHarness::CountTasks(const Floats& counters) {
  std::vector<TaskDescriptor> tasks;
  for (uint32_t i = 0; i < counters.count; ++i) {
    tasks.push_back(Task("test.count", 1, {counters.address(i)}));
  }
  auto batch = MakeBatch(std::move(tasks));
  batch->keep_alive.push_back(counters.memory);
  return batch;
}

std::shared_ptr<Batch> DeviceHarness::SpinTask(const Floats& out, std::chrono::nanoseconds time) {
  auto batch =
      MakeBatch({Task("test.spin", 1, {out.address(), static_cast<uint64_t>(time.count())})});
  batch->keep_alive.push_back(out.memory);
  return batch;
}

Submission DeviceHarness::Submit(std::shared_ptr<Batch> batch) {
  Submission submission{batch, std::make_shared<std::atomic<int>>(0)};
  batch->done = [done = submission.done](Batch&) { ++*done; };
  const absl::Status status = device_->queue().Enqueue(kClient, std::move(batch));
  EXPECT_TRUE(status.ok()) << status;
  return submission;
}

std::shared_ptr<Batch> DeviceHarness::Run(std::shared_ptr<Batch> batch) {
  const Submission submission = Submit(std::move(batch));
  EXPECT_TRUE(submission.Await()) << "the batch does not end";
  return submission.batch;
}

}  // namespace resident
