// What the engine's end of the control plane serves beside what: with an engine whose
// calls last until the test lets them go.
#include "runtime/engine/control/engine_service.h"

#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/server_posix.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>

#include "absl/synchronization/notification.h"
#include "runtime/engine/control/descriptor_channel.h"
#include "runtime/engine/control/engine_client.h"
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
  absl::StatusOr<std::vector<OperatorResources>> Stage(std::shared_ptr<const Generation>) override {
    staging.Notify();
    stage_may_end.WaitForNotification();
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
  absl::Status UnmapShared(uint64_t address) override {
    EXPECT_EQ(address, 4096u);
    ++unmapped;
    return absl::OkStatus();
  }
  absl::Status Health() override { return absl::OkStatus(); }
  milliseconds health_interval() const override { return milliseconds(7); }

  absl::Notification mapping, map_may_end, staging, stage_may_end;
  std::atomic<int> unmapped{0};
};

// A park that is due must not wait for a client's memory to be pinned, nor for a generation
// to be staged: it would be taken for a hang.
TEST(EngineServiceTest, ParksBesideMappingAndStaging) {
  auto region = SharedRegion::Create(64, 4096);
  ASSERT_TRUE(region.ok()) << region.status();
  int sockets[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets), 0);
  auto* const engine = new SlowEngine;  // The service never destroys its engine.
  EngineService service(dup((*region)->fd()), sockets[1],
                        [&](int) { return std::unique_ptr<Engine>(engine); });
  internal::PrepareRequest prepare;
  internal::PrepareResponse prepared;
  internal::StartRequest start;
  start.set_beat_every_ms(500);
  internal::StartResponse started;
  EXPECT_EQ(service.Start(nullptr, &start, &started).error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
  ASSERT_TRUE(service.Prepare(nullptr, &prepare, &prepared).ok());
  EXPECT_GT(service.BeatEvery(), milliseconds(500));  // It may wait for long.
  EXPECT_EQ(service.Prepare(nullptr, &prepare, &prepared).error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
  ASSERT_TRUE(service.Start(nullptr, &start, &started).ok());
  EXPECT_EQ(service.BeatEvery(), milliseconds(7));

  const int object = memfd_create("object", MFD_CLOEXEC);
  ASSERT_TRUE(SendDescriptor(sockets[0], object, 1).ok());
  internal::MapSharedRequest map;
  map.set_token(1);
  internal::MapSharedResponse mapped;
  std::thread mapping([&] { EXPECT_TRUE(service.MapShared(nullptr, &map, &mapped).ok()); });
  engine->mapping.WaitForNotification();
  internal::StageRequest stage;
  internal::StageResponse staged;
  std::thread staging([&] { EXPECT_TRUE(service.Stage(nullptr, &stage, &staged).ok()); });
  engine->staging.WaitForNotification();

  const internal::AwaitParkRequest park;
  internal::AwaitParkResponse parked;
  EXPECT_TRUE(service.AwaitPark(nullptr, &park, &parked).ok());
  const internal::ResumeRequest resume;
  internal::ResumeResponse resumed;
  EXPECT_TRUE(service.Resume(nullptr, &resume, &resumed).ok());
  const internal::UnmapSharedRequest unmap;
  internal::UnmapSharedResponse unmapped;
  EXPECT_EQ(service.UnmapShared(nullptr, &unmap, &unmapped).error_code(),
            grpc::StatusCode::NOT_FOUND);
  EXPECT_TRUE(service.Beat().ok());

  engine->stage_may_end.Notify();
  engine->map_may_end.Notify();
  staging.join();
  mapping.join();
  EXPECT_EQ(mapped.address(), 4096u);
  close(object);
  close(sockets[0]);
  delete engine;
}

// Both ends, connected as two processes are.
class ControlPlane {
 public:
  explicit ControlPlane(milliseconds map_limit) {
    region_ = *SharedRegion::Create(64, 4096);
    int control[2], descriptors[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, control), 0);
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, descriptors), 0);
    service_ = std::make_unique<EngineService>(dup(region_->fd()), descriptors[1], [this](int) {
      return std::unique_ptr<Engine>(engine);
    });
    grpc::ServerBuilder builder;
    builder.RegisterService(service_.get());
    server_ = builder.BuildAndStart();
    grpc::AddInsecureChannelFromFd(server_.get(), control[1]);
    client = std::make_unique<EngineClient>(control[0], descriptors[0], map_limit);
    EXPECT_TRUE(client->Prepare(0, std::chrono::seconds(60)).ok());
    EXPECT_TRUE(client->Start(EngineOptions(), std::chrono::seconds(60)).ok());
  }
  ~ControlPlane() {
    client = nullptr;
    server_->Shutdown();
    server_->Wait();
    service_ = nullptr;
    delete engine;
  }

  SlowEngine* const engine = new SlowEngine;  // The service never destroys its engine.
  std::unique_ptr<EngineClient> client;

 private:
  std::unique_ptr<SharedRegion> region_;
  std::unique_ptr<EngineService> service_;
  std::unique_ptr<grpc::Server> server_;
};

// Pinning took longer than the caller waits: nobody holds the mapping that comes of it.
TEST(EngineServiceTest, MappingThatIsCompletedTooLateIsUndone) {
  ControlPlane plane(milliseconds(100));
  const int object = memfd_create("object", MFD_CLOEXEC);
  const auto mapping = plane.client->MapShared(object, 4096);
  EXPECT_EQ(mapping.status().code(), absl::StatusCode::kDeadlineExceeded) << mapping.status();
  EXPECT_EQ(plane.engine->unmapped, 0);
  plane.engine->map_may_end.Notify();
  EXPECT_TRUE(testing::Eventually([&] { return plane.engine->unmapped == 1; }));
  close(object);
}

TEST(EngineServiceTest, MappingIsReleasedByItsNumber) {
  ControlPlane plane(EngineClient::kMapLimit);
  plane.engine->map_may_end.Notify();
  const int object = memfd_create("object", MFD_CLOEXEC);
  const auto mapping = plane.client->MapShared(object, 4096);
  ASSERT_TRUE(mapping.ok()) << mapping.status();
  EXPECT_EQ(mapping->address, 4096u);
  plane.client->StartUnmapShared(mapping->id);
  EXPECT_TRUE(testing::Eventually([&] { return plane.engine->unmapped == 1; }));
  close(object);
}

// Whoever started a call looks for its answer; nobody has to wait for it.
TEST(EngineServiceTest, StartedCallsAreAnsweredOrCancelled) {
  ControlPlane plane(EngineClient::kMapLimit);
  std::atomic<int> answers{0};
  const auto resume =
      plane.client->StartResume(std::chrono::seconds(60), [&answers] { ++answers; });
  EXPECT_TRUE(testing::Eventually([&] { return answers == 1; }));
  ASSERT_TRUE(resume->answered());
  EXPECT_TRUE(resume->answer().ok()) << resume->answer().status();
}

}  // namespace
}  // namespace resident
