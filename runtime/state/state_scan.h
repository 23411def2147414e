// ScanState: a journal's scan, with what its records say of how it was written.
//
// Several records may be on their way to the disk at once, and when the machine goes down
// the pages of a later one may be there without those of an earlier one. That looks like
// damage and is a torn end: nobody was answered for any of them. Each record says up to
// where the journal was on disk when it was written, so the two can be told apart: if no
// record behind the bad one was written after a sync of it, the end is torn there.
//
// Thread safety: functions without state.
#ifndef RESIDENT_RUNTIME_STATE_STATE_SCAN_H_
#define RESIDENT_RUNTIME_STATE_STATE_SCAN_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "runtime/state/journal.h"

namespace resident {

// As ScanJournal.
absl::StatusOr<JournalScan> ScanState(const std::string& path);
JournalScan ScanStateBytes(std::string_view bytes);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_STATE_STATE_SCAN_H_
