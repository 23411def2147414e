#include "runtime/compile/compile_main.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "resident/internal/compile.pb.h"
#include "runtime/compile/compile_job.h"
#include "runtime/compile/job_runner.h"
#include "runtime/compile/message_pipe.h"
#include "runtime/compile/sandbox.h"

namespace resident {
namespace {

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

// The sandbox binds the calling thread: another would be outside.
absl::Status CheckOneThread() {
  DIR* const tasks = opendir("/proc/self/task");
  if (tasks == nullptr) return absl::OkStatus();
  int threads = 0;
  while (const dirent* const entry = readdir(tasks)) threads += entry->d_name[0] != '.';
  closedir(tasks);
  if (threads == 1) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("the compile process has ", threads, " threads before it is confined"));
}

// Opens the tools, confines the process. The tool's name and version.
absl::StatusOr<std::string> Prepare(const Role& role) {
  absl::StatusOr<std::string> tool = "";
  if (role.kind == "cuda") tool = WarmCudaTools();
  if (role.kind == "link") tool = WarmLinkTools();
  if (!tool.ok()) return tool.status();
  if (absl::Status status = CheckOneThread(); !status.ok()) return status;

  SandboxOptions sandbox;
  sandbox.cpu_seconds = role.cpu_seconds;
  sandbox.memory_bytes = role.memory_mib << 20;
  sandbox.file_bytes = kMaxUnitBytes;
  if (role.kind == "host") {
    sandbox.readable = role.compiler.readable;
    sandbox.executable = role.compiler.executable;
    sandbox.writable = {role.folder, "/dev/null"};
  } else {
    // It has opened all it needs. (Landlock wants a rule set, not rules.)
    sandbox.single_process = true;
  }
  if (absl::Status status = ConfineProcess(sandbox); !status.ok()) return status;
  return tool;
}

internal::CompileResponse Answer(const Role& role, const internal::CompileRequest& request) {
  if (role.kind == "host") return RunHostJob(role.compiler, role.folder, request);
  if (role.kind == "cuda") return RunCudaJob(request);
  return RunLinkJob(request);
}

}  // namespace

int CompileMain(int argc, char** argv) {
  // A group of its own: what it starts is ended with it.
  setpgid(0, 0);
  // Over its limit on a file's size it reports an error, as the programs it starts do.
  signal(SIGXFSZ, SIG_IGN);
  fcntl(kCompileFd, F_SETFD, FD_CLOEXEC);
  const Role role = ParseRole(argc, argv);
  if (role.kind != "host" && role.kind != "cuda" && role.kind != "link") return 2;

  const absl::StatusOr<std::string> tool = Prepare(role);
  internal::CompileHello hello;
  SetStatus(tool.status(), hello.mutable_status());
  if (tool.ok()) hello.set_compiler(*tool);
  if (!WriteMessage(kCompileFd, hello.SerializeAsString(), WaitForever).ok() || !tool.ok()) {
    return 1;
  }
  while (true) {
    const auto message = ReadMessage(kCompileFd, kMaxImageBytes, WaitForever);
    if (!message.ok()) return absl::IsOutOfRange(message.status()) ? 0 : 1;
    internal::CompileRequest request;
    if (!request.ParseFromString(*message)) return 1;
    const internal::CompileResponse response = Answer(role, request);
    if (!WriteMessage(kCompileFd, response.SerializeAsString(), WaitForever).ok()) return 1;
  }
}

}  // namespace resident
