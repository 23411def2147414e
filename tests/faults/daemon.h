// The real daemon as a child process, and a client of it, for tests that break things.
//
// RESIDENTD names the binary (default: the one Bazel built), RESIDENT_TEST_DEVICES the
// value of --devices (default: cpu), so that the same tests run on a GPU machine, and
// RESIDENT_TEST_THREADS_PER_BLOCK that of --threads_per_block (default: 0). With several
// devices the tests of one work with the first; devices_test.cc is about the others.
//
// Thread safety: Daemon and Client as gRPC's stubs: calls from any thread.
//
//   Daemon daemon({"--max_queued_tasks=100"});
//   Client client(daemon);
//   Counters counters(client, 1000);
//   RunOutcome outcome = client.Run(counters.Batch(0, 1000));
//
// What a fault must leave behind, and whom it must not disturb:
//
//   const Baseline before(daemon);
//   {
//     CountingClient others(daemon);
//     ... something goes wrong ...
//     EXPECT_TRUE(others.GoesOn());
//   }
//   ExpectNothingLeft(daemon, before);
#ifndef RESIDENT_TESTS_FAULTS_DAEMON_H_
#define RESIDENT_TESTS_FAULTS_DAEMON_H_

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "resident/v1/admin.grpc.pb.h"
#include "resident/v1/buffers.grpc.pb.h"
#include "resident/v1/executor.grpc.pb.h"
#include "runtime/process/child_process.h"
#include "tests/support/eventually.h"
#include "tests/support/temp_folder.h"

namespace resident::testing {

// Whether the tests run on a GPU.
bool OnGpu();

class Daemon {
 public:
  // Starts it, with the test operators, and waits until it serves; aborts the test
  // program, with the daemon's output, if it does not.
  explicit Daemon(const std::vector<std::string>& flags = {},
                  const std::string& address = "127.0.0.1:0");
  // Kills it.
  ~Daemon();

  // Starts one that is expected to fail; waits for its end.
  struct Failure {
    ChildExit exit;
    std::string output;
  };
  static Failure StartInVain(const std::vector<std::string>& flags);

  const std::string& address() const { return address_; }
  const std::string& metrics_address() const { return metrics_address_; }
  pid_t pid() const { return child_->pid(); }
  void Kill(int signal) { child_->Kill(signal); }
  std::optional<ChildExit> Wait(std::chrono::seconds most = std::chrono::seconds(60)) {
    return child_->Wait(most);
  }
  std::string Output() const;
  // The metrics page; empty if nobody answers.
  std::string Metrics() const;

  // A connection of its own.
  std::shared_ptr<grpc::Channel> Connect() const;
  v1::StatusResponse Status() const;
  // The first device; tests that say nothing of devices mean it.
  v1::DeviceStatus Device() const { return Status().devices(0); }
  pid_t engine_pid() const { return static_cast<pid_t>(Device().engine_pid()); }
  // Waits for an engine other than this one that serves.
  bool AwaitAnotherEngine(pid_t than) const;

  // Of the daemon's process.
  size_t Descriptors() const;
  // Threads that gRPC does not own: its pools grow with the load and never shrink.
  size_t OwnThreads() const;
  // Engine processes, those of canaries among them; compilers are kept ahead.
  size_t Engines() const;
  // Compile processes, those that are kept ready among them.
  size_t Compilers() const;
  // Processes of the daemon that should be gone: engines that serve no device, and whatever
  // compilers have started; compile processes beyond those that are kept ready. Empty: none.
  std::string LeftOver() const;
  // As --window_mib says.
  uint64_t window_mib() const { return window_mib_; }

 private:
  static constexpr char kFolderName[] = "resident-faults";

  const TempFolder folder_{kFolderName};
  std::string address_;
  std::string metrics_address_;
  uint64_t window_mib_ = 0;
  std::unique_ptr<ChildProcess> child_;
};

// As Admin says.
grpc::Status Park(const Daemon& daemon, uint32_t device = 0);
grpc::Status Resume(const Daemon& daemon, uint32_t device = 0);
// Kills the first device's engine, and those that come after it, until the device is given up:
// five of them within a minute.
void KillUntilGivenUp(const Daemon& daemon);

// What became of a batch: the call's status, and the result if that is OK.
struct RunOutcome {
  grpc::Status call;
  v1::BatchResult result;

