#include "runtime/base/process/child_process.h"

#include <errno.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace resident {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

constexpr seconds kLong{60};  // Only a failing test waits that long.

std::string ChildProgram() {
  const char* sources = getenv("TEST_SRCDIR");
  const char* workspace = getenv("TEST_WORKSPACE");
  if (sources != nullptr && workspace != nullptr) {
    return std::string(sources) + "/" + workspace + "/runtime/base/process/child_for_test";
  }
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / "child_for_test";
}

ChildOptions Options(std::vector<std::string> arguments) {
  ChildOptions options;
  options.program = ChildProgram();
  options.arguments = std::move(arguments);
  options.arguments.insert(options.arguments.begin(), "child_for_test");
  return options;
}

struct Pipe {
  Pipe() { EXPECT_EQ(pipe2(fd, O_CLOEXEC), 0); }
  ~Pipe() {
    close(fd[0]);
    if (fd[1] >= 0) close(fd[1]);
  }
  void CloseWriteEnd() { close(std::exchange(fd[1], -1)); }
  // Reads until the other end is closed or `stop` was read.
  std::string Read(char stop = '\0') {
    std::string text;
    char c;
    while (read(fd[0], &c, 1) == 1 && c != stop) text += c;
    return text;
  }
  int fd[2];
};

TEST(ChildProcessTest, ReportsTheExitStatus) {
  auto child = ChildProcess::Spawn(Options({"exit", "7"}));
  ASSERT_TRUE(child.ok()) << child.status();
  const auto exit = (*child)->Wait(kLong);
  ASSERT_TRUE(exit);
  EXPECT_EQ(exit->status, 7);
  EXPECT_EQ(exit->signal, std::nullopt);
  EXPECT_EQ(exit->ToString(), "exited with status 7");
  EXPECT_EQ((*child)->Wait(seconds(0))->status, 7);  // A second call returns the same.
}

TEST(ChildProcessTest, ReportsTheSignal) {
  auto child = ChildProcess::Spawn(Options({"sleep"}));
  ASSERT_TRUE(child.ok()) << child.status();
  EXPECT_EQ((*child)->Wait(seconds(0)), std::nullopt);
  (*child)->Kill(SIGTERM);
  const auto exit = (*child)->Wait(kLong);
  ASSERT_TRUE(exit);
  EXPECT_EQ(exit->signal, SIGTERM);
  EXPECT_THAT(exit->ToString(), HasSubstr("signal 15"));
  (*child)->Kill(SIGTERM);  // No process receives it.
}

