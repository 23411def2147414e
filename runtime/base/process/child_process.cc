#include "runtime/base/process/child_process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"

namespace resident {
namespace {

#ifndef CLOSE_RANGE_CLOEXEC
#define CLOSE_RANGE_CLOEXEC (1U << 2)
#endif

// The child sends this to the parent if it cannot execute the program.
struct SpawnFailure {
  enum Step : int { kParentGone, kDescriptors, kExec } step;
  int error;
};

// Everything that the child needs, prepared before the fork: between fork and exec the child
// must not allocate, because another thread may have held the allocator's locks.
struct ChildPlan {
  const char* program;
  char* const* argv;
  char* const* envp;
  const ChildOptions::Fd* fds;
  int* spare_fds;  // Space for one descriptor for each of fds.
  size_t fd_count;
  int first_free_fd;  // Above all numbers that the descriptors get in the child.
  int failure_fd;
  pid_t parent;
};

[[noreturn]] void Fail(const ChildPlan& plan, SpawnFailure::Step step, int failure_fd) {
  const SpawnFailure failure{step, errno};
  [[maybe_unused]] const ssize_t written = write(failure_fd, &failure, sizeof(failure));
  _exit(127);
}

void CloseOnExecFrom(int first) {
  if (syscall(SYS_close_range, first, ~0U, CLOSE_RANGE_CLOEXEC) == 0) return;
  const long max_fds = std::min(sysconf(_SC_OPEN_MAX), 65536L);
  for (int fd = first; fd < max_fds; ++fd) fcntl(fd, F_SETFD, FD_CLOEXEC);
}

// Runs in the child, which has only one thread: only async-signal-safe calls are allowed.
[[noreturn]] void BecomeProgram(const ChildPlan& plan) {
  // Handlers of the parent must not run here once signals are unblocked.
  struct sigaction default_action = {};
  default_action.sa_handler = SIG_DFL;
  for (int signal = 1; signal < NSIG; ++signal) sigaction(signal, &default_action, nullptr);

  int failure_fd = plan.failure_fd;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  // The parent may have ended before the line above took effect.
  if (getppid() != plan.parent) Fail(plan, SpawnFailure::kParentGone, failure_fd);

  CloseOnExecFrom(3);
  // In two steps, because the new number of one descriptor may be the current number of another.
  failure_fd = fcntl(failure_fd, F_DUPFD_CLOEXEC, plan.first_free_fd);
  if (failure_fd < 0) Fail(plan, SpawnFailure::kDescriptors, plan.failure_fd);
  for (size_t i = 0; i < plan.fd_count; ++i) {
    plan.spare_fds[i] = fcntl(plan.fds[i].parent, F_DUPFD_CLOEXEC, plan.first_free_fd);
    if (plan.spare_fds[i] < 0) Fail(plan, SpawnFailure::kDescriptors, failure_fd);
  }
  const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (null < 0 || dup2(null, STDIN_FILENO) < 0) {
    Fail(plan, SpawnFailure::kDescriptors, failure_fd);
  }
  for (size_t i = 0; i < plan.fd_count; ++i) {
    if (dup2(plan.spare_fds[i], plan.fds[i].child) < 0) {
      Fail(plan, SpawnFailure::kDescriptors, failure_fd);
    }
  }

  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  execve(plan.program, plan.argv, plan.envp);
  Fail(plan, SpawnFailure::kExec, failure_fd);
}

// Calls fork() with all signals blocked, so that no signal handler of the parent runs in the
// child.
pid_t ForkInto(const ChildPlan& plan) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const pid_t pid = fork();
  if (pid == 0) BecomeProgram(plan);
  const int error = errno;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  errno = error;
  return pid;
}

absl::Status ForkError(const char* what, int error) {
  const std::string message = absl::StrCat("cannot start a process: ", what, ": ", strerror(error));
  if (error == EAGAIN || error == ENOMEM || error == EMFILE || error == ENFILE) {
    return absl::ResourceExhaustedError(absl::StrCat(
        message, ". Fix: raise the limit on processes, descriptors or memory of the service"));
  }
  return absl::InternalError(message);
}

absl::Status FailureToStatus(const SpawnFailure& failure, const ChildOptions& options) {
  switch (failure.step) {
    case SpawnFailure::kParentGone:
      return absl::InternalError("cannot start a process: this process has a new parent");
    case SpawnFailure::kDescriptors:
      return ForkError("passing descriptors", failure.error);
    case SpawnFailure::kExec:
      break;
  }
  const std::string message =
      absl::StrCat("cannot run ", options.program, ": ", strerror(failure.error));
  if (failure.error == ENOENT || failure.error == EACCES || failure.error == ENOTDIR) {
    return absl::NotFoundError(absl::StrCat(message, ". Fix: give the path of an executable file"));
  }
  return ForkError(message.c_str(), failure.error);
}

struct Spawned {
  pid_t pid;
  int pidfd;
};

// Runs on the process thread.
absl::StatusOr<Spawned> ForkAndExec(const ChildOptions& options) {
  std::vector<char*> argv;
  for (const std::string& argument : options.arguments) {
    argv.push_back(const_cast<char*>(argument.c_str()));
  }
  argv.push_back(nullptr);
  std::vector<char*> envp;
  for (const std::string& variable : options.environment) {
    envp.push_back(const_cast<char*>(variable.c_str()));
  }
  envp.push_back(nullptr);
  std::vector<int> spare_fds(options.fds.size(), -1);
  int first_free_fd = 3;
  for (const ChildOptions::Fd& fd : options.fds) {
    first_free_fd = std::max(first_free_fd, fd.child + 1);
  }

  // A successful exec closes it; otherwise the child writes a SpawnFailure.
  int failure_pipe[2];
  if (pipe2(failure_pipe, O_CLOEXEC) != 0) return ForkError("pipe", errno);
  absl::Cleanup close_read = [&] { close(failure_pipe[0]); };
  absl::Cleanup close_write = [&] { close(failure_pipe[1]); };

  const ChildPlan plan{options.program.c_str(), argv.data(),      envp.data(),
                       options.fds.data(),      spare_fds.data(), spare_fds.size(),
                       first_free_fd,           failure_pipe[1],  getpid()};
  const pid_t pid = ForkInto(plan);
  if (pid < 0) return ForkError("fork", errno);
  std::move(close_write).Invoke();

  // The child is reaped only by the waitpid below or by ChildProcess, so no other process can
  // have its pid yet.
  const int pidfd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  const int pidfd_error = errno;
  SpawnFailure failure;
  ssize_t got;
  do {
    got = read(failure_pipe[0], &failure, sizeof(failure));
  } while (got < 0 && errno == EINTR);

  absl::Status status;
  if (got == static_cast<ssize_t>(sizeof(failure))) {
    status = FailureToStatus(failure, options);
  } else if (pidfd < 0) {
    kill(pid, SIGKILL);
    status = ForkError("pidfd_open (needs Linux 5.3)", pidfd_error);
  }
  if (!status.ok()) {
    waitpid(pid, nullptr, 0);
    if (pidfd >= 0) close(pidfd);
    return status;
  }
  return Spawned{pid, pidfd};
}

}  // namespace

