// Errors of work for which there is no memory.
//
// Thread safety: functions without state.
#ifndef RESIDENT_SERVER_ADMISSION_ERRORS_H_
#define RESIDENT_SERVER_ADMISSION_ERRORS_H_

#include <cstdint>

#include "absl/status/status.h"

namespace resident::errors {

absl::Status StagingFull(uint64_t bytes, uint64_t staging_bytes, bool ever_fits);

// The same for a run of a graph or a graph session, and for what else clients use.
absl::Status GraphHostMemoryFull(uint64_t bytes, uint64_t used, uint64_t limit_bytes, bool client);
// Bytes that a batch's tasks need, and bytes in use by its client and by all clients.
struct BatchMemoryFigures {
  uint64_t wanted;
  uint64_t of_client;
  uint64_t of_all;
  uint64_t limit;
};
absl::Status BatchMemoryFull(const BatchMemoryFigures& bytes, bool client);

}  // namespace resident::errors

#endif  // RESIDENT_SERVER_ADMISSION_ERRORS_H_
