// The real daemon as a child process.
//
// RESIDENTD names the binary (default: the one Bazel built), RESIDENT_TEST_DEVICES the
// value of --devices (default: cpu), so that the same tests run on a GPU machine, and
// RESIDENT_TEST_THREADS_PER_BLOCK that of --threads_per_block (default: 0). With several
// devices the tests of one work with the first; tests/faults/devices_test.cc is about all.
//
// Thread safety: as gRPC's stubs: calls from any thread.
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
  size_t Threads() const;
  // Those that gRPC does not own: its pools grow with the load and never shrink.
  size_t OwnThreads() const;
  // Engine processes, those of validations and spares that are being prepared among them, but not
  // the spares that are ready; compilers are kept ahead.
  size_t Engines() const;
  // Compile processes, those that are kept ready among them.
  size_t Compilers() const;
  // Processes of the daemon that should be gone: engines that serve no device, and whatever
  // compilers have started; compile processes beyond those that are kept ready. Empty: none.
  std::string LeftOver() const;
  // As --staging_mib says.
  uint64_t staging_mib() const { return staging_mib_; }

 private:
  static constexpr char kFolderName[] = "resident-faults";

  const TempFolder folder_{kFolderName};
  std::string address_;
  std::string metrics_address_;
  uint64_t staging_mib_ = 0;
  std::unique_ptr<ChildProcess> child_;
};

// A TCP connection to "127.0.0.1:port" on which nothing has been said; the caller closes it.
// -1: errno says why not.
int ConnectBare(const std::string& address);

// As Admin says.
grpc::Status Park(const Daemon& daemon, uint32_t device = 0);
grpc::Status Resume(const Daemon& daemon, uint32_t device = 0);
// Kills the first device's engine, and those that come after it, until the device is given up:
// five of them within a minute.
void KillUntilGivenUp(const Daemon& daemon);

}  // namespace resident::testing

#endif  // RESIDENT_TESTS_DAEMON_DAEMON_H_
