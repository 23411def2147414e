#include "server/console/history.h"

#include <atomic>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "runtime/base/fake_time.h"

namespace resident {
namespace {

using nlohmann::json;

TEST(HistoryTest, RatesOfTheLastTenMinutes) {
  FakeTime time;
  std::atomic<uint64_t> tasks{100};  // Before the history began: not counted.
  History history(
      [&] {
        const uint64_t done = tasks;
        return History::Totals{.tasks = done,
                               .received_bytes = 10 * done,
                               .sent_bytes = 20 * done,
                               .busy = {std::chrono::milliseconds(done), std::chrono::hours(done)}};
      },
      time);
  const auto advance = [&](std::chrono::nanoseconds by) {
    time.AwaitSleepers(1);
    time.Advance(by);
    time.AwaitSleepers(1);
  };
  time.AwaitSleepers(1);  // Its thread has read the first totals.
  EXPECT_EQ(json::parse(history.Json())["tasks"], json::array());
  tasks = 1100;
  advance(History::kInterval);
  advance(History::kInterval);
  json read = json::parse(history.Json());
  EXPECT_EQ(read["interval_s"], 2);
  EXPECT_EQ(read["tasks"], (json{500.0, 0.0}));
  EXPECT_EQ(read["received_bytes"], (json{5000.0, 0.0}));
  EXPECT_EQ(read["sent_bytes"], (json{10000.0, 0.0}));
  // A share is never above 1.
  EXPECT_EQ(read["busy"], (json{{0.5, 0.0}, {1.0, 0.0}}));
  // A late thread divides by the time that has passed.
  tasks = 2100;
  advance(2 * History::kInterval);
  EXPECT_EQ(json::parse(history.Json())["tasks"], (json{500.0, 0.0, 250.0}));
  for (size_t i = 0; i < History::kIntervals; ++i) advance(History::kInterval);
  read = json::parse(history.Json());
  EXPECT_EQ(read["tasks"].size(), History::kIntervals);
  EXPECT_EQ(read["tasks"][0], 0.0);
}

}  // namespace
}  // namespace resident
