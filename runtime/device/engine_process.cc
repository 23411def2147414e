#include "runtime/device/engine_process.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cassert>
#include <deque>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "runtime/base/sandbox/engine_sandbox.h"
#include "runtime/base/status_macros.h"
#include "runtime/base/utf8.h"
#include "runtime/engine/control/engine_main.h"

namespace resident {
namespace {

struct SocketPair {
  int ours;
  int theirs;
};

absl::StatusOr<SocketPair> MakeSocketPair() {
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot create sockets for an engine: ", strerror(errno),
                     ". Fix: raise the limit on open files of the service"));
  }
  return SocketPair{sockets[0], sockets[1]};
}

// Environment variables of the engine.
std::vector<std::string> EngineEnvironment(const EngineType& type) {
  std::vector<std::string> names = SanitizerVariables();
  names.emplace_back(kEngineSandboxVariable);
  names.insert(names.end(), type.variables.begin(), type.variables.end());
  return PickEnvironment(names);
}

}  // namespace

absl::Status CheckLayout(uint64_t engine_layout_hash) {
  if (engine_layout_hash == LayoutHash()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrFormat(
      "the engine has ring layout %#x, the front end %#x. Fix: run both from the same residentd "
      "binary",
      engine_layout_hash, LayoutHash()));
}

absl::StatusOr<std::unique_ptr<EngineProcess>> EngineProcess::Launch(const DeviceOptions& options) {
  assert(options.engine_type != nullptr);
  ASSIGN_OR_RETURN(auto region, SharedRegion::Create(options.limits.ring_slots,
                                                     options.limits.staging_mib << 20));
  ASSIGN_OR_RETURN(const auto control, MakeSocketPair());
  absl::Cleanup close_control = [&] { close(control.ours); };
  absl::Cleanup close_their_control = [&] { close(control.theirs); };
  ASSIGN_OR_RETURN(const auto lifeline, MakeSocketPair());
  absl::Cleanup close_lifeline = [&] { close(lifeline.ours); };
  absl::Cleanup close_their_lifeline = [&] { close(lifeline.theirs); };

  ASSIGN_OR_RETURN(auto output, ChildOutput::Create(absl::StrCat("residentd: engine of device ",
                                                                 options.index, ": ")));

  ChildOptions child_options;
  child_options.program =
      options.engine_program.empty() ? "/proc/self/exe" : options.engine_program;
  child_options.arguments = {
      "residentd", "engine", absl::StrCat("--engine=", options.engine_type->name),
      absl::StrCat("--device=", options.index), absl::StrCat("--parent=", getpid())};
  child_options.fds = {{region->fd(), kEngineRegionFd},
                       {control.theirs, kEngineControlFd},
                       {lifeline.theirs, kEngineLifelineFd},
                       {output->child_end(), STDOUT_FILENO},
                       {output->child_end(), STDERR_FILENO}};
  child_options.environment = EngineEnvironment(*options.engine_type);
  ASSIGN_OR_RETURN(auto child, ChildProcess::Spawn(child_options));
  output->CloseChildEnd();

  std::move(close_control).Cancel();
  std::move(close_lifeline).Cancel();
  auto client = std::make_shared<EngineClient>(control.ours);
  return std::unique_ptr<EngineProcess>(new EngineProcess(options, std::move(region),
                                                          std::move(output), std::move(child),
                                                          std::move(client), lifeline.ours));
}

EngineProcess::~EngineProcess() {
  // Killed before the control connection is closed: the engine would report that as an error.
  child_->Kill(SIGKILL);
  close(lifeline_);
}

absl::Status EngineProcess::Explain(const absl::Status& status) {
  if (status.code() != absl::StatusCode::kUnavailable) return status;
  // UNAVAILABLE is either the engine's own error, or it has ended and closed its connection.
  const std::optional<ChildExit> exit =
      child_->Wait(exit_reason().empty() ? std::chrono::milliseconds(100)
                                         : std::chrono::milliseconds(kEngineEndLimit));
  if (!exit) return status;
  return absl::UnavailableError(
      absl::StrCat("the engine ", exit->ToString(), " while it started",
                   exit_reason().empty() ? "" : absl::StrCat(": ", exit_reason())));
}

absl::Status EngineProcess::Prepare(std::chrono::milliseconds timeout) {
  auto phases = client_->Prepare(options_.ordinal, timeout);
  if (!phases.ok()) return Explain(phases.status());
  prepare_phases_ = *std::move(phases);
  prepared_ = true;
  return absl::OkStatus();
}

absl::StatusOr<EngineInfo> EngineProcess::Start(const EngineOptions& options,
                                                std::chrono::milliseconds timeout) {
  assert(prepared_);
  absl::StatusOr<EngineInfo> info = client_->Start(options, timeout);
  if (!info.ok()) return Explain(info.status());
  RETURN_IF_ERROR(CheckLayout(info->layout_hash));
  return info;
}

absl::StatusOr<EngineInfo> EngineProcess::Start(std::chrono::milliseconds timeout) {
  RETURN_IF_ERROR(Prepare(timeout));
  return Start(options_, timeout);
}

uint64_t EngineProcess::heartbeat() const {
  return std::atomic_ref<u64>(region_->control()->heartbeat).load(std::memory_order_relaxed);
}

std::string EngineProcess::exit_reason() const {
  const char* reason = region_->control()->exit_reason;
  // The text is sanitized, because an operator can write there too.
  return ToPrintableLine(absl::string_view(reason, strnlen(reason, kExitReasonBytes)));
}

namespace {

struct Waiting {
  std::unique_ptr<EngineProcess> process;
  EngineReaper::Reaped reaped;
};

class Worker {
 public:
  Worker() {
    std::thread([this] {
      prctl(PR_SET_NAME, "resident-reaper");
      while (true) {
        const Waiting next = Next();
        const std::optional<ChildExit> exit = next.process->child().Wait(ChildProcess::kReapLimit);
        if (next.reaped) next.reaped(exit);
      }
    }).detach();
  }

  void Add(Waiting waiting) {
    absl::MutexLock lock(&mu_);
    waiting_.push_back(std::move(waiting));
  }

 private:
  Waiting Next() {
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(
        +[](std::deque<Waiting>* waiting) { return !waiting->empty(); }, &waiting_));
    Waiting next = std::move(waiting_.front());
    waiting_.pop_front();
    return next;
  }

  absl::Mutex mu_;
  std::deque<Waiting> waiting_ ABSL_GUARDED_BY(mu_);
};

Worker& TheWorker() {
  static Worker* const worker = new Worker;
  return *worker;
}

}  // namespace

void EngineReaper::Start() { TheWorker(); }

void EngineReaper::Reap(std::unique_ptr<EngineProcess> process, Reaped reaped) {
  process->child().Kill(SIGKILL);
  TheWorker().Add({std::move(process), std::move(reaped)});
}

}  // namespace resident
