#include "server/lanes/errors.h"

#include "absl/strings/str_cat.h"
#include "runtime/lane/lane_layout.h"

namespace resident::errors {

using absl::StrCat;

absl::Status NoLanes(const std::string& flag) {
  return absl::FailedPreconditionError(
      StrCat("the daemon has no local lanes: ", flag,
             " turns them off. Fix: start the daemon with --local_address and --max_lanes above 0, "
             "or use Executor.Run"));
}

absl::Status LaneSlots(uint32_t slots) {
  return absl::InvalidArgumentError(StrCat("slots is ", slots, ". Fix: give a power of two from ",
                                           int{kLaneMinSlots}, " to ", int{kLaneMaxSlots},
                                           ", or 0 for ", int{kLaneDefaultSlots}));
}

absl::Status LaneDataBytes(uint64_t bytes) {
  return absl::InvalidArgumentError(StrCat("data_bytes is ", bytes, ". Fix: give a multiple of ",
                                           int{kLanePageBytes}, " up to ", int{kLaneMaxDataBytes}));
}

absl::Status TooManySessionLanes(uint32_t limit) {
  return absl::ResourceExhaustedError(
      StrCat("the session has ", limit, " open lanes, the limit. Fix: close one"));
}

absl::Status UnknownLane(uint64_t lane) {
  return absl::NotFoundError(StrCat("this session has no lane ", lane,
                                    ": it has ended, or belongs to another session. Fix: open a "
                                    "lane and use its lane_id"));
}

absl::Status UnknownLaneToken(uint32_t lifetime_ms) {
  return absl::NotFoundError(
      StrCat("no lane waits for this token: it was used, or is older than ", lifetime_ms / 1000,
             " s, or its lane has ended. Fix: open a lane and send its token once"));
}

absl::Status LaneNotFetched(uint32_t lifetime_ms) {
  return absl::DeadlineExceededError(
      StrCat("the client did not fetch the lane's memory within ", lifetime_ms / 1000,
             " s. Fix: connect to local_address and send the token at once"));
}

absl::Status LaneMemory(const std::string& why) {
  return absl::ResourceExhaustedError(StrCat("the daemon cannot make the lane's memory: ", why,
                                             ". Fix: open a smaller lane, or try again later"));
}

absl::Status NothingToBind() {
  return absl::InvalidArgumentError("buffer_ids is empty. Fix: name the buffers to bind");
}

absl::Status TooManyLaneBuffers(uint64_t wanted, uint64_t free, uint32_t limit) {
  return absl::ResourceExhaustedError(StrCat("the lane has places for ", limit,
                                             " buffers, of which ", free, " are free; ", wanted,
                                             " are needed. Fix: release some (Lanes.Release)"));
}

absl::Status TooManyLaneCalls(uint32_t limit) {
  return absl::ResourceExhaustedError(StrCat("the lane has ", limit,
                                             " prepared calls, the limit. Fix: release some "
                                             "(Lanes.Release)"));
}

absl::Status NotBound(uint32_t index) {
  return absl::NotFoundError(
      StrCat("no buffer is bound at index ", index, ". Fix: use an index of Lanes.Bind, once"));
}

absl::Status NotPrepared(uint32_t call) {
  return absl::NotFoundError(
      StrCat("the lane has no call ", call, ". Fix: use a number of Lanes.Prepare, once"));
}

absl::Status LaneTemplateCount(uint32_t count) {
  return absl::InvalidArgumentError(
      StrCat("the template has count ", count, ". Fix: set it to 1: a submission is one task"));
}

absl::Status LaneInlineArgument(int argument) {
  return absl::InvalidArgumentError(StrCat(
      "argument ", argument,
      " is an inline or a returned column. Fix: use a buffer: a submission carries no data"));
}

absl::Status TooManyLaneWords(int words) {
  return absl::InvalidArgumentError(StrCat("the call has ", words, " words. Fix: use at most ",
                                           int{kLaneWords}, ", and at most ", int{kLaneWords} - 1,
                                           " if submissions have deadlines"));
}

absl::Status LaneWord(int word, const std::string& what) {
  return absl::InvalidArgumentError(
      StrCat("word ", word, ": ", what,
             ". Fix: say for each word which argument of the template it changes"));
}

absl::Status LaneElementsDivided(uint64_t elements) {
  return absl::InvalidArgumentError(StrCat(
      "a task of ", elements,
      " elements is divided between workers, so that their number cannot be a word. Fix: use "
      "a smaller max, or prepare a call for this size"));
}

absl::Status TooManyLaneRefusals(uint32_t limit, const std::string& last) {
  return absl::ResourceExhaustedError(StrCat(
      "the lane got more than ", limit, " refused submissions in a second, the last one: ", last,
      " Fix: correct the program, and open a lane again"));
}

absl::Status TooManyLaneFaults(uint32_t limit) {
  return absl::ResourceExhaustedError(
      StrCat("reading the lane caused more than ", limit,
             " page faults in a second. Fix: do not release pages of the lane's memory"));
}

}  // namespace resident::errors
