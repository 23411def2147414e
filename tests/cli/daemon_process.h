// Starts a `residentd serve` for a test, on free ports of the loopback interface.
//
// The program is $RESIDENTD, or server/residentd of this build. The engine is the CPU's,
// unless $RESIDENT_TEST_DEVICES selects GPUs.
#ifndef RESIDENT_TESTS_CLI_DAEMON_PROCESS_H_
#define RESIDENT_TESTS_CLI_DAEMON_PROCESS_H_

#include <sys/types.h>

#include <memory>
#include <string>

#include "tests/support/temp_folder.h"

namespace resident::client {

class DaemonProcess {
 public:
  // Returns once it serves. Null: it did not start; the reason is on stderr.
  static std::unique_ptr<DaemonProcess> Start();
  // Sends SIGTERM and waits.
  ~DaemonProcess();

  // host:port.
  const std::string& address() const { return address_; }
  // Sends SIGKILL and waits.
  void Kill();

 private:
  DaemonProcess(pid_t pid, std::unique_ptr<const testing::TempFolder> folder)
      : pid_(pid), folder_(std::move(folder)) {}
  void End(int signal);

  pid_t pid_;
  const std::unique_ptr<const testing::TempFolder> folder_;  // Also its $TMPDIR.
  std::string address_;
};

}  // namespace resident::client

#endif  // RESIDENT_TESTS_CLI_DAEMON_PROCESS_H_
