#include "runtime/base/sandbox/sandbox.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/base/sandbox/engine_sandbox.h"
#include "runtime/base/sandbox/landlock.h"
#include "runtime/base/sandbox/syscall_filter.h"
#include "runtime/base/status_macros.h"

namespace resident {
namespace {

constexpr uint64_t kDescriptors = 256;

// Sanitizers map much more memory than they use, so with them the address space is not limited.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kLimitMemory = false;
#else
constexpr bool kLimitMemory = true;
#endif

absl::Status Limit(int resource, uint64_t soft, uint64_t hard) {
  rlimit limit;
  if (getrlimit(static_cast<__rlimit_resource_t>(resource), &limit) != 0) {
    return absl::InternalError(absl::StrCat("getrlimit: ", strerror(errno)));
  }
  // An unprivileged process must not raise the hard limit.
  limit.rlim_max = std::min<rlim_t>(limit.rlim_max, hard);
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, soft);
  if (setrlimit(static_cast<__rlimit_resource_t>(resource), &limit) != 0) {
    return absl::InternalError(absl::StrCat("setrlimit: ", strerror(errno)));
  }
  return absl::OkStatus();
}

absl::Status SetLimits(const SandboxOptions& options) {
  absl::Status status = Limit(RLIMIT_CORE, 0, 0);
  if (status.ok()) status = Limit(RLIMIT_NOFILE, kDescriptors, kDescriptors);
  if (status.ok() && options.cpu_seconds != 0) {
    // SIGXCPU at the soft limit, SIGKILL one second later.
    status = Limit(RLIMIT_CPU, options.cpu_seconds, options.cpu_seconds + 1);
  }
  if (status.ok() && options.memory_bytes != 0 && kLimitMemory) {
    status = Limit(RLIMIT_AS, options.memory_bytes, options.memory_bytes);
  }
  if (status.ok() && options.file_bytes != 0) {
    status = Limit(RLIMIT_FSIZE, options.file_bytes, options.file_bytes);
  }
  return status;
}

std::string LandlockName() { return absl::StrCat("Landlock (version ", LandlockVersion(), ")"); }

// The part that is not confined if one of the layers, or both, are disabled.
absl::string_view DescribeUnconfined(bool files, bool calls) {
  if (files) return "in the system calls that their operators may make";
  return calls ? "in the files that their operators may open" : "at all";
}

}  // namespace

absl::Status ConfineProcess(const SandboxOptions& options) {
  RETURN_IF_ERROR(SetLimits(options));
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) {
    return absl::InternalError(absl::StrCat("no_new_privs: ", strerror(errno)));
  }
  if (LandlockVersion() > 0) {
    const LandlockPaths paths{options.readable, options.executable, options.writable, {}};
    RETURN_IF_ERROR(RestrictFiles(paths));
  }
  if (!HasSyscallFilters()) return absl::OkStatus();
  return FilterSyscalls({.policy = options.single_process ? SyscallPolicy::kCompilerAlone
                                                          : SyscallPolicy::kCompiler});
}

SandboxLayers DescribeSandbox() {
  SandboxLayers layers;
  std::vector<std::string> held;
  if (LandlockVersion() > 0) {
    held.push_back(LandlockName());
  } else {
    layers.missing.emplace_back(
        "compilers, and operators on the CPU engine, can open EVERY FILE THAT THE DAEMON'S USER "
        "CAN READ: the kernel has no Landlock. Fix: use Linux 5.13 or later, with landlock in its "
        "lsm= list and its system calls allowed");
  }
  if (HasSyscallFilters()) {
    held.push_back("seccomp");
  } else {
    layers.missing.emplace_back(
        "compilers, and operators on the CPU engine, CAN REACH THE NETWORK AND OTHER PROCESSES: "
        "the kernel has no seccomp filters. Fix: use a kernel with CONFIG_SECCOMP_FILTER, and "
        "allow its system call");
  }
  const char* const variable = getenv(kEngineSandboxVariable);
  const absl::string_view mode = variable == nullptr ? "" : variable;
  std::vector<std::string> of_engines;
  if (LandlockVersion() > 0 && EngineFilesConfined()) of_engines.push_back(LandlockName());
  if (HasSyscallFilters() && EngineCallsConfined()) of_engines.push_back("seccomp");
  layers.engines = of_engines.empty() ? "nothing" : absl::StrJoin(of_engines, ", ");
  if (!mode.empty()) {
    absl::StrAppend(&layers.engines, " (", kEngineSandboxVariable, "=", mode, ")");
  }
  if (!EngineFilesConfined() || !EngineCallsConfined()) {
    layers.missing.push_back(absl::StrCat(
        "engines are NOT CONFINED ",
        DescribeUnconfined(EngineFilesConfined(), EngineCallsConfined()), ": ",
        kEngineSandboxVariable, "=", mode,
        ", which is for measurements. Fix: remove the variable from the daemon's environment"));
  }
  held.insert(held.begin(), "limits");
  layers.held = absl::StrJoin(held, ", ");
  return layers;
}

}  // namespace resident
