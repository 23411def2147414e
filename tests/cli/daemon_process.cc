#include "tests/cli/daemon_process.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "nlohmann/json.hpp"

namespace resident::client {
namespace {

constexpr absl::Duration kStartTimeout = absl::Seconds(60);

std::string FromEnvironment(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : otherwise;
}

}  // namespace

std::unique_ptr<DaemonProcess> DaemonProcess::Start() {
  auto folder = std::make_unique<const testing::TempFolder>("residentd-test");
  const std::string ports = absl::StrCat(folder->path(), "/ports");
  const std::string program = FromEnvironment("RESIDENTD", "server/residentd");
  const std::string port_file = absl::StrCat("--port_file=", ports);
  const std::string devices =
      absl::StrCat("--devices=", FromEnvironment("RESIDENT_TEST_DEVICES", "cpu"));
  const pid_t pid = fork();
  if (pid == 0) {
    setenv("TMPDIR", folder->path().c_str(), /*overwrite=*/1);
    execl(program.c_str(), program.c_str(), "serve", "--address=127.0.0.1:0",
          "--metrics_address=127.0.0.1:0", port_file.c_str(), devices.c_str(), nullptr);
    std::perror(program.c_str());
    _exit(127);
  }
  if (pid < 0) return nullptr;
  std::unique_ptr<DaemonProcess> daemon(new DaemonProcess(pid, std::move(folder)));
  const absl::Time deadline = absl::Now() + kStartTimeout;
  while (!std::filesystem::exists(ports)) {
    const bool ended = waitpid(pid, nullptr, WNOHANG) == pid;
    if (ended) daemon->pid_ = -1;
    if (ended || absl::Now() > deadline) {
      std::fprintf(stderr, "%s did not start\n", program.c_str());
      return nullptr;
    }
    absl::SleepFor(absl::Milliseconds(5));
  }
  std::ifstream file(ports);
  std::stringstream text;
  text << file.rdbuf();
  daemon->address_ =
      nlohmann::json::parse(text.str(), nullptr, /*allow_exceptions=*/false).value("address", "");
  return daemon;
}

DaemonProcess::~DaemonProcess() { End(SIGTERM); }

void DaemonProcess::Kill() { End(SIGKILL); }

void DaemonProcess::End(int signal) {
  if (pid_ < 0) return;
  kill(pid_, signal);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

}  // namespace resident::client
