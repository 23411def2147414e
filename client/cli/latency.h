// Percentiles of measured durations.
#ifndef RESIDENT_CLIENT_CLI_LATENCY_H_
#define RESIDENT_CLIENT_CLI_LATENCY_H_

#include <cstddef>
#include <vector>

namespace resident::cli {

struct LatencySummary {
  size_t samples = 0;
  double p50_us = 0;
  double p90_us = 0;
  double p99_us = 0;
  double p999_us = 0;
  double min_us = 0;
  double max_us = 0;
  double mean_us = 0;
};

// Percentiles by nearest rank. No samples: zeros.
LatencySummary Summarize(std::vector<double> samples_us);

}  // namespace resident::cli

#endif  // RESIDENT_CLIENT_CLI_LATENCY_H_
