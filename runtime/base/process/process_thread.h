// The process thread: one thread that lives as long as the process, for what the
// system ties to the life of a thread and should be tied to that of the process.
// It sleeps when it has nothing to do, and is never joined.
//
// Thread safety: may be called from any thread but the process thread itself. One
// call runs at a time.
//
// Memory ordering: what the caller wrote before the call is visible to `work`, and
// what `work` wrote is visible to the caller after it.
#ifndef RESIDENT_RUNTIME_BASE_PROCESS_PROCESS_THREAD_H_
#define RESIDENT_RUNTIME_BASE_PROCESS_PROCESS_THREAD_H_

#include <functional>

namespace resident {

// Runs `work` on the process thread and returns when it is done.
void RunOnProcessThread(const std::function<void()>& work);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_BASE_PROCESS_PROCESS_THREAD_H_
