// Shared code of the tests of local lanes, with and without a GPU.
//
// Thread safety: functions without state.
#ifndef RESIDENT_TESTS_SUPPORT_LANE_TESTS_H_
#define RESIDENT_TESTS_SUPPORT_LANE_TESTS_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <utility>

#include "absl/status/statusor.h"

namespace resident::testing {

// The count, times the environment variable (default 1).
inline uint64_t Scaled(uint64_t count, const char* variable = "RESIDENT_TEST_LANE_SCALE") {
  const char* const scale = getenv(variable);
  return scale == nullptr ? count : count * static_cast<uint64_t>(std::max(1, atoi(scale)));
}

// The value; ends the test's process with the error if there is none.
template <typename T>
T Must(absl::StatusOr<T> value) {
  EXPECT_TRUE(value.ok()) << value.status();
  if (!value.ok()) std::abort();
  return *std::move(value);
}

}  // namespace resident::testing

#endif  // RESIDENT_TESTS_SUPPORT_LANE_TESTS_H_
