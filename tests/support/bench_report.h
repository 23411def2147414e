// Shared code of benchmarks: percentiles, and a report of the figures as a table and as
// JSON.
//
//   BenchReport report;
//   report.Add("lone add, p50", Percentile(us, 0.5), "us", "launch, p50", Percentile(launch, 0.5));
//   report.Write(absl::GetFlag(FLAGS_out), {{"device", info.name}, {"detail", info.detail}});
#ifndef RESIDENT_TESTS_SUPPORT_BENCH_REPORT_H_
#define RESIDENT_TESTS_SUPPORT_BENCH_REPORT_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace resident::testing {

// Ends the benchmark with status 1, without stopping its threads and its kernel.
[[noreturn]] void Fail(const std::string& why);

// The value; ends the benchmark with `what` and the error if there is none.
template <typename T>
T Must(absl::StatusOr<T> value, const std::string& what) {
  if (!value.ok()) Fail(what + ": " + value.status().ToString());
  return *std::move(value);
}

// By rank: 0.5 is the median, 1 the largest value. Without values: 0.
double Percentile(std::vector<double> values, double p);

class BenchReport {
 public:
  // Prints the value and, if there is a baseline, its value and the ratio.
  void Add(const std::string& what, double value, const std::string& unit,
           const std::string& baseline = "", double baseline_value = 0);
  // Adds the median, the 99th percentile and the maximum.
  void AddPercentiles(const std::string& what, const std::vector<double>& us);
  // `head`: describes what was measured. An empty path: nothing is written.
  void Write(const std::string& path, nlohmann::ordered_json head) const;

 private:
  nlohmann::ordered_json figures_ = nlohmann::ordered_json::array();
};

}  // namespace resident::testing

#endif  // RESIDENT_TESTS_SUPPORT_BENCH_REPORT_H_
