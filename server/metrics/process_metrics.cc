#include "server/metrics/process_metrics.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <sstream>
#include <string>
#include <system_error>
#include <vector>

namespace resident {
namespace {

std::optional<std::string> ReadFile(const std::string& path) {
  std::ifstream file(path);
  if (!file) return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// Fields of /proc/PID/stat from the third on (proc(5) counts from 1). The second is
// the program's name, which may hold spaces and parentheses; the last ')' ends it.
std::vector<std::string> StatFields(const std::string& stat) {
  const size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos) return {};
  std::istringstream rest(stat.substr(name_end + 1));
  return {std::istream_iterator<std::string>(rest), {}};
}
constexpr size_t Field(size_t number) { return number - 3; }
constexpr size_t kUserTicks = Field(14);
constexpr size_t kSystemTicks = Field(15);
constexpr size_t kThreadCount = Field(20);
constexpr size_t kStartTicks = Field(22);
constexpr size_t kVirtualBytes = Field(23);
constexpr size_t kResidentPages = Field(24);

double BootTimeSeconds() {
  const std::string stat = ReadFile("/proc/stat").value_or("");
  const size_t line = stat.find("\nbtime ");
  return line == std::string::npos ? 0 : std::strtod(stat.c_str() + line + 7, nullptr);
}

uint64_t CountFiles(const std::string& folder) {
  std::error_code error;
  uint64_t files = 0;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    ++files;
  }
  return files;
}

uint64_t MaxFiles(pid_t pid) {
  rlimit limit{};
  if (prlimit(pid, RLIMIT_NOFILE, nullptr, &limit) != 0) return 0;
  return limit.rlim_cur;
}

}  // namespace

std::optional<ProcessMetrics> ReadProcess(int64_t pid) {
  if (pid <= 0 || pid > std::numeric_limits<pid_t>::max()) return std::nullopt;
  const std::string folder = "/proc/" + std::to_string(pid);
  const std::optional<std::string> stat = ReadFile(folder + "/stat");
  if (!stat.has_value()) return std::nullopt;
  const std::vector<std::string> fields = StatFields(*stat);
  if (fields.size() <= kResidentPages) return std::nullopt;
  const auto number = [&](size_t field) {
    return std::strtoull(fields[field].c_str(), nullptr, 10);
  };

  const double ticks_per_second = static_cast<double>(sysconf(_SC_CLK_TCK));
  ProcessMetrics metrics;
  metrics.cpu_seconds = (number(kUserTicks) + number(kSystemTicks)) / ticks_per_second;
  metrics.start_time_seconds = BootTimeSeconds() + number(kStartTicks) / ticks_per_second;
  metrics.resident_bytes = number(kResidentPages) * sysconf(_SC_PAGESIZE);
  metrics.virtual_bytes = number(kVirtualBytes);
  metrics.threads = number(kThreadCount);
  metrics.open_fds = CountFiles(folder + "/fd");
  metrics.max_fds = MaxFiles(static_cast<pid_t>(pid));
  return metrics;
}

}  // namespace resident
