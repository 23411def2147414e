// The events that keep gRPC's threads awake are made, and end at any time.
#include "server/connections/callback_threads.h"

#include "gtest/gtest.h"
#include "tests/support/eventually.h"

namespace resident {
namespace {

using ::resident::testing::Eventually;

TEST(CallbackThreadsTest, MakesEvents) {
  const CallbackThreads threads;
  EXPECT_TRUE(Eventually([&] { return threads.events() >= 3; }));
}

// As a daemon that ends while it starts.
TEST(CallbackThreadsTest, EndsAtAnyTime) {
  for (int i = 0; i < 20; ++i) {
    const CallbackThreads threads;
    if (i % 2 == 0) {
      EXPECT_TRUE(Eventually([&] { return threads.events() > 0; }));
    }
  }
}

}  // namespace
}  // namespace resident
