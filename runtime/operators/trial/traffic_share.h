// TrafficShare: which requests belong to a share in percent. Those that are picked are evenly
// spread.
//
// Thread safety: pure functions; the counter may be shared by all threads.
//
//   std::atomic<uint64_t> counter{0};
//   const uint64_t share = ParseShare(/*percent=*/25);
//   if (IsPicked(counter, share)) ...   // Every fourth call.
#ifndef RESIDENT_RUNTIME_OPERATORS_TRIAL_TRAFFIC_SHARE_H_
#define RESIDENT_RUNTIME_OPERATORS_TRIAL_TRAFFIC_SHARE_H_

#include <atomic>
#include <cmath>
#include <cstdint>

namespace resident {

inline bool IsValidPercent(double percent) {
  return percent >= 0 && percent <= 100;  // False for NaN.
}

// The share in parts of 2^32.
inline uint64_t ParseShare(double percent) {
  return static_cast<uint64_t>(std::llround(percent / 100 * 4294967296.0));
}

// Whether this request belongs to the share: each request adds the share to the counter, and is
// picked when the counter's low half wraps.
inline bool IsPicked(std::atomic<uint64_t>& counter, uint64_t share) {
  if (share == 0) return false;
  const uint64_t before = counter.fetch_add(share, std::memory_order_relaxed);
  return ((before & UINT32_MAX) + share) >> 32 != 0;
}

}  // namespace resident

#endif  // RESIDENT_RUNTIME_OPERATORS_TRIAL_TRAFFIC_SHARE_H_
