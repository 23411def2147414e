// The order in which the kernel kills processes when memory runs out.
//
// Thread safety: may be called from any thread.
#ifndef RESIDENT_RUNTIME_BASE_PROCESS_OOM_SCORE_H_
#define RESIDENT_RUNTIME_BASE_PROCESS_OOM_SCORE_H_

namespace resident {

// Values of /proc/PID/oom_score_adj. The front end keeps its initial value.
inline constexpr int kCompilerOomScore = 900;  // An install fails and can be repeated.
inline constexpr int kEngineOomScore = 400;    // Tasks in flight fail; the engine is replaced.

// Raises the calling process's value to `score`; does not change a higher value. Processes that it
// starts later inherit the value. Does nothing if it cannot be set (no /proc).
void RaiseOomScore(int score);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_BASE_PROCESS_OOM_SCORE_H_
