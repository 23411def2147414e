// StateDatabase: the rows of a state folder, in the SQLite database STATE_DIR/state.db.
//
//   table      key              record (proto/resident/internal/state.proto)
//   operators  name             StoredOperator: its versions, which one serves, its trial
//   events     revision         StoredEvent
//   buffers    id               StoredBuffer: a durable buffer, without its contents
//   facts      'counters'       StoredCounters
//              'removals'       StoredRemovals
//              'graph/ID'       StoredGraph: a loaded task graph, without its content
//              'model/NAME'     StoredModel: a model with its versions, without their contents
//              'plans'          StoredPlans: the claim, and what was active before the last plans
//
// Each row has a CRC-32 of its table, key and record, because SQLite's own checks only cover the
// structure of the file. PRAGMA user_version is kStateVersion; other versions are refused.
//
// Each start checks for damage in the log (wal_check.h), the structure (integrity_check), the
// schema and each row.
//
// Thread safety: none; one thread at a time.
#ifndef RESIDENT_RUNTIME_STATE_STATE_DATABASE_H_
#define RESIDENT_RUNTIME_STATE_STATE_DATABASE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/state/sqlite.h"
#include "runtime/state/state_model.h"

namespace resident {

inline constexpr int kStateVersion = 1;

// A row to write.
struct StateRow {
  const char* table;
  std::variant<int64_t, std::string> key;
  std::optional<std::string> record;  // nullopt: delete the row.
};

StateRow MakeRow(const StoredOperator& op);
StateRow MakeRow(const OperatorEvent& event);
StateRow MakeRow(const StoredBuffer& buffer);
StateRow MakeRow(const StoredGraph& graph);
StateRow MakeRow(const StoredModel& model);
StateRow MakeRow(const PlanTable& plans);
StateRow RemovalsRow(const StateModel& model);
StateRow DeletedOperator(const std::string& name);
StateRow DeletedBuffer(uint64_t id);
StateRow DeletedGraph(const std::string& id);
StateRow DeletedModel(const std::string& name);

class StateDatabase {
 public:
  struct Options {
    bool read_only = false;
    std::string vfs = {};  // See Sqlite::Options.
  };
  // Whether the folder has a database. FAILED_PRECONDITION: it has the journal of an older version.
  // DATA_LOSS: there is only the log of a database.
  static absl::StatusOr<bool> Exists(const std::string& folder);
  // Creates a database with the contents of the model; it replaces an existing one. After a crash
  // there is the new one, or the old one with all transactions that can be read.
  static absl::Status Create(const std::string& folder, const StateModel& model);

  // REQUIRES: Exists. FAILED_PRECONDITION: it has another version. DATA_LOSS: it is damaged.
  static absl::StatusOr<std::unique_ptr<StateDatabase>> Open(const std::string& folder,
                                                             const Options& options);

  // Reads all rows. With `problems`, unreadable rows are omitted and described there, and the
  // model is one that Create can write. Otherwise the first problem is returned (DATA_LOSS).
  absl::Status Read(StateModel* model, std::vector<std::string>* problems);
  // Bytes of an unfinished transaction at the end of the log; they are ignored.
  uint64_t torn_bytes() const { return torn_bytes_; }

  // Writes the rows and the model's counters in one transaction, and deletes events below
  // `first_event`. If it returns OK, the changes are on disk.
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
