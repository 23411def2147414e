// ChildProcess: another program, run as a child that cannot outlive this process.
//
// Spawn forks and executes; an error of either is reported by Spawn itself, with what
// failed. The child gets exactly the descriptors and the environment that it is given,
// default signal handlers and no blocked signals. It is killed by the system when this process
// ends, however that comes about. The destructor kills and reaps it: no zombie is left.
//
// The system ties "killed when the parent ends" to the thread that forked, not to
// the process (prctl(2), PR_SET_PDEATHSIG). So one thread, which is started by the
// first Spawn and lives as long as the process, forks for everybody.
//
// Thread safety: all members may be called from any thread.
//
//   auto child = ChildProcess::Spawn({.program = "/bin/cat", .arguments = {"cat"},
//                                     .fds = {{socket, 3}}});
//   child->pidfd();                    // Readable once it has ended: for poll().
//   child->Kill(SIGKILL);
//   std::optional<ChildExit> exit = child->Wait(std::chrono::seconds(1));
#ifndef RESIDENT_RUNTIME_BASE_PROCESS_CHILD_PROCESS_H_
#define RESIDENT_RUNTIME_BASE_PROCESS_CHILD_PROCESS_H_

#include <sys/types.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

namespace resident {

// How a process ended.
struct ChildExit {
  // Exactly one of these is set: its exit status, or the signal that ended it.
  std::optional<int> status;
  std::optional<int> signal;

  // "exited with status 3", "was killed by signal 9 (Killed)".
  std::string ToString() const;
};

struct ChildOptions {
  // A descriptor of this process, and the number it has in the child.
  struct Fd {
    int parent;
    int child;
  };

  // Path of the program; not looked up in $PATH.
  std::string program;
  // argv, from argv[0].
  std::vector<std::string> arguments;
  // The child's whole environment, each "NAME=value": nothing of this process's is inherited.
  // PickEnvironment makes it from this process's variables.
  std::vector<std::string> environment;
  // What the child gets besides stdin (/dev/null), stdout and stderr (this process's,
  // unless they are given here). Numbers must differ.
  std::vector<Fd> fds;
};

// Those of this process's environment variables that one of `names` names: the whole name, or the
// beginning of one, with "*" behind it ("CUDA_*"; "*": all). As ChildOptions::environment.
std::vector<std::string> PickEnvironment(const std::vector<std::string>& names);

// Variables of sanitizers, which a child built with one reads. Empty in builds without.
std::vector<std::string> SanitizerVariables();

class ChildProcess {
 public:
  // Errors: NOT_FOUND (no such program), RESOURCE_EXHAUSTED (no process or descriptor
  // to be had), INTERNAL. The descriptors stay the caller's.
  static absl::StatusOr<std::unique_ptr<ChildProcess>> Spawn(const ChildOptions& options);

  // Kills the child, if it still runs, and reaps it. A child that the system cannot
  // end (stuck in a driver) is given up after kReapLimit.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  static constexpr std::chrono::seconds kReapLimit{30};

  pid_t pid() const { return pid_; }
  // Becomes readable when the child has ended, and stays so.
  int pidfd() const { return pidfd_; }

  // Sends a signal; does nothing when the child has ended. Never hits another process
  // that got the same number.
  void Kill(int signal);

  // How the child ended; nullopt if it has not within `most`.
  std::optional<ChildExit> Wait(std::chrono::nanoseconds most);

 private:
  ChildProcess(pid_t pid, int pidfd) : pid_(pid), pidfd_(pidfd) {}

  const pid_t pid_;
  const int pidfd_;
  absl::Mutex mu_;
  std::optional<ChildExit> exit_ ABSL_GUARDED_BY(mu_);
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_BASE_PROCESS_CHILD_PROCESS_H_
