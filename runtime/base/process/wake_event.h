// WakeEvent: any thread can wake a thread that waits in poll().
//
// Thread safety: Signal may be called from any thread, Drain from the waiting thread. Several
// signals before a Drain count as one.
//
// Memory ordering: no guarantees; the owner's lock must protect the data that is signalled.
#ifndef RESIDENT_RUNTIME_BASE_PROCESS_WAKE_EVENT_H_
#define RESIDENT_RUNTIME_BASE_PROCESS_WAKE_EVENT_H_

#include <memory>

#include "absl/status/statusor.h"

namespace resident {

class WakeEvent {
 public:
  // RESOURCE_EXHAUSTED: the process has no free descriptor.
  static absl::StatusOr<std::unique_ptr<WakeEvent>> Create();
  WakeEvent();  // Aborts if the process has no free descriptor.
  ~WakeEvent();
  WakeEvent(const WakeEvent&) = delete;
  WakeEvent& operator=(const WakeEvent&) = delete;

  // Readable between Signal() and Drain().
  int fd() const { return fd_; }
  void Signal();
  void Drain();

 private:
  explicit WakeEvent(int fd) : fd_(fd) {}

  const int fd_;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_BASE_PROCESS_WAKE_EVENT_H_
