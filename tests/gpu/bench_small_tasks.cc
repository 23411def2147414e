#include "tests/gpu/bench_small_tasks.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/layout/task.h"

namespace resident::testing {
namespace {

using Clock = std::chrono::steady_clock;
using Nanos = std::chrono::duration<double, std::nano>;

constexpr uint32_t kAdds = 10'000;
constexpr uint64_t kSmallest = 256;
constexpr uint64_t kLargest = 16'384;
constexpr uint32_t kSums = 1'000;
constexpr double kAlpha = 1.5;

// One range, as a slot of the ring.
struct RangeSlot {
  RangeDescriptor descriptor{};
  std::vector<Argument> arguments;  // None for tasks in compact form.
  std::vector<RangeColumn> columns;
};

class SmallTasks {
 public:
  SmallTasks(const EngineHarness& harness, HostRing& ring, DeviceTasks& device, BenchReport& report,
             int rounds)
      : workers_(harness.info().workers),
        ring_(ring),
        device_(device),
        report_(report),
        rounds_(rounds),
        outcomes_(device.Memory(kAdds * sizeof(RangeOutcome))) {}

  void Adds() {
    std::vector<RangeSlot> ranges;
    std::vector<Vectors> vectors;
    uint32_t left = kAdds;
    uint32_t sizes = std::bit_width(kLargest / kSmallest);
    // The largest first, so that no block is busy long after the others.
    for (uint64_t elements = kLargest; elements >= kSmallest; elements /= 2, --sizes) {
      const uint32_t count = left / sizes;
      left -= count;
      Vectors& own = vectors.emplace_back();
      own.x = Random(elements * count);
      own.y = Random(elements * count);
      own.out = Poison(elements * count);
      const uint64_t bytes = elements * 4;
      const uint64_t x = Upload(own.x);
      RangeSlot range = NewRange("add", count);
      range.descriptor.flags |= kTaskCompact;
      range.descriptor.elements = elements;
      range.descriptor.inputs = 0b0011;
      range.columns = {{x, bytes, 0, 0},
                       {Upload(own.y), bytes, 0, 0},
                       {own.out, bytes, 0, 0},
                       {Bits(kAlpha), 0, 0, 0}};
      range.descriptor.arguments = 4;
      ranges.push_back(range);
    }
    Measure(absl::StrCat("10,000 adds of ", kSmallest, " to ", kLargest, " elements, a task"),
            ranges, kAdds);
    for (const Vectors& own : vectors) {
      std::vector<double> expected(own.x.size());
      for (size_t i = 0; i < expected.size(); ++i) {
        expected[i] = static_cast<double>(own.x[i]) + kAlpha * static_cast<double>(own.y[i]);
      }
      Check("add", expected, own.out, 1e-6);
    }
  }

  void Sums(int64_t rows, int64_t columns) {
    const uint64_t elements = static_cast<uint64_t>(rows * columns);
    const std::vector<float> x = Random(elements * kSums);
    const uint64_t out = Poison(static_cast<uint64_t>(rows) * kSums);
    RangeSlot range = NewRange("sum", kSums);
    range.arguments = {DenseTensor(0, DType::kF32, {rows, columns}),
                       DenseTensor(0, DType::kF32, {rows}), Scalar(0)};
    range.columns = {{Upload(x), elements * 4, 0, 0},
                     {out, static_cast<uint64_t>(rows) * 4, 0, 0},
                     {0b10, 0, 0, 0}};  // The last axis.
    range.descriptor.arguments = 3;
    Measure(
        absl::StrCat("1,000 sums over the last dimension of (", rows, ", ", columns, "), a task"),
        {range}, kSums);
    std::vector<double> expected(static_cast<size_t>(rows) * kSums);
    for (size_t i = 0; i < x.size(); ++i) {
      expected[i / static_cast<size_t>(columns)] += static_cast<double>(x[i]);
    }
    Check("sum", expected, out, 1e-5);
  }

 private:
  struct Vectors {
    std::vector<float> x;
    std::vector<float> y;
    uint64_t out = 0;
  };

