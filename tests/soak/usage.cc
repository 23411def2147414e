#include "tests/soak/usage.h"

#include <fstream>

#include "absl/strings/str_cat.h"
#include "tests/support/eventually.h"

namespace resident::soak {
namespace {

// Caches of the daemon (allocators, thread pools) may increase its memory by this amount.
constexpr uint64_t kMemoryGrowthBytes = 96u << 20;
// Number of idle compile processes.
constexpr size_t kCompilersKept = 2;

uint64_t ResidentBytes(pid_t pid) {
  std::ifstream statm(absl::StrCat("/proc/", pid, "/statm"));
  uint64_t size = 0;
  uint64_t resident = 0;
  statm >> size >> resident;
  return resident * 4096;
}

}  // namespace

Usage MeasureUsage(const testing::Daemon& daemon) {
  return {daemon.Descriptors(), daemon.LeftoverProcesses(), ResidentBytes(daemon.pid())};
}

std::string Text(const Usage& usage) {
  return absl::StrCat(usage.descriptors, " descriptors, ", usage.memory_bytes >> 20, " MiB",
                      usage.left_over.empty() ? "" : ", left over: ", usage.left_over);
}

bool AwaitIdleCompilers(const testing::Daemon& daemon, std::string* why) {
  if (testing::Eventually([&] {
        return daemon.Compilers() == kCompilersKept && daemon.LeftoverProcesses().empty();
      })) {
    return true;
  }
  *why = absl::StrCat("the daemon keeps ", daemon.Compilers(),
                      " compile processes; left over: ", daemon.LeftoverProcesses());
  return false;
}

bool AwaitUsage(const testing::Daemon& daemon, const Usage& before, Usage* after) {
  return testing::Eventually([&] {
    *after = MeasureUsage(daemon);
    return after->descriptors <= before.descriptors && after->left_over.empty() &&
           after->memory_bytes <= before.memory_bytes + kMemoryGrowthBytes;
  });
}

}  // namespace resident::soak
