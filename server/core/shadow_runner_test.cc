// Callbacks of a queue's dispatch loop must not do the work of a twin; tested with blocked threads.
#include "server/core/shadow_runner.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <utility>

#include "absl/synchronization/notification.h"
#include "runtime/device/fake_device.h"
#include "runtime/operators/registry/registry.h"

namespace resident {
namespace {

// The session of an engine that has been replaced: a twin is not built once its epoch has been
// read.
class CountingSession : public FakeSession {
 public:
  CountingSession() : FakeSession(/*epoch=*/2, 1 << 20, 1 << 20) {}
  uint64_t epoch() const override {
    ++asked;
    return FakeSession::epoch();
  }
  mutable std::atomic<int> asked{0};
};

TEST(ShadowRunnerTest, TwinsAreNotMadeOnTheCallingThread) {
  auto registry = Registry::Create({.devices = 1, .test_operators = false});
  ASSERT_TRUE(registry.ok()) << registry.status();
  FakeDevice device;
  const auto session = std::make_shared<CountingSession>();
  device.set_session(session);
  WorkerPool after(1);
  absl::Notification go_on, done;
  ShadowRunner runner(**registry, {&device}, after,
                      [](const OperatorVersion&, uint64_t, uint64_t) {});
  after.Post([&] { go_on.WaitForNotification(); });

  auto batch = std::make_shared<RequestBatch>();
  batch->tasks.resize(1);
  batch->shadow = (*registry)->Resolve("add", 0)->version;
  runner.Run(std::move(batch), [&] { done.Notify(); });
  EXPECT_EQ(session->asked, 0);
  EXPECT_FALSE(done.HasBeenNotified());
  go_on.Notify();
  done.WaitForNotification();
  EXPECT_EQ(session->asked, 1);
}

}  // namespace
}  // namespace resident
