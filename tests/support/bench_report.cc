#include "tests/support/bench_report.h"

#include <errno.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <utility>

namespace resident::testing {

void Fail(const std::string& why) {
  std::fflush(stdout);
  std::fprintf(stderr, "%s: %s\n", program_invocation_short_name, why.c_str());
  std::_Exit(1);
}

double Percentile(std::vector<double> values, double p) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1,
                         static_cast<size_t>(p * static_cast<double>(values.size())))];
}

void BenchReport::Add(const std::string& what, double value, const std::string& unit,
                      const std::string& baseline, double baseline_value) {
  nlohmann::ordered_json figure = {{"what", what}, {"value", value}, {"unit", unit}};
  std::printf("%-64s %12.5g %-8s", what.c_str(), value, unit.c_str());
  if (!baseline.empty()) {
    const double ratio = value / baseline_value;
    std::printf("  %-28s %12.5g  ratio %.3f", baseline.c_str(), baseline_value, ratio);
    figure["baseline"] = baseline;
    figure["baseline_value"] = baseline_value;
    figure["ratio"] = ratio;
  }
  std::printf("\n");
  std::fflush(stdout);
  figures_.push_back(std::move(figure));
}

void BenchReport::AddPercentiles(const std::string& what, const std::vector<double>& us) {
  Add(what + ", p50", Percentile(us, 0.5), "us");
  Add(what + ", p99", Percentile(us, 0.99), "us");
  Add(what + ", longest", Percentile(us, 1), "us");
}

void BenchReport::Write(const std::string& path, nlohmann::ordered_json head) const {
  if (path.empty()) return;
  head["figures"] = figures_;
  std::ofstream file(path);
  file << head.dump(1) << "\n";
  if (!file.flush()) Fail("cannot write " + path);
}

}  // namespace resident::testing
