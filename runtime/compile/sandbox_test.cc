// What holds in a confined process, tried from inside one.
#include "runtime/compile/sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <string>

#include "absl/strings/str_cat.h"
#include "runtime/compile/landlock.h"
#include "runtime/compile/syscall_filter.h"

namespace resident {
namespace {

constexpr int kConfineFailed = 250;

// The result (an errno, or 0) of `attempt` in a process that is confined so.
int InSandbox(const SandboxOptions& options, const std::function<int()>& attempt) {
  const pid_t pid = fork();
  if (pid == 0) _exit(ConfineProcess(options).ok() ? attempt() : kConfineFailed);
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

int OpenFor(const std::string& path, int flags) {
  return open(path.c_str(), flags, 0600) >= 0 ? 0 : errno;
}

class SandboxTest : public ::testing::Test {
 protected:
  SandboxTest() : folder_(absl::StrCat(getenv("TEST_TMPDIR"), "/in")) {
    mkdir(folder_.c_str(), 0700);
    std::ofstream(absl::StrCat(getenv("TEST_TMPDIR"), "/outside")) << "secret";
    std::ofstream(folder_ + "/inside") << "input";
    options_.writable = {folder_};
  }

  const std::string folder_;
  SandboxOptions options_;
};

class FilesTest : public SandboxTest {
 protected:
  void SetUp() override {
    if (LandlockVersion() == 0) GTEST_SKIP() << "this kernel has no Landlock";
  }
};

TEST_F(FilesTest, OnlyThoseGivenCanBeOpened) {
  EXPECT_EQ(InSandbox(options_, [&] { return OpenFor(folder_ + "/inside", O_RDONLY); }), 0);
  EXPECT_EQ(InSandbox(options_, [&] { return OpenFor(folder_ + "/new", O_WRONLY | O_CREAT); }), 0);
  EXPECT_EQ(InSandbox(options_, [&] { return OpenFor(folder_ + "/../outside", O_RDONLY); }),
            EACCES);
  EXPECT_EQ(InSandbox(options_, [&] { return OpenFor(folder_ + "/../made", O_WRONLY | O_CREAT); }),
            EACCES);
  EXPECT_EQ(InSandbox(options_, [] { return OpenFor("/etc/passwd", O_RDONLY); }), EACCES);
  EXPECT_EQ(InSandbox(options_, [] { return OpenFor("/proc/self/environ", O_RDONLY); }), EACCES);
}

TEST_F(FilesTest, ReadableIsNotWritable) {
  SandboxOptions options;
  options.readable = {folder_};
  EXPECT_EQ(InSandbox(options, [&] { return OpenFor(folder_ + "/inside", O_RDONLY); }), 0);
  EXPECT_EQ(InSandbox(options, [&] { return OpenFor(folder_ + "/inside", O_WRONLY); }), EACCES);
}

TEST_F(FilesTest, OnlyGivenProgramsCanBeExecuted) {
  const auto execute = [] {
    execl("/bin/true", "true", nullptr);
    return errno;
  };
  EXPECT_EQ(InSandbox(options_, execute), EACCES);
}

class SystemCallsTest : public SandboxTest {
 protected:
  void SetUp() override {
    if (!HasSyscallFilters()) GTEST_SKIP() << "this kernel has no seccomp filters";
  }
};

TEST_F(SystemCallsTest, ThereIsNoNetwork) {
  for (const int family : {AF_INET, AF_INET6, AF_UNIX, AF_NETLINK}) {
    EXPECT_EQ(InSandbox(options_, [&] { return socket(family, SOCK_STREAM, 0) >= 0 ? 0 : errno; }),
              EPERM)
        << family;
  }
}

TEST_F(SystemCallsTest, OtherProcessesAreOutOfReach) {
  const pid_t parent = getpid();
  EXPECT_EQ(InSandbox(options_, [&] { return kill(parent, 0) == 0 ? 0 : errno; }), EPERM);
  EXPECT_EQ(
      InSandbox(options_, [&] { return ptrace(PTRACE_ATTACH, parent, 0, 0) == 0 ? 0 : errno; }),
      EPERM);
  EXPECT_EQ(InSandbox(options_, [] { return unshare(CLONE_NEWUSER) == 0 ? 0 : errno; }), EPERM);
  EXPECT_EQ(InSandbox(options_, [] { return setsid() >= 0 ? 0 : errno; }), EPERM);
}

TEST_F(SystemCallsTest, SingleProcessStaysAlone) {
  const auto start_another = [] {
    const pid_t pid = fork();
    if (pid == 0) _exit(0);
    return pid > 0 ? 0 : errno;
  };
  EXPECT_EQ(InSandbox(options_, start_another), 0);
  options_.single_process = true;
  EXPECT_EQ(InSandbox(options_, start_another), EPERM);
  EXPECT_EQ(InSandbox(options_,
                      [] {
                        execl("/bin/true", "true", nullptr);
                        return errno;
                      }),
            EPERM);
}

TEST_F(SandboxTest, LargeFileIsRefused) {
  options_.file_bytes = 1000;
  EXPECT_EQ(InSandbox(options_,
                      [&] {
                        signal(SIGXFSZ, SIG_IGN);
                        const int fd = open((folder_ + "/large").c_str(), O_WRONLY | O_CREAT, 0600);
                        return ftruncate(fd, 2000) == 0 ? 0 : errno;
                      }),
            EFBIG);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST_F(SandboxTest, MemoryOverTheLimitIsRefused) {
  options_.memory_bytes = 1ull << 30;
  EXPECT_EQ(InSandbox(options_,
                      [] {
                        return mmap(nullptr, 2ull << 30, PROT_READ | PROT_WRITE,
                                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED
                                   ? errno
                                   : 0;
                      }),
            ENOMEM);
}
#endif

TEST_F(SandboxTest, ProcessorTimeOverTheLimitEndsIt) {
  options_.cpu_seconds = 1;
  EXPECT_EQ(InSandbox(options_,
                      []() -> int {
                        for (volatile int i = 0;;) i = i + 1;
                      }),
            1000 + SIGXCPU);
}

TEST(SandboxReport, SaysOfEachLayerWhetherItHolds) {
  const std::string report = SandboxReport();
  EXPECT_THAT(report, ::testing::HasSubstr(LandlockVersion() > 0 ? "its inputs and the compiler's"
                                                                 : "ALL THAT THE DAEMON'S USER"));
  EXPECT_THAT(report, ::testing::HasSubstr("network, other processes: "));
}

}  // namespace
}  // namespace resident
