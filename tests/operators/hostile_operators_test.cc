// Installs a malicious operator through a real daemon on the CPU engine. It behaves well
// during validation, and later makes any system call that a task asks for. The tests check
// what the kernel returns for these calls in the process where operators run.
#include <errno.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/operators.h"
#include "client/residentd_client.h"
#include "runtime/base/process/child_output.h"
#include "runtime/base/process/child_process.h"
#include "runtime/base/process/process_limits.h"
#include "runtime/base/sandbox/landlock.h"
#include "runtime/base/sandbox/syscall_filter.h"
#include "tests/daemon/daemon.h"
#include "tests/support/temp_folder.h"

namespace resident::testing {
namespace {

using client::Installation;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr float kMagic = 4321;
constexpr size_t kElements = 256;
constexpr size_t kText = 16;  // Element at which the text begins.

// x holds the magic number, the number of the system call, the number of repetitions, and
// for each argument its kind (0: a number; 1: the address of the text; 2: the address of
// 256 bytes) and its value. out[0] receives the result of the last call. For any other x,
// out = 2 x.
constexpr char kHostile[] = R"(#include "kernels/sdk/operator.h"
using namespace resident;

RESIDENT_OPERATOR(hostile)(Block& block, const Args& args) {
  auto x = args.tensor<const float>(0);
  auto out = args.tensor<float>(1);
  block.for_each(block.share(x.size()), [&](i64 i) { out[i] = 2 * x[i]; });
#if !RESIDENT_GPU
  if (x.size() != 256 || x[0] != 4321) return;
  char text[240];
  char room[256];
  for (int i = 0; i < 240; ++i) text[i] = static_cast<char>(x[16 + i]);
  for (int i = 0; i < 256; ++i) room[i] = 0;
  long a[6];
  for (int i = 0; i < 6; ++i) {
    const long number = static_cast<long>(x[4 + 2 * i]);
    a[i] = x[3 + 2 * i] == 1 ? reinterpret_cast<long>(text)
           : x[3 + 2 * i] == 2 ? reinterpret_cast<long>(room) : number;
  }
  long result = 0;
  for (int time = 0; time < static_cast<int>(x[2]); ++time) {
    result = static_cast<long>(x[1]);
    register long r10 asm("r10") = a[3];
    register long r8 asm("r8") = a[4];
    register long r9 asm("r9") = a[5];
    asm volatile("syscall"
                 : "+a"(result)
                 : "D"(a[0]), "S"(a[1]), "d"(a[2]), "r"(r10), "r"(r8), "r"(r9)
                 : "rcx", "r11", "memory");
    // If the call made a second process, that process exits here.
    const long number = static_cast<long>(x[1]);
    if (result == 0 && (number == 56 || number == 57 || number == 58)) {
      long end = 231;
      asm volatile("syscall" : "+a"(end) : "D"(0L) : "rcx", "r11", "memory");
    }
  }
  out[0] = static_cast<float>(result);
#endif
}
)";

// One argument of a system call.
struct Argument {
  float kind = 0;
  float value = 0;

  Argument() = default;
  Argument(double number) : value(static_cast<float>(number)) {}
  Argument(int number) : value(static_cast<float>(number)) {}
  static Argument Text() { return Kind(1); }
  static Argument Room() { return Kind(2); }