TEST(ChildProcessTest, PidfdBecomesReadableAtTheEnd) {
  auto child = ChildProcess::Spawn(Options({"sleep"}));
  ASSERT_TRUE(child.ok()) << child.status();
  pollfd ended{(*child)->pidfd(), POLLIN, 0};
  EXPECT_EQ(poll(&ended, 1, 0), 0);
  (*child)->Kill(SIGKILL);
  EXPECT_EQ(poll(&ended, 1, 60'000), 1);
}

TEST(ChildProcessTest, MissingProgramIsReportedBySpawn) {
  ChildOptions options = Options({});
  options.program = "/nonexistent/program";
  const auto child = ChildProcess::Spawn(options);
  EXPECT_EQ(child.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(child.status().message()), HasSubstr("/nonexistent/program"));
  options.program = "/etc/passwd";
  EXPECT_EQ(ChildProcess::Spawn(options).status().code(), absl::StatusCode::kNotFound);
}

TEST(ChildProcessTest, ChildGetsTheGivenDescriptorsAndNoOthers) {
  Pipe pipe;
  const int inheritable = dup(pipe.fd[0]);  // Not close-on-exec.
  ChildOptions options = Options({"descriptors"});
  // Numbers that may overlap: 4 may also be a descriptor of this process.
  options.fds = {{pipe.fd[1], 5}, {pipe.fd[0], 4}};
  auto child = ChildProcess::Spawn(options);
  ASSERT_TRUE(child.ok()) << child.status();
  pipe.CloseWriteEnd();
  EXPECT_EQ(pipe.Read(), "0 1 2 4 5 ");
  close(inheritable);
}

TEST(ChildProcessTest, DescriptorsMaySwapNumbers) {
  Pipe a, b;
  ChildOptions options = Options({"ready_then_sleep"});
  // Whatever numbers the two have, each gets the other's, and one of them is 3.
  options.fds = {{a.fd[1], 3}, {b.fd[1], a.fd[1] == 3 ? b.fd[1] : a.fd[1]}};
  if (options.fds[1].child == 3) options.fds[1].child = 63;
  auto child = ChildProcess::Spawn(options);
  ASSERT_TRUE(child.ok()) << child.status();
  EXPECT_EQ(a.Read('\n'), "ready");
}

TEST(ChildProcessTest, StandardOutputCanBeReplaced) {
  Pipe pipe;
  ChildOptions options;
  options.program = "/bin/echo";
  options.arguments = {"echo", "hello"};
  options.fds = {{pipe.fd[1], 1}};
  auto child = ChildProcess::Spawn(options);
  ASSERT_TRUE(child.ok()) << child.status();
  pipe.CloseWriteEnd();
  EXPECT_EQ(pipe.Read(), "hello\n");
}

TEST(ChildProcessTest, TheChildHasNoIgnoredOrBlockedSignals) {
  struct sigaction ignore = {};
  ignore.sa_handler = SIG_IGN;
  struct sigaction before;
  sigaction(SIGPIPE, &ignore, &before);
  Pipe pipe;
  ChildOptions options;
  options.program = "/bin/grep";  // A program without a sanitizer's handlers.
  options.arguments = {"grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"};
  options.fds = {{pipe.fd[1], 1}};
  auto child = ChildProcess::Spawn(options);
  ASSERT_TRUE(child.ok()) << child.status();
  pipe.CloseWriteEnd();
  const std::string report = pipe.Read();
  EXPECT_THAT(report, HasSubstr("SigBlk:\t0000000000000000\n"));
  // Except signals 32 and 33, which the C library reserves for itself.
  const size_t ignored = report.find("SigIgn:");
  ASSERT_NE(ignored, std::string::npos) << report;
  EXPECT_EQ(std::stoull(report.substr(ignored + 8), nullptr, 16) & ~0x180000000ull, 0u) << report;
  sigaction(SIGPIPE, &before, nullptr);
}

TEST(ChildProcessTest, DestructionKillsAndReaps) {
  auto child = ChildProcess::Spawn(Options({"sleep"}));
  ASSERT_TRUE(child.ok()) << child.status();
  const pid_t pid = (*child)->pid();
  child->reset();
  EXPECT_EQ(kill(pid, 0), -1);  // There is no zombie either.
  EXPECT_EQ(errno, ESRCH);
}

TEST(ChildProcessTest, ChildOutlivesTheThreadThatSpawnedIt) {
  std::unique_ptr<ChildProcess> child;
  std::thread([&] {
    auto spawned = ChildProcess::Spawn(Options({"sleep"}));
    ASSERT_TRUE(spawned.ok()) << spawned.status();
    child = *std::move(spawned);
  }).join();
  // If it depended on that thread, it would soon be killed by SIGKILL. That it ends by another
  // signal shows that it was still running.
  EXPECT_EQ(child->Wait(std::chrono::milliseconds(200)), std::nullopt);
  child->Kill(SIGTERM);
  EXPECT_EQ(child->Wait(kLong)->signal, SIGTERM);
}

TEST(ChildProcessTest, ChildEndsWithItsParent) {
  Pipe pipe;
  ChildOptions options = Options({"parent"});
  options.arguments[0] = options.program;  // It runs itself again.
  options.fds = {{pipe.fd[1], 3}};
  auto parent = ChildProcess::Spawn(options);
  ASSERT_TRUE(parent.ok()) << parent.status();
  const pid_t grandchild = atoi(pipe.Read('\n').c_str());
  ASSERT_GT(grandchild, 0);
  const int pidfd = static_cast<int>(syscall(SYS_pidfd_open, grandchild, 0));
  ASSERT_GE(pidfd, 0);
  (*parent)->Kill(SIGKILL);
  pollfd ended{pidfd, POLLIN, 0};
  EXPECT_EQ(poll(&ended, 1, 60'000), 1) << "the grandchild still runs";
  close(pidfd);
}

TEST(ChildProcessTest, ManyThreadsSpawnAtOnceWithoutLeaks) {
  const auto descriptors = [] {
    size_t count = 0;
    for ([[maybe_unused]] const auto& entry :
         std::filesystem::directory_iterator("/proc/self/fd")) {
      ++count;
    }
    return count;
  };
  { auto first = ChildProcess::Spawn(Options({"exit", "0"})); }
  const size_t before = descriptors();
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < 10; ++i) {
        auto child = ChildProcess::Spawn(Options({"exit", std::to_string(10 * t + i)}));
        ASSERT_TRUE(child.ok()) << child.status();
        EXPECT_EQ((*child)->Wait(kLong)->status, 10 * t + i);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(descriptors(), before);
}

}  // namespace
}  // namespace resident
