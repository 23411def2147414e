#include "runtime/compile/syscall_filter.h"

#include <asm/sockios.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
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
constexpr int kProcessMrelease = 448;
constexpr int kFchmodat2 = 452;

constexpr int kRefused[] = {
    // Networks, and talking to other processes by sockets.
    SYS_socket,
    SYS_socketpair,
    SYS_connect,
    SYS_bind,
    SYS_listen,
    SYS_accept,
    SYS_accept4,
    SYS_sendto,
    SYS_sendmsg,
    SYS_sendmmsg,
    SYS_recvfrom,
    SYS_recvmsg,
    SYS_recvmmsg,
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
    SYS_msgget,
    SYS_semget,
    SYS_shmget,
    SYS_mq_open,
    // The file system as a whole.
    SYS_mount,
    SYS_umount2,
    SYS_pivot_root,
    SYS_chroot,
    SYS_move_mount,
    SYS_open_tree,
    SYS_fsopen,
    SYS_fsconfig,
    SYS_fsmount,
    SYS_fspick,
    SYS_name_to_handle_at,
    SYS_open_by_handle_at,
    SYS_swapon,
    SYS_swapoff,
    SYS_quotactl,
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

constexpr int kRefusedInSingleProcess[] = {SYS_fork, SYS_vfork, SYS_execve, SYS_execveat};

// New namespaces by clone.
constexpr uint32_t kNamespaceFlags = CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER |
                                     CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWNS;

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

constexpr uint32_t kRefuse = SECCOMP_RET_ERRNO | EPERM;

// Leaves `rule` to decide about `call`. It ends with a return.
void Decide(int call, const std::vector<sock_filter>& rule, std::vector<sock_filter>& filter) {
  filter.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(call), 0,
                            static_cast<uint8_t>(rule.size())));
  filter.insert(filter.end(), rule.begin(), rule.end());
}

// The argument must have this value.
std::vector<sock_filter> Only(int argument, uint32_t value) {
  return {LoadArgument(argument), NextIfEqual(value), Return(SECCOMP_RET_ALLOW), Return(kRefuse)};
}

// The argument must have none of these.
std::vector<sock_filter> AnyBut(int argument, const std::vector<uint32_t>& values) {
  std::vector<sock_filter> rule = {LoadArgument(argument)};
  for (const uint32_t value : values) {
    rule.push_back(NextIfEqual(value));
    rule.push_back(Return(kRefuse));
  }
  rule.push_back(Return(SECCOMP_RET_ALLOW));
  return rule;
}

// Flags of an open: a file that is cut must also be opened for writing, since Landlock
// before version 3 asks for no more than the access that the descriptor gives.
std::vector<sock_filter> NoCutWithoutWriting(int flags) {
  return {LoadArgument(flags),
          BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, O_TRUNC, 1, 0),
          Return(SECCOMP_RET_ALLOW),
          BPF_STMT(BPF_ALU | BPF_AND | BPF_K, O_ACCMODE),
          NextIfEqual(O_WRONLY),
          Return(SECCOMP_RET_ALLOW),
          NextIfEqual(O_RDWR),
          Return(SECCOMP_RET_ALLOW),
          Return(kRefuse)};
}

std::vector<sock_filter> MakeFilter(bool single_process) {
  std::vector<sock_filter> filter = {
      Load(offsetof(seccomp_data, arch)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kArchitecture, 1, 0),
      Return(SECCOMP_RET_KILL_PROCESS),
      Load(offsetof(seccomp_data, nr)),
      NextIfAnyBit(kX32Bit),
      Return(SECCOMP_RET_KILL_PROCESS),
      // Their flags stand in memory, where a filter cannot look: the C library then calls
      // clone and openat.
      NextIfEqual(SYS_clone3),
      Return(SECCOMP_RET_ERRNO | ENOSYS),
      NextIfEqual(SYS_openat2),
      Return(SECCOMP_RET_ERRNO | ENOSYS),
  };
  const auto refuse_all = [&](const int* begin, const int* end) {
    for (const int* call = begin; call != end; ++call) {
      filter.push_back(NextIfEqual(static_cast<uint32_t>(*call)));
      filter.push_back(Return(kRefuse));
    }
  };
  refuse_all(std::begin(kRefused), std::end(kRefused));
  if (single_process) {
    refuse_all(std::begin(kRefusedInSingleProcess), std::end(kRefusedInSingleProcess));
  }
  std::vector<sock_filter> clone = {LoadArgument(0), NextIfAnyBit(kNamespaceFlags),
                                    Return(kRefuse)};
  if (single_process) {
    clone.push_back(BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, CLONE_THREAD, 1, 0));
    clone.push_back(Return(kRefuse));
  }
  clone.push_back(Return(SECCOMP_RET_ALLOW));
  Decide(SYS_clone, clone, filter);
  // abort() sends itself a signal. In a process that this one starts it cannot, and ends by
  // an illegal instruction instead.
  Decide(SYS_tgkill, Only(0, static_cast<uint32_t>(getpid())), filter);
  // 0: the caller.
  Decide(SYS_prlimit64, Only(0, 0), filter);
  Decide(SYS_sched_setscheduler, Only(0, 0), filter);
  Decide(SYS_sched_setparam, Only(0, 0), filter);
  Decide(SYS_sched_setattr, Only(0, 0), filter);
  // A descriptor's news can be sent to any process, as a signal.
  Decide(SYS_fcntl, AnyBut(1, {F_SETOWN, F_SETOWN_EX, F_SETSIG}), filter);
  Decide(SYS_ioctl, AnyBut(1, {FIOSETOWN, SIOCSPGRP}), filter);
  Decide(SYS_open, NoCutWithoutWriting(1), filter);
  Decide(SYS_openat, NoCutWithoutWriting(2), filter);
  filter.push_back(Return(SECCOMP_RET_ALLOW));
  return filter;
}

}  // namespace

bool HasSyscallFilters() {
  const uint32_t action = SECCOMP_RET_ERRNO;
  return syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &action) == 0;
}

absl::Status FilterSyscalls(bool single_process) {
  std::vector<sock_filter> filter = MakeFilter(single_process);
  const sock_fprog program{static_cast<unsigned short>(filter.size()), filter.data()};
  if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
    return absl::InternalError(absl::StrCat("seccomp: ", strerror(errno)));
  }
  return absl::OkStatus();
}

}  // namespace resident
