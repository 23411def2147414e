// ChildProcess: another program, run as a child that cannot outlive this process.
//
// Spawn forks and executes; it returns an error of either, with the step that failed.
// The child gets exactly the descriptors and the environment in its options, default
// signal handlers and no blocked signals. The system kills it when this process ends in
// any way. The destructor kills and reaps it, so that no zombie remains.
//
// The system kills the child when the thread that forked ends, not when the process ends
// (prctl(2), PR_SET_PDEATHSIG). So one thread, which is started by the first Spawn and
// runs as long as the process, performs all forks.
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
#include <functional>
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
  // argv, including argv[0].
  std::vector<std::string> arguments;
  // The child's whole environment, each "NAME=value". It inherits no variable of this process;
  // PickEnvironment selects some of them.
  std::vector<std::string> environment;
  // Additional descriptors. The child also has stdin (/dev/null), stdout and stderr (those of
  // this process, unless they are set here). The numbers in the child must differ.
  std::vector<Fd> fds;
};

// Returns the environment variables of this process that match one of `names`, in the form of
// ChildOptions::environment. A name with "*" at its end matches a prefix ("CUDA_*"; "*": all).
std::vector<std::string> PickEnvironment(const std::vector<std::string>& names);

// Names of the variables that the runtime of a sanitizer reads. Empty in builds without one.
std::vector<std::string> SanitizerVariables();

class ChildProcess {
 public:
  // Errors: NOT_FOUND (no such program), RESOURCE_EXHAUSTED (no process or descriptor
  // is available), INTERNAL. The caller keeps ownership of the descriptors.
  static absl::StatusOr<std::unique_ptr<ChildProcess>> Spawn(const ChildOptions& options);

  // Kills the child, if it still runs, and reaps it. If the system cannot end it (because it
  // is stuck in a driver), the destructor returns after kReapLimit without reaping it.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  static constexpr std::chrono::seconds kReapLimit{30};

  pid_t pid() const { return pid_; }
  // Becomes readable when the child has ended, and remains readable.
  int pidfd() const { return pidfd_; }

  // Sends a signal; does nothing when the child has ended. It never sends the signal to another
  // process with the same pid.
  void Kill(int signal);

  // How the child ended; nullopt if it has not ended within `timeout`.
  std::optional<ChildExit> Wait(std::chrono::nanoseconds timeout);

 private:
  ChildProcess(pid_t pid, int pidfd) : pid_(pid), pidfd_(pidfd) {}

  const pid_t pid_;
  const int pidfd_;
  absl::Mutex mu_;
  std::optional<ChildExit> exit_ ABSL_GUARDED_BY(mu_);
};

// The process thread: one thread that runs as long as the process. It performs actions whose
// effects the system ends with the calling thread, although they should last as long as the
// process. It sleeps when it has no work, and is never joined.
//
// Thread safety: may be called from any thread except the process thread itself. One
// call runs at a time.
//
// Memory ordering: what the caller wrote before the call is visible to `work`, and
// what `work` wrote is visible to the caller after it.

// Runs `work` on the process thread and returns when it is done.
void RunOnProcessThread(const std::function<void()>& work);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_BASE_PROCESS_CHILD_PROCESS_H_
