// CheckWal: checks whether the write-ahead log of a database lost something that was on disk.
//
// SQLite reads a log up to the first frame with a wrong checksum, and ignores the rest without an
// error. That is correct for the end of the last transaction, which a daemon was writing when it
// was killed. It is wrong for damage before it, which is followed by transactions that were
// acknowledged. CheckWal distinguishes the two: a transaction is on disk before the next one begins
// (synchronous = FULL), so if a frame of a later transaction follows the transaction with the bad
// frame, that transaction was damaged after it had been written.
//
// Damage to the last transaction cannot be distinguished from a transaction that was not finished.
//
// Thread safety: may be called from any thread.
#ifndef RESIDENT_RUNTIME_STATE_WAL_CHECK_H_
#define RESIDENT_RUNTIME_STATE_WAL_CHECK_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace resident {

struct WalCheck {
  enum class End { kClean, kTorn, kDamaged };
  End end = End::kClean;
  uint64_t good_bytes = 0;  // Up to the end of the last complete transaction.
  uint64_t file_bytes = 0;  // Size of the log.
};

// A log that does not exist is clean. UNAVAILABLE: it cannot be read.
absl::StatusOr<WalCheck> CheckWal(const std::string& path);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_STATE_WAL_CHECK_H_