 private:
  static Argument Kind(float kind) {
    Argument argument;
    argument.kind = kind;
    return argument;
  }
};

const Argument kTextAt = Argument::Text();
const Argument kRoom = Argument::Room();

struct Call {
  std::string what;
  int number;
  std::vector<Argument> arguments;
  std::string text = {};
  int times = 1;
};

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<pid_t> ListChildren(pid_t pid) {
  std::vector<pid_t> children;
  for (const auto& task :
       std::filesystem::directory_iterator(absl::StrCat("/proc/", pid, "/task"))) {
    std::istringstream pids(ReadFile(task.path() / "children"));
    for (pid_t child; pids >> child;) children.push_back(child);
  }
  return children;
}

class HostileOperatorsTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    setenv("RESIDENT_TEST_SECRET", "only in the front end's environment", 1);
    folder_ = std::make_unique<TempFolder>("resident-hostile");
    state_ = folder_->path() + "/state";
    key_ = folder_->path() + "/tls.key";
    std::ofstream(key_) << "a private key";
    daemon_ = std::make_unique<Daemon>(std::vector<std::string>{"--state_dir=" + state_});
    auto connected = client::Client::Connect(daemon_->address());
    ASSERT_TRUE(connected.ok()) << connected.status();
    client_ = *std::move(connected);
    const auto installed = client::Operators(*client_).Install(
        Installation::Source("hostile", "hostile.cc", {{"hostile.cc", kHostile}})
            .Signature("x: in f32[*S], out: out f32[*S]")
            .WaitFor(v1::VERSION_STATE_ACTIVE));
    ASSERT_TRUE(installed.ok()) << installed.status();
    engine_ = daemon_->engine_pid();
  }
  static void TearDownTestSuite() {
    client_.reset();
    daemon_.reset();
    folder_.reset();
  }

  void SetUp() override {
    if (OnGpu()) GTEST_SKIP() << "operators of a GPU make no system calls";
    if (LandlockVersion() == 0) GTEST_SKIP() << "this kernel has no Landlock";
    if (!HasSyscallFilters()) GTEST_SKIP() << "this kernel has no seccomp filters";
  }

  // Makes the system call in the operator and returns the kernel's result.
  static int Make(const Call& call) {
    std::vector<float> x(kElements);
    x[0] = kMagic;
    x[1] = static_cast<float>(call.number);
    x[2] = static_cast<float>(call.times);
    for (size_t i = 0; i < call.arguments.size(); ++i) {
      x[3 + 2 * i] = call.arguments[i].kind;
      x[4 + 2 * i] = call.arguments[i].value;
    }
    for (size_t i = 0; i < call.text.size(); ++i) {
      x[kText + i] = static_cast<float>(call.text[i]);
    }
    client::TaskBatch batch("hostile");
    batch.Input(x).Return<float>({kElements});
    const auto result = client_->Run(batch);
    EXPECT_TRUE(result.ok()) << call.what << ": " << result.status();
    return result.ok() ? static_cast<int>(result->Output<float>(0)[0]) : 0;
  }

  static void ExpectRefused(const std::vector<Call>& calls) {
    for (const Call& call : calls) {
      EXPECT_THAT(Make(call), AnyOf(-EPERM, -EACCES, -ENOSYS)) << call.what;
    }
    EXPECT_EQ(daemon_->engine_pid(), engine_) << "the engine was replaced";
  }

  static Call Open(const std::string& path, int flags) {
    return {absl::StrCat("open ", path, ", flags ", flags),
            SYS_openat,
            {AT_FDCWD, kTextAt, flags, 0600},
            path};
  }

  static inline std::unique_ptr<TempFolder> folder_;
  static inline std::string state_;
  static inline std::string key_;
  static inline std::unique_ptr<Daemon> daemon_;
  static inline std::unique_ptr<client::Client> client_;
  static inline pid_t engine_ = 0;
};

// The operator can make system calls, so the kernel itself refuses the calls below.
TEST_F(HostileOperatorsTest, TheOperatorCanMakeSystemCalls) {
  EXPECT_EQ(Make({"getpid", SYS_getpid, {}}), engine_);
}

TEST_F(HostileOperatorsTest, CannotOpenFiles) {
  const pid_t front_end = daemon_->pid();
  std::vector<Call> calls;
  std::vector<std::string> paths = {key_,
                                    state_,
                                    "/etc/passwd",
                                    "/",
                                    "/proc/self/mem",
                                    "/proc/self/environ",
                                    "/proc/self/exe",
                                    absl::StrCat("/proc/", front_end, "/mem"),
                                    absl::StrCat("/proc/", front_end, "/environ"),
                                    absl::StrCat("/proc/", front_end, "/maps"),
                                    absl::StrCat("/proc/", front_end, "/fd/0")};
  for (const auto& entry : std::filesystem::recursive_directory_iterator(state_)) {
    if (entry.path().string().size() < 200) paths.push_back(entry.path());
  }
  EXPECT_GT(paths.size(), 12u) << "the state folder is empty";
  for (const std::string& path : paths) calls.push_back(Open(path, O_RDONLY));
  calls.push_back({"open with the old call", SYS_open, {kTextAt, O_RDONLY}, key_});
  ExpectRefused(calls);
}

