// MetricsCollector: the runtime's counters under Prometheus names and labels.
//
// Names follow Prometheus' conventions: base units (seconds, bytes), _total on
// counters, one family for each meaning. If its labels are known in advance, a family is reported
// from the first scrape on, with the value 0, so that rate() includes the first event. The families
// of tasks are the exception: there are many operators, and few are called, so a series exists from
// the first task of its labels on. An idle daemon has at most 250 series for one device
// (tests/metrics counts them).
//
// Thread safety: Collect may be called from any thread; see MetricsSources.
#ifndef RESIDENT_SERVER_METRICS_METRICS_COLLECTOR_H_
#define RESIDENT_SERVER_METRICS_METRICS_COLLECTOR_H_

#include <vector>

#include "prometheus/collectable.h"
#include "prometheus/metric_family.h"
#include "server/metrics/metrics_sources.h"

namespace resident {

class MetricsCollector : public prometheus::Collectable {
 public:
  explicit MetricsCollector(MetricsSources sources) : sources_(std::move(sources)) {}

  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  const MetricsSources sources_;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_METRICS_METRICS_COLLECTOR_H_
