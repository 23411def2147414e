#include "tests/faults/daemon.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <system_error>
#include <utility>

namespace resident::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr char kEngineName[] = "resident-engine";
constexpr uint64_t kWindowMib = 16;
// Tasks of a batch of a CountingClient, and those that one session counts.
constexpr uint32_t kCountedBatch = 50;
constexpr uint32_t kCounted = 1 << 16;
// How long a figure stands still before it is what an idle daemon has.
constexpr milliseconds kStill(300);

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

// Runs `residentd serve` with its output in FOLDER/output. What it leaves in $TMPDIR when it is
// killed goes with the folder.
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
      "--device_memory_mib=64",
      "--window_mib=" + std::to_string(kWindowMib),
      "--test_operators"};
  options.arguments.insert(options.arguments.end(), flags.begin(), flags.end());
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

// Compile processes that a daemon keeps ready: two of each kind.
constexpr size_t kMostWaitingCompilers = 4;

std::vector<pid_t> ChildrenOf(pid_t pid) {
  std::vector<pid_t> children;
  std::error_code gone;
  const std::filesystem::path tasks = "/proc/" + std::to_string(pid) + "/task";
  for (const auto& task : std::filesystem::directory_iterator(tasks, gone)) {
    std::istringstream pids(ReadFile(task.path() / "children"));
    for (pid_t child; pids >> child;) children.push_back(child);
  }
  return children;
}

std::string NameOf(pid_t pid) {
  const std::string name = ReadFile("/proc/" + std::to_string(pid) + "/comm");
  return name.substr(0, name.find('\n'));
}

// The last --window_mib among the flags counts.
uint64_t WindowMib(const std::vector<std::string>& flags) {
  constexpr std::string_view kFlag = "--window_mib=";
  uint64_t mib = kWindowMib;
  for (const std::string& flag : flags) {
    if (flag.starts_with(kFlag)) mib = std::stoull(flag.substr(kFlag.size()));
  }
  return mib;
}

// As gRPC names its threads, cut to what Linux keeps of it.
bool IsOfGrpc(const std::string& thread) {
  for (const char* beginning : {"grpc", "default-exec", "resolver-exec", "event_engine",
                                "nexting_thread", "timer_manager"}) {
    if (thread.starts_with(beginning)) return true;
  }
  return false;
}

bool IsIdle(const v1::StatusResponse& status) {
  if (status.clients_size() != 0) return false;
  for (const v1::DeviceStatus& device : status.devices()) {
    if (device.queued_tasks() != 0 || device.ring().in_flight() != 0) return false;
  }
  return true;
}

uint64_t Buffers(const v1::StatusResponse& status) {
  uint64_t buffers = 0;
  for (const v1::DeviceStatus& device : status.devices()) buffers += device.buffers();
  return buffers;
}

uint64_t MemoryUsed(const v1::StatusResponse& status) {
  uint64_t bytes = 0;
  for (const v1::DeviceStatus& device : status.devices()) bytes += device.memory_used_bytes();
  return bytes;
}

// Waits until the figure has stood still for a while; what it is then.
template <typename Figure>
size_t Settled(const Figure& figure) {
  size_t value = figure();
  auto since = std::chrono::steady_clock::now();
  EXPECT_TRUE(Eventually([&] {
    if (const size_t now = figure(); now != value) {
      value = now;
      since = std::chrono::steady_clock::now();
    }
    return std::chrono::steady_clock::now() - since > kStill;
  }));
  return value;
}

// The daemon does not say how much of the window is taken. But a batch may have more than half
// of it only while nothing else has any.
void ExpectWholeWindow(const Daemon& daemon) {
  const Client client(daemon, "window");
  v1::Batch batch;
  v1::OperatorTasks* const tasks = batch.mutable_tasks();
  tasks->set_operator_("fill");
  tasks->set_count(1);
  v1::ReturnedColumn* const out = tasks->add_arguments()->mutable_returned();
  out->set_dtype(v1::DTYPE_F32);
  out->add_shape((daemon.window_mib() << 20) / sizeof(float) / 8 * 5);
  tasks->add_arguments()->mutable_scalar()->add_f64(1);
  batch.mutable_options()->set_device(0);
  RunOutcome outcome;
  EXPECT_TRUE(Eventually([&] {
    outcome = client.Run(batch);
    return outcome.all_ok();
  })) << outcome.message();
}

}  // namespace

bool OnGpu() { return Devices().rfind("cpu", 0) != 0; }

