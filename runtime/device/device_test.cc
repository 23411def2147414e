// A device with a real engine process, without faults.
#include <dirent.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "runtime/device/device_control.h"
#include "runtime/device/device_harness.h"
#include "runtime/device/engine_process.h"
#include "runtime/engine/engines.h"

namespace resident {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::Not;
using State = Device::State;

size_t CountEntries(const std::string& folder) {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++count;
  return count;
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Threads of this process, without those that are ending: the system may list a thread for a moment
// after it was joined.
size_t CountThreads() {
  constexpr uint64_t kExiting = 4;  // PF_EXITING.
  size_t count = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    const std::string stat = ReadFile(task.path() / "stat");
    std::istringstream fields(stat.substr(stat.rfind(')') + 1));  // Behind the name.
    std::string other;
    for (int i = 0; i < 6; ++i) fields >> other;
    if (uint64_t flags = 0; fields >> flags && (flags & kExiting) == 0) ++count;
  }
  return count;
}

// Children of all threads of this process, zombies included.
size_t CountChildren() {
  size_t count = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::istringstream pids(ReadFile(task.path() / "children"));
    for (std::string pid; pids >> pid;) ++count;
  }
  return count;
}

TEST(DeviceTest, StartsServesAndReportsItself) {
  DeviceHarness harness;
  const Device::Snapshot snapshot = harness.device().snapshot();
  EXPECT_EQ(snapshot.state, State::kResident);
  EXPECT_EQ(snapshot.info.traits.engine, TestOnCuda() ? "cuda" : "cpu");
  EXPECT_EQ(snapshot.info.generation, 1u);
  EXPECT_GT(snapshot.info.workers, 0u);
  EXPECT_GT(snapshot.engine_pid, 0);
  EXPECT_NE(snapshot.engine_pid, getpid());
  EXPECT_EQ(snapshot.info.memory_bytes, uint64_t{64} << 20);

  const Floats x = harness.MakeFloats(1024, 2), y = harness.MakeFloats(1024, 3);
  const Floats out = harness.MakeFloats(1024);
  const auto batch = harness.Run(harness.MakeBatch(
      {DeviceHarness::Task("mul", 1024, {x.address(), y.address(), out.address()})}));
  EXPECT_EQ(batch->status[0], TaskStatus::kOk);
  for (int i = 0; i < 1024; ++i) ASSERT_EQ(out.host()[i], 6.0f) << i;
}

TEST(DeviceTest, StartsAndStopsWithoutLeaks) {
  { DeviceHarness first; }  // The threads that spawn and that reap are created once and stay.
  { DeviceHarness second; }
  const auto count = [] {
    return std::to_string(CountEntries("/proc/self/fd")) + " descriptors, " +
           std::to_string(CountThreads()) + " threads, " + std::to_string(CountChildren()) +
           " children";
  };
  ASSERT_TRUE(Eventually([] { return CountChildren() == 0; }));
  const std::string before = count();
  for (int i = 0; i < 3; ++i) {
    DeviceHarness harness;
    const Floats counters = harness.MakeFloats(100);
    harness.Run(harness.CountTasks(counters));
  }
  EXPECT_TRUE(Eventually([&] { return count() == before; })) << count() << "; before: " << before;
  EXPECT_EQ(CountChildren(), 0u);
}

// The control connection is closed after the process was killed.
TEST(DeviceTest, AnEngineProcessThatIsDestroyedDoesNotReportTheEndOfItsConnection) {
  ::testing::internal::CaptureStderr();
  for (int i = 0; i < 10; ++i) {
    auto process = EngineProcess::Launch(DeviceHarness::Options());
    ASSERT_TRUE(process.ok()) << process.status();
    EXPECT_TRUE((*process)->Start(seconds(60)).ok());
  }
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), Not(HasSubstr("control connection")));
}

TEST(DeviceTest, CreateFailsIfTheEngineCannotStart) {
  DeviceOptions options = DeviceHarness::Options();
  options.engine_program = "/nonexistent/residentd";
  EXPECT_EQ(DeviceControl::Create(options).status().code(), absl::StatusCode::kNotFound);

  options = DeviceHarness::Options();
  options.limits.ring_slots = 100;
  const auto bad_ring = DeviceControl::Create(options);
  EXPECT_EQ(bad_ring.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(bad_ring.status().message()), HasSubstr("--ring_slots"));

  options = DeviceHarness::Options();
  options.engine_program = "/bin/false";  // Ends at once.
  const auto ended = DeviceControl::Create(options);
  EXPECT_EQ(ended.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(ended.status().message()), HasSubstr("exited with status 1"));
}

