#include "client/cli/latency.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace resident::cli {

LatencySummary Summarize(std::vector<double> samples_us) {
  LatencySummary summary;
  summary.samples = samples_us.size();
  if (samples_us.empty()) return summary;
  std::ranges::sort(samples_us);
  const auto percentile = [&](double part) {
    const double rank = std::ceil(part * static_cast<double>(samples_us.size()));
    return samples_us[static_cast<size_t>(std::max(rank, 1.0)) - 1];
  };
  summary.p50_us = percentile(0.50);
  summary.p90_us = percentile(0.90);
  summary.p99_us = percentile(0.99);
  summary.p999_us = percentile(0.999);
  summary.min_us = samples_us.front();
  summary.max_us = samples_us.back();
  summary.mean_us = std::accumulate(samples_us.begin(), samples_us.end(), 0.0) /
                    static_cast<double>(samples_us.size());
  return summary;
}

}  // namespace resident::cli
