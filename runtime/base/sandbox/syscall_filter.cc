#include "runtime/base/sandbox/syscall_filter.h"

#include <asm/sockios.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace resident {
namespace {

#if defined(__x86_64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_X86_64;
#else
#error "the filter lists system calls of x86-64"
#endif
// System calls of the x32 ABI have this bit.
constexpr uint32_t kX32Bit = 0x40000000;
// What the headers of an older system do not have yet.
constexpr int kMountSetattr = 442;
constexpr int kQuotactlFd = 443;
constexpr int kProcessMrelease = 448;
constexpr int kFchmodat2 = 452;
constexpr int kSetxattrat = 463;
constexpr int kRemovexattrat = 466;
constexpr int kOpenTreeAttr = 467;
constexpr int kFileSetattr = 469;
constexpr uint32_t kPrSetVma = 0x53564d41;

constexpr int kRefused[] = {
    // Networks, and new connections to other processes.
    SYS_socket,
    SYS_socketpair,
    SYS_connect,
    SYS_bind,
    SYS_listen,
    SYS_accept,
    SYS_accept4,
    // Other processes.
    SYS_ptrace,
    SYS_process_vm_readv,
    SYS_process_vm_writev,
    SYS_process_madvise,
    kProcessMrelease,
    SYS_move_pages,
    SYS_migrate_pages,
    SYS_kcmp,
    SYS_kill,
    SYS_tkill,
    SYS_rt_sigqueueinfo,
    SYS_rt_tgsigqueueinfo,
    SYS_pidfd_open,
    SYS_pidfd_getfd,
    SYS_pidfd_send_signal,
    SYS_setpriority,
    SYS_ioprio_set,
    SYS_setpgid,
    SYS_setsid,
    // Objects that all processes of a user share. Their numbers can be guessed, so that refusing
    // the call that looks one up is not enough.
    SYS_msgget,
    SYS_msgsnd,
    SYS_msgrcv,
    SYS_msgctl,
    SYS_semget,
    SYS_semop,
    SYS_semtimedop,
    SYS_semctl,
    SYS_shmget,
    SYS_shmat,
    SYS_shmdt,
    SYS_shmctl,
    SYS_mq_open,
    SYS_mq_unlink,
    SYS_mq_timedsend,
    SYS_mq_timedreceive,
    SYS_mq_notify,
    SYS_mq_getsetattr,
    // The file system as a whole.
    SYS_mount,
    SYS_umount2,
    SYS_pivot_root,
    SYS_chroot,
    SYS_move_mount,
    SYS_open_tree,
    kOpenTreeAttr,
    kMountSetattr,
    SYS_fsopen,
    SYS_fsconfig,
    SYS_fsmount,
    SYS_fspick,
    SYS_name_to_handle_at,
    SYS_open_by_handle_at,
    SYS_swapon,
    SYS_swapoff,
    SYS_quotactl,
    kQuotactlFd,
    SYS_mknod,
    SYS_mknodat,
    // Files by path, which Landlock leaves alone: owners, modes, times, attributes; and their
    // length, which it knows from version 3 on.
    SYS_truncate,
    SYS_chmod,
    SYS_fchmod,
    SYS_fchmodat,
    kFchmodat2,
    SYS_chown,
    SYS_fchown,
    SYS_lchown,
    SYS_fchownat,
    SYS_utime,
    SYS_utimes,
    SYS_utimensat,
    SYS_futimesat,
    SYS_setxattr,
    SYS_lsetxattr,
    SYS_fsetxattr,
    SYS_removexattr,
    SYS_lremovexattr,
    SYS_fremovexattr,
    kSetxattrat,
    kRemovexattrat,
    kFileSetattr,
    SYS_fanotify_init,
    SYS_inotify_init,
    SYS_inotify_init1,
    // The kernel.
    SYS_unshare,
    SYS_setns,
    SYS_bpf,
    SYS_perf_event_open,
    SYS_keyctl,
    SYS_add_key,
    SYS_request_key,
    SYS_io_uring_setup,
    SYS_io_uring_enter,
    SYS_io_uring_register,
    SYS_io_setup,
    SYS_userfaultfd,
    SYS_init_module,
    SYS_finit_module,
    SYS_delete_module,
    SYS_kexec_load,
    SYS_kexec_file_load,
    SYS_reboot,
    SYS_iopl,
    SYS_ioperm,
    SYS_syslog,
    SYS_acct,
    SYS_settimeofday,
    SYS_clock_settime,
    SYS_clock_adjtime,
    SYS_adjtimex,
    SYS_sethostname,
    SYS_setdomainname,
    SYS_personality,
    SYS_vhangup,
    SYS_lookup_dcookie,
    SYS_modify_ldt,
};

// Messages on sockets that are open already: an engine has two.
constexpr int kRefusedToCompilers[] = {SYS_sendto,   SYS_sendmsg, SYS_sendmmsg,
                                       SYS_recvfrom, SYS_recvmsg, SYS_recvmmsg};

constexpr int kRefusedToOneProcess[] = {SYS_fork, SYS_vfork, SYS_execve, SYS_execveat};

// What the CPU engine does once it has been executed, in gRPC, in the C library and by itself, and
// what is as harmless.
constexpr int kAllowedToCpuEngine[] = {
    // What workers call most. (Linux before 5.11 goes through the filter for each call.)
    SYS_futex,
    SYS_sched_yield,
    // What is open.
    SYS_read,
    SYS_write,
    SYS_readv,
    SYS_writev,
    SYS_pread64,
    SYS_pwrite64,
    SYS_lseek,
    SYS_close,
    SYS_fstat,
    SYS_newfstatat,
    SYS_dup,
    SYS_dup2,
    SYS_dup3,
    SYS_poll,
    SYS_ppoll,
    SYS_select,
    SYS_pselect6,
    SYS_epoll_create1,
    SYS_epoll_ctl,
    SYS_epoll_wait,
    SYS_epoll_pwait,
    SYS_epoll_pwait2,
    SYS_eventfd2,
    SYS_pipe2,
    SYS_timerfd_create,
    SYS_timerfd_settime,
    SYS_timerfd_gettime,
    SYS_memfd_create,
    // The sockets that it was started with.
    SYS_sendto,
    SYS_sendmsg,
    SYS_recvfrom,
    SYS_recvmsg,
    SYS_shutdown,
    SYS_getsockname,
    SYS_getpeername,
    SYS_getsockopt,
    SYS_setsockopt,
    // Memory.
    SYS_mmap,
    SYS_mprotect,
    SYS_munmap,
    SYS_mremap,
    SYS_madvise,
    SYS_msync,
    SYS_mincore,
    SYS_mlock,
    SYS_munlock,
    SYS_brk,
    // Threads.
    SYS_sched_getaffinity,
    SYS_sched_getparam,
    SYS_sched_getscheduler,
    SYS_sched_get_priority_max,
    SYS_sched_get_priority_min,
    SYS_set_robust_list,
    SYS_set_tid_address,
    SYS_rseq,
    SYS_membarrier,
    SYS_arch_prctl,
    SYS_exit,
    SYS_exit_group,
    SYS_restart_syscall,
    // Its own signals.
    SYS_rt_sigaction,
    SYS_rt_sigprocmask,
    SYS_rt_sigreturn,
    SYS_rt_sigpending,
    SYS_rt_sigsuspend,
    SYS_rt_sigtimedwait,
    SYS_sigaltstack,
    // Time, and what it is.
    SYS_clock_gettime,
    SYS_clock_getres,
    SYS_clock_nanosleep,
    SYS_nanosleep,
    SYS_gettimeofday,
    SYS_time,
    SYS_times,
    SYS_getrusage,
    SYS_getrlimit,
    SYS_getpid,
    SYS_getppid,
    SYS_gettid,
    SYS_getuid,
    SYS_geteuid,
    SYS_getgid,
    SYS_getegid,
    SYS_getcpu,
    SYS_getrandom,
    SYS_uname,
    SYS_sysinfo,
};

// New namespaces by clone.
constexpr uint32_t kNamespaceFlags = CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER |
                                     CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWNS;

using Rule = std::vector<sock_filter>;

sock_filter Load(size_t offset) {
  return BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<uint32_t>(offset));
}
sock_filter Return(uint32_t action) { return BPF_STMT(BPF_RET | BPF_K, action); }
// The low half of an argument: all that the kernel reads of those that are looked at here.
sock_filter LoadArgument(int index) {
  return Load(offsetof(seccomp_data, args) + sizeof(uint64_t) * static_cast<size_t>(index));
}
// Passes over the next instruction unless the loaded word is as wanted.
sock_filter NextIfEqual(uint32_t value) { return BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1); }
sock_filter NextIfAnyBit(uint32_t bits) { return BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, bits, 0, 1); }
sock_filter NextIfNoBit(uint32_t bits) { return BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, bits, 1, 0); }

