#include "runtime/queue/completion_alarm.h"

namespace resident {

void CompletionAlarm::Set(const std::shared_ptr<HostRing>& ring) {
  if (ring == ring_) return;
  Clear();
  if (ring == nullptr) return;
  ring_ = ring;
  seen_ = bell().BeginWait();
}

void CompletionAlarm::Clear() {
  if (ring_ == nullptr) return;
  bell().EndWait();
  ring_ = nullptr;
}

void CompletionAlarm::Await(std::chrono::nanoseconds timeout) {
  seen_ = bell().Wait(seen_, timeout);
}

}  // namespace resident