TEST_F(HostileOperatorsTest, CannotChangeFiles) {
  const std::string planted = state_ + "/planted";
  ExpectRefused({
      Open(planted, O_WRONLY | O_CREAT),
      Open(key_, O_WRONLY),
      Open(key_, O_RDWR),
      Open(key_, O_RDONLY | O_TRUNC),
      {"creat", SYS_creat, {kTextAt, 0600}, planted},
      {"mkdir", SYS_mkdir, {kTextAt, 0700}, planted},
      {"mknod", SYS_mknod, {kTextAt, S_IFREG | 0600, 0}, planted},
      {"symlink", SYS_symlink, {kTextAt, kTextAt}, planted},
      {"link", SYS_link, {kTextAt, kTextAt}, key_},
      {"unlink", SYS_unlink, {kTextAt}, key_},
      {"unlinkat", SYS_unlinkat, {AT_FDCWD, kTextAt, 0}, key_},
      {"rename", SYS_rename, {kTextAt, kTextAt}, key_},
      {"truncate", SYS_truncate, {kTextAt, 0}, key_},
      {"chmod", SYS_chmod, {kTextAt, 0666}, key_},
      {"chown", SYS_chown, {kTextAt, -1, -1}, key_},
      {"utimensat", SYS_utimensat, {AT_FDCWD, kTextAt, 0, 0}, key_},
      {"setxattr", SYS_setxattr, {kTextAt, kTextAt, kRoom, 1, 0}, key_},
      {"chdir", SYS_chdir, {kTextAt}, state_},
  });
  EXPECT_EQ(ReadFile(key_), "a private key");
  EXPECT_FALSE(std::filesystem::exists(planted));
}

TEST_F(HostileOperatorsTest, CannotReachTheNetwork) {
  ExpectRefused({
      {"IPv4 socket", SYS_socket, {AF_INET, SOCK_STREAM, 0}},
      {"IPv6 socket", SYS_socket, {AF_INET6, SOCK_DGRAM, 0}},
      {"Unix socket", SYS_socket, {AF_UNIX, SOCK_STREAM, 0}},
      {"netlink socket", SYS_socket, {AF_NETLINK, SOCK_RAW, 0}},
      {"socketpair", SYS_socketpair, {AF_UNIX, SOCK_STREAM, 0, kRoom}},
      {"connect", SYS_connect, {4, kRoom, 16}},
      {"bind", SYS_bind, {4, kRoom, 2}},
      {"listen", SYS_listen, {4, 1}},
      {"accept", SYS_accept, {4, 0, 0}},
      {"io_uring_setup", SYS_io_uring_setup, {4, kRoom}},
  });
}

TEST_F(HostileOperatorsTest, CannotReachOtherProcesses) {
  const double front_end = daemon_->pid();
  ExpectRefused({
      {"ptrace", SYS_ptrace, {0x4206, front_end, 0, 0}},
      {"process_vm_readv", SYS_process_vm_readv, {front_end, kRoom, 1, kRoom, 1, 0}},
      {"process_vm_writev", SYS_process_vm_writev, {front_end, kRoom, 1, kRoom, 1, 0}},
      {"kill", SYS_kill, {front_end, 0}},
      {"kill of all processes", SYS_kill, {-1, 0}},
      {"tkill", SYS_tkill, {front_end, 0}},
      {"tgkill", SYS_tgkill, {front_end, front_end, 0}},
      {"rt_sigqueueinfo", SYS_rt_sigqueueinfo, {front_end, 0, kRoom}},
      {"pidfd_open", SYS_pidfd_open, {front_end, 0}},
      {"pidfd_getfd", SYS_pidfd_getfd, {3, 0, 0}},
      {"pidfd_send_signal", SYS_pidfd_send_signal, {3, 0, 0, 0}},
      {"prlimit64", SYS_prlimit64, {front_end, RLIMIT_CORE, 0, kRoom}},
      {"setpriority", SYS_setpriority, {PRIO_PROCESS, front_end, 0}},
      {"sched_setaffinity", SYS_sched_setaffinity, {front_end, 8, kRoom}},
      {"sched_setscheduler", SYS_sched_setscheduler, {front_end, SCHED_IDLE, kRoom}},
      {"process_madvise", SYS_process_madvise, {3, kRoom, 1, 0, 0}},
      {"F_SETOWN", SYS_fcntl, {4, F_SETOWN, front_end}},
      {"TIOCSTI", SYS_ioctl, {0, TIOCSTI, kRoom}},
      {"shmget", SYS_shmget, {0, 4096, 0600}},
      {"shmat", SYS_shmat, {0, 0, 0}},
      {"msgget", SYS_msgget, {0, 0600}},
      {"semget", SYS_semget, {0, 1, 0600}},
      {"mq_open", SYS_mq_open, {kTextAt, O_RDONLY}, "resident"},
  });
}

