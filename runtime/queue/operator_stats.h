// Counters and latency histograms of one operator version on one device.
//
// Written by the device's queue for each task or batch of completions; read by the
// metrics collector at any time. A reader may see a task in one counter and not yet
// in another. No counter ever decreases.
//
// Thread safety: all members may be called from any thread. Counters are relaxed
// atomics, so they do not order other memory accesses.
#ifndef RESIDENT_RUNTIME_QUEUE_OPERATOR_STATS_H_
#define RESIDENT_RUNTIME_QUEUE_OPERATOR_STATS_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <string>
#include <utility>

namespace resident {

// A histogram of durations: bucket b counts values of at most 2^b * 256 ns; the last
// bucket counts all longer ones. Each bucket is divided into eight parts of equal width, so that a
// percentile is exact to a few percent: with whole buckets, 3 % more time could look like twice as
// much.
class DurationHistogram {
 public:
  static constexpr int kBuckets = 24;  // 256 ns ... 1.07 s, then the rest.

  static constexpr uint64_t UpperBoundNs(int bucket) { return uint64_t{256} << bucket; }

  static int FindBucket(uint64_t ns) {
    const uint64_t units = ns == 0 ? 0 : (ns - 1) / 256;
    return units == 0 ? 0 : std::min<int>(64 - std::countl_zero(units), kBuckets - 1);
  }

  // Values collected by one thread, to be added together.
  struct Local {
    std::array<uint32_t, kBuckets * 8> counts{};  // A batch has fewer than 2^32 tasks.
    uint64_t sum_ns = 0;

    void Observe(uint64_t ns) {
      ++counts[FindPart(ns)];
      sum_ns += ns;
    }
  };

  // `count` values of `ns`.
  void Observe(uint64_t ns, uint64_t count = 1) {
    counts_[FindPart(ns)].fetch_add(count, std::memory_order_relaxed);
    sum_ns_.fetch_add(count * ns, std::memory_order_relaxed);
  }

  void Add(const Local& local) {
    for (int part = 0; part < kParts; ++part) {
      if (local.counts[part] != 0) {
        counts_[part].fetch_add(local.counts[part], std::memory_order_relaxed);
      }
    }
    sum_ns_.fetch_add(local.sum_ns, std::memory_order_relaxed);
  }

  uint64_t count(int bucket) const {
    uint64_t sum = 0;
    for (int part = 8 * bucket; part < 8 * bucket + 8; ++part) sum += part_count(part);
    return sum;
  }
  uint64_t sum_ns() const { return sum_ns_.load(std::memory_order_relaxed); }

  // The number of values in each part of each bucket.
  using Counts = std::array<uint64_t, kBuckets * 8>;
  Counts counts() const {
    Counts counts;
    for (int part = 0; part < kParts; ++part) counts[part] = part_count(part);
    return counts;
  }

  // The value that a share `p` (0 to 1) of all values does not exceed, interpolated linearly
  // within its part of a bucket. Values that were counted in `earlier` are left out. 0: there are
  // no values.
  uint64_t Percentile(double p, const Counts& earlier = {}) const {
    Counts counts = this->counts();
    uint64_t all = 0;
    for (int part = 0; part < kParts; ++part) all += counts[part] -= earlier[part];
    const double rank = p * static_cast<double>(all);
    double below = 0;
    for (int part = 0; part < kParts; ++part) {
      const double here = static_cast<double>(counts[part]);
      if (here > 0 && below + here >= rank) {
        const double low = static_cast<double>(LowerBoundNs(part));
        return static_cast<uint64_t>(low + static_cast<double>(WidthNs(part / 8)) * (rank - below) /
                                               here);
      }
      below += here;
    }
    return 0;
  }

 private:
  static constexpr int kParts = kBuckets * 8;

  // Width of each part of a bucket. The first bucket begins at 0, the others at half their bound.
  static constexpr uint64_t WidthNs(int bucket) {
    return UpperBoundNs(bucket) / (bucket == 0 ? 8 : 16);
  }
  static constexpr uint64_t LowerBoundNs(int part) {
    const int bucket = part / 8;
    return (bucket == 0 ? 0 : UpperBoundNs(bucket - 1)) + (part % 8) * WidthNs(bucket);
  }
  static int FindPart(uint64_t ns) {
    const int bucket = FindBucket(ns);
    const uint64_t above = ns - std::min(ns, LowerBoundNs(8 * bucket));
    const uint64_t part = above == 0 ? 0 : (above - 1) / WidthNs(bucket);
    return 8 * bucket + static_cast<int>(std::min<uint64_t>(part, 7));
  }
  uint64_t part_count(int part) const { return counts_[part].load(std::memory_order_relaxed); }

  std::array<std::atomic<uint64_t>, kParts> counts_{};
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
  // Tasks that have ended, and those that ended with another status than OK.
  uint64_t all_tasks() const { return tasks(0) + failed_tasks(); }
  uint64_t failed_tasks() const {
    uint64_t sum = 0;
    for (int status = 1; status < kStatuses; ++status) sum += tasks(status);
    return sum;
  }

  DurationHistogram device;  // Time of a task on the device.
  DurationHistogram queued;  // Time of a batch from admission to its first submission.
  DurationHistogram whole;   // Time of a batch from admission to its last outcome.

 private:
  const std::string name_;
  const uint32_t version_;
  std::array<std::atomic<uint64_t>, kStatuses> tasks_{};
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_QUEUE_OPERATOR_STATS_H_
