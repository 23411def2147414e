// The process thread: one thread that runs as long as the process. It performs actions whose
// effects the system ends with the calling thread, although they should last as long as the
// process. It sleeps when it has no work, and is never joined.
//
// Thread safety: may be called from any thread except the process thread itself. One
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
