#include "tests/daemon/daemon.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string_view>
#include <system_error>
#include <utility>

namespace resident::testing {
namespace {

using std::chrono::seconds;

constexpr char kEngineName[] = "resident-engine";
constexpr uint64_t kStagingMib = 16;

std::string DaemonProgram() {
  if (const char* program = std::getenv("RESIDENTD")) return program;
  const char* sources = std::getenv("TEST_SRCDIR");
  const char* workspace = std::getenv("TEST_WORKSPACE");
  if (sources == nullptr || workspace == nullptr) {
    std::cerr << "no daemon. Fix: set RESIDENTD to the path of residentd\n";
    std::abort();
  }
  return std::string(sources) + "/" + workspace + "/server/residentd";
}

std::string FromEnvironment(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : value;
}

std::string Devices() { return FromEnvironment("RESIDENT_TEST_DEVICES", "cpu"); }

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Runs `residentd serve` with its output in FOLDER/output. FOLDER is also $TMPDIR, so that
// files of a killed daemon are removed with it.
std::unique_ptr<ChildProcess> Spawn(const std::string& folder, const std::string& address,
                                    const std::vector<std::string>& flags) {
  const int output =
      open((folder + "/output").c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  ChildOptions options;
  options.program = "/usr/bin/env";
  options.arguments = {
      "env",
      "TMPDIR=" + folder,
      DaemonProgram(),
      "serve",
      "--address=" + address,
      "--metrics_address=127.0.0.1:0",
      "--port_file=" + folder + "/ports",
      "--devices=" + Devices(),
      "--threads_per_block=" + FromEnvironment("RESIDENT_TEST_THREADS_PER_BLOCK", "0"),
      "--graphs_in_engine=" + FromEnvironment("RESIDENT_TEST_GRAPHS_IN_ENGINE", "true"),
      "--device_memory_mib=64",
      "--staging_mib=" + std::to_string(kStagingMib),
      "--test_operators"};
  options.arguments.insert(options.arguments.end(), flags.begin(), flags.end());
  options.environment = PickEnvironment({"*"});
  options.fds = {{output, STDOUT_FILENO}, {output, STDERR_FILENO}};
  auto child = ChildProcess::Spawn(options);
  close(output);
  if (!child.ok()) {
    std::cerr << child.status() << "\n";
    std::abort();
  }
  return *std::move(child);
}

size_t CountEntries(const std::string& folder) {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++count;
  return count;
}

// Maximum number of idle compile processes of a daemon: two of each kind.
constexpr size_t kMaxIdleCompilers = 4;

std::vector<pid_t> ListChildren(pid_t pid) {
  std::vector<pid_t> children;
  std::error_code gone;
  const std::filesystem::path tasks = "/proc/" + std::to_string(pid) + "/task";
  for (const auto& task : std::filesystem::directory_iterator(tasks, gone)) {
    std::istringstream pids(ReadFile(task.path() / "children"));
    for (pid_t child; pids >> child;) children.push_back(child);
  }
  return children;
}

std::string ReadProcessName(pid_t pid) {
  const std::string name = ReadFile("/proc/" + std::to_string(pid) + "/comm");
  return name.substr(0, name.find('\n'));
}

// If --staging_mib is set several times, the last one applies.
uint64_t StagingMib(const std::vector<std::string>& flags) {
  constexpr std::string_view kFlag = "--staging_mib=";
  uint64_t mib = kStagingMib;
  for (const std::string& flag : flags) {
    if (flag.starts_with(kFlag)) mib = std::stoull(flag.substr(kFlag.size()));
  }
  return mib;
}

// Whether gRPC created the thread; the name is shortened by Linux.
bool IsGrpcThread(const std::string& thread) {
  for (const char* beginning : {"grpc", "default-exec", "resolver-exec", "event_engine",
                                "nexting_thread", "timer_manager"}) {
    if (thread.starts_with(beginning)) return true;
  }
  return false;
}

}  // namespace

bool OnGpu() { return Devices().rfind("cpu", 0) != 0; }

Daemon::Daemon(const std::vector<std::string>& flags, const std::string& address)
    : staging_mib_(StagingMib(flags)), child_(Spawn(folder_.path(), address, flags)) {
  const std::string ports = folder_.path() + "/ports";
  Eventually(
      [&] { return std::filesystem::exists(ports) || child_->Wait(seconds(0)).has_value(); });
  if (!std::filesystem::exists(ports)) {
    std::cerr << "the daemon does not serve: " << Output() << "\n";
    std::abort();
  }
  const nlohmann::json addresses = nlohmann::json::parse(ReadFile(ports));
  address_ = addresses["address"];
  metrics_address_ = addresses["metrics_address"];
}

Daemon::~Daemon() {
  if (::testing::Test::HasFailure()) std::cerr << "the daemon's output:\n" << Output() << "\n";
}

Daemon::Failure Daemon::StartExpectingFailure(const std::vector<std::string>& flags) {
  const TempFolder folder(kFolderName);
  const auto child = Spawn(folder.path(), "127.0.0.1:0", flags);
  const auto exit = child->Wait(seconds(60));
  Failure failure{exit.value_or(ChildExit{}), ReadFile(folder.path() + "/output")};
  EXPECT_TRUE(exit.has_value()) << "the daemon started";
  return failure;
}

std::string Daemon::Output() const { return ReadFile(folder_.path() + "/output"); }

std::string Daemon::Metrics() const {
  std::string answer;
  const std::string request = "GET /metrics HTTP/1.0\r\n\r\n";
  // Again if the daemon has closed the connection, because the request came after two seconds.
  Eventually([&] {
    const int fd = ConnectTcp(metrics_address_);
    if (fd < 0) return true;
    if (write(fd, request.data(), request.size()) == static_cast<ssize_t>(request.size())) {
      char buffer[4096];
      for (ssize_t bytes; (bytes = read(fd, buffer, sizeof buffer)) > 0;) {
        answer.append(buffer, static_cast<size_t>(bytes));
      }
    }
    close(fd);
    return !answer.empty();
  });
  return answer;
}

uint64_t Daemon::Figure(const std::string& name) const {
  const std::string metrics = Metrics();
  const std::string start = "\n" + name + " ";
  const size_t at = metrics.find(start);
  EXPECT_NE(at, std::string::npos) << "the metrics page does not have " << name;
  return at == std::string::npos
             ? 0
             : static_cast<uint64_t>(std::stod(metrics.substr(at + start.size())));
}

std::shared_ptr<grpc::Channel> Daemon::Connect() const {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 200);
  arguments.SetMaxReceiveMessageSize(-1);
  return grpc::CreateCustomChannel(address_, grpc::InsecureChannelCredentials(), arguments);
}

v1::StatusResponse Daemon::Status() const {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + seconds(60));
  v1::StatusResponse response;
  const grpc::Status status =
      v1::Admin::NewStub(Connect())->Status(&context, v1::StatusRequest(), &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  if (response.devices_size() == 0) response.add_devices();  // The test has failed.
  return response;
}

bool Daemon::AwaitAnotherEngine(pid_t than) const {
  return Eventually([&] {
    const v1::DeviceStatus device = Device();
    return device.engine_pid() != 0 && device.engine_pid() != than &&
           device.state() == v1::DeviceStatus::STATE_RESIDENT;
  });
}

size_t Daemon::Descriptors() const {
  const std::string folder = "/proc/" + std::to_string(pid()) + "/fd";
  if (access(folder.c_str(), R_OK) == 0) return CountEntries(folder);
  // The descriptors of the daemon's process are only visible to root. Use the daemon's own
  // count, which includes the connection of this request.
  const std::string metrics = Metrics();
  constexpr std::string_view kName = "\nprocess_open_fds ";
  const size_t at = metrics.find(kName);
  EXPECT_NE(at, std::string::npos) << "the metrics page did not respond";
  return at == std::string::npos ? 0 : std::stoul(metrics.substr(at + kName.size()));
}

size_t Daemon::Threads() const { return CountEntries("/proc/" + std::to_string(pid()) + "/task"); }

size_t Daemon::OwnThreads() const {
  size_t count = 0;
  const std::filesystem::path tasks = "/proc/" + std::to_string(pid()) + "/task";
  for (const auto& task : std::filesystem::directory_iterator(tasks)) {
    const std::string name = ReadFile(task.path() / "comm");
    count += !name.empty() && !IsGrpcThread(name);
  }
  return count;
}

size_t Daemon::Engines() const {
  std::set<pid_t> spares;
  const v1::StatusResponse status = Status();
  for (const v1::DeviceStatus& device : status.devices()) {
    spares.insert(static_cast<pid_t>(device.spare_engine_pid()));
  }
  size_t count = 0;
  for (const pid_t child : ListChildren(pid())) {
    count += ReadProcessName(child) == kEngineName && spares.count(child) == 0;
  }
  return count;
}

size_t Daemon::Compilers() const {
  size_t count = 0;
  for (const pid_t child : ListChildren(pid())) count += ReadProcessName(child) != kEngineName;
  return count;
}

std::string Daemon::LeftoverProcesses() const {
  std::set<pid_t> live;
  const v1::StatusResponse status = Status();
  for (const v1::DeviceStatus& device : status.devices()) {
    live.insert(static_cast<pid_t>(device.engine_pid()));
    live.insert(static_cast<pid_t>(device.spare_engine_pid()));
  }
  std::string left;
  size_t waiting = 0;
  for (const pid_t child : ListChildren(pid())) {
    if (live.count(child) != 0) continue;
    const std::string name = ReadProcessName(child);
    if (name == kEngineName) {
      left += "an engine; ";
      continue;
    }
    if (++waiting > kMaxIdleCompilers) left += "an excess idle compiler; ";
    for (const pid_t grandchild : ListChildren(child)) {
      left += ReadProcessName(grandchild) + " of " + name + "; ";
    }
  }
  return left;
}

int ConnectTcp(const std::string& address) {
  const size_t colon = address.rfind(':');
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(colon + 1))));
  inet_pton(AF_INET, address.substr(0, colon).c_str(), &to.sin_addr);
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0 || connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to) == 0) return fd;
  const int error = errno;
  close(fd);
  errno = error;
  return -1;
}

