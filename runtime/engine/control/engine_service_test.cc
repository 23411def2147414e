// What the engine's end of the control plane serves beside what: with an engine whose
// calls last until the test lets them go.
#include "runtime/engine/control/engine_service.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <thread>
#include <utility>

#include "absl/synchronization/notification.h"
#include "runtime/engine/control/descriptor_channel.h"

namespace resident {
namespace {

using std::chrono::milliseconds;

class SlowEngine : public Engine {
 public:
  absl::StatusOr<EngineInfo> Start(const SharedRegion&) override { return EngineInfo(); }
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
  absl::Status UnmapShared(uint64_t) override { return absl::OkStatus(); }
  absl::Status Health() override { return absl::OkStatus(); }
  milliseconds health_interval() const override { return milliseconds(7); }

  absl::Notification mapping, map_may_end, staging, stage_may_end;
};

// A park that is due must not wait for a client's memory to be pinned, nor for a generation
// to be staged: it would be taken for a hang.
TEST(EngineServiceTest, ParksBesideMappingAndStaging) {
  auto region = SharedRegion::Create(64, 4096);
  ASSERT_TRUE(region.ok()) << region.status();
  int sockets[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets), 0);
  auto* const engine = new SlowEngine;  // The service never destroys its engine.
  EngineService service(dup((*region)->fd()), sockets[1], [&](bool, const EngineOptions&) {
    return std::unique_ptr<Engine>(engine);
  });
  internal::StartRequest start;
  start.set_kind(internal::StartRequest::KIND_CPU);
  start.set_beat_every_ms(500);
  internal::StartResponse started;
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
  EXPECT_TRUE(service.UnmapShared(nullptr, &unmap, &unmapped).ok());
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

}  // namespace
}  // namespace resident