// Makes the filter of one process.
class FilterBuilder {
 public:
  explicit FilterBuilder(const FilterOptions& options)
      : policy_(options.policy),
        refuse_(options.trap ? SECCOMP_RET_TRAP : SECCOMP_RET_ERRNO | EPERM) {}

  std::vector<sock_filter> Make() {
    Begin();
    const bool engine =
        policy_ == SyscallPolicy::kCpuEngine || policy_ == SyscallPolicy::kGpuEngine;
    if (policy_ == SyscallPolicy::kCpuEngine) {
      for (const int call : kAllowedToCpuEngine) ReturnFor(call, SECCOMP_RET_ALLOW);
    } else {
      for (const int call : kRefused) ReturnFor(call, refuse_);
      if (!engine) {
        for (const int call : kRefusedToCompilers) ReturnFor(call, refuse_);
      }
      if (policy_ != SyscallPolicy::kCompiler) {
        for (const int call : kRefusedToOneProcess) ReturnFor(call, refuse_);
      }
    }
    Decide(SYS_clone, Clone());
    // abort() sends itself a signal. In a process that this one starts it cannot, and ends by an
    // illegal instruction instead.
    Decide(SYS_tgkill, Only(0, {static_cast<uint32_t>(getpid())}));
    // 0: the caller.
    for (const int call : {SYS_prlimit64, SYS_sched_setscheduler, SYS_sched_setparam,
                           SYS_sched_setattr, SYS_sched_setaffinity}) {
      Decide(call, Only(0, {0}));
    }
    if (policy_ == SyscallPolicy::kCpuEngine) {
      DecideForCpuEngine();
      filter_.push_back(Return(refuse_));
    } else {
      // A descriptor's news can be sent to any process, as a signal.
      Decide(SYS_fcntl, AnyBut(1, {F_SETOWN, F_SETOWN_EX, F_SETSIG}));
      Decide(SYS_ioctl, AnyBut(1, {FIOSETOWN, SIOCSPGRP}));
      Decide(SYS_open, NoCutWithoutWriting(1));
      Decide(SYS_openat, NoCutWithoutWriting(2));
      filter_.push_back(Return(SECCOMP_RET_ALLOW));
    }
    return std::move(filter_);
  }

