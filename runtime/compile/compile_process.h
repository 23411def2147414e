// CompileProcess: one `residentd compile`, seen from the front end.
//
// The folder that a host compiler works in is watched: over CompileLimits::folder_mib it is killed.
// A file that was deleted while it is open is not counted.
//
//   Start ──▶ starting ──▶ Call ──▶ Call ... ──▶ ended
//                │ Hello               │ over a limit, cancelled, or it ended: UNAVAILABLE
//                ▼                     ▼ and the like, and it is of no more use
//             compiler()             ended
//
// The destructor kills it with everything that it started and removes its folder.
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
#include "runtime/compile/compile_target.h"
#include "runtime/compile/host_compiler.h"

namespace resident {

struct CompileProcessOptions {
  Toolchain toolchain = Toolchain::kHost;
  // kHost.
  HostCompiler host;
  // An existing folder, in which this process gets one of its own. kHost.
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

  // Waits until it is ready. The compiler's name and version (of kHost: empty).
  absl::StatusOr<std::string> Hello();

  // DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED: killed over a limit. CANCELLED. UNAVAILABLE: it
  // could not be started, or has no compiler. INTERNAL: it ended by itself.
  absl::StatusOr<internal::CompileResponse> Call(const internal::CompileRequest& request,
                                                 const std::function<bool()>& cancelled);

  // Whether it has ended by itself: of no use.
  bool ended() const;

 private:
  CompileProcess(const CompileProcessOptions& options, std::string folder, int socket,
                 std::unique_ptr<ChildProcess> child);

  // Until the descriptor is ready, the deadline has passed or `cancelled` says so.
  absl::Status Wait(int fd, short events, std::chrono::steady_clock::time_point deadline,
                    const std::function<bool()>& cancelled);
  // RESOURCE_EXHAUSTED: the folder is over its limit. Looks every kFolderPoll.
  absl::Status CheckFolder();
  // Kills it with all that it started, and reaps it. Does nothing the second time.
  void KillAndReap();
  // Waits for it to end by itself, at most so long; then KillAndReap(). How it ended;
  // nullopt: it had to be killed.
  std::optional<ChildExit> AwaitEnd(std::chrono::milliseconds most);
  // Why it broke its socket off.
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
