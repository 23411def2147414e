#include "runtime/queue/errors.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/errors/reason.h"

namespace resident::errors {

using absl::StrCat;

absl::Status TooManyQueuedTasks(uint64_t queued, uint64_t tasks, uint64_t limit) {
  absl::Status status = absl::ResourceExhaustedError(StrCat(
      "the client has ", queued, " tasks queued; ", tasks, " more would exceed the limit of ",
      limit, ". Fix: wait for results, or raise --max_queued_tasks"));
  if (tasks > limit) return status;
  return WithReason(std::move(status), {"QUEUE_FULL", {{"limit", StrCat(limit)}}});
}

}  // namespace resident::errors