// An unknown engine must not be replaced by another one.
TEST(DeviceTest, UnknownEngineIsRefused) {
  const EngineType abacus = {.name = "abacus", .device_label = "abacus"};
  DeviceOptions options = DeviceHarness::Options();
  options.engine_type = &abacus;
  const auto device = DeviceControl::Create(options);
  EXPECT_EQ(device.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(device.status().message()), HasSubstr("exited with status 2"));
}

TEST(DeviceTest, MissingGpuIsReportedWithTheReason) {
  DeviceOptions options = DeviceHarness::Options();
  options.engine_type = *FindEngineType("cuda");
  options.engine.ordinal = 4096;  // No machine has as many.
  const auto device = DeviceControl::Create(options);
  EXPECT_EQ(device.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(device.status().message()), HasSubstr("Fix: "));
}

TEST(DeviceTest, MemoryIsBoundedAndCanBeReused) {
  DeviceHarness harness;
  const auto session = harness.device().session();
  std::vector<std::shared_ptr<const DeviceMemory>> held;
  for (int i = 0; i < 64; ++i) {
    auto memory = session->AllocateMemory(1 << 20);
    ASSERT_TRUE(memory.ok()) << memory.status();
    EXPECT_EQ((*memory)->address % 256, 0u);
    held.push_back(*memory);
  }
  EXPECT_EQ(session->memory_used_bytes(), uint64_t{64} << 20);
  const auto refused = session->AllocateMemory(1);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("--device_memory_mib"));
  held.erase(held.begin() + 10, held.begin() + 12);
  EXPECT_TRUE(session->AllocateMemory(2 << 20).ok());
  held.clear();
  EXPECT_EQ(session->memory_used_bytes(), 0u);
}

TEST(DeviceTest, StagingMemoryIsBoundedAndCanBeReused) {
  DeviceHarness harness;
  const auto session = harness.device().session();
  auto all = session->AllocateStaging(8 << 20);
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_EQ(session->AllocateStaging(1).status().code(), absl::StatusCode::kResourceExhausted);
  all = absl::CancelledError();
  EXPECT_TRUE(session->AllocateStaging(8 << 20).ok());
}

TEST(DeviceTest, StagingMemoryOutlivesTheDevice) {
  Floats floats;
  {
    DeviceHarness harness;
    floats = harness.MakeFloats(1024, 7);
  }
  EXPECT_EQ(floats.host()[1023], 7.0f);
}

TEST(DeviceTest, SharedMemoryOfAClientIsReachable) {
  DeviceHarness harness;
  const int object = memfd_create("resident-client-object", MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(object, 1 << 20), 0);
  auto* const floats = static_cast<volatile float*>(
      mmap(nullptr, 1 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, object, 0));
  floats[0] = 20;
  const auto session = harness.device().session();
  auto mapped = session->MapShared(object, 1 << 20);
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  close(object);

  const auto batch = harness.Run(harness.MakeBatch(
      {DeviceHarness::Task("copy", 1, {(*mapped)->address, (*mapped)->address + 4})}));
  EXPECT_EQ(batch->status[0], TaskStatus::kOk);
  EXPECT_EQ(floats[1], 20.0f);

  const std::string maps = "/proc/" + std::to_string(harness.engine_pid()) + "/maps";
  EXPECT_THAT(ReadFile(maps), HasSubstr("resident-client-object"));
  *mapped = nullptr;
  if (TestOnCuda()) {  // A GPU unmaps only while the kernel is parked.
    ASSERT_TRUE(harness.device().Park().ok());
  }
  EXPECT_TRUE(Eventually(
      [&] { return ReadFile(maps).find("resident-client-object") == std::string::npos; }));
  munmap(const_cast<float*>(floats), 1 << 20);
}

// tests/inference/cuda_regions_test.py maps real handles.
TEST(DeviceTest, DeviceMemoryIsNotMappedByAnInvalidHandle) {
  DeviceHarness harness;
  const auto session = harness.device().session();
  const std::string handle(kDeviceHandleBytes - 1, 'h');
  EXPECT_EQ(session->MapSharedDevice(handle, 4096).status().code(),
            session->info().traits.maps_device_memory ? absl::StatusCode::kInvalidArgument
                                                      : absl::StatusCode::kUnimplemented);
}

