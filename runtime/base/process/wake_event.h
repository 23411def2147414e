// WakeEvent: wakes a thread that waits in poll(), from any other.
//
// Thread safety: Signal from any thread; Drain from the one that waits. Signals that
// come before a Drain count as one.
//
// Memory ordering: none to rely on; what is signalled stands under the owner's lock.
#ifndef RESIDENT_RUNTIME_BASE_PROCESS_WAKE_EVENT_H_
#define RESIDENT_RUNTIME_BASE_PROCESS_WAKE_EVENT_H_

namespace resident {

class WakeEvent {
 public:
  WakeEvent();  // Dies if the process has no descriptor left.
  ~WakeEvent();
  WakeEvent(const WakeEvent&) = delete;
  WakeEvent& operator=(const WakeEvent&) = delete;

  // Readable from Signal() to Drain().
  int fd() const { return fd_; }
  void Signal();
  void Drain();

 private:
  const int fd_;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_BASE_PROCESS_WAKE_EVENT_H_
