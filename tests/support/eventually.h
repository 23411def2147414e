// Eventually: waits for a state in tests, instead of a fixed time.
//
//   ASSERT_TRUE(Eventually([&] { return daemon.engine_pid() != 0; }));
#ifndef RESIDENT_TESTS_SUPPORT_EVENTUALLY_H_
#define RESIDENT_TESTS_SUPPORT_EVENTUALLY_H_

#include <chrono>
#include <thread>

namespace resident::testing {

// Waits until the condition holds; false after a minute.
template <typename Condition>
bool Eventually(const Condition& condition) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace resident::testing

#endif  // RESIDENT_TESTS_SUPPORT_EVENTUALLY_H_