  // Of task i: its own, or UNAVAILABLE if the call itself failed.
  v1::TaskStatus status(int i) const;
  bool all_ok() const { return call.ok() && result.status_size() == 0; }
  // The first message there is.
  std::string message() const;
};

// A client with a session.
class Client {
 public:
  explicit Client(const Daemon& daemon, const std::string& name = "test");
  ~Client();

  // A context with the session's id and a deadline of a minute.
  std::unique_ptr<grpc::ClientContext> Context() const;
  RunOutcome Run(const v1::Batch& batch) const;
  // A device buffer of floats; the status of the call if it is refused.
  grpc::Status Allocate(uint64_t floats, uint64_t* id, uint32_t device = 0) const;

  v1::Executor::Stub& executor() const { return *executor_; }
  v1::Buffers::Stub& buffers() const { return *buffers_; }
  const std::string& session() const { return session_; }

 private:
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::Executor::Stub> executor_;
  const std::unique_ptr<v1::Buffers::Stub> buffers_;
  const std::unique_ptr<v1::Sessions::Stub> sessions_;
  grpc::ClientContext open_context_;
  std::unique_ptr<grpc::ClientReader<v1::OpenSessionResponse>> open_;
  std::string session_;
};

// `count` tasks of an operator whose only tensor is one float of this buffer, one after
// the other from `first`; with `scalar` as its other argument.
v1::Batch FloatTasks(const std::string& operator_name, uint64_t buffer, uint32_t first,
                     uint32_t count, std::optional<int64_t> scalar = std::nullopt);

// Floats in memory that the client shares with the daemon: what tasks did to them can be
// seen whatever becomes of daemon and engine.
class Counters {
 public:
  // `imported` gets the status of the call that shares the memory, which is expected to be OK
  // if there is nobody to get it.
  Counters(const Client& client, uint32_t count, uint32_t device = 0,
           grpc::Status* imported = nullptr);
  ~Counters();
  Counters(const Counters&) = delete;
  Counters& operator=(const Counters&) = delete;

  uint64_t buffer() const { return buffer_; }
  float value(uint32_t i) const { return values_[i]; }
  // Tasks that add 1 to each of `count` floats.
  v1::Batch Batch(uint32_t first, uint32_t count) const {
    return FloatTasks("test.count", buffer_, first, count);
  }

 private:
  std::string name_;
  const uint32_t count_;
  volatile float* values_ = nullptr;
  uint64_t buffer_ = 0;
};

// A client that counts all the time, in a thread of its own, and checks each batch: a task
// that is OK has run exactly once, each other one at most once. What is not OK counts as an
// interruption, after which it begins anew with another session.
class CountingClient {
 public:
  // Returns once it has been served.
  explicit CountingClient(const Daemon& daemon);
  ~CountingClient();
  CountingClient(const CountingClient&) = delete;
  CountingClient& operator=(const CountingClient&) = delete;

  // Waits until two more batches were OK: the second began after this call.
  bool GoesOn() const;
  // Batches that were not OK.
  uint64_t interruptions() const { return interruptions_; }

 private:
  void Count();
  // Counts until it is interrupted or stopped.
  void CountInOneSession();

  const Daemon& daemon_;
  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> batches_{0};
  std::atomic<uint64_t> interruptions_{0};
  std::thread thread_;
};

// What an idle daemon without clients holds.
struct Baseline {
  // Has some work done, so that what is made at its first use is there, and waits until the
  // daemon is idle. REQUIRES: no client is left.
  explicit Baseline(const Daemon& daemon);

  size_t threads = 0;
  size_t descriptors = 0;
  uint64_t buffers = 0;
  uint64_t memory_used_bytes = 0;
};

// Waits until the daemon is idle again and holds no more than then: threads, descriptors,
// processes, buffers, and no window memory at all. REQUIRES: no client is left.
void ExpectNothingLeft(const Daemon& daemon, const Baseline& before);

// A batch of tasks on the first device is run, each task once.
void ExpectServes(const Daemon& daemon);

}  // namespace resident::testing

#endif  // RESIDENT_TESTS_FAULTS_DAEMON_H_
