// Compares the resident kernel with launches and graphs, in one run.
//
//   bench_resident --out=FILE.json                (tests/gpu/run runs all)
//   bench_resident --graphs --out=FILE.json       task graphs instead (bench_graphs.h)
//   bench_resident --generation --out=FILE.json   changes of generation (bench_generation.h)
//   bench_resident --recovery --out=FILE.json     kills of the engine (bench_recovery.h)
//   bench_resident --stops --out=FILE.json        stops of tasks (bench_recovery.h)
//
// Prints a table of our figure, the baseline's and their ratio, and writes the raw figures
// as JSON. Every result is compared with a float64 reference on new random inputs, with
// poisoned outputs; a wrong one ends the program with status 1. Speed never does.
#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "runtime/engine/generation.h"
#include "runtime/queue/device_queue.h"
#include "tests/gpu/bench_flux.h"
#include "tests/gpu/bench_generation.h"
#include "tests/gpu/bench_graphs.h"
#include "tests/gpu/bench_recovery.h"
#include "tests/gpu/bench_small_tasks.h"
#include "tests/gpu/cuda_baselines.h"
#include "tests/gpu/device_tasks.h"
#include "tests/support/bench_report.h"
#include "tests/support/engine_harness.h"

ABSL_FLAG(std::string, out, "", "file for the raw figures, as JSON");
ABSL_FLAG(uint32_t, threads_per_block, 0, "the daemon's flag");
ABSL_FLAG(uint32_t, blocks_per_sm, 0, "the daemon's flag");
ABSL_FLAG(bool, graphs, false, "measure task graphs");
ABSL_FLAG(bool, generation, false, "measure changes of generation");
ABSL_FLAG(bool, recovery, false, "measure kills of the engine");
ABSL_FLAG(bool, stops, false, "measure stops of tasks");
ABSL_FLAG(bool, cpu, false, "with --graphs: the CPU engine and a small model, for a trial");
ABSL_FLAG(std::string, only, "",
          "parts to run: lone, burst, sustained, ranges, small, sides, wide, flux; with --graphs: "
          "empty, chain, decode, quantized, texts, beside; all by default");
ABSL_FLAG(std::string, gtest_output, "", "ignored: tests/gpu/run gives it to every check");
ABSL_FLAG(bool, quick, false, "fewer rounds, for a quick try");

namespace resident::testing {
namespace {

using Micros = std::chrono::duration<double, std::micro>;

constexpr uint64_t kN = 1024;
constexpr uint64_t kVectorBytes = kN * 4;

bool Selected(const std::string& part) {
  const std::string& only = absl::GetFlag(FLAGS_only);
  return only.empty() || only.find(part) != std::string::npos;
}

class Bench {
 public:
  Bench(EngineHarness* harness, BenchReport* report)
      : harness_(*harness), report_(*report), ring_(harness->NewRing()) {}

  void Run(const Baselines& baselines, bool native_flux) {
    if (Selected("lone")) LoneTask(baselines);
    if (Selected("burst")) Burst();
    if (Selected("sustained")) Sustained(baselines);
    if (Selected("ranges")) {
      Ranges(64, uint64_t{1} << 20);
      Ranges(1024, uint64_t{1} << 17);
    }
    if (Selected("small")) BenchSmallTasks(harness_, *ring_, device_, report_, Rounds(20));
    if (Selected("sides")) Sides();
    if (Selected("wide")) {
      Wide(baselines);
      SmallWide();
    }
    if (Selected("flux")) BenchFlux(device_, report_, Rounds(10), native_flux);
  }

 private:
  int Rounds(int rounds) const { return absl::GetFlag(FLAGS_quick) ? rounds / 10 + 1 : rounds; }

  // Creates `count` vectors in device memory with random contents; returns their address
  // and sets `values`.
  uint64_t RandomVectors(uint64_t count, std::vector<float>* values) {
    std::normal_distribution<float> normal;
    values->resize(count * kN);
    for (float& v : *values) v = normal(random_);
    return device_.Upload(values->data(), values->size() * 4);
  }