Daemon::Daemon(const std::vector<std::string>& flags, const std::string& address)
    : window_mib_(WindowMib(flags)), child_(Spawn(folder_.path(), address, flags)) {
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

Daemon::Failure Daemon::StartInVain(const std::vector<std::string>& flags) {
  const TempFolder folder(kFolderName);
  const auto child = Spawn(folder.path(), "127.0.0.1:0", flags);
  const auto exit = child->Wait(seconds(60));
  Failure failure{exit.value_or(ChildExit{}), ReadFile(folder.path() + "/output")};
  EXPECT_TRUE(exit.has_value()) << "the daemon started";
  return failure;
}

std::string Daemon::Output() const { return ReadFile(folder_.path() + "/output"); }

std::string Daemon::Metrics() const {
  const size_t colon = metrics_address_.rfind(':');
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(std::stoi(metrics_address_.substr(colon + 1))));
  inet_pton(AF_INET, metrics_address_.substr(0, colon).c_str(), &address.sin_addr);
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  std::string answer;
  const std::string request = "GET /metrics HTTP/1.0\r\n\r\n";
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
      write(fd, request.data(), request.size()) == static_cast<ssize_t>(request.size())) {
    char buffer[4096];
    for (ssize_t bytes; (bytes = read(fd, buffer, sizeof buffer)) > 0;) {
      answer.append(buffer, static_cast<size_t>(bytes));
    }
  }
  close(fd);
  return answer;
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
  return CountEntries("/proc/" + std::to_string(pid()) + "/fd");
}

size_t Daemon::OwnThreads() const {
  size_t count = 0;
  const std::filesystem::path tasks = "/proc/" + std::to_string(pid()) + "/task";
  for (const auto& task : std::filesystem::directory_iterator(tasks)) {
    const std::string name = ReadFile(task.path() / "comm");
    count += !name.empty() && !IsOfGrpc(name);
  }
  return count;
}

size_t Daemon::Engines() const {
  size_t count = 0;
  for (const pid_t child : ChildrenOf(pid())) count += NameOf(child) == kEngineName;
  return count;
}

size_t Daemon::Compilers() const {
  size_t count = 0;
  for (const pid_t child : ChildrenOf(pid())) count += NameOf(child) != kEngineName;
  return count;
}

