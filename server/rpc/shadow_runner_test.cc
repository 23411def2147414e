// What the dispatch loop of a queue calls must not do the work of a twin: with threads that are
// held up.
#include "server/rpc/shadow_runner.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <utility>

#include "absl/synchronization/notification.h"
#include "runtime/operators/registry/registry.h"
#include "server/workload/fake_device.h"

namespace resident {
namespace {

class CountingDevice : public FakeDevice {
 public:
  CountingDevice() : FakeDevice(0, 1 << 20, 1 << 20) {}
  std::shared_ptr<EngineSession> session() override {
    ++asked;
    return nullptr;
  }
  std::atomic<int> asked{0};
};

TEST(ShadowRunnerTest, TwinsAreNotMadeOnTheCallingThread) {
  auto registry = Registry::Create({.devices = 1, .test_operators = false});
  ASSERT_TRUE(registry.ok()) << registry.status();
  CountingDevice device;
  WorkerPool after(1);
  absl::Notification go_on, done;
  ShadowRunner runner(registry->get(), {&device}, &after,
                      [](const OperatorVersion&, uint64_t, uint64_t) {});
  after.Post([&] { go_on.WaitForNotification(); });

  auto batch = std::make_shared<RequestBatch>();
  batch->tasks.resize(1);
  batch->shadow = (*registry)->Resolve("add", 0)->version;
  runner.Run(std::move(batch), [&] { done.Notify(); });
  EXPECT_EQ(device.asked, 0);
  EXPECT_FALSE(done.HasBeenNotified());
  go_on.Notify();
  done.WaitForNotification();
  EXPECT_EQ(device.asked, 1);
}

}  // namespace
}  // namespace resident