 private:
  void Begin() {
    // An engine whose operator tries another architecture's calls goes on: the call fails.
    const uint32_t foreign =
        policy_ == SyscallPolicy::kCpuEngine || policy_ == SyscallPolicy::kGpuEngine
            ? refuse_
            : SECCOMP_RET_KILL_PROCESS;
    filter_ = {
        Load(offsetof(seccomp_data, arch)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kArchitecture, 1, 0),
        Return(foreign),
        Load(offsetof(seccomp_data, nr)),
        NextIfAnyBit(kX32Bit),
        Return(foreign),
        // Their flags stand in memory, where a filter cannot look: the C library then calls
        // clone and openat.
        NextIfEqual(SYS_clone3),
        Return(SECCOMP_RET_ERRNO | ENOSYS),
        NextIfEqual(SYS_openat2),
        Return(SECCOMP_RET_ERRNO | ENOSYS),
    };
  }

  void ReturnFor(int call, uint32_t action) {
    filter_.push_back(NextIfEqual(static_cast<uint32_t>(call)));
    filter_.push_back(Return(action));
  }

  // Leaves `rule` to decide about `call`. It ends with a return.
  void Decide(int call, const Rule& rule) {
    filter_.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(call), 0,
                               static_cast<uint8_t>(rule.size())));
    filter_.insert(filter_.end(), rule.begin(), rule.end());
  }

  // The argument must have one of these values.
  Rule Only(int argument, const std::vector<uint32_t>& values) const {
    Rule rule = {LoadArgument(argument)};
    for (const uint32_t value : values) {
      rule.push_back(NextIfEqual(value));
      rule.push_back(Return(SECCOMP_RET_ALLOW));
    }
    rule.push_back(Return(refuse_));
    return rule;
  }

  // The argument must have none of these.
  Rule AnyBut(int argument, const std::vector<uint32_t>& values) const {
    Rule rule = {LoadArgument(argument)};
    for (const uint32_t value : values) {
      rule.push_back(NextIfEqual(value));
      rule.push_back(Return(refuse_));
    }
    rule.push_back(Return(SECCOMP_RET_ALLOW));
    return rule;
  }

  // Flags of an open: a file that is cut must also be opened for writing, since Landlock before
  // version 3 asks for no more than the access that the descriptor gives.
  Rule NoCutWithoutWriting(int flags) const {
    return {LoadArgument(flags),
            BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, O_TRUNC, 1, 0),
            Return(SECCOMP_RET_ALLOW),
            BPF_STMT(BPF_ALU | BPF_AND | BPF_K, O_ACCMODE),
            NextIfEqual(O_WRONLY),
            Return(SECCOMP_RET_ALLOW),
            NextIfEqual(O_RDWR),
            Return(SECCOMP_RET_ALLOW),
            Return(refuse_)};
  }

  // No namespaces; in a process that stays alone, threads only.
  Rule Clone() const {
    Rule rule = {LoadArgument(0), NextIfAnyBit(kNamespaceFlags), Return(refuse_)};
    if (policy_ != SyscallPolicy::kCompiler) {
      rule.push_back(NextIfNoBit(CLONE_THREAD));
      rule.push_back(Return(refuse_));
    }
    rule.push_back(Return(SECCOMP_RET_ALLOW));
    return rule;
  }

  void DecideForCpuEngine() {
    Decide(SYS_fcntl, Only(1, {F_DUPFD, F_DUPFD_CLOEXEC, F_GETFD, F_SETFD, F_GETFL, F_SETFL,
                               F_GET_SEALS, F_ADD_SEALS}));
    Decide(SYS_ioctl, Only(1, {FIONREAD, FIONBIO}));
    Decide(SYS_prctl, Only(0, {PR_SET_NAME, PR_GET_NAME, kPrSetVma}));
    // dlopen opens an operator's object, from memory, to read. (O_TMPFILE has the bit of
    // O_DIRECTORY and is for writing.)
    const Rule reading = {LoadArgument(2), NextIfAnyBit(O_ACCMODE | O_CREAT | O_TRUNC),
                          Return(refuse_), Return(SECCOMP_RET_ALLOW)};
    Decide(SYS_openat, reading);
  }

  const SyscallPolicy policy_;
  const uint32_t refuse_;
  std::vector<sock_filter> filter_;
};

}  // namespace

bool HasSyscallFilters() {
  const uint32_t action = SECCOMP_RET_ERRNO;
  return syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &action) == 0;
}

absl::Status FilterSyscalls(const FilterOptions& options) {
  std::vector<sock_filter> filter = FilterBuilder(options).Make();
  const sock_fprog program{static_cast<unsigned short>(filter.size()), filter.data()};
  const unsigned flags = options.all_threads ? SECCOMP_FILTER_FLAG_TSYNC : 0;
  const long result = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program);
  if (result < 0) return absl::InternalError(absl::StrCat("seccomp: ", strerror(errno)));
  if (result > 0) {
    return absl::InternalError(
        absl::StrCat("seccomp: thread ", result, " has a filter of its own"));
  }
  return absl::OkStatus();
}

}  // namespace resident
