
#include "runtime/compile/compile_process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/process/frames.h"
#include "runtime/base/status_macros.h"
#include "runtime/compile/compile_main.h"
#include "runtime/compile/errors.h"
#include "runtime/compile/work_folder.h"
#include "runtime/image/gpu_variables.h"

namespace resident {
namespace {

using Clock = std::chrono::steady_clock;

// How often `cancelled` is called.
constexpr std::chrono::milliseconds kCancelPoll{20};
// How often the folder is measured.
constexpr std::chrono::milliseconds kFolderPoll{100};
// How long a process may take to end after it closed its socket.
constexpr std::chrono::milliseconds kEndLimit{1000};

std::vector<std::string> Arguments(const CompileProcessOptions& options,
                                   const std::string& folder) {
  std::vector<std::string> arguments = {
      "residentd", "compile",
      absl::StrCat("--kind=", options.toolchain == Toolchain::kHost ? "host" : "cuda"),
      absl::StrCat("--memory_mib=", options.limits.memory_mib),
      absl::StrCat("--cpu_seconds=", options.limits.cpu_time.count())};
  if (options.toolchain != Toolchain::kHost) return arguments;
  arguments.push_back(absl::StrCat("--folder=", folder));
  arguments.push_back(absl::StrCat("--compiler=", options.host.path));
  arguments.push_back(absl::StrCat("--gcc=", options.host.gcc ? 1 : 0));
  for (const std::string& path : options.host.readable) {
    arguments.push_back(absl::StrCat("--readable=", path));
  }
  for (const std::string& path : options.host.executable) {
    arguments.push_back(absl::StrCat("--executable=", path));
  }
  return arguments;
}

// Environment variables of the process. (A host compiler gets others: run_program.h.)
std::vector<std::string> Environment(Toolchain toolchain) {
  std::vector<std::string> names = SanitizerVariables();
  if (toolchain == Toolchain::kCuda) {
    names.insert(names.end(), std::begin(kGpuVariables), std::end(kGpuVariables));
  }
  return PickEnvironment(names);
}

// Makes a new folder below the work folder, named after this process.
absl::StatusOr<std::string> MakeFolder(const std::string& work_folder) {
  std::string path = absl::StrCat(work_folder, "/", getpid(), "-XXXXXX");
  if (mkdtemp(path.data()) == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot make a folder in ", work_folder, ": ",
                                                     strerror(errno),
                                                     ". Fix: free space, or make it writable"));
  }
  return path;
}

}  // namespace

absl::StatusOr<std::unique_ptr<CompileProcess>> CompileProcess::Start(
    const CompileProcessOptions& options) {
  std::string folder;
  if (options.toolchain == Toolchain::kHost) {
    ASSIGN_OR_RETURN(auto made, MakeFolder(options.work_folder));
    folder = std::move(made);
  }
  absl::Cleanup remove_folder = [&] {
    if (!folder.empty()) RemoveFolder(folder);
  };
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot create sockets for a compile process: ", strerror(errno),
                     ". Fix: raise the limit on open files of the service"));
  }
  absl::Cleanup close_ours = [&] { close(sockets[0]); };
  absl::Cleanup close_theirs = [&] { close(sockets[1]); };
  fcntl(sockets[0], F_SETFL, O_NONBLOCK);
  // The daemon's output must not contain text that a source makes a compiler print.
  const int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
  absl::Cleanup close_null = [&] { close(null); };

  ChildOptions child_options;
  child_options.program = options.program.empty() ? "/proc/self/exe" : options.program;
  child_options.arguments = Arguments(options, folder);
  child_options.fds = {{sockets[1], kCompileFd}, {null, STDOUT_FILENO}, {null, STDERR_FILENO}};
  child_options.environment = Environment(options.toolchain);
  ASSIGN_OR_RETURN(auto child, ChildProcess::Spawn(child_options));
  std::move(close_ours).Cancel();
  std::move(remove_folder).Cancel();
  return std::unique_ptr<CompileProcess>(
      new CompileProcess(options, std::move(folder), sockets[0], std::move(child)));
}

CompileProcess::CompileProcess(const CompileProcessOptions& options, std::string folder, int socket,
                               std::unique_ptr<ChildProcess> child)
    : options_(options), folder_(std::move(folder)), socket_(socket), child_(std::move(child)) {}

CompileProcess::~CompileProcess() {
  KillAndReap();
  close(socket_);
  if (!folder_.empty()) RemoveFolder(folder_);
}

bool CompileProcess::ended() const {
  pollfd ended{child_->pidfd(), POLLIN, 0};
  return poll(&ended, 1, 0) > 0;
}

void CompileProcess::KillAndReap() {
  if (std::exchange(reaped_, true)) return;
  // The process id stays valid until the process is reaped. The group may not exist yet.
  kill(-child_->pid(), SIGKILL);
  child_->Kill(SIGKILL);
  child_->Wait(ChildProcess::kReapLimit);
}

