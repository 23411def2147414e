#include "runtime/base/sandbox/engine_sandbox.h"

#include <errno.h>
#include <glob.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <ucontext.h>
#include <unistd.h>

#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "runtime/base/sandbox/landlock.h"
#include "runtime/base/sandbox/syscall_filter.h"

namespace resident {
namespace {

constexpr const char* kDriverDevices[] = {"/dev/nvidia*", "/dev/dxg"};
// Libraries that the driver opens, and the folder of a toolkit (its nvJitLink links PTX).
constexpr const char* kLibraries[] = {"/usr", "/lib", "/lib64", "/opt/cuda"};
// Files that the driver reads about the machine and about its own process.
constexpr const char* kSystemFiles[] = {"/etc/ld.so.cache",
                                        "/etc/nvidia",
                                        "/proc/self",
                                        "/proc/driver/nvidia",
                                        "/proc/devices",
                                        "/proc/modules",
                                        "/proc/cpuinfo",
                                        "/proc/meminfo",
                                        "/proc/stat",
                                        "/proc/filesystems",
                                        "/proc/version",
                                        "/proc/sys/vm",
                                        "/proc/sys/kernel",
                                        "/sys/devices",
                                        "/sys/bus",
                                        "/sys/class",
                                        "/sys/module",
                                        "/sys/kernel/mm",
                                        "/sys/fs/cgroup",
                                        "/dev/zero",
                                        "/dev/random",
                                        "/dev/urandom",
                                        "/run/nvidia-persistenced"};
// The number of CPUs. Without them an engine would start a wrong number of threads.
constexpr const char* kCpuCounts[] = {"/sys/devices/system/cpu/online",
                                      "/sys/devices/system/cpu/possible",
                                      "/sys/devices/system/cpu/present"};
// The driver names its threads (/proc/self/task/N/comm); cuInit fails if it cannot.
constexpr char kThreads[] = "/proc/self/task";
constexpr char kMpsFolder[] = "/tmp/nvidia-mps";

absl::string_view Variable(const char* name) {
  const char* const value = getenv(name);
  return value == nullptr ? absl::string_view() : value;
}

absl::string_view Mode() { return Variable(kEngineSandboxVariable); }

LandlockPaths CpuPaths() {
  LandlockPaths paths;
  paths.readable.assign(std::begin(kCpuCounts), std::end(kCpuCounts));
  return paths;
}

LandlockPaths GpuPaths() {
  LandlockPaths paths;
  for (const char* pattern : kDriverDevices) {
    glob_t found = {};
    if (glob(pattern, 0, nullptr, &found) == 0) {
      paths.devices.insert(paths.devices.end(), found.gl_pathv, found.gl_pathv + found.gl_pathc);
    }
    globfree(&found);
  }
  paths.devices.push_back("/dev/null");
  for (const char* path : kLibraries) paths.readable.push_back(path);
  for (const char* path : kSystemFiles) paths.readable.push_back(path);
  for (const absl::string_view folder :
       absl::StrSplit(Variable("LD_LIBRARY_PATH"), ':', absl::SkipEmpty())) {
    paths.readable.emplace_back(folder);
  }
  // The libraries of a bundle are in the folder lib beside that of its programs.
  char program[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", program, sizeof(program));
  if (length > 0) {
    const absl::string_view path(program, static_cast<size_t>(length));
    paths.readable.push_back(absl::StrCat(path.substr(0, path.rfind('/')), "/../lib"));
  }
  paths.writable.emplace_back(kThreads);
  // The pipes of the MPS server, through which several processes can share the GPU.
  const absl::string_view mps = Variable("CUDA_MPS_PIPE_DIRECTORY");
  paths.writable.emplace_back(mps.empty() ? absl::string_view(kMpsFolder) : mps);
  return paths;
}

// Formats without allocation, because it runs in a signal handler.
void ReportRefusedCall(int, siginfo_t* info, void* context) {
  char text[] = "refused system call 0000\n";
  int number = info->si_syscall;
  for (char* digit = text + sizeof(text) - 3; *digit != ' '; --digit, number /= 10) {
    *digit = static_cast<char>('0' + number % 10);
  }
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text, sizeof(text) - 1);
  static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RAX] = -EPERM;
}

}  // namespace

bool EngineFilesConfined() { return Mode() != "off" && Mode() != "calls"; }

bool EngineCallsConfined() { return Mode() != "off" && Mode() != "files"; }

absl::Status ConfineEngineFiles(EngineProfile profile) {
  if (Mode() == "off") return absl::OkStatus();
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) {
    return absl::InternalError(absl::StrCat("no_new_privs: ", strerror(errno)));
  }
  if (!EngineFilesConfined() || LandlockVersion() == 0) return absl::OkStatus();
  return RestrictFiles(profile == EngineProfile::kDriver ? GpuPaths() : CpuPaths());
}

absl::Status ConfineEngineCalls(EngineProfile profile) {
  if (!EngineCallsConfined() || !HasSyscallFilters()) return absl::OkStatus();
  FilterOptions options;
  options.policy = profile == EngineProfile::kDriver ? SyscallPolicy::kDriverEngine
                                                     : SyscallPolicy::kNativeEngine;
  options.all_threads = true;
  options.trap = Mode() == "report";
  if (options.trap) {
    struct sigaction report = {};
    report.sa_sigaction = &ReportRefusedCall;
    report.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigaction(SIGSYS, &report, nullptr);
  }
  return FilterSyscalls(options);
}

}  // namespace resident
