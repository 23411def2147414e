#include "runtime/queue/operator_stats.h"

#include "gtest/gtest.h"

namespace resident {
namespace {

TEST(DurationHistogramTest, AValueIsCountedInTheSmallestBucketWhoseBoundItDoesNotExceed) {
  DurationHistogram histogram;
  uint64_t sum = 0;
  for (int bucket = 0; bucket + 1 < DurationHistogram::kBuckets; ++bucket) {
    const uint64_t bound = DurationHistogram::UpperBoundNs(bucket);
    for (const uint64_t ns : {bound, bound / 2 + 1}) {
      histogram.Observe(ns);
      sum += ns;
    }
    EXPECT_EQ(histogram.count(bucket), 2u) << bucket;
  }
  histogram.Observe(UINT64_MAX / 2);
  EXPECT_EQ(histogram.count(DurationHistogram::kBuckets - 1), 1u);
  EXPECT_EQ(histogram.sum_ns(), sum + UINT64_MAX / 2);
}

TEST(DurationHistogramTest, AddingALocalCountsTheSameAsObservingEachValue) {
  DurationHistogram one, other;
  DurationHistogram::Local local;
  for (uint64_t ns = 1; ns < 1'000'000; ns += 977) {
    one.Observe(ns);
    local.Observe(ns);
  }
  other.Add(local);
  for (int b = 0; b < DurationHistogram::kBuckets; ++b) EXPECT_EQ(one.count(b), other.count(b));
  EXPECT_EQ(one.sum_ns(), other.sum_ns());
  EXPECT_EQ(one.Percentile(0.9), other.Percentile(0.9));
}

TEST(DurationHistogramTest, PercentilesAreExactToAFewPercent) {
  for (const uint64_t typical : {300u, 900u, 1000u, 1025u, 5000u, 123'456u, 50'000'000u}) {
    DurationHistogram histogram;
    for (int i = 0; i < 980; ++i) histogram.Observe(typical);
    for (int i = 0; i < 20; ++i) histogram.Observe(3 * typical);
    const double p50 = static_cast<double>(histogram.Percentile(0.5));
    const double p99 = static_cast<double>(histogram.Percentile(0.99));
    EXPECT_NEAR(p50 / typical, 1, 0.13) << typical;
    EXPECT_NEAR(p99 / (3 * typical), 1, 0.13) << typical;
  }
}

// A bake compares two versions' p99. A bucket's bound between the two values must not make a
// small difference look like a regression.
TEST(DurationHistogramTest, ALittleMoreTimeDoesNotLookLikeTwiceAsMuch) {
  for (uint64_t bound = 1024; bound < 1'000'000; bound *= 2) {
    DurationHistogram before, after;
    for (int i = 0; i < 1000; ++i) {
      before.Observe(bound - bound / 50);
      after.Observe(bound + bound / 50);
    }
    const double ratio =
        static_cast<double>(after.Percentile(0.99)) / static_cast<double>(before.Percentile(0.99));
    EXPECT_GE(ratio, 1) << bound;
    EXPECT_LE(ratio, 1.25) << bound;
  }
}

TEST(DurationHistogramTest, APercentileCanLeaveOutEarlierValues) {
  DurationHistogram histogram, later;
  for (int i = 0; i < 1000; ++i) histogram.Observe(1'000'000);
  const DurationHistogram::Counts earlier = histogram.counts();
  EXPECT_EQ(histogram.Percentile(0.99, earlier), 0u);
  for (uint64_t ns = 1000; ns < 9000; ns += 10) {
    histogram.Observe(ns);
    later.Observe(ns);
  }
  EXPECT_EQ(histogram.Percentile(0.99, earlier), later.Percentile(0.99));
  EXPECT_GT(histogram.Percentile(0.99), 900'000u);
}

TEST(DurationHistogramTest, NothingObservedHasNoPercentile) {
  EXPECT_EQ(DurationHistogram().Percentile(0.99), 0u);
}

}  // namespace
}  // namespace resident
