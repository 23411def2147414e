// QueueTest: the base of tests of a DeviceQueue with a real engine in this process, which
// RESIDENT_TEST_ENGINE selects.
//
// One engine serves all tests of a suite, because a GPU takes long to start. Each test creates a
// new ring; the engine is parked between two tests.
//
//   class MyTest : public QueueTest {
//    protected:
//     static void SetUpTestSuite() { StartEngine({}); }
//   };
#ifndef RESIDENT_TESTS_SUPPORT_QUEUE_TEST_H_
#define RESIDENT_TESTS_SUPPORT_QUEUE_TEST_H_

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <memory>

#include "absl/synchronization/notification.h"
#include "runtime/queue/device_queue.h"
#include "tests/support/engine_harness.h"

namespace resident::testing {

class QueueTest : public ::testing::Test {
 protected:
  static void StartEngine(const EngineHarness::Options& options) {
    harness_ = new EngineHarness(options);
  }
  static void TearDownTestSuite() {
    delete harness_;
    harness_ = nullptr;
  }

  void SetUp() override {
    epoch_ = queue_.SetRing(harness_->NewRing());
    queue_.AddClient(1);
    queue_.AddClient(2);
  }

  void TearDown() override {
    // Parks, so that the next ring starts where this one ended.
    ASSERT_TRUE(queue_.BeginPark().ok());
    ASSERT_TRUE(harness_->engine().AwaitPark(std::chrono::seconds(60)).ok());
    ASSERT_TRUE(harness_->engine().Resume().ok());
  }

  // A batch, and its end.
  struct Pending {
    std::shared_ptr<Batch> batch = std::make_shared<Batch>();
    absl::Notification done;
    void Wait() { done.WaitForNotification(); }
  };

  std::shared_ptr<Pending> NewBatch() {
    auto pending = std::make_shared<Pending>();
    Prepare(*pending);
    return pending;
  }
  // Sets what a batch of the current ring needs.
  void Prepare(Pending& pending) {
    pending.batch->epoch = epoch_;
    pending.batch->done = [&pending](Batch&) { pending.done.Notify(); };
  }

  static inline EngineHarness* harness_ = nullptr;
  DeviceQueue queue_{DeviceQueue::Options{}};
  uint64_t epoch_ = 0;
};

}  // namespace resident::testing

#endif  // RESIDENT_TESTS_SUPPORT_QUEUE_TEST_H_
