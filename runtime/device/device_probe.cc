#include "runtime/device/device_probe.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "runtime/base/process/child_process.h"

namespace resident {
namespace {

using Clock = std::chrono::steady_clock;

// Loading the driver can take some seconds if no other process has loaded it.
constexpr std::chrono::seconds kProbeLimit{30};

// Reads `fd` until it is closed; nullopt: that took too long.
std::optional<std::string> ReadAll(int fd, Clock::time_point until) {
  std::string text;
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
    if (left.count() <= 0) return std::nullopt;
    pollfd readable{fd, POLLIN, 0};
    if (poll(&readable, 1, static_cast<int>(left.count())) <= 0) continue;
    char chunk[4096];
    const ssize_t got = read(fd, chunk, sizeof(chunk));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return text;
    text.append(chunk, static_cast<size_t>(got));
  }
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ProbeDevices(const EngineType& type,
                                                      const std::string& program) {
  const std::string devices = absl::StrCat(type.name, " devices");
  int output[2];
  if (pipe2(output, O_CLOEXEC) != 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot list ", devices, ": no pipe: ", strerror(errno)));
  }
  absl::Cleanup close_read = [&] { close(output[0]); };
  absl::Cleanup close_write = [&] { close(output[1]); };
  ChildOptions options;
  options.program = program.empty() ? "/proc/self/exe" : program;
  options.arguments = {"residentd", "engine", absl::StrCat("--list_devices=", type.name)};
  options.environment = PickEnvironment({type.variables.begin(), type.variables.end()});
  options.fds = {{output[1], STDOUT_FILENO}};
  const auto child = ChildProcess::Spawn(options);
  if (!child.ok()) return absl::UnavailableError(child.status().message());
  std::move(close_write).Invoke();

  const std::optional<std::string> text = ReadAll(output[0], Clock::now() + kProbeLimit);
  if (!text) {
    return absl::UnavailableError(
        absl::StrCat("the driver of ", devices, " did not answer within ", kProbeLimit.count(),
                     " s. Fix: look at the driver's own tool (nvidia-smi) and the kernel log"));
  }
  std::vector<std::string> lines = absl::StrSplit(*text, '\n', absl::SkipEmpty());
  if (lines.empty()) {
    const auto exit = (*child)->Wait(std::chrono::seconds(1));
    return absl::UnavailableError(absl::StrCat("the process that lists ", devices, " ",
                                               exit ? exit->ToString() : "printed nothing"));
  }
  if (lines.front() != "OK") return absl::UnavailableError(lines.front());
  lines.erase(lines.begin());
  return lines;
}

}  // namespace resident
