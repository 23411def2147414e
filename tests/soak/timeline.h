// Timeline: the times during which each version of an operator may serve, an operator may
// be missing, and the engine may be unavailable.
//
// The thread that makes a change calls MayServe or BeginDisturbance before the command, and
// NoLongerServes or EndDisturbance after it completed. Each window is therefore at least as
// long as the real one, and an answer outside of all windows is wrong in any order of
// threads.
//
// Thread safety: all members may be called from any thread.
#ifndef RESIDENT_TESTS_SOAK_TIMELINE_H_
#define RESIDENT_TESTS_SOAK_TIMELINE_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace resident::soak {

using Clock = std::chrono::steady_clock;

// The times of a request and of its answer.
struct Span {
  Clock::time_point sent;
  Clock::time_point received;
};

class Timeline {
 public:
  // The "version" of an operator that does not exist or has no serving version.
  static constexpr uint32_t kMissing = 0;

  // From now on, `version` of operator `op` may answer.
  void MayServe(int op, uint32_t version);
  // Requests that are sent from now on are not answered by this version.
  void NoLongerServes(int op, uint32_t version);
  // Between these two calls, tasks may be lost with the engine.
  void BeginDisturbance();
  void EndDisturbance();

  bool MayHaveServed(int op, uint32_t version, const Span& span) const;
  bool WasDisturbed(const Span& span) const;

 private:
  struct Window {
    Clock::time_point from;
    Clock::time_point to = Clock::time_point::max();
  };
  static void Open(std::vector<Window>& windows);
  static void Close(std::vector<Window>& windows);
  static bool Overlaps(const std::vector<Window>& windows, const Span& span);

  mutable absl::Mutex mu_;
  std::map<std::pair<int, uint32_t>, std::vector<Window>> serving_ ABSL_GUARDED_BY(mu_);
  std::vector<Window> disturbances_ ABSL_GUARDED_BY(mu_);
  // The number of disturbances that overlap now. They share one window.
  int disturbed_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace resident::soak

#endif  // RESIDENT_TESTS_SOAK_TIMELINE_H_