  void CheckAdd(const std::vector<float>& x, const std::vector<float>& y, double alpha,
                uint64_t out) {
    std::vector<float> got(x.size());
    device_.Download(got.data(), out, got.size() * 4);
    double error = 0, norm = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const double expected = static_cast<double>(x[i]) + alpha * static_cast<double>(y[i]);
      error += (got[i] - expected) * (got[i] - expected);
      norm += expected * expected;
    }
    const double relative = std::sqrt(error / norm);
    if (!(relative < 1e-6)) Fail(absl::StrCat("add is wrong: relative error ", relative));
  }

  void LoneTask(const Baselines& baselines) {
    std::vector<float> x, y, poison(kN, 1e30f);
    const uint64_t xa = RandomVectors(1, &x), ya = RandomVectors(1, &y);
    const uint64_t out = device_.Upload(poison.data(), kVectorBytes);
    TaskDescriptor task = CompactTask(OperatorSlot("add"), kN, {xa, ya, out, Bits(0.5)});
    task.flags |= kTaskDeviceOutputs;
    std::vector<double> us, device_us;
    for (int i = 0; i < Rounds(50'000); ++i) {
      const auto start = Clock::now();
      const TaskCompletion completion = device_.RunTask(task);
      const double took = Micros(Clock::now() - start).count();
      if (i >= 500) {
        us.push_back(took);
        device_us.push_back(completion.duration_ns / 1e3);
      }
    }
    CheckAdd(x, y, 0.5, out);
    const double p50 = Percentile(us, 0.5);
    report_.Add("lone add of 1,024, round trip, p50", p50, "us", "launch + synchronize",
                Percentile(baselines.launch_us, 0.5));
    report_.Add("lone add of 1,024, round trip, p50", p50, "us", "launch + mapped flag",
                Percentile(baselines.launch_flag_us, 0.5));
    report_.Add("lone add of 1,024, round trip, p50", p50, "us", "graph of one node",
                Percentile(baselines.graph_one_us, 0.5));
    report_.Add("lone add of 1,024, round trip, p99", Percentile(us, 0.99), "us",
                "graph of one node, p99", Percentile(baselines.graph_one_us, 0.99));
    report_.Add("lone add of 1,024, on the device, p50", Percentile(device_us, 0.5), "us");
  }

  void Burst() {
    constexpr int kBurst = 64;
    std::vector<float> x, y, poison(kBurst * kN, 1e30f);
    const uint64_t xa = RandomVectors(kBurst, &x), ya = RandomVectors(kBurst, &y);
    const uint64_t out = device_.Upload(poison.data(), poison.size() * 4);
    std::vector<TaskDescriptor> tasks;
    for (uint64_t i = 0; i < kBurst; ++i) {
      tasks.push_back(CompactTask(
          OperatorSlot("add"), kN,
          {xa + i * kVectorBytes, ya + i * kVectorBytes, out + i * kVectorBytes, Bits(2.0)}));
    }
    std::vector<double> us;
    for (int i = 0; i < Rounds(5000); ++i) {
      const auto start = Clock::now();
      for (const auto& task : tasks) ring_->Publish(*ring_->Reserve(), task);
      uint32_t done = 0;
      while (done < kBurst) done += ring_->Consume([](uint64_t, const TaskCompletion&) {});
      if (i >= 100) us.push_back(Micros(Clock::now() - start).count());
    }
    CheckAdd(x, y, 2.0, out);
    report_.Add("burst of 64 adds, first submit to last done, p50", Percentile(us, 0.5), "us");
    report_.Add("burst of 64 adds, first submit to last done, p99", Percentile(us, 0.99), "us");
  }

  void Sustained(const Baselines& baselines) {
    constexpr uint64_t kSets = 8192;  // 96 MiB of distinct buffers: more than the L2 cache.
    std::vector<float> x, y, poison(kSets * kN, 1e30f);
    const uint64_t xa = RandomVectors(kSets, &x), ya = RandomVectors(kSets, &y);
    const uint64_t out = device_.Upload(poison.data(), poison.size() * 4);
    std::vector<TaskDescriptor> tasks;
    for (uint64_t i = 0; i < kSets; ++i) {
      tasks.push_back(CompactTask(
          OperatorSlot("add"), kN,
          {xa + i * kVectorBytes, ya + i * kVectorBytes, out + i * kVectorBytes, Bits(1.5)}));
      tasks.back().flags |= kTaskDeviceOutputs;
    }
    std::vector<double> per_s;
    for (int round = 0; round < 7; ++round) {
      const double rate = MeasureSingle(tasks, static_cast<uint64_t>(Rounds(2'000'000)));
      if (round >= 2) per_s.push_back(rate);
    }
    CheckAdd(x, y, 1.5, out);
    report_.Add("sustained adds of 1,024, distinct buffers", Percentile(per_s, 0.5), "tasks/s",
                "graph of 1,000 independent", baselines.graph_independent_per_s);
    report_.Add("sustained adds of 1,024, distinct buffers", Percentile(per_s, 0.5), "tasks/s",
                "launches on one stream", baselines.launches_per_s);
  }

  // The rate of single tasks from a ring that is kept full.
  double MeasureSingle(const std::vector<TaskDescriptor>& tasks, uint64_t total) {
    uint64_t submitted = 0, done = 0;
    const auto start = Clock::now();
    while (done < total) {
      // Submits a few at a time, so that completions are consumed while the ring fills.
      for (int i = 0; i < 64 && submitted < total; ++i) {
        const std::optional<uint64_t> sequence = ring_->Reserve();
        if (!sequence) break;
        ring_->Publish(*sequence, tasks[submitted % tasks.size()]);
        ++submitted;
      }
      done += ring_->Consume([](uint64_t, const TaskCompletion&) {}, 1024, 1);
    }
    return 1e6 * static_cast<double>(total) / Micros(Clock::now() - start).count();
  }

  // Publishes tasks [first, first + count) of a range of adds.
  void PublishRange(const RangeColumn (&columns)[4], uint64_t elements, uint64_t outcomes,
                    uint32_t first, uint32_t count) {
    const uint64_t sequence = *ring_->Reserve();
    ArgumentBlock* const block = ring_->arguments(sequence);
    std::memset(static_cast<void*>(block), 0, sizeof(*block));
    std::copy(std::begin(columns), std::end(columns), ColumnsOf(block, 4));
    RangeDescriptor range{};
    range.operator_slot = static_cast<u16>(OperatorSlot("add"));
    range.flags = kTaskRange | kTaskCompact;
    range.arguments = 4;
    range.elements = elements;
    range.first = first;
    range.count = count;
    range.claim = std::min(kMaxRangeClaim, count / (4 * harness_.info().workers) + 1);
    range.max_blocks = kMaxTaskBlocks;
    range.outcomes = outcomes;
    range.inputs = 0b0011;
    ring_->Publish(sequence, std::bit_cast<TaskDescriptor>(range));
  }

  // Adds of distinct buffers, as ranges of kPieces slots, and one by one.
  void Ranges(uint64_t elements, uint64_t tasks) {
    constexpr uint32_t kPieces = 8;
    constexpr uint64_t kPattern = uint64_t{16} << 20;  // Random floats, repeated.
    const uint64_t all = elements * tasks;
    std::vector<float> x, y;
    const uint64_t px = RandomVectors(kPattern / kN, &x), py = RandomVectors(kPattern / kN, &y);
    const uint64_t xa = harness_.Memory(all * 4), ya = harness_.Memory(all * 4);
    const uint64_t out = harness_.Memory(all * 4);
    for (uint64_t at = 0; at < all; at += kPattern) {
      device_.Copy(xa + at * 4, px, kPattern * 4);
      device_.Copy(ya + at * 4, py, kPattern * 4);
    }
    const auto check = [&](double alpha) {
      for (uint64_t at = 0; at < all; at += kPattern) CheckAdd(x, y, alpha, out + at * 4);
      device_.RunTask(
          ArgumentTask(OperatorSlot("fill"), 2, 256),
          {DenseTensor(out, DType::kF32, {static_cast<int64_t>(all)}), Scalar(Bits(1e30))});
    };
    const uint64_t bytes = elements * 4;
    const RangeColumn columns[4] = {
        {xa, bytes, 0, 0}, {ya, bytes, 0, 0}, {out, bytes, 0, 0}, {Bits(1.5), 0, 0, 0}};
    const auto outcomes = harness_.Staging(tasks * sizeof(RangeOutcome));
    std::memset(outcomes.host, 0, tasks * sizeof(RangeOutcome));
    const uint32_t piece = static_cast<uint32_t>(tasks / kPieces);
    std::vector<double> range_per_s, single_per_s;
    std::vector<TaskDescriptor> singles;
    for (uint64_t i = 0; i < 8192; ++i) {
      const uint64_t at = i * bytes;
      singles.push_back(
          CompactTask(OperatorSlot("add"), elements, {xa + at, ya + at, out + at, Bits(2.5)}));
    }
    for (int round = 0; round < Rounds(20) + 2; ++round) {
      const auto start = Clock::now();
      for (uint32_t p = 0; p < kPieces; ++p) {
        PublishRange(columns, elements, outcomes.address, p * piece, piece);
      }
      uint32_t done = 0;
      uint32_t failed = 0;
      while (done < kPieces) {
        done += ring_->Consume([&](uint64_t, const TaskCompletion& completion) {
          uint32_t of_piece = 0;
          std::memcpy(&of_piece, completion.result, sizeof(of_piece));
          failed += of_piece + static_cast<uint32_t>(completion.status);
        });
      }
      if (failed != 0) Fail(absl::StrCat(failed, " tasks of a range failed"));
      if (round >= 2) {
        range_per_s.push_back(1e6 * static_cast<double>(tasks) /
                              Micros(Clock::now() - start).count());
      }
      if (round == 0) check(1.5);
    }
    for (int round = 0; round < 5; ++round) {
      single_per_s.push_back(MeasureSingle(singles, static_cast<uint64_t>(Rounds(500'000))));
    }
    report_.Add(absl::StrCat("adds of ", elements, " as ranges, distinct buffers"),
                Percentile(range_per_s, 0.5), "tasks/s", "one by one",
                Percentile(single_per_s, 0.5));
  }

  // Shows where the time of sustained tasks is spent: the cost of a task on the host's
  // thread, and the device's rate if it does not wait for the host.
  void Sides() {
    const uint64_t in = device_.Upload(std::vector<float>(2 * kN, 1.0f).data(), 2 * kVectorBytes);
    const uint64_t out = harness_.Memory(8192 * kVectorBytes);
    const uint32_t tasks = ring_->slots() / 2;
    const uint32_t slot_add = OperatorSlot("add");
    std::vector<double> publish_ns, consume_ns, device_per_s;
    for (int round = 0; round < Rounds(200) + 5; ++round) {
      const auto start = Clock::now();
      uint64_t last = 0;
      for (uint32_t i = 0; i < tasks; ++i) {
        last = *ring_->Reserve();
        ring_->Publish(
            last,
            CompactTask(slot_add, kN, {in, in + kVectorBytes, out + i * kVectorBytes, Bits(1.0)}));
      }
      const auto published = Clock::now();
      // Let the device finish without accessing its output, except for the last completion.
      auto& stamp = harness_.region()->completions()[last & (ring_->slots() - 1)].chunks[3].stamp;
      while (std::atomic_ref<u32>(stamp).load(std::memory_order_acquire) != Stamp(last)) {
      }
      const auto finished = Clock::now();
      std::this_thread::sleep_for(std::chrono::microseconds(100));
      const auto consume = Clock::now();
      uint32_t done = 0;
      while (done < tasks) done += ring_->Consume([](uint64_t, const TaskCompletion&) {});
      const auto consumed = Clock::now();
      if (round < 5) continue;
      publish_ns.push_back(1e3 * Micros(published - start).count() / tasks);
      consume_ns.push_back(1e3 * Micros(consumed - consume).count() / tasks);
      device_per_s.push_back(1e6 * tasks / Micros(finished - start).count());
    }
    report_.Add("host: publish a task", Percentile(publish_ns, 0.5), "ns");
    report_.Add("host: consume a completion", Percentile(consume_ns, 0.5), "ns");
    report_.Add("device: tasks while the host only publishes", Percentile(device_per_s, 0.5),
                "tasks/s");
  }

  void Wide(const Baselines& baselines) {
    constexpr uint64_t kElements = uint64_t{256} << 20;
    // A pattern of 16 Ki random vectors, repeated: generating 256 Mi values would be slow.
    constexpr uint64_t kPattern = uint64_t{16} << 20;
    std::vector<float> x, y;
    const uint64_t px = RandomVectors(kPattern / kN, &x), py = RandomVectors(kPattern / kN, &y);
    const uint64_t xa = harness_.Memory(kElements * 4), ya = harness_.Memory(kElements * 4);
    const uint64_t out = harness_.Memory(kElements * 4);
    for (uint64_t i = 0; i < kElements / kPattern; ++i) {
      device_.Copy(xa + i * kPattern * 4, px, kPattern * 4);
      device_.Copy(ya + i * kPattern * 4, py, kPattern * 4);
    }
    const auto tensor = [](uint64_t at) {
      return DenseTensor(at, DType::kF32, {static_cast<int64_t>(kElements)});
    };
    device_.RunTask(ArgumentTask(OperatorSlot("fill"), 2, 4096), {tensor(out), Scalar(Bits(1e30))});
    for (uint32_t grain : {8192u, 32768u, 131072u}) {
      std::vector<double> us;
      for (int i = 0; i < Rounds(30) + 3; ++i) {
        const auto start = Clock::now();
        device_.RunTask(
            ArgumentTask(OperatorSlot("add"), 4, static_cast<uint32_t>(kElements / grain)),
            {tensor(xa), tensor(ya), tensor(out), Scalar(Bits(3.0))});
        if (i >= 3) us.push_back(Micros(Clock::now() - start).count());
      }
      report_.Add(absl::StrCat("wide add of 256 Mi, chunks of ", grain),
                  3.0 * kElements * 4 / Percentile(us, 0.5) * 1e6, "bytes/s",
                  "device-to-device copy", baselines.copy_bytes_per_s);
    }
    for (uint64_t i : {uint64_t{0}, kElements / kPattern / 2, kElements / kPattern - 1}) {
      CheckAdd(x, y, 3.0, out + i * kPattern * 4);
    }
  }

  // A task of 256 chunks whose operands are in the L2 cache: most of its time is not that of its
  // work.
  void SmallWide() {
    constexpr int64_t kRows = 2048, kDepth = 2048, kRowsOfChunk = 8;
    std::uniform_real_distribution<float> uniform(0.5f, 1.5f);
    std::vector<uint16_t> w(kRows * kDepth);
    std::vector<float> x(kDepth);
    for (uint16_t& v : w)
      v = static_cast<uint16_t>(std::bit_cast<uint32_t>(uniform(random_)) >> 16);
    for (float& v : x) v = uniform(random_);
    const uint64_t wa = device_.Upload(w.data(), w.size() * 2);
    const uint64_t xa = device_.Upload(x.data(), x.size() * 4);
    const std::vector<float> poison(kRows, 1e30f);
    const uint64_t out = device_.Upload(poison.data(), kRows * 4);
    std::vector<double> us, device_us;
    for (int i = 0; i < Rounds(2'000) + 20; ++i) {
      const auto start = Clock::now();
      const TaskCompletion completion = device_.RunTask(
          ArgumentTask(OperatorSlot("gemv"), 4, kRows / kRowsOfChunk),
          {DenseTensor(xa, DType::kF32, {kDepth}), DenseTensor(wa, DType::kBF16, {kRows, kDepth}),
           DenseTensor(xa, DType::kF32, {0}), DenseTensor(out, DType::kF32, {kRows})});
      const double took = Micros(Clock::now() - start).count();
      if (i < 20) continue;
      us.push_back(took);
      device_us.push_back(completion.duration_ns / 1e3);
    }
    std::vector<float> got(kRows);
    device_.Download(got.data(), out, got.size() * 4);
    for (int64_t row = 0; row < kRows; ++row) {
      double expected = 0;
      for (int64_t k = 0; k < kDepth; ++k) {
        expected +=
            static_cast<double>(x[k]) * std::bit_cast<float>(uint32_t{w[row * kDepth + k]} << 16);
      }
      if (!(std::abs(got[row] - expected) <= 1e-5 * expected)) {
        Fail(absl::StrCat("gemv is wrong: ", got[row], " instead of ", expected));
      }
    }
    report_.Add("gemv of 2,048 x 2,048 bf16 in 256 chunks, round trip, p50", Percentile(us, 0.5),
                "us");
    report_.Add("gemv of 2,048 x 2,048 bf16 in 256 chunks, on the device, p50",
                Percentile(device_us, 0.5), "us");
  }

  EngineHarness& harness_;
  BenchReport& report_;
  std::shared_ptr<HostRing> ring_;
  DeviceTasks device_{harness_, ring_};
  std::mt19937 random_{std::random_device{}()};
};

int Main() {
  setenv("RESIDENT_TEST_ENGINE", "cuda", 1);
  const Baselines baselines = MeasureBaselines();
  EngineHarness::Options options;
  options.ring_slots = 8192;
  options.staging_bytes = uint64_t{64} << 20;
  options.engine.threads_per_block = absl::GetFlag(FLAGS_threads_per_block);
  options.engine.blocks_per_sm = absl::GetFlag(FLAGS_blocks_per_sm);
  options.engine.memory_bytes = uint64_t{16} << 30;
  // The target of native code is known when the engine has started.
  options.engine.start_parked = true;
  EngineHarness harness(options);
  std::printf("%s; %s\n", harness.info().name.c_str(), harness.info().detail.c_str());
  auto generation = std::make_shared<const Generation>();
  bool native_flux = false;
  if (Selected("flux")) {
    auto native = NativeFluxGeneration(harness.info().traits.compile_target);
    native_flux = native.ok();
    if (native_flux) {
      generation = *std::move(native);
    } else if (absl::IsUnavailable(native.status())) {
      std::printf("no figures of native FLUX: %s\n",
                  std::string(native.status().message()).c_str());
    } else {
      Fail(native.status().ToString());
    }
  }
  harness.Launch(generation);
  BenchReport report;
  Bench(&harness, &report).Run(baselines, native_flux);
  report.Write(absl::GetFlag(FLAGS_out),
               {{"device", harness.info().name}, {"detail", harness.info().detail}});
  // The kernel never ends by itself; exiting without stopping it is what a killed engine
  // does.
  std::fflush(stdout);
  std::_Exit(0);
}

}  // namespace
}  // namespace resident::testing

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  const std::string out = absl::GetFlag(FLAGS_out);
  if (absl::GetFlag(FLAGS_generation)) return resident::BenchGeneration(out);
  if (absl::GetFlag(FLAGS_recovery)) return resident::BenchRecovery(out);
  if (absl::GetFlag(FLAGS_stops)) return resident::BenchStops(out);
  if (absl::GetFlag(FLAGS_graphs)) {
    resident::testing::BenchGraphs({.out = out,
                                    .only = absl::GetFlag(FLAGS_only),
                                    .quick = absl::GetFlag(FLAGS_quick),
                                    .cpu = absl::GetFlag(FLAGS_cpu)});
  }
  return resident::testing::Main();
}
