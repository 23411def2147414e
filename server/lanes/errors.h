// Errors of local lanes.
//
// Thread safety: functions without state.
#ifndef RESIDENT_SERVER_LANES_ERRORS_H_
#define RESIDENT_SERVER_LANES_ERRORS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace resident::errors {

// `flag`: what is missing, "--local_address" or "--max_lanes".
absl::Status NoLanes(const std::string& flag);
absl::Status LaneSlots(uint32_t slots);
absl::Status LaneDataBytes(uint64_t bytes);
absl::Status TooManySessionLanes(uint32_t limit);
absl::Status UnknownLane(uint64_t lane);
// Of the local socket.
absl::Status UnknownLaneToken(uint32_t lifetime_ms);
absl::Status LaneNotFetched(uint32_t lifetime_ms);
absl::Status LaneMemory(const std::string& why);

absl::Status NothingToBind();
absl::Status TooManyLaneBuffers(uint64_t wanted, uint64_t free, uint32_t limit);
absl::Status TooManyLaneCalls(uint32_t limit);
absl::Status NotBound(uint32_t index);
absl::Status NotPrepared(uint32_t call);

absl::Status LaneTemplateCount(uint32_t count);
absl::Status LaneInlineArgument(int argument);
absl::Status TooManyLaneWords(int words);
absl::Status LaneWord(int word, const std::string& what);
absl::Status LaneElementsDivided(uint64_t elements);

// Why the daemon closes a lane.
absl::Status TooManyLaneRefusals(uint32_t limit, const std::string& last);
absl::Status TooManyLaneFaults(uint32_t limit);

}  // namespace resident::errors

#endif  // RESIDENT_SERVER_LANES_ERRORS_H_
