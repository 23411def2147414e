#include "tests/soak/usage.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
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

// The numbers in the kernel's tables of sockets: among others the inodes of those that have not
// ended.
std::set<std::string> ReadSocketTables() {
  std::set<std::string> numbers;
  for (const char* table : {"tcp", "tcp6", "unix", "netlink"}) {
    std::ifstream file(absl::StrCat("/proc/net/", table));
    for (std::string word; file >> word;) numbers.insert(word);
  }
  return numbers;
}

std::vector<std::string> ListDescriptors(pid_t pid) {
  constexpr std::string_view kSocket = "socket:[";
  std::vector<std::pair<std::string, std::string>> all;
  std::error_code gone;
  for (const auto& entry :
       std::filesystem::directory_iterator(absl::StrCat("/proc/", pid, "/fd"), gone)) {
    all.emplace_back(entry.path().filename().string(),
                     std::filesystem::read_symlink(entry.path(), gone).string());
  }
  const std::set<std::string> sockets = ReadSocketTables();
  std::vector<std::string> links;
  for (const auto& [fd, target] : all) {
    const bool ended =
        target.starts_with(kSocket) &&
        !sockets.contains(target.substr(kSocket.size(), target.size() - kSocket.size() - 1));
    links.push_back(absl::StrCat(fd, " ", target, ended ? " ended" : ""));
  }
  std::sort(links.begin(), links.end());
  return links;
}

}  // namespace

Usage MeasureUsage(const testing::Daemon& daemon) {
  return {.descriptors = daemon.Descriptors(),
          .links = ListDescriptors(daemon.pid()),
          .left_over = daemon.LeftoverProcesses(),
          .memory_bytes = ResidentBytes(daemon.pid())};
}

std::string NewDescriptors(const Usage& before, const Usage& after) {
  std::vector<std::string> more;
  std::set_difference(after.links.begin(), after.links.end(), before.links.begin(),
                      before.links.end(), std::back_inserter(more));
  return absl::StrJoin(more, ", ");
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
