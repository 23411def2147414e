#include "runtime/state/state_scan.h"

#include <algorithm>

#include "resident/internal/state.pb.h"
#include "runtime/base/status_macros.h"
#include "runtime/state/files.h"

namespace resident {

absl::StatusOr<JournalScan> ScanState(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string bytes, ReadWholeFile(path));
  return ScanStateBytes(bytes);
}

JournalScan ScanStateBytes(std::string_view bytes) {
  JournalScan scan = ScanJournalBytes(bytes);
  if (scan.end != JournalScan::End::kDamaged || scan.records.empty()) return scan;
  const bool torn =
      std::all_of(scan.behind.begin(), scan.behind.end(), [&](const JournalScan::Record& record) {
        internal::StateRecord parsed;
        return parsed.ParseFromString(record.payload) && parsed.has_synced_bytes() &&
               parsed.synced_bytes() <= scan.good_bytes;
      });
  if (torn) scan.end = JournalScan::End::kTorn;
  return scan;
}

}  // namespace resident
