// Counters and latency histograms of one operator version on one device.
//
// Written by the device's queue for each task or batch of completions; read by the
// metrics collector at any time. A reader may see a task in one counter and not yet
// in another; each counter by itself only rises.
//
// Thread safety: all members may be called from any thread. Counters are relaxed
// atomics: they order nothing.
#ifndef RESIDENT_RUNTIME_EXECUTOR_OPERATOR_STATS_H_
#define RESIDENT_RUNTIME_EXECUTOR_OPERATOR_STATS_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <string>

namespace resident {

// A histogram of durations: bucket b counts values of at most 2^b * 256 ns; the last
// one takes the rest.
class DurationHistogram {
 public:
  static constexpr int kBuckets = 24;  // 256 ns ... 2.1 s, then the rest.

  static constexpr uint64_t UpperBoundNs(int bucket) { return uint64_t{256} << bucket; }

  static int BucketOf(uint64_t ns) {
    const uint64_t units = ns == 0 ? 0 : (ns - 1) / 256;
    return units == 0 ? 0 : std::min<int>(64 - std::countl_zero(units), kBuckets - 1);
  }

  // Values gathered by one thread, to be added at once.
  struct Local {
    std::array<uint64_t, kBuckets> counts{};
    uint64_t sum_ns = 0;

    void Observe(uint64_t ns) {
      ++counts[BucketOf(ns)];
      sum_ns += ns;
    }
  };

  void Observe(uint64_t ns) {
    counts_[BucketOf(ns)].fetch_add(1, std::memory_order_relaxed);
    sum_ns_.fetch_add(ns, std::memory_order_relaxed);
  }

  void Add(const Local& local) {
    for (int b = 0; b < kBuckets; ++b) {
      if (local.counts[b] != 0) counts_[b].fetch_add(local.counts[b], std::memory_order_relaxed);
    }
    sum_ns_.fetch_add(local.sum_ns, std::memory_order_relaxed);
  }

  uint64_t count(int bucket) const { return counts_[bucket].load(std::memory_order_relaxed); }
  uint64_t sum_ns() const { return sum_ns_.load(std::memory_order_relaxed); }

  // The value that a share `p` (0 to 1) of all is not above, as far as buckets tell: within
  // its bucket it is taken to lie in proportion. 0: nothing was observed.
  uint64_t Percentile(double p) const {
    uint64_t all = 0;
    for (int b = 0; b < kBuckets; ++b) all += count(b);
    const double rank = p * static_cast<double>(all);
    double below = 0;
    for (int b = 0; b < kBuckets; ++b) {
      const double here = static_cast<double>(count(b));
      if (here > 0 && below + here >= rank) {
        const double low = b == 0 ? 0 : static_cast<double>(UpperBoundNs(b - 1));
        const double high = static_cast<double>(UpperBoundNs(b));
        return static_cast<uint64_t>(low + (high - low) * (rank - below) / here);
      }
      below += here;
    }
    return 0;
  }

 private:
  std::array<std::atomic<uint64_t>, kBuckets> counts_{};
  std::atomic<uint64_t> sum_ns_{0};
};

class OperatorStats {
 public:
  static constexpr int kStatuses = 7;  // Values of TaskStatus.

  OperatorStats(std::string name, uint32_t version) : name_(std::move(name)), version_(version) {}

  const std::string& name() const { return name_; }
  uint32_t version() const { return version_; }

  void CountTasks(int status, uint64_t count) {
    tasks_[status].fetch_add(count, std::memory_order_relaxed);
  }
  uint64_t tasks(int status) const { return tasks_[status].load(std::memory_order_relaxed); }
  // Tasks that have ended, and those of them that did not end OK.
  uint64_t all_tasks() const { return tasks(0) + failed_tasks(); }
  uint64_t failed_tasks() const {
    uint64_t sum = 0;
    for (int status = 1; status < kStatuses; ++status) sum += tasks(status);
    return sum;
  }

  // Time of a task on the device; of a batch from admission to the ring; of a batch
  // from admission to its last outcome.
  DurationHistogram device;
  DurationHistogram queued;
  DurationHistogram whole;

 private:
  const std::string name_;
  const uint32_t version_;
  std::array<std::atomic<uint64_t>, kStatuses> tasks_{};
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_EXECUTOR_OPERATOR_STATS_H_
