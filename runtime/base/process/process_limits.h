// Limits of this process: the order in which the kernel kills processes when memory runs out, and
// the number of open file descriptors.
//
// Thread safety: the functions may be called from any thread, but not concurrently.
#ifndef RESIDENT_RUNTIME_BASE_PROCESS_PROCESS_LIMITS_H_
#define RESIDENT_RUNTIME_BASE_PROCESS_PROCESS_LIMITS_H_

#include <cstdint>

namespace resident {

// Values of /proc/PID/oom_score_adj. The front end keeps its initial value.
// A process for one piece of work, such as a compilation: that fails, and can be repeated.
inline constexpr int kHelperOomScore = 900;
// A process that executes tasks: those in flight fail, and it is replaced.
inline constexpr int kServingOomScore = 400;

// Raises the calling process's value to `score`; does not change a higher value. Processes that it
// starts later inherit the value. Does nothing if it cannot be set (no /proc).
void RaiseOomScore(int score);

// Raises the limit on open file descriptors to `wanted`, or to the hard limit if that is lower;
// never lowers it. Returns the resulting limit.
uint64_t RaiseDescriptorLimit(uint64_t wanted);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_BASE_PROCESS_PROCESS_LIMITS_H_
