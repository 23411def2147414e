#include "kernels/sdk/atomic.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace resident {
namespace {

constexpr int kThreads = 4;
constexpr int kRounds = 20'000;

template <typename F>
void OnThreads(F f) {
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) threads.emplace_back([=] { f(t); });
  for (std::thread& thread : threads) thread.join();
}

template <typename T>
class AtomicTest : public ::testing::Test {};

using Types = ::testing::Types<float, double, i32, u32, i64, u64>;
TYPED_TEST_SUITE(AtomicTest, Types);

TYPED_TEST(AtomicTest, NoAdditionIsLost) {
  TypeParam sum = 5;
  OnThreads([&](int) {
    for (int i = 0; i < kRounds; ++i) atomic_add(&sum, TypeParam{3});
  });
  EXPECT_EQ(sum, TypeParam(5 + 3 * kThreads * kRounds));
  EXPECT_EQ(atomic_add(&sum, TypeParam{1}), TypeParam(5 + 3 * kThreads * kRounds));
}

TYPED_TEST(AtomicTest, TheLargestAndTheSmallestValuesAreKept) {
  TypeParam largest = 0, smallest = 100'000'000;
  OnThreads([&](int t) {
    for (int i = 0; i < kRounds; ++i) {
      atomic_max(&largest, TypeParam(i * kThreads + t));
      atomic_min(&smallest, TypeParam(7 + i * kThreads + t));
    }
  });
  EXPECT_EQ(largest, TypeParam(kRounds * kThreads - 1));
  EXPECT_EQ(smallest, TypeParam(7));
  EXPECT_EQ(atomic_max(&largest, TypeParam{1}), TypeParam(kRounds * kThreads - 1));
}

TEST(AtomicTest, NegativeValuesCanBeAdded) {
  i32 small = 2;
  i64 large = 2;
  EXPECT_EQ(atomic_add(&small, -5), 2);
  EXPECT_EQ(atomic_add(&large, i64{-5}), 2);
  EXPECT_EQ(small, -3);
  EXPECT_EQ(large, -3);
  EXPECT_EQ(atomic_min(&small, -7), -3);
  EXPECT_EQ(small, -7);
}

}  // namespace
}  // namespace resident