std::optional<ChildExit> CompileProcess::AwaitEnd(std::chrono::milliseconds timeout) {
  pollfd ended{child_->pidfd(), POLLIN, 0};
  const bool by_itself = poll(&ended, 1, static_cast<int>(timeout.count())) > 0;
  KillAndReap();
  return by_itself ? child_->Wait(std::chrono::nanoseconds(0)) : std::nullopt;
}

absl::Status CompileProcess::Wait(int fd, short events, Clock::time_point deadline,
                                  const std::function<bool()>& cancelled) {
  pollfd ready{fd, events, 0};
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0) return absl::DeadlineExceededError("");
    auto wait = cancelled ? std::min(left, kCancelPoll) : left;
    if (!folder_.empty()) wait = std::min(wait, kFolderPoll);
    const int count = poll(&ready, 1, static_cast<int>(std::min<int64_t>(wait.count(), 1 << 30)));
    if (count > 0) return absl::OkStatus();
    if (cancelled && cancelled()) return errors::InstallWithdrawn();
    RETURN_IF_ERROR(CheckFolder());
  }
}

absl::Status CompileProcess::CheckFolder() {
  const auto now = Clock::now();
  if (folder_.empty() || now - folder_checked_ < kFolderPoll) return absl::OkStatus();
  folder_checked_ = now;
  const uint64_t max_mib = options_.limits.folder_mib;
  if (!ExceedsFolderLimit(folder_, max_mib << 20, kMaxCompileFolderEntries))
    return absl::OkStatus();
  return errors::CompileFolderFull(max_mib, kMaxCompileFolderEntries);
}

absl::Status CompileProcess::EndWith(const absl::Status& status) {
  if (absl::IsDeadlineExceeded(status)) {
    KillAndReap();
    return absl::DeadlineExceededError(
        absl::StrCat("compiling took longer than ", options_.limits.wall_time.count(),
                     " ms. Fix: use fewer templates and constexpr loops, or raise "
                     "--compile_wall_time"));
  }
  if (!absl::IsUnavailable(status) && !absl::IsOutOfRange(status)) {
    KillAndReap();
    return status;
  }
  const std::optional<ChildExit> exit = AwaitEnd(kEndLimit);
  if (!exit) return absl::InternalError("the compile process closed its socket and did not exit");
  if (exit->signal == SIGXCPU || exit->signal == SIGKILL) {
    return absl::DeadlineExceededError(
        absl::StrCat("the compiler reached its limit of ", options_.limits.cpu_time.count(),
                     " s of CPU time. Fix: use fewer templates and constexpr loops, or raise "
                     "--compile_cpu_time"));
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("the compile process ", exit->ToString(),
                   ": the source made the compiler fail or exceed its ", options_.limits.memory_mib,
                   " MiB of memory. Fix: make the source smaller, or raise --compile_memory_mib"));
}

absl::StatusOr<std::string> CompileProcess::Hello() {
  if (hello_) return *hello_;
  const auto deadline = Clock::now() + options_.limits.wall_time;
  const auto message = ReadFrame(socket_, kMaxCompilerLogBytes, [&](int fd, short events) {
    return Wait(fd, events, deadline, nullptr);
  });
  internal::CompileHello hello;
  if (!message.ok()) {
    const std::optional<ChildExit> exit = AwaitEnd(kEndLimit);
    hello_ = absl::UnavailableError(absl::StrCat(
        "the compile process ", exit ? exit->ToString() : "did not answer", " while it started"));
  } else if (!hello.ParseFromString(*message)) {
    hello_ = absl::InternalError("the compile process sent a message that cannot be parsed");
  } else if (absl::Status status = GetStatus(hello.status()); !status.ok()) {
    hello_ = status;
  } else {
    hello_ = hello.compiler();
  }
  return *hello_;
}

absl::StatusOr<internal::CompileResponse> CompileProcess::Call(
    const internal::CompileRequest& request, const std::function<bool()>& cancelled) {
  if (auto hello = Hello(); !hello.ok()) return hello.status();
  const auto deadline = Clock::now() + options_.limits.wall_time;
  const WaitForFd wait = [&](int fd, short events) {
    return Wait(fd, events, deadline, cancelled);
  };
  if (absl::Status status = WriteFrame(socket_, request.SerializeAsString(), wait); !status.ok()) {
    return EndWith(status);
  }
  const auto message = ReadFrame(socket_, kMaxMessageBytes, wait);
  if (!message.ok()) return EndWith(message.status());
  internal::CompileResponse response;
  if (!response.ParseFromString(*message)) {
    KillAndReap();
    return absl::InternalError("the compile process sent a message that cannot be parsed");
  }
  return response;
}

}  // namespace resident
