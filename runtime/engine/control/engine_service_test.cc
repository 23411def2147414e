// Both sides of the control protocol, with an engine whose calls last until the test ends them.
#include "runtime/engine/control/engine_service.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "runtime/base/process/frames.h"
#include "runtime/engine/control/engine_client.h"
#include "runtime/engine/control/engine_messages.h"
#include "runtime/engine/control/engine_server.h"
#include "tests/support/eventually.h"

namespace resident {
namespace {

using std::chrono::milliseconds;

class SlowEngine : public Engine {
 public:
  absl::StatusOr<std::vector<EnginePhase>> Prepare(const SharedRegion&) override {
    return std::vector<EnginePhase>();
  }
  absl::StatusOr<EngineInfo> Start(const EngineOptions&) override { return EngineInfo(); }
  absl::Status AwaitPark(std::chrono::nanoseconds) override { return absl::OkStatus(); }
  absl::Status Resume() override { return absl::OkStatus(); }
  absl::StatusOr<std::vector<OperatorResources>> Preload(
      std::shared_ptr<const Generation>) override {
    preloading.Notify();
    preload_may_end.WaitForNotification();
    return std::vector<OperatorResources>();
  }
  absl::StatusOr<SwitchTimes> Switch(uint64_t, bool, std::chrono::nanoseconds) override {
    return SwitchTimes();
  }
  absl::StatusOr<uint64_t> MapShared(int, uint64_t) override {
    mapping.Notify();
    map_may_end.WaitForNotification();
    return 4096;
  }
  absl::StatusOr<uint64_t> MapSharedDevice(const std::string& handle, uint64_t bytes) override {
    if (handle != std::string(kDeviceHandleBytes, 'h')) {
      return absl::InvalidArgumentError("not the handle");
    }
    EXPECT_EQ(bytes, 12345u);
    return 8192;
  }
  absl::StatusOr<uint64_t> MapDeviceDescriptor(int fd, uint64_t allocation_bytes) override {
    EXPECT_EQ(allocation_bytes, uint64_t{2} << 20);
    struct stat object {};
    if (fstat(fd, &object) != 0 || !S_ISCHR(object.st_mode)) {
      return absl::InvalidArgumentError("not device memory");
    }
    return 8192;
  }
  absl::Status UnmapShared(uint64_t address) override {
    EXPECT_TRUE(address == 4096 || address == 8192) << address;
    ++unmapped;
    return absl::OkStatus();
  }
  absl::Status Health() override { return absl::OkStatus(); }
  milliseconds health_interval() const override { return milliseconds(7); }

  absl::Notification mapping, map_may_end, preloading, preload_may_end;
  std::atomic<int> unmapped{0};
};

// The sockets of a control connection, as EngineProcess creates them.
void MakeSocketPair(int (&control)[2]) {
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, control), 0);
}

// The client and the server, connected like two processes.
class ControlPlane {
 public:
  explicit ControlPlane(milliseconds map_limit = EngineClient::kMapLimit) {
    region_ = *SharedRegion::Create(64, 4096);
    int control[2];
    MakeSocketPair(control);
    service = std::make_unique<EngineService>(
        dup(region_->fd()), [this](int) { return std::unique_ptr<Engine>(engine); });
    server_ = std::make_unique<EngineServer>(control[1], service.get());
    client = std::make_unique<EngineClient>(control[0], map_limit);
  }
  ~ControlPlane() {
    client = nullptr;
    EndEngine();
    delete engine;
  }

  void Start() {
    EXPECT_TRUE(client->Prepare(0, kTimeout).ok());
    EXPECT_TRUE(client->Start(EngineOptions(), kTimeout).ok());
  }
  void EndEngine() {
    server_ = nullptr;
    service = nullptr;
  }

  static constexpr std::chrono::seconds kTimeout{60};
  SlowEngine* const engine = new SlowEngine;  // The service never destroys its engine.
  std::unique_ptr<EngineService> service;
  std::unique_ptr<EngineClient> client;

 private:
  std::unique_ptr<SharedRegion> region_;
  std::unique_ptr<EngineServer> server_;
};

