// Tests the restrictions of a confined process from inside one.
#include "runtime/base/sandbox/sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "runtime/base/sandbox/engine_sandbox.h"
#include "runtime/base/sandbox/landlock.h"
#include "runtime/base/sandbox/syscall_filter.h"
#include "tests/support/refuse_calls.h"

namespace resident {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

constexpr int kConfineFailed = 250;

// Returns the result (an errno, or 0) of `attempt` in a process in which `confine` was called.
int InProcess(const std::function<bool()>& confine, const std::function<int()>& attempt) {
  const pid_t pid = fork();
  if (pid == 0) _exit(confine() ? attempt() : kConfineFailed);
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

int InSandbox(const SandboxOptions& options, const std::function<int()>& attempt) {
  return InProcess([&] { return ConfineProcess(options).ok(); }, attempt);
}

// Applies only the filter, because a newer Landlock also refuses some of these calls.
int InFilter(SyscallPolicy policy, const std::function<int()>& attempt) {
  return InProcess(
      [&] {
        return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
               FilterSyscalls({.policy = policy}).ok();
      },
      attempt);
}

constexpr SyscallPolicy kPolicies[] = {SyscallPolicy::kCompiler, SyscallPolicy::kCompilerAlone,
                                       SyscallPolicy::kNativeEngine, SyscallPolicy::kDriverEngine};

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

TEST_F(FilesTest, OnlyGivenFilesCanBeOpened) {
  EXPECT_EQ(InSandbox(options_, [&] { return OpenFor(folder_ + "/inside", O_RDONLY); }), 0);
  EXPECT_EQ(InSandbox(options_, [&] { return OpenFor(folder_ + "/new", O_WRONLY | O_CREAT); }), 0);
  EXPECT_EQ(InSandbox(options_, [&] { return OpenFor(folder_ + "/../outside", O_RDONLY); }),
            EACCES);
  EXPECT_EQ(InSandbox(options_, [&] { return OpenFor(folder_ + "/../made", O_WRONLY | O_CREAT); }),
            EACCES);
  EXPECT_EQ(InSandbox(options_, [] { return OpenFor("/etc/passwd", O_RDONLY); }), EACCES);
  EXPECT_EQ(InSandbox(options_, [] { return OpenFor("/proc/self/environ", O_RDONLY); }), EACCES);
}

TEST_F(FilesTest, ReadableFilesAreNotWritable) {
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

TEST_F(SystemCallsTest, SocketsAreRefused) {
  for (const int family : {AF_INET, AF_INET6, AF_UNIX, AF_NETLINK}) {
    EXPECT_EQ(InSandbox(options_, [&] { return socket(family, SOCK_STREAM, 0) >= 0 ? 0 : errno; }),
              EPERM)
        << family;
  }
}

TEST_F(SystemCallsTest, OtherProcessesCannotBeReached) {
  const pid_t parent = getpid();
  EXPECT_EQ(InSandbox(options_, [&] { return kill(parent, 0) == 0 ? 0 : errno; }), EPERM);
  EXPECT_EQ(
      InSandbox(options_, [&] { return ptrace(PTRACE_ATTACH, parent, 0, 0) == 0 ? 0 : errno; }),
      EPERM);
  EXPECT_EQ(InSandbox(options_, [] { return unshare(CLONE_NEWUSER) == 0 ? 0 : errno; }), EPERM);
  EXPECT_EQ(InSandbox(options_, [] { return setsid() >= 0 ? 0 : errno; }), EPERM);
}

// Returns the errno of a system call; 0: it succeeded.
int Try(long call, long a = 0, long b = 0, long c = 0, long d = 0, long e = 0) {
  return syscall(call, a, b, c, d, e) >= 0 ? 0 : errno;
}

long Pointer(const void* to) { return reinterpret_cast<long>(to); }

// A call that could reach the test's own process, by name.
struct Attempt {
  const char* name;
  std::function<int()> make;
};

TEST_F(SystemCallsTest, SignalsLimitsAndMemoryOfOtherProcessesAreRefused) {
  const pid_t parent = getpid();
  siginfo_t info = {};
  info.si_code = SI_QUEUE;
  rlimit64 limit = {};
  sched_param lowest = {};
  cpu_set_t affinity;
  ASSERT_EQ(sched_getaffinity(0, sizeof(affinity), &affinity), 0);
  // A segment of another process of the same user: attaching it requires only its number.
  const long segment = shmget(IPC_PRIVATE, 4096, 0600);
  ASSERT_GE(segment, 0);
  shmid_ds segment_info;
  char byte = 0;
  const iovec own{&byte, 1};
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  const f_owner_ex owner{F_OWNER_PID, parent};
  const int owner_pid = parent;
  const Attempt attempts[] = {
      {"kill", [&] { return Try(SYS_kill, parent, 0); }},
      {"tkill", [&] { return Try(SYS_tkill, parent, 0); }},
      {"tgkill", [&] { return Try(SYS_tgkill, parent, parent, 0); }},
      {"tgkill, high half set", [&] { return Try(SYS_tgkill, (1L << 32) | parent, parent, 0); }},
      {"rt_sigqueueinfo", [&] { return Try(SYS_rt_sigqueueinfo, parent, 0, Pointer(&info)); }},
      {"rt_tgsigqueueinfo",
       [&] { return Try(SYS_rt_tgsigqueueinfo, parent, parent, 0, Pointer(&info)); }},
      {"pidfd_open", [&] { return Try(SYS_pidfd_open, parent, 0); }},
      {"pidfd_send_signal", [&] { return Try(SYS_pidfd_send_signal, pipe_ends[0], 0); }},
      {"prlimit64", [&] { return Try(SYS_prlimit64, parent, RLIMIT_CORE, 0, Pointer(&limit)); }},
      {"process_vm_readv",
       [&] { return Try(SYS_process_vm_readv, parent, Pointer(&own), 1, Pointer(&own), 1); }},
      {"process_vm_writev",
       [&] { return Try(SYS_process_vm_writev, parent, Pointer(&own), 1, Pointer(&own), 1); }},
      {"setpriority", [&] { return Try(SYS_setpriority, PRIO_PROCESS, parent, 19); }},
      {"sched_setscheduler",
       [&] { return Try(SYS_sched_setscheduler, parent, SCHED_IDLE, Pointer(&lowest)); }},
      {"sched_setaffinity",
       [&] { return Try(SYS_sched_setaffinity, parent, sizeof(affinity), Pointer(&affinity)); }},
      {"shmget", [&] { return Try(SYS_shmget, IPC_PRIVATE, 4096, 0600); }},
      {"shmat", [&] { return Try(SYS_shmat, segment, 0, 0); }},
      {"shmctl", [&] { return Try(SYS_shmctl, segment, IPC_STAT, Pointer(&segment_info)); }},
      {"msgsnd", [&] { return Try(SYS_msgsnd, -1, Pointer(&info), 1, IPC_NOWAIT); }},
      {"msgrcv", [&] { return Try(SYS_msgrcv, -1, Pointer(&info), 1, 0, IPC_NOWAIT); }},
      {"msgctl", [&] { return Try(SYS_msgctl, -1, IPC_STAT, Pointer(&info)); }},
      {"semctl", [&] { return Try(SYS_semctl, -1, 0, IPC_STAT, Pointer(&info)); }},
      {"semop", [&] { return Try(SYS_semop, -1, Pointer(&info), 1); }},
      {"mq_unlink", [&] { return Try(SYS_mq_unlink, Pointer("resident-no-such-queue")); }},
      {"sched_setparam", [&] { return Try(SYS_sched_setparam, parent, Pointer(&lowest)); }},
      {"F_SETOWN", [&] { return Try(SYS_fcntl, pipe_ends[0], F_SETOWN, parent); }},
      {"F_SETOWN_EX", [&] { return Try(SYS_fcntl, pipe_ends[0], F_SETOWN_EX, Pointer(&owner)); }},
      {"F_SETSIG", [&] { return Try(SYS_fcntl, pipe_ends[0], F_SETSIG, SIGKILL); }},
      {"FIOSETOWN", [&] { return Try(SYS_ioctl, pipe_ends[0], FIOSETOWN, Pointer(&owner_pid)); }},
  };
  for (const SyscallPolicy policy : kPolicies) {
    for (const auto& [name, make] : attempts) {
      EXPECT_EQ(InFilter(policy, make), EPERM) << name << ", policy " << static_cast<int>(policy);
    }
  }
  close(pipe_ends[0]);
  close(pipe_ends[1]);
  EXPECT_EQ(shmctl(static_cast<int>(segment), IPC_STAT, &segment_info), 0);
  EXPECT_EQ(shmctl(static_cast<int>(segment), IPC_RMID, nullptr), 0);
}

// An engine needs these after it is confined.
TEST_F(SystemCallsTest, AnEngineCanUseThreadsMemoryAndItsSockets) {
  int sockets[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets), 0);
  for (const SyscallPolicy policy : {SyscallPolicy::kNativeEngine, SyscallPolicy::kDriverEngine}) {
    EXPECT_EQ(InFilter(policy,
                       [&] {
                         int value = 0;
                         std::thread([&] { value = 1; }).join();
                         const int fd = memfd_create("object", MFD_CLOEXEC);
                         char byte = 'x';
                         if (value != 1 || fd < 0 || write(fd, &byte, 1) != 1) return 1;
                         // This is what dlopen does.
                         const int again =
                             open(absl::StrCat("/proc/self/fd/", fd).c_str(), O_RDONLY | O_CLOEXEC);
                         if (again < 0 || mmap(nullptr, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE,
                                               again, 0) == MAP_FAILED) {
                           return 2;
                         }
                         if (send(sockets[0], &byte, 1, 0) != 1) return 3;
                         iovec payload{&byte, 1};
                         msghdr message = {};
                         message.msg_iov = &payload;
                         message.msg_iovlen = 1;
                         if (recvmsg(sockets[1], &message, 0) != 1) return 4;
                         return fcntl(sockets[0], F_SETFL, O_NONBLOCK) == 0 ? 0 : 5;
                       }),
              0)
        << static_cast<int>(policy);
  }
  close(sockets[0]);
  close(sockets[1]);
}

TEST_F(SystemCallsTest, AnEngineCannotStartProcessesOrConnect) {
  const Attempt attempts[] = {
      {"fork", [] { return Try(SYS_fork); }},
      {"vfork", [] { return Try(SYS_vfork); }},
      {"clone", [] { return Try(SYS_clone, SIGCHLD); }},
      {"execve", [] { return Try(SYS_execve, Pointer("/bin/true"), 0, 0); }},
      {"socket", [] { return Try(SYS_socket, AF_INET, SOCK_STREAM, 0); }},
      {"socketpair", [] { return Try(SYS_socketpair, AF_UNIX, SOCK_STREAM, 0, 0); }},
      {"connect", [] { return Try(SYS_connect, 0, 0, 0); }},
      {"io_uring_setup", [] { return Try(SYS_io_uring_setup, 1, 0); }},
      {"bpf", [] { return Try(SYS_bpf, 0, 0, 0); }},
      {"keyctl", [] { return Try(SYS_keyctl, 0, 0, 0); }},
      {"perf_event_open", [] { return Try(SYS_perf_event_open, 0, 0, -1, -1, 0); }},
      {"userfaultfd", [] { return Try(SYS_userfaultfd, 0); }},
      {"unshare", [] { return Try(SYS_unshare, CLONE_NEWUSER); }},
      {"mount", [] { return Try(SYS_mount, 0, 0, 0, 0, 0); }},
  };
  for (const SyscallPolicy policy : {SyscallPolicy::kNativeEngine, SyscallPolicy::kDriverEngine}) {
    for (const auto& [name, make] : attempts) {
      EXPECT_EQ(InFilter(policy, make), EPERM) << name << ", policy " << static_cast<int>(policy);
    }
  }
}

// This must also hold without Landlock.
TEST_F(SystemCallsTest, ACpuEngineCannotOpenFilesForWriting) {
  const std::string file = folder_ + "/inside";
  const auto in_engine = [&](int flags) {
    return InFilter(SyscallPolicy::kNativeEngine, [&] { return OpenFor(file, flags); });
  };
  for (const int flags : {O_WRONLY, O_RDWR, O_RDONLY | O_CREAT, O_RDONLY | O_TRUNC}) {
    EXPECT_EQ(in_engine(flags), EPERM) << flags;
  }
  EXPECT_EQ(in_engine(O_RDONLY), 0);
}

// This must also hold without Landlock.
TEST_F(SystemCallsTest, ASingleProcessCompilerCannotOpenFilesForWriting) {
  const std::string file = folder_ + "/inside";
  const auto in_compiler = [&](int flags) {
    return InFilter(SyscallPolicy::kCompilerAlone, [&] { return OpenFor(file, flags); });
  };
  for (const int flags : {O_WRONLY, O_RDWR, O_RDONLY | O_CREAT, O_RDONLY | O_TRUNC}) {
    EXPECT_EQ(in_compiler(flags), EPERM) << flags;
  }
  EXPECT_EQ(in_compiler(O_RDONLY), 0);
}

// Calls that no list contains, although they are harmless, and calls of later kernels.
TEST_F(SystemCallsTest, CallsThatAreInNoListAreRefused) {
  constexpr long kUnknown = 999;
  for (const SyscallPolicy policy :
       {SyscallPolicy::kCompiler, SyscallPolicy::kCompilerAlone, SyscallPolicy::kNativeEngine}) {
    for (const long call : {long{SYS_inotify_init1}, long{SYS_signalfd4}, long{SYS_splice},
                            long{SYS_process_madvise}, long{SYS_sendmmsg}, kUnknown}) {
      EXPECT_EQ(InFilter(policy, [&] { return Try(call, -1, -1, -1); }), EPERM)
          << call << ", policy " << static_cast<int>(policy);
    }
  }
  for (const SyscallPolicy policy : {SyscallPolicy::kCompiler, SyscallPolicy::kCompilerAlone}) {
    EXPECT_EQ(InFilter(policy, [] { return Try(SYS_sendmsg, -1, 0, 0); }), EPERM);
    EXPECT_EQ(InFilter(policy, [] { return Try(SYS_epoll_create1, 0); }), EPERM);
  }
}

// A filter also applies to threads that were started before it.
TEST_F(SystemCallsTest, AFilterAppliesToAllThreadsOfAnEngine) {
  EXPECT_EQ(InProcess([] { return true; },
                      [] {
                        std::promise<void> confined;
                        std::promise<int> result;
                        std::thread other([&] {
                          confined.get_future().wait();
                          result.set_value(Try(SYS_socket, AF_INET, SOCK_STREAM, 0));
                        });
                        const bool ok = ConfineEngineFiles(EngineProfile::kDriver).ok() &&
                                        ConfineEngineCalls(EngineProfile::kDriver).ok();
                        confined.set_value();
                        const int error = result.get_future().get();
                        other.join();
                        return ok ? error : kConfineFailed;
                      }),
            EPERM);
}

TEST_F(FilesTest, ACpuEngineCanOpenOnlyTheNumberOfCpus) {
  const auto in_engine = [](const std::string& path) {
    return InProcess([] { return ConfineEngineFiles(EngineProfile::kNative).ok(); },
                     [&] { return OpenFor(path, O_RDONLY); });
  };
  EXPECT_EQ(in_engine(folder_ + "/inside"), EACCES);
  EXPECT_EQ(in_engine("/etc/passwd"), EACCES);
  EXPECT_EQ(in_engine("/proc/self/maps"), EACCES);
  EXPECT_EQ(in_engine(absl::StrCat("/proc/", getpid(), "/mem")), EACCES);
  EXPECT_EQ(in_engine("/sys/devices/system/cpu/online"), 0);
}

TEST_F(FilesTest, AGpuEngineCanOpenLibrariesButNoOtherFiles) {
  const auto in_engine = [](const std::string& path, int flags) {
    return InProcess([] { return ConfineEngineFiles(EngineProfile::kDriver).ok(); },
                     [&] { return OpenFor(path, flags); });
  };
  EXPECT_EQ(in_engine(folder_ + "/inside", O_RDONLY), EACCES);
  EXPECT_EQ(in_engine(folder_ + "/new", O_WRONLY | O_CREAT), EACCES);
  EXPECT_EQ(in_engine("/etc/passwd", O_RDONLY), EACCES);
  EXPECT_EQ(in_engine(absl::StrCat("/proc/", getpid(), "/mem"), O_RDONLY), EACCES);
  EXPECT_EQ(in_engine("/proc/self/maps", O_RDONLY), 0);
  EXPECT_EQ(in_engine("/dev/null", O_RDWR), 0);
  EXPECT_EQ(in_engine("/usr/lib", O_RDONLY), 0);
}

TEST_F(SystemCallsTest, AProcessMaySignalAndLimitItself) {
  EXPECT_EQ(InSandbox(options_, [] { return Try(SYS_tgkill, getpid(), gettid(), 0); }), 0);
  EXPECT_EQ(InSandbox(options_,
                      [] {
                        rlimit limit;
                        return getrlimit(RLIMIT_CORE, &limit) == 0 &&
                                       setrlimit(RLIMIT_CORE, &limit) == 0
                                   ? 0
                                   : errno;
                      }),
            0);
  EXPECT_EQ(InSandbox(options_, []() -> int { abort(); }), 1000 + SIGABRT);
  // abort() also ends a process that it started, although not necessarily by SIGABRT.
  EXPECT_EQ(InSandbox(options_,
                      [] {
                        const pid_t pid = fork();
                        if (pid == 0) abort();
                        int status = 0;
                        waitpid(pid, &status, 0);
                        return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 1 : 0;
                      }),
            0);
}

TEST_F(SystemCallsTest, FilesCannotBeChangedByPathAlone) {
  const std::string file = folder_ + "/inside";
  const char* const path = file.c_str();
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  const long me = getuid();
  const auto name = Pointer(path);
  const auto attribute = Pointer("user.sandbox");
  const Attempt attempts[] = {
      {"truncate", [&] { return Try(SYS_truncate, name, 0); }},
      {"open to read and truncate", [&] { return Try(SYS_open, name, O_RDONLY | O_TRUNC); }},
      {"openat to read and truncate",
       [&] { return Try(SYS_openat, AT_FDCWD, name, O_RDONLY | O_TRUNC); }},
      {"openat without access and truncate",
       [&] { return Try(SYS_openat, AT_FDCWD, name, O_ACCMODE | O_TRUNC); }},
      {"chmod", [&] { return Try(SYS_chmod, name, 0600); }},
      {"fchmod", [&] { return Try(SYS_fchmod, fd, 0600); }},
      {"fchmodat", [&] { return Try(SYS_fchmodat, AT_FDCWD, name, 0600); }},
      {"fchmodat2", [&] { return Try(452, AT_FDCWD, name, 0600, 0); }},
      {"chown", [&] { return Try(SYS_chown, name, me, -1); }},
      {"fchown", [&] { return Try(SYS_fchown, fd, me, -1); }},
      {"lchown", [&] { return Try(SYS_lchown, name, me, -1); }},
      {"fchownat", [&] { return Try(SYS_fchownat, AT_FDCWD, name, me, -1, 0); }},
      {"utime", [&] { return Try(SYS_utime, name, 0); }},
      {"utimes", [&] { return Try(SYS_utimes, name, 0); }},
      {"utimensat", [&] { return Try(SYS_utimensat, AT_FDCWD, name, 0, 0); }},
      {"futimesat", [&] { return Try(SYS_futimesat, AT_FDCWD, name, 0); }},
      {"setxattr", [&] { return Try(SYS_setxattr, name, attribute, name, 1, 0); }},
      {"removexattr", [&] { return Try(SYS_removexattr, name, attribute); }},
  };
  for (const auto& [what, make] : attempts) {
    EXPECT_EQ(InFilter(SyscallPolicy::kCompiler, make), EPERM) << what;
  }
  close(fd);
  EXPECT_EQ(std::filesystem::file_size(file), 5u);
  EXPECT_EQ(InSandbox(options_, [&] { return OpenFor(file, O_WRONLY | O_TRUNC); }), 0);
  EXPECT_EQ(InSandbox(options_, [&] { return OpenFor(file, O_RDWR | O_TRUNC); }), 0);
}

TEST_F(SystemCallsTest, ASingleProcessCannotForkOrExecute) {
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

TEST_F(SandboxTest, ProcessorTimeOverTheLimitEndsTheProcess) {
  options_.cpu_seconds = 1;
  EXPECT_EQ(InSandbox(options_,
                      []() -> int {
                        for (volatile unsigned i = 0;;) i = i + 1;
                      }),
            1000 + SIGXCPU);
}

TEST(SandboxLayersTest, EachLayerIsUsedOrReportedAsMissing) {
  std::string held = "limits";
  size_t missing = 0;
  if (LandlockVersion() > 0) {
    absl::StrAppend(&held, ", Landlock (version ", LandlockVersion(), ")");
  } else {
    ++missing;
  }
  if (HasSyscallFilters()) {
    absl::StrAppend(&held, ", seccomp");
  } else {
    ++missing;
  }
  const SandboxLayers layers = DescribeSandbox();
  EXPECT_EQ(layers.held, held);
  EXPECT_EQ(layers.engines, held == "limits" ? "nothing" : held.substr(strlen("limits, ")));
  EXPECT_THAT(layers.missing, SizeIs(missing));
}

TEST(SandboxLayersTest, LayersThatAreDisabledForEnginesAreReportedAsMissing) {
  const size_t missing = DescribeSandbox().missing.size();
  const auto described = [](const char* mode) {
    setenv(kEngineSandboxVariable, mode, 1);
    SandboxLayers layers = DescribeSandbox();
    unsetenv(kEngineSandboxVariable);
    return layers;
  };
  const SandboxLayers off = described("off");
  EXPECT_EQ(off.engines, "nothing (RESIDENTD_ENGINE_SANDBOX=off)");
  EXPECT_EQ(off.held, DescribeSandbox().held);  // The layers of compilers do not change.
  ASSERT_THAT(off.missing, SizeIs(missing + 1));
  EXPECT_THAT(off.missing.back(), HasSubstr("engines are NOT CONFINED at all"));
  EXPECT_THAT(off.missing.back(), HasSubstr("RESIDENTD_ENGINE_SANDBOX=off"));
  EXPECT_THAT(off.missing.back(), HasSubstr(". Fix: "));

  const SandboxLayers files = described("files");
  EXPECT_THAT(files.engines, Not(HasSubstr("seccomp")));
  EXPECT_THAT(files.engines, HasSubstr(LandlockVersion() > 0 ? "Landlock" : "nothing"));
  EXPECT_THAT(files.engines, HasSubstr(" (RESIDENTD_ENGINE_SANDBOX=files)"));
  ASSERT_THAT(files.missing, SizeIs(missing + 1));
  EXPECT_THAT(files.missing.back(), HasSubstr("system calls"));

  const SandboxLayers calls = described("calls");
  EXPECT_THAT(calls.engines, Not(HasSubstr("Landlock")));
  EXPECT_THAT(calls.engines, HasSubstr(HasSyscallFilters() ? "seccomp" : "nothing"));
  ASSERT_THAT(calls.missing, SizeIs(missing + 1));
  EXPECT_THAT(calls.missing.back(), HasSubstr("files"));

  // With these values engines are confined.
  for (const char* mode : {"report", "other", ""}) {
    EXPECT_THAT(described(mode).missing, SizeIs(missing)) << mode;
    EXPECT_THAT(described(mode).engines, StartsWith(DescribeSandbox().engines)) << mode;
  }
}

TEST(SandboxLayersTest, AMissingLayerIsReportedWithWhatIsNotRestricted) {
  if (!HasSyscallFilters()) GTEST_SKIP() << "this kernel has no seccomp filters";
  SandboxLayers layers;
  std::thread([&] {
    ASSERT_TRUE(testing::RefuseCalls({SYS_landlock_create_ruleset, SYS_seccomp}));
    layers = DescribeSandbox();
  }).join();
  EXPECT_EQ(layers.held, "limits");
  EXPECT_EQ(layers.engines, "nothing");
  EXPECT_THAT(layers.missing, ElementsAre(HasSubstr("EVERY FILE THAT THE DAEMON'S USER CAN READ"),
                                          HasSubstr("CAN REACH THE NETWORK AND OTHER PROCESSES")));
  EXPECT_THAT(layers.missing, Each(HasSubstr(". Fix: ")));
}

}  // namespace
}  // namespace resident
