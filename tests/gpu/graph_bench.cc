#include "tests/gpu/graph_bench.h"

#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace resident::testing {
namespace {

constexpr auto kWatchdogTimeout = std::chrono::seconds(100);
constexpr auto kParkTimeout = std::chrono::seconds(10);

}  // namespace

Watchdog::Watchdog() {
  std::thread([this] {
    while (true) {
      std::this_thread::sleep_for(std::chrono::seconds(1));
      if (Clock::now() - Clock::time_point(Clock::duration(began_)) < kWatchdogTimeout) continue;
      Fail(absl::StrCat("'", part_.load(), "' has not ended within ", kWatchdogTimeout.count(),
                        " seconds; the GPU or the kernel hangs"));
    }
  }).detach();
}

void Watchdog::Begin(const char* part) {
  part_ = part;
  began_ = Clock::now().time_since_epoch().count();
}

bool GraphBench::Selected(const std::string& part) const {
  return options.only.empty() || absl::StrContains(options.only, part);
}

void GraphBench::WriteReport() const {
  report.Write(
      options.out,
      {{"device", harness.info().name}, {"detail", harness.info().detail}, {"traces", traces}});
}

void GraphBench::WhileParked(absl::FunctionRef<void()> measure) {
  if (!ring->PublishPark()) Fail("the ring is full");
  if (const auto parked = harness.engine().AwaitPark(kParkTimeout); !parked.ok()) {
    Fail(absl::StrCat("the kernel does not leave: ", parked.ToString()));
  }
  measure();
  if (const auto resumed = harness.engine().Resume(); !resumed.ok()) {
    Fail(absl::StrCat("the kernel cannot be launched again: ", resumed.ToString()));
  }
  ring->NoteResumed();
}

void GraphBenchPart::Clear(const DeviceGraph::Memory& memory) {
  device_.RunTask(ArgumentTask(OperatorSlot("zero"), 1, 1),
                  {DenseTensor(memory.address, DType::kU8, {static_cast<int64_t>(memory.bytes)})});
}

std::vector<double> GraphBenchPart::MeasureQuanta(DeviceGraph& graph, uint32_t steps, int rounds) {
  graph.Prepare(steps);
  const int warm_up = rounds / 10 + 1;
  std::vector<double> us;
  for (int i = 0; i < warm_up + rounds; ++i) {
    const auto start = Clock::now();
    graph.Run(*ring_);
    if (i >= warm_up) us.push_back(Micros(Clock::now() - start).count());
  }
  return us;
}

std::vector<double> GraphBenchPart::MeasureLaunches(const std::vector<size_t>& graphs, int rounds) {
  const int warm_up = rounds / 10 + 1;
  std::vector<double> us;
  for (int i = 0; i < warm_up + rounds; ++i) {
    const auto start = Clock::now();
    for (const size_t graph : graphs) cuda_->Launch(graph);
    cuda_->Synchronize();
    if (i >= warm_up) us.push_back(Micros(Clock::now() - start).count());
  }
  return us;
}

}  // namespace resident::testing
