// StateDatabase: the rows of a state folder, in the SQLite database STATE_DIR/state.db.
//
//   table      key              record (proto/resident/internal/state.proto)
//   operators  name             StoredOperator: its versions, which one serves, its trial
//   events     revision         StoredEvent
//   buffers    id               StoredBuffer: a durable buffer, without its contents
//   facts      'counters'       StoredCounters
//              'removals'       StoredRemovals
//
// Each row has a CRC-32 of its table, key and record: SQLite's own checks are about the structure
// of the file. PRAGMA user_version is kStateVersion; another one is refused.
//
// Damage is looked for at each start: in the log (wal_check.h), the structure (integrity_check),
// the schema and each row.
//
// Thread safety: none of its own.
#ifndef RESIDENT_RUNTIME_STATE_STATE_DATABASE_H_
#define RESIDENT_RUNTIME_STATE_STATE_DATABASE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/state/sqlite.h"
#include "runtime/state/state_model.h"

namespace resident {

inline constexpr int kStateVersion = 1;

// A row to be written.
struct StateRow {
  const char* table;
  std::variant<int64_t, std::string> key;
  std::optional<std::string> record;  // Absent: the row is deleted.
};

StateRow RowOf(const StoredOperator& op);
StateRow RowOf(const OperatorEvent& event);
StateRow RowOf(const StoredBuffer& buffer);
StateRow RemovalsRow(const StateModel& model);
StateRow DeletedOperator(const std::string& name);
StateRow DeletedBuffer(uint64_t id);

class StateDatabase {
 public:
  struct Options {
    bool read_only = false;
    std::string vfs = {};  // As Sqlite's.
  };
  // Whether the folder has a database. FAILED_PRECONDITION: it has the journal of a former daemon.
  // DATA_LOSS: only the log of a database is there.
  static absl::StatusOr<bool> Exists(const std::string& folder);
  // Makes a database with what the model has; it replaces one that is there. A crash leaves the
  // former one or the new one.
  static absl::Status Create(const std::string& folder, const StateModel& model);

  // REQUIRES: there is one. FAILED_PRECONDITION: it has another version. DATA_LOSS: it is damaged.
  static absl::StatusOr<std::unique_ptr<StateDatabase>> Open(const std::string& folder,
                                                             const Options& options);

  // Reads all rows. With `problems`, what cannot be read is left out and described there, and the
  // model is one that Create can write. Otherwise the first problem is returned (DATA_LOSS).
  absl::Status Read(StateModel* model, std::vector<std::string>* problems);
  // Bytes at the end of the log of a transaction that was not finished; they are ignored.
  uint64_t torn_bytes() const { return torn_bytes_; }

  // Writes the rows and the model's counters in one transaction, and forgets events below
  // `first_event`. Afterwards it is on disk.
  absl::Status Write(const std::vector<StateRow>& rows, const StateModel& counters,
                     uint64_t first_event);
  // Copies the log into the database and empties it.
  absl::Status Checkpoint() { return db_->Checkpoint(); }
  uint64_t log_bytes() const;
  const std::string& path() const { return path_; }

 private:
  StateDatabase(std::string folder, std::unique_ptr<Sqlite> db);
  absl::Status CheckStructure();
  absl::Status ReadTable(const char* table, StateModel* model, std::vector<std::string>* problems);

  const std::string folder_;
  const std::string path_;
  const std::unique_ptr<Sqlite> db_;
  uint64_t torn_bytes_ = 0;
  uint64_t transactions_ = 0;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_STATE_STATE_DATABASE_H_