TEST_F(HostileOperatorsTest, CannotStartPrograms) {
  ExpectRefused({
      {"execve", SYS_execve, {kTextAt, 0, 0}, "/bin/true"},
      {"execveat", SYS_execveat, {AT_FDCWD, kTextAt, 0, 0, 0}, "/bin/true"},
      {"fork", SYS_fork, {}},
      {"vfork", SYS_vfork, {}},
      {"clone", SYS_clone, {SIGCHLD, 0, 0, 0, 0}},
      {"clone3", SYS_clone3, {kRoom, 88}},
  });
}

TEST_F(HostileOperatorsTest, CannotUseOtherKernelInterfaces) {
  ExpectRefused({
      {"bpf", SYS_bpf, {0, kRoom, 32}},
      {"keyctl", SYS_keyctl, {0, -3, 0}},
      {"add_key", SYS_add_key, {kTextAt, kTextAt, kRoom, 1, -3}, "user"},
      {"perf_event_open", SYS_perf_event_open, {kRoom, 0, -1, -1, 0}},
      {"userfaultfd", SYS_userfaultfd, {0}},
      {"mount", SYS_mount, {kTextAt, kTextAt, kTextAt, 0, 0}, "/nonexistent"},
      {"umount2", SYS_umount2, {kTextAt, 0}, "/nonexistent"},
      {"pivot_root", SYS_pivot_root, {kTextAt, kTextAt}, "/nonexistent"},
      {"chroot", SYS_chroot, {kTextAt}, "/nonexistent"},
      {"unshare", SYS_unshare, {CLONE_NEWUSER}},
      {"setns", SYS_setns, {-1, 0}},
      {"init_module", SYS_init_module, {0, 0, kTextAt}},
      {"setsid", SYS_setsid, {}},
      {"setuid", SYS_setuid, {0}},
      {"personality", SYS_personality, {-1}},
      {"PR_SET_PDEATHSIG", SYS_prctl, {PR_SET_PDEATHSIG, SIGKILL}},
  });
}

// A child process receives only the variables that it needs from the front end's
// environment, which may contain secrets.
TEST_F(HostileOperatorsTest, ChildrenDoNotGetTheEnvironment) {
  const std::vector<pid_t> children = ListChildren(daemon_->pid());
  ASSERT_THAT(children, Not(IsEmpty()));
  for (const pid_t child : children) {
    EXPECT_THAT(ReadFile(absl::StrCat("/proc/", child, "/environ")),
                Not(HasSubstr("RESIDENT_TEST_SECRET")))
        << ReadFile(absl::StrCat("/proc/", child, "/cmdline"));
  }
  EXPECT_THAT(ReadFile(absl::StrCat("/proc/", daemon_->pid(), "/environ")),
              HasSubstr("RESIDENT_TEST_SECRET"));
}

int OomScore(pid_t pid) {
  return atoi(ReadFile(absl::StrCat("/proc/", pid, "/oom_score_adj")).c_str());
}

TEST_F(HostileOperatorsTest, CompilersAreKilledFirstWhenMemoryRunsOut) {
  const int own = OomScore(daemon_->pid());
  EXPECT_EQ(own, OomScore(getpid()));
  EXPECT_EQ(OomScore(engine_), std::max(own, kServingOomScore));
  bool compiler = false;
  for (const pid_t child : ListChildren(daemon_->pid())) {
    if (!absl::StrContains(ReadFile(absl::StrCat("/proc/", child, "/cmdline")), "compile")) {
      continue;
    }
    compiler = true;
    EXPECT_TRUE(Eventually([&] { return OomScore(child) == std::max(own, kHelperOomScore); }));
  }
  EXPECT_TRUE(compiler) << "no compiler waits";
}

