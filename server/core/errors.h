// Errors of clients and of the slots that they share.
//
// Thread safety: functions without state.
#ifndef RESIDENT_SERVER_CORE_ERRORS_H_
#define RESIDENT_SERVER_CORE_ERRORS_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace resident::errors {

absl::Status SessionOfOtherIdentity(const std::string& identity);
absl::Status SessionElsewhere(const std::string& id);

// Numbers of slots that callers share (server/core/shared_slots.h).
struct SlotFigures {
  uint64_t total;
  uint64_t free;
  // Slots of the holder.
  uint64_t held;
};
// `what`: "sessions". `flag`: the flag that sets their number; empty: none.
absl::Status NoSlot(const std::string& what, const std::string& holder, const SlotFigures& slots,
                    const std::string& flag);
absl::Status SlotQuota(const std::string& what, const std::string& holder, uint64_t held,
                       uint64_t quota, const std::string& quota_name);
// Open calls (server/rpc/open_calls.h): `holder` has `held` of the `used` places.
absl::Status TooManyCalls(const std::string& holder, uint64_t held, uint64_t used, uint64_t limit);
absl::Status ClientNameTooLong(size_t bytes, size_t limit);

// The operator exists, but only the daemon calls it.
absl::Status OperatorNotForGraphs(const std::string& name, const std::string& reason);

}  // namespace resident::errors

#endif  // RESIDENT_SERVER_CORE_ERRORS_H_
