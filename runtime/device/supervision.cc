
#include "runtime/device/supervision.h"

#include <algorithm>

namespace resident {

std::optional<std::chrono::milliseconds> RestartPolicy::OnFailure(Clock::time_point now) {
  while (!failures_.empty() && now - failures_.front() > kWindow) failures_.pop_front();
  failures_.push_back(now);
  const int count = static_cast<int>(failures_.size());
  if (count >= kMaxFailures) return std::nullopt;
  if (count == 1) return std::chrono::milliseconds(0);
  return std::min(kFirstWait * (1 << (count - 2)), kLongestWait);
}

bool RestartPolicy::AllowsRestart(Clock::time_point now) const {
  const auto recent = std::count_if(failures_.begin(), failures_.end(),
                                    [now](Clock::time_point at) { return now - at <= kWindow; });
  return recent + 1 < kMaxFailures;
}

}  // namespace resident
