// A device that only has figures, and sources made of it: for tests of the metrics
// page alone. tests/metrics asks a real daemon.
//
// Thread safety: none needed; set the figures before the first scrape.
#ifndef RESIDENT_SERVER_METRICS_FAKE_SOURCES_H_
#define RESIDENT_SERVER_METRICS_FAKE_SOURCES_H_

#include <cstdlib>
#include <functional>
#include <memory>
#include <utility>

#include "server/metrics/metrics_sources.h"

namespace resident {

class FakeDevice : public Device {
 public:
  uint32_t index() const override { return 0; }
  Snapshot snapshot() const override { return figures; }
  const DurationHistogram& park_duration() const override { return parks; }
  absl::Status LoadGeneration(std::shared_ptr<const Generation>,
                              std::chrono::milliseconds) override {
    return absl::OkStatus();
  }
  void SetGeneration(std::shared_ptr<const Generation>) override {}
  const DurationHistogram& generation_pause() const override { return pauses; }
  void OnFault(std::function<std::shared_ptr<const Generation>(const DeviceFault&)>) override {}
  const DurationHistogram& resume_duration() const override { return resumes; }

  // The rest is not the metrics page's business.
  DeviceQueue& queue() override { std::abort(); }
  std::shared_ptr<EngineSession> session() override { return nullptr; }
  void StartPark(Waiter waiter) override { waiter.settled(absl::OkStatus()); }
  void StartResume(Waiter waiter) override { waiter.settled(absl::OkStatus()); }
  void OnRestart(std::function<void(const std::shared_ptr<EngineSession>&)>) override {}
  void OnStateChange(std::function<void(State)>) override {}
  void Shutdown() override {}

  Snapshot figures;
  DurationHistogram parks;
  DurationHistogram resumes;
  DurationHistogram pauses;
};

struct FakeSources {
  FakeDevice device;
  std::shared_ptr<OperatorStats> add_stats = std::make_shared<OperatorStats>("add", 1);
  OperatorStats& add = *add_stats;
  RpcTotals rpc;

  MetricsSources Sources() {
    MetricsSources sources;
    sources.version = "1.2.3";
    sources.devices = {&device};
    sources.operators = [this] { return std::vector<OperatorSeries>{{0, add_stats}}; };
    sources.buffers = [](uint32_t) { return uint64_t{7}; };
    sources.staging = [](uint32_t) { return StagingFigures{4096, 2}; };
    sources.host_memory = [] { return std::map<std::string, uint64_t>{{"requests", 11}}; };
    sources.clients = [] { return uint64_t{3}; };
    sources.connections = [] {
      return ConnectionFigures{.open = 5,
                               .refused = 2,
                               .closed_idle = 3,
                               .closed_bytes = 4,
                               .closed_for_room = 6,
                               .without_call = 7};
    };
    sources.log_lines_suppressed = [] { return 8; };
    sources.rpc = [this] { return rpc; };
    sources.access = [] { return AccessTotals(); };
    sources.operator_events = [] {
      return std::map<std::string, uint64_t>{{"installed", 5}, {"quarantined", 0}};
    };
    sources.trials = [] { return std::vector<TrialSeries>{{"add", 2, 40, 1}}; };
    return sources;
  }
};

}  // namespace resident

#endif  // RESIDENT_SERVER_METRICS_FAKE_SOURCES_H_
