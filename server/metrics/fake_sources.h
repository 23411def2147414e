// Sources with figures that a test sets, for tests of the metrics page alone. tests/metrics scrapes
// a real daemon.
//
// Thread safety: none needed; set the figures before the first scrape.
#ifndef RESIDENT_SERVER_METRICS_FAKE_SOURCES_H_
#define RESIDENT_SERVER_METRICS_FAKE_SOURCES_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/device/fake_device.h"
#include "server/metrics/metrics_sources.h"

namespace resident {

struct FakeSources {
  FakeDevice device;
  std::shared_ptr<OperatorStats> add_stats = std::make_shared<OperatorStats>("add", 1);
  OperatorStats& add = *add_stats;
  RpcCounters rpc;
  Access access;
  bool ready = true;
  v1::OperatorsDirStatus operators_dir;
  std::vector<v1::Model> models;

  MetricsSources Sources() {
    return {.version = "1.2.3",
            .devices = {&device},
            .rpc = rpc,
            .access = access,
            .access_files = [] { return AccessFiles::Counters(); },
            .operators =
                [this] {
                  return std::vector<OperatorSeries>{{0, add_stats}};
                },
            .buffers = [](uint32_t) { return uint64_t{7}; },
            .staging =
                [](uint32_t) {
                  return StagingFigures{4096, 2};
                },
            .lanes = [](uint32_t) { return LaneFigures{2, 100, 3, 4, 5, 6}; },
            .host_memory =
                [] {
                  return std::map<std::string, uint64_t>{{"requests", 11}};
                },
            .graphs =
                [] {
                  return GraphFigures{2, 3000, 4, 5000};
                },
            .models = [this] { return models; },
            .clients = [] { return uint64_t{3}; },
            .connections =
                [] {
                  return ConnectionFigures{.open = 5,
                                           .refused = 2,
                                           .closed_idle = 3,
                                           .closed_bytes = 4,
                                           .closed_for_room = 6,
                                           .closed_unfinished = 9,
                                           .closed_silent = 10,
                                           .without_call = 7};
                },
            .log_lines_suppressed = [] { return 8; },
            .operator_events =
                [] {
                  return std::map<std::string, uint64_t>{{"installed", 5}, {"quarantined", 0}};
                },
            .trials =
                [] {
                  return std::vector<TrialSeries>{{"add", 2, 40, 1}};
                },
            .native_forms =
                [] {
                  return OperatorManager::NativeCounters{
                      .serving = 3, .comparisons = 7, .mismatches = 0, .quarantined = 1};
                },
            .isolation_refusals =
                [] {
                  return std::map<std::string, uint64_t>{{"C1", 4}, {"other", 0}};
                },
            .active =
                [] {
                  return std::vector<ActiveSeries>{{"swish", "ranking", "r-1", "0123456789ab"}};
                },
            .claim_seconds = [] { return 12.5; },
            .operators_dir = [this] { return operators_dir; },
            .ready = [this] { return ready; }};
  }
};

}  // namespace resident

#endif  // RESIDENT_SERVER_METRICS_FAKE_SOURCES_H_
