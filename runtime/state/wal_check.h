// CheckWal: whether the write-ahead log of a database lost something that was on disk.
//
// SQLite takes a log up to the first frame whose checksum is not right, and says nothing about the
// rest. That is right for the end of the last transaction, which a daemon wrote when it was killed.
// It is wrong for damage further ahead, behind which there are transactions that were answered.
// Here the two are told apart: a transaction is on disk before the next one is begun
// (synchronous = FULL), so if a frame of a later transaction follows the one with the bad frame,
// that one was damaged after it had been written.
//
// Damage to the last transaction cannot be told from one that was not finished.
//
// Thread safety: a function without state.
#ifndef RESIDENT_RUNTIME_STATE_WAL_CHECK_H_
#define RESIDENT_RUNTIME_STATE_WAL_CHECK_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace resident {

struct WalCheck {
  enum class End { kClean, kTorn, kDamaged };
  End end = End::kClean;
  // Of the end of the last whole transaction, and of the log.
  uint64_t good_bytes = 0;
  uint64_t file_bytes = 0;
};

// A log that is not there is clean. UNAVAILABLE: it cannot be read.
absl::StatusOr<WalCheck> CheckWal(const std::string& path);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_STATE_WAL_CHECK_H_
