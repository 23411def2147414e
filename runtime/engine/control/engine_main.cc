

#include "runtime/engine/control/engine_main.h"

#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/base/process/process_limits.h"
#include "runtime/base/sandbox/engine_sandbox.h"
#include "runtime/engine/control/engine_server.h"
#include "runtime/engine/control/engine_service.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/engines.h"

namespace resident {
namespace {

// Enough for an object for each operator slot of two generations
// (runtime/engine/cpu/cpu_generation.cc) and for all other descriptors.
constexpr uint64_t kDescriptors = 4096;

// Returns the value of the argument that begins with `name` ("--parent=").
std::optional<std::string_view> Flag(int argc, char** argv, std::string_view name) {
  for (int i = 2; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument.substr(0, name.size()) == name) return argument.substr(name.size());
  }
  return std::nullopt;
}

// An engine has many threads that allocate little. Without this, glibc creates an arena for each
// thread and does not return freed memory to the system.
void LimitAllocator() {
  mallopt(M_ARENA_MAX, 2);
  mallopt(M_TRIM_THRESHOLD, 1 << 20);
}

// The front end decides when the engine ends. A terminal's ^C, or a service manager, may signal the
// whole process group; then the front end drains before it ends the engine.
void IgnoreSignalsMeantForTheFrontEnd() {
  for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE}) {
    struct sigaction ignore = {};
    ignore.sa_handler = SIG_IGN;
    sigaction(signal, &ignore, nullptr);
  }
}

// Returns the row with this name, or null after printing a message.
const EngineType* FindType(std::string_view name) {
  const auto type = FindEngineType(name);
  if (type.ok()) return *type;
  fprintf(stderr, "residentd engine: %s\n", std::string(type.status().message()).c_str());
  return nullptr;
}

int ListDevices(const EngineType& type) {
  const absl::StatusOr<std::vector<std::string>> devices =
      type.list_devices != nullptr ? type.list_devices()
                                   : std::vector<std::string>{std::string(type.name)};
  if (!devices.ok()) {
    printf("%s\n", std::string(devices.status().message()).c_str());
    return 1;
  }
  printf("OK\n");
  for (const std::string& name : *devices) printf("%s\n", name.c_str());
  return 0;
}

int ReportNotConfined(const absl::Status& status) {
  fprintf(stderr, "cannot confine the engine: %s\n", std::string(status.message()).c_str());
  return 2;
}

// Begins the slow steps that need no request: opens the driver, if there is one, and clears the
// pages of the region, so that they can be pinned quickly. An error is reported by the step that
// later needs the result.
void BeginEarly(const EngineType& type) {
  std::thread(type.open_driver).detach();
  std::thread([region = fcntl(kEngineRegionFd, F_DUPFD_CLOEXEC, 0)] {
    struct stat size;
    if (fstat(region, &size) == 0) {
      [[maybe_unused]] const int cleared = fallocate(region, 0, 0, size.st_size);
    }
    close(region);
  }).detach();
}

// The type is known from the command line, because an engine is confined before it has threads.
int Serve(pid_t parent, const EngineType& type) {
  for (int fd : {kEngineRegionFd, kEngineControlFd, kEngineLifelineFd}) {
    if (fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) {
      fprintf(stderr,
              "residentd engine: descriptor %d is not open. Fix: run `residentd serve`, which "
              "starts this role\n",
              fd);
      return 2;
    }
  }
  // System calls are restricted once the driver is up, with all its threads.
  const bool has_driver = type.open_driver != nullptr;
  const EngineProfile profile = has_driver ? EngineProfile::kDriver : EngineProfile::kNative;
  absl::Status confined = ConfineEngineFiles(profile);
  if (confined.ok() && !has_driver) confined = ConfineEngineCalls(profile);
  if (!confined.ok()) return ReportNotConfined(confined);
  if (has_driver) BeginEarly(type);
  EngineService service(kEngineRegionFd, type.create, [profile, has_driver] {
    return has_driver ? ConfineEngineCalls(profile) : absl::OkStatus();
  });
  const EngineServer server(kEngineControlFd, &service, [] {
    fprintf(stderr, "residentd engine: the control connection ended\n");
    _exit(1);
  });
  while (!service.AwaitShutdown(service.BeatEvery())) {
    if (!service.Beat().ok()) _exit(kEngineFaultStatus);
    // The system kills an engine whose front end has ended, except if the binary has file
    // capabilities; this check is for that case.
    if (getppid() != parent) _exit(1);
  }
  // Exit at once, even if the response to the shutdown request has not been sent.
  _exit(0);
}

}  // namespace

int EngineMain(int argc, char** argv) {
  LimitAllocator();
  RaiseDescriptorLimit(kDescriptors);
  prctl(PR_SET_NAME, "resident-engine");
  RaiseOomScore(kServingOomScore);
  if (const auto name = Flag(argc, argv, "--list_devices=")) {
    const EngineType* const type = FindType(*name);
    return type == nullptr ? 2 : ListDevices(*type);
  }
  const std::optional<std::string_view> parent = Flag(argc, argv, "--parent=");
  if (!parent) {
    fprintf(stderr,
            "residentd engine: --parent is missing. Fix: run `residentd serve`, which starts this "
            "role\n");
    return 2;
  }
  IgnoreSignalsMeantForTheFrontEnd();
  const EngineType* const type = FindType(Flag(argc, argv, "--engine=").value_or(""));
  if (type == nullptr) return 2;
  return Serve(static_cast<pid_t>(atoll(std::string(*parent).c_str())), *type);
}

}  // namespace resident