grpc::Status Park(const Daemon& daemon, uint32_t device) {
  grpc::ClientContext context;
  v1::ParkRequest request;
  request.set_device(device);
  v1::ParkResponse response;
  return v1::Admin::NewStub(daemon.Connect())->Park(&context, request, &response);
}

grpc::Status Resume(const Daemon& daemon, uint32_t device) {
  grpc::ClientContext context;
  v1::ResumeRequest request;
  request.set_device(device);
  v1::ResumeResponse response;
  return v1::Admin::NewStub(daemon.Connect())->Resume(&context, request, &response);
}

void KillUntilUnhealthy(const Daemon& daemon) {
  for (int i = 0; i < 5; ++i) {
    pid_t pid = 0;
    ASSERT_TRUE(Eventually([&] {
      const v1::DeviceStatus device = daemon.Device();
      pid = static_cast<pid_t>(device.engine_pid());
      return pid != 0 && device.state() == v1::DeviceStatus::STATE_RESIDENT;
    }));
    kill(pid, SIGKILL);
    ASSERT_TRUE(Eventually([&] { return daemon.engine_pid() != pid; }));
  }
  ASSERT_TRUE(
      Eventually([&] { return daemon.Device().state() == v1::DeviceStatus::STATE_UNHEALTHY; }));
}

}  // namespace resident::testing
