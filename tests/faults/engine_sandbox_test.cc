// Runs a confined engine through all of its work. On a GPU this shows what the driver
// needs: the refused system calls are in this test's output.
//
// RESIDENT_TEST_DEVICES selects the engine (tests/daemon/daemon.h).
#include "runtime/base/sandbox/engine_sandbox.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/operators.h"
#include "client/residentd_client.h"
#include "runtime/base/sandbox/syscall_filter.h"
#include "tests/daemon/daemon.h"
#include "tests/daemon/nothing_left.h"

namespace resident::testing {
namespace {

using client::Installation;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Daemons that are started while this object exists have engines in this mode.
class EngineSandboxMode {
 public:
  explicit EngineSandboxMode(const char* mode) {
    // A mode that was set in the environment, for measurements, has priority.
    if (getenv(kEngineSandboxVariable) == nullptr)
      setenv(kEngineSandboxVariable, mode, 1);
    else
      set_ = false;
  }
  ~EngineSandboxMode() {
    if (set_) unsetenv(kEngineSandboxVariable);
  }

 private:
  bool set_ = true;
};

void ExpectRuns(client::Client& client, const std::string& name, float factor) {
  client::TaskBatch batch(name);
  batch.Input(std::vector<float>{1, 2, 3}).Return<float>({3});
  const auto result = client.Run(batch);
  ASSERT_TRUE(result.ok()) << name << ": " << result.status();
  EXPECT_THAT(result->Output<float>(0), ElementsAre(factor, 2 * factor, 3 * factor));
}

void Install(client::Client& client, const std::string& name, const std::string& expression) {
  const auto installed = client::Operators(client).Install(
      Installation::Expression(name, expression).WaitFor(v1::VERSION_STATE_ACTIVE));
  EXPECT_TRUE(installed.ok()) << name << ": " << installed.status();
}

// Imports shared memory, which the engine maps.
void UseSharedMemory(client::Client& client) {
  const std::string name = absl::StrCat("/resident-sandbox-", getpid());
  const int fd = shm_open(name.c_str(), O_CREAT | O_EXCL | O_RDWR, 0600);
  ASSERT_GE(fd, 0);
  const std::vector<float> values = {1, 2, 3};
  EXPECT_EQ(ftruncate(fd, 4096), 0);
  EXPECT_EQ(pwrite(fd, values.data(), sizeof(float) * values.size(), 0), 12);
  close(fd);
  {
    auto shared = client.ImportShared<float>(name, {1024});
    EXPECT_TRUE(shared.ok()) << shared.status();
    if (shared.ok()) {
      auto read = shared->Download();
      EXPECT_TRUE(read.ok()) << read.status();
      if (read.ok()) {
        EXPECT_EQ((*read)[2], 3);
      }
    }
  }
  shm_unlink(name.c_str());
}

TEST(EngineSandboxTest, AConfinedEngineDoesItsWork) {
  const EngineSandboxMode report("report");
  Daemon daemon;
  auto connected = client::Client::Connect(daemon.address());
  ASSERT_TRUE(connected.ok()) << connected.status();
  client::Client& client = **connected;

  ExpectServes(daemon);
  Install(client, "twice", "2 * x");
  ExpectRuns(client, "twice", 2);
  ASSERT_TRUE(Park(daemon).ok());
  ASSERT_TRUE(Resume(daemon).ok());
  ExpectRuns(client, "twice", 2);
  Install(client, "twice", "4 * x");
  ExpectRuns(client, "twice", 4);
  UseSharedMemory(client);
  auto uploaded = client.Upload(std::vector<float>(1 << 20, 1));
  EXPECT_TRUE(uploaded.ok()) << uploaded.status();

  // A later engine is confined like the first one, and has the operators.
  const pid_t first = daemon.engine_pid();
  kill(first, SIGKILL);
  ASSERT_TRUE(daemon.AwaitAnotherEngine(first));
  EXPECT_TRUE(Eventually([&] {
    client::TaskBatch batch("twice");
    batch.Input(std::vector<float>{1}).Return<float>({1});
    return client.Run(batch).ok();
  }));
  const std::string status = ReadFile(absl::StrCat("/proc/", daemon.engine_pid(), "/status"));
  if (HasSyscallFilters() && strcmp(getenv(kEngineSandboxVariable), "report") == 0) {
    EXPECT_TRUE(absl::StrContains(status, "\nSeccomp:\t2\n")) << status;
  }

  std::vector<std::string> refused;
  const std::string output = daemon.Output();
  for (const absl::string_view line : absl::StrSplit(output, '\n')) {
    if (absl::StrContains(line, "refused system call")) refused.emplace_back(line);
  }
  for (const std::string& line : refused) std::cout << line << "\n";
  std::cout << refused.size() << " system calls of engines were refused\n";
  // The CPU engine's list has all calls that it makes. The calls that a GPU driver attempts
  // and does not need are printed for manual inspection.
  if (!OnGpu()) {
    EXPECT_THAT(refused, IsEmpty());
  }
}

}  // namespace
}  // namespace resident::testing
