// Timeline: what may answer a request, and when: which version of an operator may serve,
// when it may be missing, and when the engine may be away.
//
// Whoever commands a change says so before the command (MayServe, Disturbed) and after it
// has been carried out (NoLonger, Calm). So every window is at least as long as the truth:
// an answer outside of all windows is wrong, whatever the threads' order was.
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

// When a request was sent and when its answer came.
struct Span {
  Clock::time_point sent;
  Clock::time_point received;
};

class Timeline {
 public:
  // "Version" of an operator that is not there, or has nothing that serves.
  static constexpr uint32_t kMissing = 0;

  // From now on `version` of operator `op` may answer.
  void MayServe(int op, uint32_t version);
  // From now on, for what is sent, it does not.
  void NoLonger(int op, uint32_t version);
  // From now on tasks may be lost with the engine; from Calm on, for what is sent, not.
  void Disturbed();
  void Calm();

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
  // Disturbances may overlap: they are one.
  int disturbed_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace resident::soak

#endif  // RESIDENT_TESTS_SOAK_TIMELINE_H_