std::string Daemon::LeftOver() const {
  std::set<pid_t> live;
  const v1::StatusResponse status = Status();
  for (const v1::DeviceStatus& device : status.devices()) {
    live.insert(static_cast<pid_t>(device.engine_pid()));
  }
  std::string left;
  size_t waiting = 0;
  for (const pid_t child : ChildrenOf(pid())) {
    if (live.count(child) != 0) continue;
    const std::string name = NameOf(child);
    if (name == kEngineName) {
      left += "an engine; ";
      continue;
    }
    if (++waiting > kMostWaitingCompilers) left += "a waiting compiler too many; ";
    for (const pid_t grandchild : ChildrenOf(child)) {
      left += NameOf(grandchild) + " of " + name + "; ";
    }
  }
  return left;
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

void KillUntilGivenUp(const Daemon& daemon) {
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

v1::TaskStatus RunOutcome::status(int i) const {
  if (!call.ok()) return v1::TASK_STATUS_UNAVAILABLE;
  return result.status_size() == 0 ? v1::TASK_STATUS_OK : result.status(i);
}

std::string RunOutcome::message() const {
  if (!call.ok()) return call.error_message();
  return result.errors_size() == 0 ? "" : result.errors(0).message();
}

Client::Client(const Daemon& daemon, const std::string& name)
    : channel_(daemon.Connect()),
      executor_(v1::Executor::NewStub(channel_)),
      buffers_(v1::Buffers::NewStub(channel_)),
      sessions_(v1::Sessions::NewStub(channel_)) {
  v1::OpenSessionRequest request;
  request.set_client_name(name);
  open_ = sessions_->Open(&open_context_, request);
  v1::OpenSessionResponse response;
  EXPECT_TRUE(open_->Read(&response)) << "no session";
  session_ = response.session_id();
}

Client::~Client() {
  open_context_.TryCancel();
  open_->Finish();
}

std::unique_ptr<grpc::ClientContext> Client::Context() const {
  auto context = std::make_unique<grpc::ClientContext>();
  context->set_deadline(std::chrono::system_clock::now() + seconds(60));
  context->AddMetadata("resident-session", session_);
  return context;
}

RunOutcome Client::Run(const v1::Batch& batch) const {
  v1::RunRequest request;
  *request.mutable_batch() = batch;
  v1::RunResponse response;
  RunOutcome outcome;
  outcome.call = executor_->Run(Context().get(), request, &response);
  outcome.result = std::move(*response.mutable_result());
  return outcome;
}

grpc::Status Client::Allocate(uint64_t floats, uint64_t* id, uint32_t device) const {
  v1::AllocateRequest request;
  request.set_dtype(v1::DTYPE_F32);
  request.add_shape(floats);
  request.set_device(device);
  v1::AllocateResponse response;
  const grpc::Status status = buffers_->Allocate(Context().get(), request, &response);
  *id = response.buffer().id();
  return status;
}

v1::Batch FloatTasks(const std::string& operator_name, uint64_t buffer, uint32_t first,
                     uint32_t count, std::optional<int64_t> scalar) {
  v1::Batch batch;
  v1::OperatorTasks* const tasks = batch.mutable_tasks();
  tasks->set_operator_(operator_name);
  tasks->set_count(count);
  v1::BufferColumn* const column = tasks->add_arguments()->mutable_buffer();
  column->add_buffer_ids(buffer);
  for (uint32_t i = 0; i < count; ++i) column->add_offsets(uint64_t{4} * (first + i));
  column->set_dtype(v1::DTYPE_F32);
  column->add_shape(1);
  if (scalar) tasks->add_arguments()->mutable_scalar()->add_i64(*scalar);
  return batch;
}

Counters::Counters(const Client& client, uint32_t count, uint32_t device, grpc::Status* imported)
    : count_(count) {
  static std::atomic<int> number{0};
  name_ = "/resident-faults-" + std::to_string(getpid()) + "-" + std::to_string(number++);
  const int fd = shm_open(name_.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
  const size_t bytes = size_t{count} * sizeof(float);
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
    std::perror("shm_open");
    std::abort();
  }
  values_ = static_cast<float*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
  close(fd);
  v1::ImportSharedRequest request;
  request.set_name(name_);
  request.set_size_bytes(bytes);
  request.set_dtype(v1::DTYPE_F32);
  request.add_shape(count);
  request.set_device(device);
  v1::ImportSharedResponse response;
  const grpc::Status status =
      client.buffers().ImportShared(client.Context().get(), request, &response);
  if (imported != nullptr) {
    *imported = status;
  } else {
    EXPECT_TRUE(status.ok()) << status.error_message();
  }
  buffer_ = response.buffer().id();
}

Counters::~Counters() {
  munmap(const_cast<float*>(values_), size_t{count_} * sizeof(float));
  shm_unlink(name_.c_str());
}

CountingClient::CountingClient(const Daemon& daemon)
    : daemon_(daemon), thread_([this] { Count(); }) {
  EXPECT_TRUE(Eventually([&] { return batches_ > 0; }));
}

CountingClient::~CountingClient() {
  stop_ = true;
  thread_.join();
}

bool CountingClient::GoesOn() const {
  const uint64_t before = batches_;
  return Eventually([&] { return batches_ >= before + 2; });
}

void CountingClient::Count() {
  while (!stop_) CountInOneSession();
}

void CountingClient::CountInOneSession() {
  const Client client(daemon_, "counting");
  grpc::Status imported;
  const Counters counters(client, kCounted, 0, &imported);
  if (!imported.ok()) {  // The engine is being replaced.
    ++interruptions_;
    return;
  }
  for (uint32_t first = 0; first + kCountedBatch <= kCounted && !stop_; first += kCountedBatch) {
    const RunOutcome outcome = client.Run(counters.Batch(first, kCountedBatch));
    for (uint32_t i = 0; i < kCountedBatch; ++i) {
      if (outcome.status(static_cast<int>(i)) == v1::TASK_STATUS_OK) {
        EXPECT_EQ(counters.value(first + i), 1.0f) << "task " << i;
      } else {
        EXPECT_LE(counters.value(first + i), 1.0f) << "task " << i;
      }
    }
    if (!outcome.all_ok()) {
      EXPECT_NE(outcome.message().find("Fix: "), std::string::npos) << outcome.message();
      ++interruptions_;
      return;
    }
    ++batches_;
  }
}

Baseline::Baseline(const Daemon& daemon) {
  ExpectServes(daemon);
  ExpectWholeWindow(daemon);
  EXPECT_TRUE(Eventually([&] { return IsIdle(daemon.Status()); }));
  threads = Settled([&] { return daemon.OwnThreads(); });
  descriptors = Settled([&] { return daemon.Descriptors(); });
  const v1::StatusResponse status = daemon.Status();
  buffers = Buffers(status);
  memory_used_bytes = MemoryUsed(status);
}

void ExpectNothingLeft(const Daemon& daemon, const Baseline& before) {
  ExpectWholeWindow(daemon);
  v1::StatusResponse status;
  EXPECT_TRUE(Eventually([&] {
    status = daemon.Status();
    return IsIdle(status);
  })) << status.DebugString();
  EXPECT_TRUE(Eventually([&] { return Buffers(daemon.Status()) <= before.buffers; }));
  EXPECT_TRUE(Eventually([&] { return MemoryUsed(daemon.Status()) <= before.memory_used_bytes; }))
      << MemoryUsed(daemon.Status()) << " bytes, " << before.memory_used_bytes << " before";
  std::string left;
  EXPECT_TRUE(Eventually([&] { return (left = daemon.LeftOver()).empty(); })) << left;
  EXPECT_TRUE(Eventually([&] { return daemon.OwnThreads() <= before.threads; }))
      << daemon.OwnThreads() << " threads, " << before.threads << " before";
  EXPECT_TRUE(Eventually([&] { return daemon.Descriptors() <= before.descriptors; }))
      << daemon.Descriptors() << " descriptors, " << before.descriptors << " before";
}

void ExpectServes(const Daemon& daemon) {
  constexpr uint32_t kTasks = 500;
  const Client client(daemon);
  const Counters counters(client, kTasks);
  const RunOutcome outcome = client.Run(counters.Batch(0, kTasks));
  EXPECT_TRUE(outcome.all_ok()) << outcome.message();
  for (uint32_t i = 0; i < kTasks; ++i) EXPECT_EQ(counters.value(i), 1.0f);
}

}  // namespace resident::testing
