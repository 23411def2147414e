
#include "runtime/compile/compile_main.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "resident/internal/compile.pb.h"
#include "runtime/base/limits.h"
#include "runtime/base/process/frames.h"
#include "runtime/base/process/process_limits.h"
#include "runtime/base/sandbox/sandbox.h"
#include "runtime/base/status_macros.h"
#include "runtime/compile/compile_job.h"
#include "runtime/compile/job_runner.h"
#include "runtime/compile/ptx/ptx_verifier.h"

namespace resident {
namespace {

constexpr std::chrono::seconds kThreadsEndLimit{1};
constexpr std::chrono::milliseconds kThreadsLook{1};

struct Role {
  std::string kind;
  std::string folder;
  HostCompiler compiler;
  uint64_t cpu_seconds = 0;
  uint64_t memory_mib = 0;
};

Role ParseRole(int argc, char** argv) {
  Role role;
  role.compiler.gcc = false;
  for (int i = 2; i < argc; ++i) {
    const absl::string_view argument = argv[i];
    const size_t equals = argument.find('=');
    if (equals == absl::string_view::npos) continue;
    const absl::string_view name = argument.substr(0, equals);
    const std::string value(argument.substr(equals + 1));
    if (name == "--kind") role.kind = value;
    if (name == "--folder") role.folder = value;
    if (name == "--compiler") role.compiler.path = value;
    if (name == "--gcc") role.compiler.gcc = value == "1";
    if (name == "--readable") role.compiler.readable.push_back(value);
    if (name == "--executable") role.compiler.executable.push_back(value);
    if (name == "--cpu_seconds" && !absl::SimpleAtoi(value, &role.cpu_seconds)) role.kind.clear();
    if (name == "--memory_mib" && !absl::SimpleAtoi(value, &role.memory_mib)) role.kind.clear();
  }
  return role;
}

// Returns the names of the process's threads, including the calling thread.
std::vector<std::string> ThreadNames() {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", error)) {
    std::ifstream file(task.path() / "comm");
    std::string name;
    // A thread that has ended meanwhile has no name.
    if (std::getline(file, name)) names.push_back(name);
  }
  return names;
}

// The sandbox applies to the calling thread only: other threads would not be confined. Threads
// that the tools started during WarmCudaTools() may take a moment to end.
absl::Status AwaitOneThread() {
  const auto give_up = std::chrono::steady_clock::now() + kThreadsEndLimit;
  while (true) {
    const std::vector<std::string> names = ThreadNames();
    if (names.size() <= 1) return absl::OkStatus();
    if (std::chrono::steady_clock::now() >= give_up) {
      return absl::InternalError(
          absl::StrCat("the compile process has ", names.size(),
                       " threads before it is confined: ", absl::StrJoin(names, ", ")));
    }
    std::this_thread::sleep_for(kThreadsLook);
  }
}

// Opens the tools and confines the process. Returns the tool's name and version.
absl::StatusOr<std::string> Prepare(const Role& role) {
  absl::StatusOr<std::string> tool = "";
  if (role.kind == "cuda") tool = WarmCudaTools();
  if (!tool.ok()) return tool.status();
  RETURN_IF_ERROR(AwaitOneThread());

  SandboxOptions sandbox;
  sandbox.cpu_seconds = role.cpu_seconds;
  sandbox.memory_bytes = role.memory_mib << 20;
  sandbox.file_bytes = kMaxInstallObjectBytes;
  if (role.kind == "host") {
    sandbox.readable = role.compiler.readable;
    sandbox.executable = role.compiler.executable;
    sandbox.writable = {role.folder, "/dev/null"};
  } else {
    // The process has opened all it needs. (Landlock requires a rule set, but no rules.)
    sandbox.single_process = true;
  }
  RETURN_IF_ERROR(ConfineProcess(sandbox));
  return tool;
}

internal::CompileResponse Answer(const Role& role, const internal::CompileRequest& request) {
  if (role.kind == "host") return RunHostJob(role.compiler, role.folder, request);
  return RunCudaJob(request);
}

// For fuzzing: lets the verifier read rewritten PTX, and prints why it refuses it.
int VerifyOnly(const char* path) {
  std::ifstream file(path);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  const size_t target = text.find(".target sm_");
  int architecture = 0;
  const absl::string_view rest =
      target == std::string::npos ? "" : absl::string_view(text).substr(target + 11);
  const size_t digits = std::min(rest.find_first_not_of("0123456789"), rest.size());
  if (!absl::SimpleAtoi(rest.substr(0, digits), &architecture)) {
    std::fprintf(stderr, "%s is not PTX. Fix: name a file with '.target sm_90'\n", path);
    return 2;
  }
  const absl::Status verified = VerifyPtx(text, architecture);
  std::printf("%s\n", verified.ok() ? "accepted" : std::string(verified.message()).c_str());
  return verified.ok() ? 0 : 1;
}

}  // namespace

int CompileMain(int argc, char** argv) {
  if (const char* const path = std::getenv("RESIDENT_VERIFY_ONLY")) return VerifyOnly(path);
  // A process group of its own, so that the processes that it starts are killed with it.
  setpgid(0, 0);
  // A write beyond the limit on a file's size returns an error instead of killing the process.
  signal(SIGXFSZ, SIG_IGN);
  fcntl(kCompileFd, F_SETFD, FD_CLOEXEC);
  RaiseOomScore(kHelperOomScore);
  const Role role = ParseRole(argc, argv);
  if (role.kind != "host" && role.kind != "cuda") return 2;

  const absl::StatusOr<std::string> tool = Prepare(role);
  internal::CompileHello hello;
  SetStatus(tool.status(), hello.mutable_status());
  if (tool.ok()) hello.set_compiler(*tool);
  if (!WriteFrame(kCompileFd, hello.SerializeAsString(), WaitForever).ok() || !tool.ok()) {
    return 1;
  }
  while (true) {
    const auto message = ReadFrame(kCompileFd, kMaxMessageBytes, WaitForever);
    if (!message.ok()) return absl::IsOutOfRange(message.status()) ? 0 : 1;
    internal::CompileRequest request;
    if (!request.ParseFromString(*message)) return 1;
    const internal::CompileResponse response = Answer(role, request);
    if (!WriteFrame(kCompileFd, response.SerializeAsString(), WaitForever).ok()) return 1;
  }
}

}  // namespace resident
