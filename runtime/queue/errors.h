// Errors of the devices' queues.
//
// Thread safety: functions without state.
#ifndef RESIDENT_RUNTIME_QUEUE_ERRORS_H_
#define RESIDENT_RUNTIME_QUEUE_ERRORS_H_

#include <cstdint>

#include "absl/status/status.h"

namespace resident::errors {

absl::Status TooManyQueuedTasks(uint64_t queued, uint64_t tasks, uint64_t limit);

}  // namespace resident::errors

#endif  // RESIDENT_RUNTIME_QUEUE_ERRORS_H_
