#include "tests/soak/timeline.h"

#include <utility>

namespace resident::soak {

void Timeline::Open(std::vector<Window>& windows) {
  // An open window stays open.
  if (!windows.empty() && windows.back().to == Clock::time_point::max()) return;
  windows.push_back({Clock::now()});
}

void Timeline::Close(std::vector<Window>& windows) {
  if (!windows.empty() && windows.back().to == Clock::time_point::max()) {
    windows.back().to = Clock::now();
  }
}

bool Timeline::Overlaps(const std::vector<Window>& windows, const Span& span) {
  for (auto window = windows.rbegin(); window != windows.rend(); ++window) {
    if (window->from <= span.received && window->to >= span.sent) return true;
  }
  return false;
}

void Timeline::MayServe(int op, uint32_t version) {
  absl::MutexLock lock(&mu_);
  Open(serving_[{op, version}]);
}

void Timeline::NoLongerServes(int op, uint32_t version) {
  absl::MutexLock lock(&mu_);
  Close(serving_[{op, version}]);
}

void Timeline::BeginDisturbance() {
  absl::MutexLock lock(&mu_);
  if (disturbed_++ == 0) Open(disturbances_);
}

void Timeline::EndDisturbance() {
  absl::MutexLock lock(&mu_);
  if (--disturbed_ == 0) Close(disturbances_);
}

bool Timeline::MayHaveServed(int op, uint32_t version, const Span& span) const {
  absl::MutexLock lock(&mu_);
  const auto found = serving_.find({op, version});
  return found != serving_.end() && Overlaps(found->second, span);
}

bool Timeline::WasDisturbed(const Span& span) const {
  absl::MutexLock lock(&mu_);
  return Overlaps(disturbances_, span);
}

}  // namespace resident::soak
