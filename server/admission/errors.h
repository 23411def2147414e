// Errors of work for which there is no memory.
//
// Thread safety: functions without state.
#ifndef RESIDENT_SERVER_ADMISSION_ERRORS_H_
#define RESIDENT_SERVER_ADMISSION_ERRORS_H_

#include <cstdint>

#include "absl/status/status.h"

namespace resident::errors {

absl::Status StagingFull(uint64_t bytes, uint64_t staging_bytes, bool ever_fits);

// Bytes of the daemon's memory that are wanted, and those in use by the client and by all clients.
struct HostMemoryFigures {
  uint64_t wanted;
  uint64_t of_client;
  uint64_t of_all;
  uint64_t limit;  // Of one client, or of all.
};
// `client`: the limit of one client refuses it; otherwise that of all, or the client's share of
// what all may use. For a batch, and for graphs: a run, a session, a check.
absl::Status BatchMemoryFull(const HostMemoryFigures& bytes, bool client);
absl::Status GraphHostMemoryFull(const HostMemoryFigures& bytes, bool client);
// Everything that a lender has is lent, in a call that does not wait.
absl::Status NothingToLend();

}  // namespace resident::errors

#endif  // RESIDENT_SERVER_ADMISSION_ERRORS_H_
