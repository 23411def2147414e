// CompileProcess: the front end's handle of one `residentd compile` process.
//
// The size of the folder that a host compiler works in is checked: if it exceeds
// CompileLimits::folder_mib, the process is killed. A deleted file that is still open is not
// counted.
//
//   Start ──▶ starting ──▶ Call ──▶ Call ... ──▶ ended
//                │ Hello               │ over a limit, cancelled, or it ended: an error,
//                ▼                     ▼ and the process cannot be used any more
//             compiler()             ended
//
// The destructor kills the process with everything that it started and removes its folder.
//
// Thread safety: belongs to one thread at a time.
//
//   ASSIGN_OR_RETURN(auto process, CompileProcess::Start(options));
//   ASSIGN_OR_RETURN(auto response, process->Call(request, cancelled));
#ifndef RESIDENT_RUNTIME_COMPILE_COMPILE_PROCESS_H_
#define RESIDENT_RUNTIME_COMPILE_COMPILE_PROCESS_H_

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "resident/internal/compile.pb.h"
#include "runtime/base/process/child_process.h"
#include "runtime/compile/compile_job.h"
#include "runtime/compile/host_compiler.h"

namespace resident {

struct CompileProcessOptions {
  Toolchain toolchain = Toolchain::kHost;
  // For kHost.
  HostCompiler host;
  // For kHost: an existing folder, in which the process gets a folder of its own.
  std::string work_folder;
  CompileLimits limits;
  // Empty: /proc/self/exe.
  std::string program;
};

class CompileProcess {
 public:
  static absl::StatusOr<std::unique_ptr<CompileProcess>> Start(
      const CompileProcessOptions& options);
  ~CompileProcess();
  CompileProcess(const CompileProcess&) = delete;
  CompileProcess& operator=(const CompileProcess&) = delete;

  // Waits until the process is ready. Returns the compiler's name and version (kHost: empty).
  absl::StatusOr<std::string> Hello();

  // Errors: DEADLINE_EXCEEDED and RESOURCE_EXHAUSTED (it exceeded a limit and was killed),
  // CANCELLED, UNAVAILABLE (it could not be started, or has no compiler), INTERNAL (it ended by
  // itself).
  absl::StatusOr<internal::CompileResponse> Call(const internal::CompileRequest& request,
                                                 const std::function<bool()>& cancelled);

  // Whether the process has ended by itself and cannot be used.
  bool ended() const;

 private:
  CompileProcess(const CompileProcessOptions& options, std::string folder, int socket,
                 std::unique_ptr<ChildProcess> child);

  // Waits until the descriptor is ready, the deadline has passed or `cancelled` returns true.
  absl::Status Wait(int fd, short events, std::chrono::steady_clock::time_point deadline,
                    const std::function<bool()>& cancelled);
  // RESOURCE_EXHAUSTED: the folder is over its limit. Checks once in kFolderPoll.
  absl::Status CheckFolder();
  // Kills the process with all that it started, and reaps it. A second call does nothing.
  void KillAndReap();
  // Waits up to `timeout` for the process to end by itself, then calls KillAndReap(). Returns
  // how it ended; nullopt: it had to be killed.
  std::optional<ChildExit> AwaitEnd(std::chrono::milliseconds timeout);
  // Returns why the process closed its socket.
  absl::Status EndWith(const absl::Status& status);

  const CompileProcessOptions options_;
  const std::string folder_;
  const int socket_;
  const std::unique_ptr<ChildProcess> child_;
  std::optional<absl::StatusOr<std::string>> hello_;
  std::chrono::steady_clock::time_point folder_checked_;
  bool reaped_ = false;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_COMPILE_COMPILE_PROCESS_H_
