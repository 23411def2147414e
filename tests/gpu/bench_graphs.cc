#include "tests/gpu/bench_graphs.h"

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>

#include "tests/gpu/bench_decode.h"
#include "tests/gpu/bench_small_graphs.h"
#include "tests/gpu/cuda_graphs.h"
#include "tests/gpu/graph_bench.h"
#include "tests/support/bench_report.h"
#include "tests/support/engine_harness.h"

namespace resident::testing {

void BenchGraphs(const GraphBenchOptions& bench_options) {
  const bool cpu = bench_options.cpu;
  setenv("RESIDENT_TEST_ENGINE", cpu ? "cpu" : "cuda", 1);
  Watchdog watchdog;
  EngineHarness::Options options;
  options.ring_slots = 8192;
  options.staging_bytes = uint64_t{64} << 20;
  // The weights of all decoders, and those of the kernels for one model: nothing is freed.
  options.engine.memory_bytes = cpu ? uint64_t{1} << 30 : uint64_t{28} << 30;
  EngineHarness harness(options);
  std::printf("%s; %s\n", harness.info().name.c_str(), harness.info().detail.c_str());
  if (!harness.info().traits.executes_graphs) Fail("this engine executes no graphs");
  if (cpu) {
    // This program does not wake the workers of the CPU engine, which may sleep.
    std::thread([&harness] {
      while (true) {
        harness.Ring();
        std::this_thread::sleep_for(std::chrono::microseconds(200));
      }
    }).detach();
  }
  GraphBench bench(bench_options, harness, watchdog);
  if (!cpu) {
    watchdog.Begin("loading the baselines");
    bench.WhileParked([&] { bench.cuda = std::make_unique<CudaGraphs>(/*ordinal=*/0); });
  }
  if (bench.Selected("empty")) BenchEmptyGraphs(bench);
  if (bench.Selected("chain")) BenchChains(bench);
  bench.WriteReport();
  const std::string wrong = BenchDecode(bench);
  bench.WriteReport();
  if (!wrong.empty()) Fail(wrong);
  // The kernel never ends by itself; exiting without stopping it is what a killed engine
  // does.
  std::fflush(stdout);
  std::_Exit(0);
}

}  // namespace resident::testing
