// CrashPoint: a place at which a test can kill the process, to see what a restart makes of
// what is on disk then.
//
// There is one before and one after each step of a durable write. They are numbered from
// 1 in the order in which a process comes to them; with RESIDENTD_CRASH_POINT=N in its
// environment it sends itself SIGKILL at the Nth. Without the variable this is a load and
// a branch. Whoever may set a daemon's environment may kill it anyway.
//
// Thread safety: any thread.
#ifndef RESIDENT_RUNTIME_STATE_CRASH_POINT_H_
#define RESIDENT_RUNTIME_STATE_CRASH_POINT_H_

namespace resident {

void CrashPoint();

}  // namespace resident

#endif  // RESIDENT_RUNTIME_STATE_CRASH_POINT_H_