std::vector<std::string> PickEnvironment(const std::vector<std::string>& names) {
  std::vector<std::string> picked;
  for (char** variable = environ; variable != nullptr && *variable != nullptr; ++variable) {
    const absl::string_view text = *variable;
    const absl::string_view name = text.substr(0, text.find('='));
    const bool wanted = std::any_of(names.begin(), names.end(), [&](const std::string& pattern) {
      return absl::EndsWith(pattern, "*") ? absl::StartsWith(name, absl::StripSuffix(pattern, "*"))
                                          : name == pattern;
    });
    if (wanted) picked.emplace_back(text);
  }
  return picked;
}

std::vector<std::string> SanitizerVariables() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return {"ASAN_OPTIONS", "LSAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS"};
#else
  return {};
#endif
}

std::string ChildExit::ToString() const {
  if (signal) return absl::StrCat("was killed by signal ", *signal, " (", strsignal(*signal), ")");
  return absl::StrCat("exited with status ", status.value_or(0));
}

absl::StatusOr<std::unique_ptr<ChildProcess>> ChildProcess::Spawn(const ChildOptions& options) {
  absl::StatusOr<Spawned> spawned = absl::InternalError("not run");
  RunOnProcessThread([&] { spawned = ForkAndExec(options); });
  if (!spawned.ok()) return spawned.status();
  return std::unique_ptr<ChildProcess>(new ChildProcess(spawned->pid, spawned->pidfd));
}

ChildProcess::~ChildProcess() {
  Kill(SIGKILL);
  Wait(kReapLimit);
  close(pidfd_);
}

void ChildProcess::Kill(int signal) {
  absl::MutexLock lock(&mu_);
  if (exit_) return;
  syscall(SYS_pidfd_send_signal, pidfd_, signal, nullptr, 0);
}

std::optional<ChildExit> ChildProcess::Wait(std::chrono::nanoseconds timeout) {
  const auto until = std::chrono::steady_clock::now() + timeout;
  pollfd ended{pidfd_, POLLIN, 0};
  while (true) {
    // Rounded up, because a remainder below 1 ms would make poll() return at once, repeatedly.
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
    const int timeout_ms = static_cast<int>(std::clamp<int64_t>(left.count(), 0, 1'000'000'000));
    const int ready = poll(&ended, 1, timeout_ms);
    if (ready > 0) break;
    if (ready == 0 && timeout_ms == 0) return std::nullopt;
  }
  absl::MutexLock lock(&mu_);
  if (exit_) return exit_;
  siginfo_t info = {};
  if (waitid(P_PIDFD, static_cast<id_t>(pidfd_), &info, WEXITED) != 0) {
    // The system has reaped it (SIGCHLD is ignored), so its exit status is not known.
    exit_ = ChildExit{.status = 0, .signal = std::nullopt};
  } else if (info.si_code == CLD_EXITED) {
    exit_ = ChildExit{.status = info.si_status, .signal = std::nullopt};
  } else {
    exit_ = ChildExit{.status = std::nullopt, .signal = info.si_status};
  }
  return exit_;
}

namespace {

class ProcessThread {
 public:
  ProcessThread() {
    std::thread([this] { Loop(); }).detach();
  }

  void Run(const std::function<void()>& work) {
    absl::MutexLock one_at_a_time(&callers_mu_);
    absl::MutexLock lock(&mu_);
    work_ = &work;
    const auto done = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return work_ == nullptr; };
    mu_.Await(absl::Condition(&done));
  }

 private:
  void Loop() {
    prctl(PR_SET_NAME, "resident-spawn");
    const auto has_work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return work_ != nullptr; };
    while (true) {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(&has_work));
      (*work_)();
      work_ = nullptr;
    }
  }

  absl::Mutex callers_mu_;
  absl::Mutex mu_ ABSL_ACQUIRED_AFTER(callers_mu_);
  const std::function<void()>* work_ ABSL_GUARDED_BY(mu_) = nullptr;
};

}  // namespace

void RunOnProcessThread(const std::function<void()>& work) {
  static ProcessThread* const thread = new ProcessThread;  // Never deleted.
  thread->Run(work);
}

}  // namespace resident