TEST(EngineServiceTest, StartsAfterPrepareAndOnce) {
  ControlPlane plane;
  EngineOptions options;
  options.beat_every = milliseconds(500);
  EXPECT_TRUE(absl::IsFailedPrecondition(plane.client->Start(options, plane.kTimeout).status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(plane.client->Resume(plane.kTimeout)));
  ASSERT_TRUE(plane.client->Prepare(0, plane.kTimeout).ok());
  EXPECT_GT(plane.service->BeatEvery(), milliseconds(500));  // A prepared engine may wait long.
  EXPECT_TRUE(absl::IsFailedPrecondition(plane.client->Prepare(0, plane.kTimeout).status()));
  ASSERT_TRUE(plane.client->Start(options, plane.kTimeout).ok());
  EXPECT_EQ(plane.service->BeatEvery(), milliseconds(7));
}

// A park must not wait until a client's memory is pinned or a generation is preloaded; otherwise
// the supervisor would conclude that the engine hangs.
TEST(EngineServiceTest, ParksDuringMappingAndPreloading) {
  ControlPlane plane;
  plane.Start();
  const UniqueFd object(memfd_create("object", MFD_CLOEXEC));
  std::thread mapping([&] { EXPECT_TRUE(plane.client->MapShared(object.get(), 4096).ok()); });
  plane.engine->mapping.WaitForNotification();
  std::thread preloading([&] { EXPECT_TRUE(plane.client->Preload(Generation()).ok()); });
  plane.engine->preloading.WaitForNotification();

  const auto park = plane.client->StartAwaitPark(plane.kTimeout, nullptr);
  EXPECT_TRUE(testing::Eventually([&] { return park->answered(); }));
  EXPECT_TRUE(park->answer().ok()) << park->answer().status();
  EXPECT_TRUE(plane.client->Resume(plane.kTimeout).ok());
  EXPECT_TRUE(plane.service->Beat().ok());

  plane.engine->preload_may_end.Notify();
  plane.engine->map_may_end.Notify();
  preloading.join();
  mapping.join();
}

// Pinning takes longer than the caller waits, so no one owns the resulting mapping.
TEST(EngineServiceTest, MappingThatIsCompletedTooLateIsRemoved) {
  ControlPlane plane(milliseconds(100));
  plane.Start();
  const UniqueFd object(memfd_create("object", MFD_CLOEXEC));
  const auto mapping = plane.client->MapShared(object.get(), 4096);
  EXPECT_EQ(mapping.status().code(), absl::StatusCode::kDeadlineExceeded) << mapping.status();
  EXPECT_EQ(plane.engine->unmapped, 0);
  plane.engine->map_may_end.Notify();
  EXPECT_TRUE(testing::Eventually([&] { return plane.engine->unmapped == 1; }));
}

TEST(EngineServiceTest, MappingIsReleasedByItsNumber) {
  ControlPlane plane;
  plane.Start();
  plane.engine->map_may_end.Notify();
  const UniqueFd object(memfd_create("object", MFD_CLOEXEC));
  const auto mapping = plane.client->MapShared(object.get(), 4096);
  ASSERT_TRUE(mapping.ok()) << mapping.status();
  EXPECT_EQ(mapping->address, 4096u);
  plane.client->StartUnmapShared(mapping->id);
  EXPECT_TRUE(testing::Eventually([&] { return plane.engine->unmapped == 1; }));
}

// Each mapping has a number of its own, also if the engine maps the same memory at the same
// address.
TEST(EngineServiceTest, DeviceMemoryIsMappedByItsHandle) {
  ControlPlane plane;
  plane.Start();
  const std::string handle(kDeviceHandleBytes, 'h');
  const auto first = plane.client->MapSharedDevice(handle, 12345);
  ASSERT_TRUE(first.ok()) << first.status();
  const auto second = plane.client->MapSharedDevice(handle, 12345);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(first->address, 8192u);
  EXPECT_EQ(second->address, 8192u);
  const std::string other(kDeviceHandleBytes, '\0');
  EXPECT_EQ(plane.client->MapSharedDevice(other, 12345).status(),
            absl::InvalidArgumentError("not the handle"));
  plane.client->StartUnmapShared(first->id);
  plane.client->StartUnmapShared(second->id);
  EXPECT_TRUE(testing::Eventually([&] { return plane.engine->unmapped == 2; }));
}

// The engine's copy of the descriptor is closed once the memory is mapped, or not.
TEST(EngineServiceTest, MemoryOfADescriptorIsMappedAndTheCopyClosed) {
  ControlPlane plane;
  plane.Start();
  const UniqueFd memory(open("/dev/null", O_RDWR | O_CLOEXEC));
  const UniqueFd other(memfd_create("other", MFD_CLOEXEC));
  const auto descriptors = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                         std::filesystem::directory_iterator());
  };
  const auto before = descriptors();
  for (int i = 0; i < 3; ++i) {
    const auto mapping = plane.client->MapDeviceDescriptor(memory.get(), 2 << 20);
    ASSERT_TRUE(mapping.ok()) << mapping.status();
    EXPECT_EQ(mapping->address, 8192u);
    plane.client->StartUnmapShared(mapping->id);
    EXPECT_EQ(plane.client->MapDeviceDescriptor(other.get(), 2 << 20).status(),
              absl::InvalidArgumentError("not device memory"));
  }
  EXPECT_TRUE(testing::Eventually([&] { return plane.engine->unmapped == 3; }));
  EXPECT_TRUE(testing::Eventually([&] { return descriptors() == before; }))
      << descriptors() << " " << before;
  EXPECT_EQ(plane.client->MapDeviceDescriptor(-1, 2 << 20).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST(EngineServiceTest, StartedCallReportsItsAnswer) {
  ControlPlane plane;
  plane.Start();
  std::atomic<int> answers{0};
  const auto resume = plane.client->StartResume(plane.kTimeout, [&answers] { ++answers; });
  EXPECT_TRUE(testing::Eventually([&] { return answers == 1; }));
  ASSERT_TRUE(resume->answered());
  EXPECT_TRUE(resume->answer().ok()) << resume->answer().status();
}

TEST(EngineServiceTest, CallsThatAreNotAnsweredInTimeExceedTheirDeadline) {
  ControlPlane plane;
  plane.Start();
  std::thread preloading([&] { EXPECT_TRUE(plane.client->Preload(Generation()).ok()); });
  plane.engine->preloading.WaitForNotification();
  // The switch waits for the generation to be preloaded, and the others wait for the switch.
  const auto change = plane.client->StartSwitch(1, true, plane.kTimeout, nullptr);
  std::atomic<int> answers{0};
  const auto resume = plane.client->StartResume(milliseconds(50), [&answers] { ++answers; });
  EXPECT_TRUE(testing::Eventually([&] { return resume->answered(); }));
  EXPECT_TRUE(absl::IsDeadlineExceeded(resume->answer().status())) << resume->answer().status();
  EXPECT_EQ(answers, 0);
  EXPECT_TRUE(absl::IsDeadlineExceeded(plane.client->Resume(milliseconds(50))));
  plane.engine->preload_may_end.Notify();
  preloading.join();
  // The late response is dropped, and the next call gets its own.
  EXPECT_TRUE(plane.client->Resume(plane.kTimeout).ok());
}

TEST(EngineServiceTest, CallsEndWithTheEngine) {
  ControlPlane plane;
  plane.Start();
  std::thread preloading(
      [&] { EXPECT_TRUE(absl::IsUnavailable(plane.client->Preload(Generation()).status())); });
  plane.engine->preloading.WaitForNotification();
  std::atomic<int> answers{0};
  const auto change =
      plane.client->StartSwitch(1, true, milliseconds(0), [&answers] { ++answers; });
  // The socket is closed while both calls are served.
  std::thread end([&] { plane.EndEngine(); });
  EXPECT_TRUE(testing::Eventually([&] { return answers == 1; }));
  preloading.join();
  ASSERT_TRUE(change->answered());
  EXPECT_TRUE(absl::IsUnavailable(change->answer().status())) << change->answer().status();
  // Later calls fail, too.
  EXPECT_TRUE(absl::IsUnavailable(plane.client->Resume(plane.kTimeout)));
  const auto later = plane.client->StartResume(plane.kTimeout, [&answers] { ++answers; });
  EXPECT_TRUE(later->answered());
  EXPECT_EQ(answers, 2);
  plane.engine->preload_may_end.Notify();
  end.join();
}

// The request, without the objects, must not exceed kMaxControlMessageBytes.
TEST(EngineServiceTest, LargestGenerationIsPreloaded) {
  ControlPlane plane;
  plane.Start();
  plane.engine->preload_may_end.Notify();
  Generation generation;
  for (uint32_t slot = 0; slot < kMaxOperatorSlots; ++slot) {
    generation.operators.push_back(
        {slot, std::string(100, 's'), std::make_shared<const std::string>(1000, 'o')});
  }
  const auto preloaded = plane.client->Preload(generation);
  EXPECT_TRUE(preloaded.ok()) << preloaded.status();
}

// A session that ends releases all its mappings at once, more than the socket holds, and the engine
// may be slower than that.
TEST(EngineServiceTest, RequestsThatTheEngineHasNotReadWait) {
  int control[2];
  MakeSocketPair(control);
  const UniqueFd engine(control[1]);
  EngineClient client(control[0]);
  constexpr uint64_t kRequests = 5000;
  for (uint64_t mapping = 0; mapping < kRequests; ++mapping) client.StartUnmapShared(mapping);
  for (uint64_t mapping = 0; mapping < kRequests; ++mapping) {
    const auto message = ReadFrame(engine.get(), kMaxControlMessageBytes, WaitForever);
    ASSERT_TRUE(message.ok()) << message.status();
    internal::EngineRequest request;
    ASSERT_TRUE(request.ParseFromString(*message));
    ASSERT_TRUE(request.has_unmap_shared());
    ASSERT_EQ(request.unmap_shared().mapping(), mapping);
  }
}

// An engine that has stopped does not make the front end use more and more memory.
TEST(EngineServiceTest, CallsAreRefusedWhenTooManyRequestsWait) {
  int control[2];
  MakeSocketPair(control);
  const UniqueFd engine(control[1]);
  constexpr size_t kMaxUnsent = 100;
  EngineClient client(control[0], EngineClient::kMapLimit, kMaxUnsent);
  // Requests are sent until the socket is full; then they wait.
  std::unique_ptr<EngineCall> refused;
  std::vector<std::unique_ptr<EngineCall>> calls;
  EXPECT_TRUE(testing::Eventually([&] {
    for (size_t i = 0; i < kMaxUnsent && refused == nullptr; ++i) {
      auto call = client.StartResume(std::chrono::hours(1), nullptr);
      if (call->answered()) {
        refused = std::move(call);
      } else {
        calls.push_back(std::move(call));
      }
    }
    return refused != nullptr;
  }));
  ASSERT_NE(refused, nullptr);
  EXPECT_EQ(refused->answer().status(),
            absl::UnavailableError("the engine does not read its requests"));
  EXPECT_FALSE(calls.back()->answered());
  // When the engine reads again, calls are accepted again.
  std::thread reader([&] {
    while (ReadFrame(engine.get(), kMaxControlMessageBytes, WaitForever).ok()) {
    }
  });
  EXPECT_TRUE(testing::Eventually(
      [&] { return !client.StartResume(std::chrono::hours(1), nullptr)->answered(); }));
  shutdown(engine.get(), SHUT_RDWR);
  reader.join();
}

// The thread that sends is blocked, because the engine does not read.
TEST(EngineServiceTest, ClientOfAStoppedEngineCanBeDestroyed) {
  int control[2];
  MakeSocketPair(control);
  const UniqueFd engine(control[1]);
  EngineClient client(control[0]);
  std::atomic<int> answers{0};
  const auto resume = client.StartResume(std::chrono::hours(1), [&answers] { ++answers; });
  for (uint64_t mapping = 0; mapping < 5000; ++mapping) client.StartUnmapShared(mapping);
  EXPECT_FALSE(resume->answered());
  EXPECT_EQ(answers, 0);
}

TEST(EngineServiceTest, InvalidResponseEndsTheConnection) {
  int control[2];
  MakeSocketPair(control);
  const UniqueFd engine(control[1]);
  EngineClient client(control[0]);
  ASSERT_TRUE(WriteFrame(engine.get(), "\xff\xff", WaitForever).ok());
  // The other side reads the end, too.
  absl::Status read;
  do {
    read = ReadFrame(engine.get(), kMaxControlMessageBytes, WaitForever).status();
  } while (read.ok());
  EXPECT_TRUE(absl::IsOutOfRange(read)) << read;
  EXPECT_TRUE(absl::IsUnavailable(client.Resume(std::chrono::seconds(60))));
}

TEST(EngineServiceTest, ServerReportsThatItsConnectionEnded) {
  int control[2];
  MakeSocketPair(control);
  const auto region = *SharedRegion::Create(64, 4096);
  EngineService service(dup(region->fd()), nullptr);
  absl::Notification closed;
  const EngineServer server(control[1], &service, [&] { closed.Notify(); });
  close(control[0]);
  closed.WaitForNotification();
}

}  // namespace
}  // namespace resident
