// What the parts of bench_graphs share: the engine, the ring, the report, and how quanta and CUDA
// graphs are measured.
//
// Thread safety: none.
//
//   class Chains : public GraphBenchPart {
//    public:
//     explicit Chains(GraphBench& bench) : GraphBenchPart(bench) {}
//     void Run();
//   };
#ifndef RESIDENT_TESTS_GPU_GRAPH_BENCH_H_
#define RESIDENT_TESTS_GPU_GRAPH_BENCH_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "nlohmann/json.hpp"
#include "tests/gpu/bench_graphs.h"
#include "tests/gpu/cuda_graphs.h"
#include "tests/gpu/device_graph.h"
#include "tests/gpu/device_tasks.h"
#include "tests/support/bench_report.h"
#include "tests/support/engine_harness.h"

namespace resident::testing {

// Ends the program if a part takes too long: a GPU that hangs never answers.
class Watchdog {
 public:
  Watchdog();
  // `part`: a literal.
  void Begin(const char* part);

 private:
  using Clock = std::chrono::steady_clock;
  std::atomic<const char*> part_{"start"};
  std::atomic<Clock::rep> began_{Clock::now().time_since_epoch().count()};
};

struct GraphBench {
  static constexpr uint64_t kScratchBytes = uint64_t{2} << 20;

  GraphBench(const GraphBenchOptions& bench_options, EngineHarness& engine, Watchdog& parts)
      : options(bench_options), harness(engine), watchdog(parts) {}

  // Whether a part was selected.
  bool Selected(const std::string& part) const;
  // Called after each part, because a later one may end the program.
  void WriteReport() const;
  // Calls `measure` while no kernel is on the device.
  void WhileParked(absl::FunctionRef<void()> measure);

  const GraphBenchOptions& options;
  EngineHarness& harness;
  Watchdog& watchdog;
  BenchReport report;
  std::shared_ptr<HostRing> ring = harness.NewRing();
  DeviceTasks device{harness, ring};
  const EngineHarness::Span staging_scratch = harness.Staging(kScratchBytes);
  std::unique_ptr<CudaGraphs> cuda;  // Null: no baselines.
  // Where the time of steps goes, by figure.
  nlohmann::ordered_json traces = nlohmann::ordered_json::object();
};

class GraphBenchPart {
 protected:
  using Clock = std::chrono::steady_clock;
  using Micros = std::chrono::duration<double, std::micro>;

  explicit GraphBenchPart(GraphBench& bench)
      : bench_(bench),
        options_(bench.options),
        harness_(bench.harness),
        report_(bench.report),
        watchdog_(bench.watchdog),
        ring_(bench.ring),
        device_(bench.device),
        cuda_(bench.cuda) {}

  int Rounds(int rounds) const { return options_.quick ? rounds / 10 + 1 : rounds; }

  template <typename T>
  void Write(uint64_t to, const std::vector<T>& values) {
    const auto staging = bench_.staging_scratch;
    if (values.size() * sizeof(T) > GraphBench::kScratchBytes) {
      Fail("too many values for one write");
    }
    std::memcpy(staging.host, values.data(), values.size() * sizeof(T));
    device_.Copy(to, staging.address, values.size() * sizeof(T));
  }
  void Clear(const DeviceGraph::Memory& memory);

  // The times of quanta, from submission to completion. Rounds of a warm-up are left out.
  std::vector<double> MeasureQuanta(DeviceGraph& graph, uint32_t steps, int rounds);
  // The same for CUDA graphs that are launched one after the other. REQUIRES: parked.
  std::vector<double> MeasureLaunches(const std::vector<size_t>& graphs, int rounds);

  GraphBench& bench_;
  const GraphBenchOptions& options_;
  EngineHarness& harness_;
  BenchReport& report_;
  Watchdog& watchdog_;
  const std::shared_ptr<HostRing>& ring_;
  DeviceTasks& device_;
  const std::unique_ptr<CudaGraphs>& cuda_;
};

}  // namespace resident::testing

#endif  // RESIDENT_TESTS_GPU_GRAPH_BENCH_H_