// tests/gpu/cuda_memory_test.cc maps real ones.
TEST(DeviceTest, DeviceMemoryIsNotMappedByAnotherDescriptor) {
  DeviceHarness harness;
  const auto session = harness.device().session();
  constexpr uint64_t kBytes = 2 << 20;
  for (const char* const path : {"/dev/null", "/dev/shm"}) {
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    EXPECT_EQ(session->MapDeviceDescriptor(fd, kBytes, 4096).status().code(),
              session->info().traits.maps_device_memory ? absl::StatusCode::kInvalidArgument
                                                        : absl::StatusCode::kUnimplemented);
    EXPECT_EQ(session->MapDeviceDescriptor(fd, kBytes, kBytes + 1).status().code(),
              absl::StatusCode::kInvalidArgument);
    close(fd);
  }
}

TEST(DeviceTest, SharedMemoryBeyondTheObjectIsRefused) {
  DeviceHarness harness;
  const int object = memfd_create("small", MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(object, 4096), 0);
  const auto session = harness.device().session();
  EXPECT_EQ(session->MapShared(object, 4097).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(session->MapShared(object, 0).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(session->MapShared(-1, 1).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(session->MapShared(object, 4096).ok());
  close(object);
}

TEST(DeviceTest, IdleDeviceParksAndTheNextTaskResumesIt) {
  DeviceOptions options = DeviceHarness::Options();
  options.park_after = milliseconds(100);
  DeviceHarness harness(options);
  for (uint64_t round = 1; round <= 3; ++round) {
    ASSERT_TRUE(harness.AwaitState(State::kIdleParked));
    const Floats counters = harness.MakeFloats(10);
    EXPECT_EQ(harness.Run(harness.CountTasks(counters))->failed, 0u);
    for (int i = 0; i < 10; ++i) EXPECT_EQ(counters.host()[i], 1.0f);
    EXPECT_GE(harness.device().snapshot().parks, round);
    EXPECT_GE(harness.device().snapshot().resumes, round);
  }
  const Device::Snapshot snapshot = harness.device().snapshot();
  std::printf("park %.0f us, resume %.0f us, each on average\n",
              static_cast<double>(harness.device().park_duration().sum_ns()) / 1e3 /
                  static_cast<double>(snapshot.parks),
              static_cast<double>(harness.device().resume_duration().sum_ns()) / 1e3 /
                  static_cast<double>(snapshot.resumes));
  EXPECT_GT(harness.device().park_duration().sum_ns(), 0u);
  EXPECT_GT(harness.device().resume_duration().sum_ns(), 0u);
}

TEST(DeviceTest, ParkedDeviceKeepsWorkUntilItIsResumed) {
  DeviceOptions options = DeviceHarness::Options();
  options.park_after = milliseconds(50);
  DeviceHarness harness(options);
  ASSERT_TRUE(harness.device().Park().ok());
  EXPECT_EQ(harness.device().snapshot().state, State::kParked);
  EXPECT_TRUE(harness.device().Park().ok());  // It is parked already.

  const Floats counters = harness.MakeFloats(100);
  const Submission submission = harness.Submit(harness.CountTasks(counters));
  EXPECT_EQ(harness.device().snapshot().queue.queued_tasks, 100u);
  EXPECT_EQ(submission.done->load(), 0);
  EXPECT_EQ(harness.device().snapshot().state, State::kParked);

  ASSERT_TRUE(harness.device().Resume().ok());
  ASSERT_TRUE(submission.Await());
  EXPECT_EQ(submission.batch->failed, 0u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(counters.host()[i], 1.0f);
  EXPECT_TRUE(harness.device().Resume().ok());
}

TEST(DeviceTest, IdleParkedDeviceCanBeParkedAndResumed) {
  DeviceOptions options = DeviceHarness::Options();
  options.park_after = milliseconds(50);
  DeviceHarness harness(options);
  ASSERT_TRUE(harness.AwaitState(State::kIdleParked));
  ASSERT_TRUE(harness.device().Park().ok());
  EXPECT_EQ(harness.device().snapshot().state, State::kParked);
  ASSERT_TRUE(harness.device().Resume().ok());
  const Floats counters = harness.MakeFloats(1);
  EXPECT_EQ(harness.Run(harness.CountTasks(counters))->failed, 0u);
}

TEST(DeviceTest, ParksUnderLoadNeitherLoseNorRepeatTasks) {
  DeviceHarness harness;
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> ran{0};
  std::vector<std::thread> clients;
  for (int c = 0; c < 3; ++c) {
    clients.emplace_back([&] {
      while (!stop) {
        const Floats counters = harness.MakeFloats(500);
        const auto batch = harness.Run(harness.CountTasks(counters));
        EXPECT_EQ(batch->failed, 0u) << batch->cause;
        for (uint32_t i = 0; i < counters.count; ++i) {
          EXPECT_EQ(counters.host()[i], 1.0f) << "task " << i << " of " << counters.count;
        }
        if (::testing::Test::HasFailure()) return;
        ran += counters.count;
      }
    });
  }
  for (int i = 0; i < 50; ++i) {
    const uint64_t before = ran;
    EXPECT_TRUE(Eventually([&] { return ran > before; }));
    const absl::Status parked = harness.device().Park();
    EXPECT_TRUE(parked.ok()) << parked;
    const absl::Status resumed = harness.device().Resume();
    EXPECT_TRUE(resumed.ok()) << resumed;
    if (::testing::Test::HasFailure()) break;
  }
  stop = true;
  for (std::thread& client : clients) client.join();
  const Device::Snapshot snapshot = harness.device().snapshot();
  EXPECT_EQ(snapshot.parks, 50u);
  EXPECT_EQ(snapshot.resumes, 50u);
  EXPECT_TRUE(snapshot.restarts_by_reason.empty());
}

TEST(DeviceTest, ShutdownEndsTasksInFlight) {
  DeviceHarness harness;
  const Floats out = harness.MakeFloats(1);
  const Submission running = harness.Submit(harness.SpinTask(out, seconds(100)));
  ASSERT_TRUE(Eventually([&] { return harness.device().snapshot().queue.in_flight == 1; }));
  harness.device().Shutdown();
  EXPECT_EQ(running.done->load(), 1);
  EXPECT_EQ(running.batch->status[0], TaskStatus::kUnavailable);
  EXPECT_THAT(running.batch->cause, HasSubstr("shutting down"));
  EXPECT_EQ(CountChildren(), 0u);
  EXPECT_EQ(harness.device().session(), nullptr);
  EXPECT_EQ(harness.device().Park().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(harness.device().Resume().code(), absl::StatusCode::kUnavailable);
  harness.device().Shutdown();  // A second call does nothing.
}

// Processor time of all threads of a process so far.
uint64_t ProcessorTimeNs(pid_t pid) {
  uint64_t total = 0;
  for (const auto& task :
       std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/task")) {
    std::istringstream schedstat(ReadFile(task.path() / "schedstat"));
    uint64_t ns = 0;
    schedstat >> ns;
    total += ns;
  }
  return total;
}

TEST(DeviceTest, IdleDeviceCostsUnderOnePercentOfACore) {
  DeviceHarness harness;
  const Floats counters = harness.MakeFloats(100);
  harness.Run(harness.CountTasks(counters));
  // Threads that spin stop within milliseconds. The wait ends with the first interval of 100 ms in
  // which both processes together use less than 1 % of a core; one with a busy thread never has
  // any.
  const auto used = [&] {
    return ProcessorTimeNs(getpid()) + ProcessorTimeNs(harness.engine_pid());
  };
  EXPECT_TRUE(Eventually([&] {
    const auto began = Clock::now();
    const uint64_t before = used();
    std::this_thread::sleep_for(milliseconds(100));
    const auto took = std::chrono::nanoseconds(Clock::now() - began).count();
    return static_cast<double>(used() - before) < 0.01 * static_cast<double>(took);
  }));
}

TEST(DeviceTest, CpuEngineStaysSmall) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers take memory of their own";
#endif
  DeviceOptions options = DeviceHarness::Options();
  options.engine_type = *FindEngineType("cpu");  // On a machine with a GPU too.
  options.limits = DeviceLimits();               // As the daemon has them.
  DeviceHarness harness(options);
  const Floats counters = harness.MakeFloats(10'000);
  harness.Run(harness.CountTasks(counters));
  std::istringstream status(ReadFile("/proc/" + std::to_string(harness.engine_pid()) + "/status"));
  uint64_t resident_kib = 0;
  for (std::string word; status >> word;) {
    if (word == "VmRSS:") status >> resident_kib;
  }
  EXPECT_GT(resident_kib, 0u);
  EXPECT_LE(resident_kib, 60u * 1024);
  std::printf("CPU engine: %.1f MiB resident\n", static_cast<double>(resident_kib) / 1024);
}

}  // namespace
}  // namespace resident
