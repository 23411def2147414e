// CrashPoint: a point in the code at which a test can kill the process, to test what a restart
// restores from the disk.
//
// There is one before and one after each step of a durable write. They are numbered from
// 1 in the order in which a process reaches them; with RESIDENTD_CRASH_POINT=N in its
// environment the process sends itself SIGKILL at the Nth. Without the variable this costs a
// load and a branch. It is no risk: a user who can set a daemon's environment can also kill it.
//
// Thread safety: may be called from any thread.
#ifndef RESIDENT_RUNTIME_STATE_CRASH_POINT_H_
#define RESIDENT_RUNTIME_STATE_CRASH_POINT_H_

namespace resident {

void CrashPoint();

}  // namespace resident

#endif  // RESIDENT_RUNTIME_STATE_CRASH_POINT_H_
