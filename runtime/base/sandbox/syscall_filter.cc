#include "runtime/base/sandbox/syscall_filter.h"

#include <asm/sockios.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <seccomp.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cassert>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"

namespace resident {
namespace {

// Constants that the headers of older systems do not have.
constexpr int kMountSetattr = 442;
constexpr int kQuotactlFd = 443;
constexpr int kProcessMrelease = 448;
constexpr int kFchmodat2 = 452;
constexpr int kSetxattrat = 463;
constexpr int kRemovexattrat = 466;
constexpr int kOpenTreeAttr = 467;
constexpr int kFileSetattr = 469;
constexpr uint32_t kPrSetVma = 0x53564d41;

// Flags of clone that create namespaces.
constexpr uint32_t kNamespaceFlags = CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER |
                                     CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWNS;

// Allowed to compilers and to the CPU engine: open descriptors, memory, threads, the process's own
// signals, and time.
constexpr int kBasics[] = {
    SYS_futex,
    SYS_sched_yield,
    // Open descriptors.
    SYS_read,
    SYS_write,
    SYS_readv,
    SYS_writev,
    SYS_sendto,  // On the socket to the front end, the only one that there is.
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
    SYS_eventfd2,
    SYS_pipe2,
    SYS_memfd_create,
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
    // Time, and facts about the process and the machine.
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

// Also allowed to the CPU engine: requests that come with a descriptor.
constexpr int kCpuEngineCalls[] = {SYS_recvmsg};

// Also allowed to compilers: reading attributes of files and of themselves. Landlock, if the
// kernel has it, restricts the files.
constexpr int kCompilerCalls[] = {
    SYS_stat,       SYS_lstat,       SYS_statx,      SYS_access,    SYS_faccessat,
    SYS_faccessat2, SYS_readlink,    SYS_readlinkat, SYS_getcwd,    SYS_getdents64,
    SYS_statfs,     SYS_fstatfs,     SYS_fadvise64,  SYS_readahead, SYS_preadv,
    SYS_preadv2,    SYS_pipe,        SYS_umask,      SYS_getpgrp,   SYS_getpgid,
    SYS_getsid,     SYS_getpriority, SYS_getresuid,  SYS_getresgid, SYS_sched_getattr,
};

// Allowed to a compiler that consists of several programs: creating files in its folder, and
// starting programs and waiting for them (the driver g++ starts cc1plus, as, collect2 and ld).
constexpr int kDriverCalls[] = {
    SYS_ftruncate, SYS_fallocate, SYS_fsync,  SYS_fdatasync, SYS_rename,
    SYS_renameat,  SYS_renameat2, SYS_unlink, SYS_unlinkat,  SYS_mkdir,
    SYS_mkdirat,   SYS_rmdir,     SYS_creat,  SYS_flock,     SYS_pwritev,
    SYS_pwritev2,  SYS_chdir,     SYS_fchdir, SYS_sendfile,  SYS_copy_file_range,
    SYS_fork,      SYS_vfork,     SYS_execve, SYS_wait4,     SYS_waitid,
};

// Refused to the GPU engine. It has no list of allowed calls, because the calls of NVIDIA's driver
// differ between versions and between machines (its own threads, and device files of several
// kinds): with a list from one machine, engines on another machine would fail. Operators of a GPU
// make no system calls.
constexpr int kRefusedToGpuEngine[] = {
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
    // Objects that all processes of a user share. Their numbers can be guessed, so it is not
    // enough to refuse the call that looks one up.
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
    // Changes of files by path that Landlock does not restrict: owners, modes, times, attributes;
    // and their length, which it restricts since version 3.
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
    // Other programs.
    SYS_fork,
    SYS_vfork,
    SYS_execve,
    SYS_execveat,
};

using Conditions = std::vector<scmp_arg_cmp>;

// Compares the low half of an argument. The kernel reads only this half of the arguments here.
scmp_arg_cmp HasBits(unsigned argument, uint32_t mask, uint32_t bits) {
  return SCMP_CMP(argument, SCMP_CMP_MASKED_EQ, mask, bits);
}
scmp_arg_cmp Is(unsigned argument, uint32_t value) { return HasBits(argument, UINT32_MAX, value); }
scmp_arg_cmp IsNot(unsigned argument, uint32_t value) {
  return SCMP_CMP(argument, SCMP_CMP_NE, value);
}

class Filter {
 public:
  Filter(uint32_t default_action, uint32_t rule_action)
      : context_(seccomp_init(default_action)), rule_action_(rule_action) {
    if (context_ == nullptr) error_ = -ENOMEM;
  }

  // Adds a rule: the call gets the rule's action if all conditions hold. If there are several rules
  // for a call, one that matches is enough.
  void Add(int call, const Conditions& conditions = {}) { AddWith(rule_action_, call, conditions); }
  void AddWith(uint32_t action, int call, const Conditions& conditions = {}) {
    if (error_ != 0) return;
    error_ = seccomp_rule_add_array(context_.get(), action, call,
                                    static_cast<unsigned>(conditions.size()), conditions.data());
  }
  template <size_t kSize>
  void AddAll(const int (&calls)[kSize]) {
    for (const int call : calls) Add(call);
  }
  void AddEach(int call, unsigned argument, const std::vector<uint32_t>& values) {
    for (const uint32_t value : values) Add(call, {Is(argument, value)});
  }
  void Set(scmp_filter_attr attribute, uint32_t value) {
    if (error_ == 0) error_ = seccomp_attr_set(context_.get(), attribute, value);
  }
  // Checks this frequent call first. (Linux before 5.11 runs the filter for each call.)
  void Prefer(int call) {
    if (error_ == 0) error_ = seccomp_syscall_priority(context_.get(), call, 255);
  }

  absl::Status Load() {
    if (error_ == 0) error_ = seccomp_load(context_.get());
    if (error_ == 0) return absl::OkStatus();
    return absl::InternalError(absl::StrCat("seccomp: ", strerror(-error_)));
  }

 private:
  struct Release {
    void operator()(void* context) const { seccomp_release(context); }
  };
  const std::unique_ptr<void, Release> context_;
  const uint32_t rule_action_;
  int error_ = 0;
};

// Rules that depend on arguments, for processes with a list of allowed calls.
void AllowWithinItself(Filter& filter, bool one_process) {
  // No namespaces; only threads if `one_process`.
  const uint32_t thread = one_process ? CLONE_THREAD : 0;
  filter.Add(SYS_clone, {HasBits(0, kNamespaceFlags | thread, thread)});
  // abort() sends a signal to its own process. In a process that this one starts, the signal is
  // refused, and abort() ends that process by an illegal instruction instead.
  filter.Add(SYS_tgkill, {Is(0, static_cast<uint32_t>(getpid()))});
  // Process 0 is the caller.
  for (const int call : {SYS_prlimit64, SYS_sched_setscheduler, SYS_sched_setparam,
                         SYS_sched_setattr, SYS_sched_setaffinity}) {
    filter.Add(call, {Is(0, 0)});
  }
  filter.AddEach(
      SYS_fcntl, 1,
      {F_DUPFD, F_DUPFD_CLOEXEC, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_GET_SEALS, F_ADD_SEALS});
  filter.AddEach(SYS_ioctl, 1, {FIONREAD, FIONBIO});
  filter.AddEach(SYS_prctl, 0, {PR_SET_NAME, PR_GET_NAME, kPrSetVma});
}

// O_TMPFILE includes the bit of O_DIRECTORY and requires an access mode for writing.
void AllowReading(Filter& filter) {
  constexpr uint32_t kWrites = O_ACCMODE | O_CREAT | O_TRUNC;
  filter.Add(SYS_open, {HasBits(1, kWrites, 0)});
  filter.Add(SYS_openat, {HasBits(2, kWrites, 0)});
}

// O_TRUNC is allowed only together with write access, because Landlock before version 3 checks only
// the access mode of the descriptor.
void AllowOpening(Filter& filter) {
  for (const auto& [call, flags] : {std::pair{SYS_open, 1u}, {SYS_openat, 2u}}) {
    filter.Add(call, {HasBits(flags, O_TRUNC, 0)});
    filter.Add(call, {HasBits(flags, O_ACCMODE, O_WRONLY)});
    filter.Add(call, {HasBits(flags, O_ACCMODE, O_RDWR)});
  }
}

void RefuseToGpuEngine(Filter& filter) {
  filter.AddAll(kRefusedToGpuEngine);
  filter.Add(SYS_clone, {HasBits(0, CLONE_THREAD, 0)});
  for (uint32_t flag = 1; flag != 0; flag <<= 1) {
    if ((kNamespaceFlags & flag) != 0) filter.Add(SYS_clone, {HasBits(0, flag, flag)});
  }
  filter.Add(SYS_tgkill, {IsNot(0, static_cast<uint32_t>(getpid()))});
  for (const int call : {SYS_prlimit64, SYS_sched_setscheduler, SYS_sched_setparam,
                         SYS_sched_setattr, SYS_sched_setaffinity}) {
    filter.Add(call, {IsNot(0, 0)});
  }
  // These would send signals about a descriptor to any process.
  filter.AddEach(SYS_fcntl, 1, {F_SETOWN, F_SETOWN_EX, F_SETSIG});
  filter.AddEach(SYS_ioctl, 1, {FIOSETOWN, SIOCSPGRP});
  // Like AllowOpening: refuse to truncate a file that is opened for reading or without access.
  for (const auto& [call, flags] : {std::pair{SYS_open, 1u}, {SYS_openat, 2u}}) {
    for (const uint32_t access : {uint32_t{O_RDONLY}, uint32_t{O_ACCMODE}}) {
      filter.Add(call, {HasBits(flags, O_TRUNC | O_ACCMODE, O_TRUNC | access)});
    }
  }
}

}  // namespace

bool HasSyscallFilters() {
  const uint32_t action = SECCOMP_RET_ERRNO;
  return syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &action) == 0;
}

absl::Status FilterSyscalls(const FilterOptions& options) {
  assert(prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1);
  const uint32_t refuse = options.trap ? SCMP_ACT_TRAP : SCMP_ACT_ERRNO(EPERM);
  const bool refuses = options.policy == SyscallPolicy::kDriverEngine;
  Filter filter(/*default_action=*/refuses ? SCMP_ACT_ALLOW : refuse,
                /*rule_action=*/refuses ? refuse : SCMP_ACT_ALLOW);
  // Calls of another architecture, or of x32. They fail in an engine, and end a compiler.
  const bool engine = refuses || options.policy == SyscallPolicy::kNativeEngine;
  filter.Set(SCMP_FLTATR_ACT_BADARCH, engine ? refuse : SCMP_ACT_KILL_PROCESS);
  filter.Set(SCMP_FLTATR_CTL_TSYNC, options.all_threads ? 1 : 0);
  // The flags of these calls are in memory, which a filter cannot read. After ENOSYS the C library
  // calls clone and openat.
  filter.AddWith(SCMP_ACT_ERRNO(ENOSYS), SYS_clone3);
  filter.AddWith(SCMP_ACT_ERRNO(ENOSYS), SYS_openat2);
  switch (options.policy) {
    case SyscallPolicy::kCompiler:
      filter.AddAll(kBasics);
      filter.AddAll(kCompilerCalls);
      filter.AddAll(kDriverCalls);
      AllowWithinItself(filter, /*one_process=*/false);
      filter.AddEach(SYS_fcntl, 1, {F_GETLK, F_SETLK, F_SETLKW});
      filter.AddEach(SYS_ioctl, 1, {TCGETS, TIOCGPGRP, TIOCGWINSZ, FIOCLEX});
      AllowOpening(filter);
      break;
    case SyscallPolicy::kCompilerAlone:
      filter.AddAll(kBasics);
      filter.AddAll(kCompilerCalls);
      AllowWithinItself(filter, /*one_process=*/true);
      filter.AddEach(SYS_ioctl, 1, {TCGETS, TIOCGPGRP, TIOCGWINSZ, FIOCLEX});
      AllowReading(filter);
      break;
    case SyscallPolicy::kNativeEngine:
      filter.AddAll(kBasics);
      filter.AddAll(kCpuEngineCalls);
      filter.Prefer(SYS_futex);
      filter.Prefer(SYS_sched_yield);
      AllowWithinItself(filter, /*one_process=*/true);
      AllowReading(filter);
      break;
    case SyscallPolicy::kDriverEngine:
      RefuseToGpuEngine(filter);
      break;
  }
  return filter.Load();
}

}  // namespace resident
