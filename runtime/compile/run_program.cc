#include "runtime/compile/run_program.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"

namespace resident {

absl::StatusOr<ProgramOutput> RunProgram(const std::vector<std::string>& arguments,
                                         const ProgramPlace& place) {
  const auto failed = [&](const char* what, int error) {
    return absl::UnavailableError(
        absl::StrCat("cannot run ", arguments[0], ": ", what, ": ", strerror(error)));
  };
  int output[2];
  if (pipe2(output, O_CLOEXEC) != 0) return failed("pipe", errno);
  absl::Cleanup close_read = [&] { close(output[0]); };
  absl::Cleanup close_write = [&] { close(output[1]); };

  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  // This process's environment is not passed on: it may have settings of a compiler.
  std::string temporary =
      absl::StrCat("TMPDIR=", place.temporary.empty() ? "/tmp" : place.temporary);
  std::string path = "PATH=/usr/local/bin:/usr/bin:/bin";
  std::string locale = "LC_ALL=C";
  char* const environment[] = {temporary.data(), path.data(), locale.data(), nullptr};

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  absl::Cleanup destroy_actions = [&] { posix_spawn_file_actions_destroy(&actions); };
  // Opened before the change of folder, because the path is relative to this process's folder.
  posix_spawn_file_actions_addopen(
      &actions, STDIN_FILENO, place.input_file.empty() ? "/dev/null" : place.input_file.c_str(),
      O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, output[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, output[1], STDERR_FILENO);
  if (!place.folder.empty()) posix_spawn_file_actions_addchdir_np(&actions, place.folder.c_str());
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  absl::Cleanup destroy_attributes = [&] { posix_spawnattr_destroy(&attributes); };
  sigset_t signals;
  sigemptyset(&signals);
  posix_spawnattr_setsigmask(&attributes, &signals);
  sigaddset(&signals, SIGPIPE);
  posix_spawnattr_setsigdefault(&attributes, &signals);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);

  pid_t pid = 0;
  const int error =
      posix_spawn(&pid, arguments[0].c_str(), &actions, &attributes, argv.data(), environment);
  if (error != 0) return failed("exec", error);
  std::move(close_write).Invoke();

  ProgramOutput result;
  char buffer[16384];
  while (true) {
    const ssize_t got = read(output[0], buffer, sizeof(buffer));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    const uint64_t room =
        place.max_output - std::min(place.max_output, uint64_t{result.text.size()});
    result.text.append(buffer, std::min<uint64_t>(room, static_cast<uint64_t>(got)));
  }
  while (waitpid(pid, &result.status, 0) < 0 && errno == EINTR) {
  }
  result.success = WIFEXITED(result.status) && WEXITSTATUS(result.status) == 0;
  return result;
}

}  // namespace resident