// Checks both the standard output and the standard error of an engine.
TEST_F(HostileOperatorsTest, CannotForgeOrFloodTheLog) {
  const std::string forged = "\nresidentd: forged line\n";
  for (const int fd : {STDOUT_FILENO, STDERR_FILENO}) {
    EXPECT_EQ(Make({"write",
                    SYS_write,
                    {fd, kTextAt, static_cast<double>(forged.size())},
                    forged,
                    /*times=*/3000}),
              static_cast<int>(forged.size()));
  }
  EXPECT_TRUE(Eventually([&] { return absl::StrContains(daemon_->Output(), "forged line"); }));
  // The number of dropped lines is reported before the next line that is not dropped.
  const std::string last = "the last one\n";
  EXPECT_TRUE(Eventually([&] {
    Make({"write", SYS_write, {STDERR_FILENO, kTextAt, static_cast<double>(last.size())}, last});
    return absl::StrContains(daemon_->Output(), "the last one");
  }));
  size_t lines = 0;
  const std::string output = daemon_->Output();
  for (const absl::string_view line : absl::StrSplit(output, '\n')) {
    if (!absl::StrContains(line, "forged line")) continue;
    ++lines;
    EXPECT_TRUE(absl::StartsWith(line, "residentd: engine of device 0: residentd: forged line"))
        << line;
  }
  // Out of 6,000 lines. It is more than one burst only if writing them took long.
  EXPECT_LE(lines, 3 * ChildOutput::kBurstLines);
  EXPECT_THAT(output, HasSubstr(" lines were dropped)"));
}

// Removes all capabilities from the calling process and from programs that it executes
// later.
bool DropCapabilities() {
  for (int capability = 0; capability <= CAP_LAST_CAP; ++capability) {
    if (prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) != 0 && errno != EINVAL) return false;
  }
  return true;
}

bool ClearCapabilities() {
  __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct none[2] = {};
  return syscall(SYS_capset, &header, none) == 0;
}

// Opens the file in another process of the same user. Returns the error number, or 0 on
// success.
int OpenAsAnotherProcess(const std::string& path) {
  const pid_t pid = fork();
  if (pid == 0) {
    if (!ClearCapabilities()) _exit(255);
    _exit(open(path.c_str(), O_RDONLY) >= 0 ? 0 : errno);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 254;
}

// Every daemon that this program starts from here on has no capabilities. The daemon is not
// dumpable, and this alone protects its memory from other processes of its user, as for a
// daemon that does not run as root.
TEST(FrontEndTest, OtherProcessesOfTheUserCannotReadItsMemory) {
  if (geteuid() == 0) {
    bool dropped = false;
    RunOnProcessThread([&] { dropped = DropCapabilities(); });
    ASSERT_TRUE(dropped);
  }
  const Daemon daemon;
  const std::string folder = absl::StrCat("/proc/", daemon.pid());
  EXPECT_EQ(OpenAsAnotherProcess(folder + "/stat"), 0);
  EXPECT_EQ(OpenAsAnotherProcess(folder + "/mem"), EACCES);
  EXPECT_EQ(OpenAsAnotherProcess(folder + "/environ"), EACCES);
  EXPECT_EQ(OpenAsAnotherProcess(folder + "/maps"), EACCES);
  // The daemon can still start compilers and engines, and read its own files in /proc.
  auto connected = client::Client::Connect(daemon.address());
  ASSERT_TRUE(connected.ok()) << connected.status();
  const auto installed =
      client::Operators(**connected)
          .Install(Installation::Expression("twice", "2 * x").WaitFor(v1::VERSION_STATE_ACTIVE));
  EXPECT_TRUE(installed.ok()) << installed.status();
  EXPECT_THAT(daemon.Metrics(), HasSubstr("process_open_fds"));
}

}  // namespace
}  // namespace resident::testing