  std::vector<float> Random(uint64_t count) {
    // A repeated pattern of a prime length, which takes less time than random numbers for all.
    if (pattern_.empty()) {
      std::normal_distribution<float> normal;
      pattern_.resize(1'000'003);
      for (float& value : pattern_) value = normal(random_);
    }
    std::vector<float> values(count);
    size_t at = random_() % pattern_.size();
    for (float& value : values) {
      value = pattern_[at];
      if (++at == pattern_.size()) at = 0;
    }
    return values;
  }
  uint64_t Upload(const std::vector<float>& values) {
    return device_.Upload(values.data(), values.size() * sizeof(float));
  }
  uint64_t Poison(uint64_t count) { return Upload(std::vector<float>(count, 1e30f)); }

  RangeSlot NewRange(const std::string& op, uint32_t count) {
    RangeSlot range;
    range.descriptor.operator_slot = static_cast<u16>(OperatorSlot(op));
    range.descriptor.flags = kTaskRange;
    range.descriptor.count = count;
    range.descriptor.claim = std::min(kMaxRangeClaim, count / (4 * workers_) + 1);
    range.descriptor.max_blocks = kMaxTaskBlocks;
    range.descriptor.outcomes = outcomes_;
    return range;
  }

  void Publish(const RangeSlot& range) {
    const uint64_t sequence = *ring_.Reserve();
    ArgumentBlock* const block = ring_.arguments(sequence);
    std::memset(static_cast<void*>(block), 0, sizeof(*block));
    std::ranges::copy(range.arguments, block->arguments);
    std::ranges::copy(range.columns, ColumnsOf(block, range.descriptor.arguments));
    ring_.Publish(sequence, std::bit_cast<TaskDescriptor>(range.descriptor));
  }

  void Measure(const std::string& what, const std::vector<RangeSlot>& ranges, uint32_t tasks) {
    std::vector<double> ns;
    for (int round = 0; round < rounds_ + 2; ++round) {
      const auto start = Clock::now();
      for (const RangeSlot& range : ranges) Publish(range);
      size_t done = 0;
      uint32_t failed = 0;
      while (done < ranges.size()) {
        done += ring_.Consume([&](uint64_t, const TaskCompletion& completion) {
          uint32_t of_range = 0;
          std::memcpy(&of_range, completion.result, sizeof(of_range));
          failed += of_range + static_cast<uint32_t>(completion.status);
        });
      }
      if (round >= 2) ns.push_back(Nanos(Clock::now() - start).count() / tasks);
      if (failed != 0) Fail(absl::StrCat(what, ": ", failed, " tasks failed"));
    }
    report_.Add(what, Percentile(ns, 0.5), "ns");
  }

  void Check(const std::string& op, const std::vector<double>& expected, uint64_t out,
             double limit) {
    std::vector<float> got(expected.size());
    device_.Download(got.data(), out, got.size() * sizeof(float));
    double error = 0;
    double norm = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      const double difference = static_cast<double>(got[i]) - expected[i];
      error += difference * difference;
      norm += expected[i] * expected[i];
    }
    const double relative = std::sqrt(error / norm);
    if (!(relative < limit)) Fail(absl::StrCat(op, " is wrong: relative error ", relative));
  }

  const uint32_t workers_;
  HostRing& ring_;
  DeviceTasks& device_;
  BenchReport& report_;
  const int rounds_;
  // Nothing is written there, because no task fails and no times are asked for.
  const uint64_t outcomes_;
  std::mt19937 random_{std::random_device{}()};
  std::vector<float> pattern_;
};

}  // namespace

void BenchSmallTasks(const EngineHarness& harness, HostRing& ring, DeviceTasks& device,
                     BenchReport& report, int rounds) {
  SmallTasks tasks(harness, ring, device, report, rounds);
  tasks.Adds();
  tasks.Sums(8, 256);
  tasks.Sums(32, 128);
  tasks.Sums(64, 512);
  tasks.Sums(128, 1024);
}

}  // namespace resident::testing
