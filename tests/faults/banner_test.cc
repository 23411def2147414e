// The daemon's output at its start about the confinement of compilers and engines.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>

#include <string>

#include "runtime/base/process/child_process.h"
#include "runtime/base/sandbox/sandbox.h"
#include "tests/daemon/daemon.h"
#include "tests/daemon/nothing_left.h"
#include "tests/support/eventually.h"
#include "tests/support/refuse_calls.h"

namespace resident::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

// Waits for the line about engines, which is the last one, and returns the daemon's output.
std::string AwaitOutput(const Daemon& daemon) {
  const std::string line = "\nresidentd: engines are confined by ";
  EXPECT_TRUE(Eventually([&] {
    const std::string output = daemon.Output();
    const size_t at = output.find(line);
    return at != std::string::npos && output.find('\n', at + line.size()) != std::string::npos;
  })) << daemon.Output();
  return daemon.Output();
}

// The layers that the thread which starts daemons sees.
SandboxLayers Layers() {
  SandboxLayers layers;
  RunOnProcessThread([&] { layers = DescribeSandbox(); });
  return layers;
}

void ExpectBanner(const std::string& output, const SandboxLayers& layers) {
  EXPECT_THAT(output, HasSubstr("\nresidentd: compilers are confined by " + layers.held +
                                "\nresidentd: engines are confined by " + layers.engines + "\n"));
  for (const std::string& open : layers.missing) {
    EXPECT_THAT(output, HasSubstr("residentd: warning: " + open + "\n"));
  }
}

TEST(BannerTest, NamesTheConfinementOfCompilers) {
  const SandboxLayers layers = Layers();
  const std::string output = AwaitOutput(Daemon());
  ExpectBanner(output, layers);
  if (layers.missing.empty()) {
    EXPECT_THAT(output, Not(HasSubstr("warning: compilers")));
  }
}

// Every daemon that this program starts after this runs without Landlock.
TEST(BannerTest, WarnsIfThereIsNoLandlock) {
  bool refused = false;
  RunOnProcessThread([&] { refused = RefuseCalls({SYS_landlock_create_ruleset}); });
  if (!refused) GTEST_SKIP() << "this kernel has no seccomp filters";
  const SandboxLayers layers = Layers();
  EXPECT_EQ(layers.held, "limits, seccomp");
  EXPECT_EQ(layers.engines, "seccomp");
  ASSERT_THAT(layers.missing, SizeIs(1));
  EXPECT_THAT(layers.missing[0], HasSubstr("no Landlock. Fix: "));
  const Daemon daemon;
  ExpectBanner(AwaitOutput(daemon), layers);
  ExpectServes(daemon);
}

}  // namespace
}  // namespace resident::testing
