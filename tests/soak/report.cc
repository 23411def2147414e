#include "tests/soak/report.h"

#include <cstdio>
#include <fstream>
#include <utility>

namespace resident::soak {

int Report(const testing::Daemon& daemon, const Findings& findings, nlohmann::ordered_json summary,
           const std::string& out) {
  std::printf("\n");
  for (const auto& [name, value] : summary.items()) {
    std::printf("%-20s %s\n", name.c_str(),
                value.is_string() ? value.get<std::string>().c_str() : value.dump().c_str());
  }
  const auto counts = findings.counts();
  for (const auto& [what, count] : counts) {
    std::printf("%12llu  %s\n", static_cast<unsigned long long>(count), what.c_str());
  }
  for (const std::string& text : findings.texts()) std::printf("VIOLATION: %s\n", text.c_str());
  const uint64_t violations = findings.violations();
  summary["violations"] = violations;
  summary["counts"] = counts;
  if (!out.empty()) std::ofstream(out) << summary.dump(1) << "\n";
  if (violations > 0) std::printf("output of the daemon:\n%s\n", daemon.Output().c_str());
  std::printf("%llu violations\n", static_cast<unsigned long long>(violations));
  return violations == 0 ? 0 : 1;
}

}  // namespace resident::soak
