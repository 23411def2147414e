// The real daemon as a child process.
//
// RESIDENTD: path of the binary (default: the one Bazel built). RESIDENT_TEST_DEVICES:
// value of --devices (default: cpu), so that the same tests run on a GPU machine.
// RESIDENT_TEST_THREADS_PER_BLOCK: value of --threads_per_block (default: 0).
// RESIDENT_TEST_GRAPHS_IN_ENGINE: value of --graphs_in_engine (default: true). With several
// devices, most tests use the first one; tests/faults/devices_test.cc tests all.
//
// Thread safety: like gRPC's stubs, calls from any thread.
//
//   const Daemon daemon({"--max_queued_tasks=100"});
//   ASSERT_TRUE(Park(daemon).ok());
//   EXPECT_EQ(daemon.Device().state(), v1::DeviceStatus::STATE_PARKED);
#ifndef RESIDENT_TESTS_DAEMON_DAEMON_H_
#define RESIDENT_TESTS_DAEMON_DAEMON_H_

#include <grpcpp/channel.h>
#include <grpcpp/support/status.h>
#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "resident/v1/admin.grpc.pb.h"
#include "runtime/base/process/child_process.h"
#include "tests/support/eventually.h"
#include "tests/support/temp_folder.h"

namespace resident::testing {

// Whether the tests run on a GPU.
bool OnGpu();

class Daemon {
 public:
  // Starts the daemon, with the test operators, and waits until it serves. If it does not,
  // aborts the test program and prints the daemon's output.
  explicit Daemon(const std::vector<std::string>& flags = {},
                  const std::string& address = "127.0.0.1:0");
  // Kills the daemon.
  ~Daemon();

  // Starts a daemon that is expected to fail, and waits for its end.
  struct Failure {
    ChildExit exit;
    std::string output;
  };
  static Failure StartExpectingFailure(const std::vector<std::string>& flags);

  const std::string& address() const { return address_; }
  const std::string& metrics_address() const { return metrics_address_; }
  pid_t pid() const { return child_->pid(); }
  void Kill(int signal) { child_->Kill(signal); }
  std::optional<ChildExit> Wait(std::chrono::seconds timeout = std::chrono::seconds(60)) {
    return child_->Wait(timeout);
  }
  std::string Output() const;
  // The metrics page; empty if there is no response.
  std::string Metrics() const;
  // The value of one metric, with its labels if it has some.
  uint64_t Figure(const std::string& name) const;

  // Opens a separate connection.
  std::shared_ptr<grpc::Channel> Connect() const;
  v1::StatusResponse Status() const;
  // The first device, which tests use unless they are about several devices.
  v1::DeviceStatus Device() const { return Status().devices(0); }
  pid_t engine_pid() const { return static_cast<pid_t>(Device().engine_pid()); }
  // Waits until an engine other than this one serves.
  bool AwaitAnotherEngine(pid_t than) const;

  // Open descriptors and threads of the daemon's process.
  size_t Descriptors() const;
  size_t Threads() const;
  // Threads that gRPC does not own: gRPC's pools grow with the load and never shrink.
  size_t OwnThreads() const;
  // Engine processes, including those of validations and spares that are being started, but
  // not spares that are ready.
  size_t Engines() const;
  // Compile processes, including idle ones.
  size_t Compilers() const;
  // Lists processes of the daemon that should have ended: engines that serve no device,
  // processes started by compilers, and compile processes beyond the idle ones. Empty:
  // none.
  std::string LeftoverProcesses() const;
  // Value of --staging_mib.
  uint64_t staging_mib() const { return staging_mib_; }

 private:
  static constexpr char kFolderName[] = "resident-faults";

  const TempFolder folder_{kFolderName};
  std::string address_;
  std::string metrics_address_;
  uint64_t staging_mib_ = 0;
  std::unique_ptr<ChildProcess> child_;
};

// Opens a TCP connection to "127.0.0.1:port" without sending anything; the caller closes
// it. Returns -1 and sets errno on failure.
int ConnectTcp(const std::string& address);

// Admin.Park and Admin.Resume.
grpc::Status Park(const Daemon& daemon, uint32_t device = 0);
grpc::Status Resume(const Daemon& daemon, uint32_t device = 0);
// Kills the first device's engine and its replacements until the device is unhealthy: five
// within a minute.
void KillUntilUnhealthy(const Daemon& daemon);

}  // namespace resident::testing

#endif  // RESIDENT_TESTS_DAEMON_DAEMON_H_
