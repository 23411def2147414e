// StateStore: what a restart restores: operators and their versions, the audit log, durable
// buffers, loaded graphs. It is stored in --state_dir, or only in memory.
//
//   STATE_DIR/lock            locked by the daemon that uses the folder (StateLock)
//   STATE_DIR/state.db        an SQLite database of small records (state_database.h)
//   STATE_DIR/state.db-wal    its log
//   STATE_DIR/blobs/SHA256    sources, programs, examples, graphs, by content (blob_store.h)
//   STATE_DIR/buffers/SHA256  contents of durable buffers, by content
//
// All records are in memory too (state_model.h); the database is read when the store is opened.
//
// Durability. A change is made in two steps, so that a switch does not wait for the disk: Append
// records it in memory, and the change takes effect; Sync writes all appended changes in one
// transaction. Only then is the call answered, and the change visible to Watch and Audit. One
// transaction serves all waiting callers. A crash before its end loses the last changes, and none
// of them was answered.
//
// A transaction that fails is retried once, immediately. If that fails too, the changes have taken
// effect but a crash may lose them, and their callers receive an error (INTERNAL). The next change
// first writes them, and is refused (UNAVAILABLE) while that fails. A durable buffer whose
// transaction failed is not in memory, so that no later transaction writes it.
//
// Revisions increase by one with each event, over all operators, and across restarts.
//
// Start. An unfinished transaction at the end (the daemon was killed) is dropped, with a warning.
// Damage stops the start with DATA_LOSS; the message contains the file and `residentctl state
// check|repair`. Files that nothing refers to are removed, unless something was dropped or there
// was no database: if the cause was not a crash, they are needed for a repair.
//
// When the database's log has grown beyond Options::checkpoint_bytes, the next write (a Sync, or a
// change of a durable buffer) copies it into the database, and removes blobs that nothing refers
// to.
//
// Thread safety: all members may be called from any thread. Append and the members that return
// events and lists do not wait for the disk, except Append after a failed transaction.
//
//   ASSIGN_OR_RETURN(auto store, StateStore::Open({.directory = "/var/lib/residentd"}));
//   for (const StoredOperator& op : store->operators()) ...;
//   ASSIGN_OR_RETURN(std::string hash, store->PutBlob(source));
//   registry->Load(version, revision, [&](const RegistryChange& change) {
//     return store->Append(change, {.actor = "alice", .content = {"swish.cc", blobs}});
//   });
//   RETURN_IF_ERROR(store->Sync());
#ifndef RESIDENT_RUNTIME_STATE_STATE_STORE_H_
#define RESIDENT_RUNTIME_STATE_STATE_STORE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "runtime/model/operator_event.h"
#include "runtime/state/blob_store.h"
#include "runtime/state/files.h"
#include "runtime/state/state_database.h"
#include "runtime/state/state_model.h"

namespace resident {

class StateStore {
 public:
  struct Options {
    // Created if it does not exist. Empty: only in memory.
    std::string directory = {};
    // Size of the database's log at which it is copied into the database.
    uint64_t checkpoint_bytes = 8u << 20;
    // Number of events that are kept for Watch and Audit.
    size_t max_events = 10'000;
    // Receives errors that are returned to no caller; default: LogError. Must not call the store.
    std::function<void(const std::string& error)> log = {};
    // A VFS that is registered with SQLite, for tests; empty: the system's.
    std::string vfs = {};
  };

  // Who made a change, and the contents of a version (for kInstalled).
  struct Origin {
    std::string actor = {};
    std::string message = {};
    VersionContent content = {};
    ChangeContext context = {};
  };

  // FAILED_PRECONDITION: another daemon uses the folder (the message contains its pid), or it has a
  // format that this daemon does not read. DATA_LOSS: it is damaged. UNAVAILABLE: it cannot be read
  // or written.
  static absl::StatusOr<std::unique_ptr<StateStore>> Open(const Options& options);
  ~StateStore();

  bool in_memory() const { return options_.directory.empty(); }
  // What Open had to drop, and what is not stored; for the daemon's log.
  const std::vector<std::string>& warnings() const { return warnings_; }
  // A UUID that identifies the daemon. It is kept in the folder; only in memory, it is a new one.
  std::string node_id() const;

  // --- Operators ------------------------------------------------------------------

  // All installed operators, sorted by name.
  std::vector<StoredOperator> operators() const;
  // Operators that were removed, oldest first.
  std::vector<StoredRemoval> removed() const;
  // Generation of the last kGeneration event; 0: there is none.
  uint64_t generation() const;

  // Records a change of the registry; Registry's `commit` calls it. Versions that the change
  // retires get separate events before it. Returns the revision of the change. The change is on
  // disk when a Sync that began afterwards has returned OK.
  absl::StatusOr<uint64_t> Append(const RegistryChange& change, const Origin& origin);
  // Writes everything that was appended to the disk. INTERNAL: it may not be on disk; see above.
  absl::Status Sync();
  // Records an event that changes no operator (kRejected, kGeneration, kRegressed, or any event of
  // a model), and sets its revision and time. Returns the revision when the event is on disk.
  absl::StatusOr<uint64_t> AppendEvent(OperatorEvent event);

  // Stores the bytes; returns their SHA-256 in hex. Blobs that no installed version refers to are
  // removed some time later.
  absl::StatusOr<std::string> PutBlob(std::string_view bytes);
  // NOT_FOUND: there is no such blob. DATA_LOSS: its file is damaged.
  absl::StatusOr<std::string> GetBlob(const std::string& sha256) const;

  // --- Events ---------------------------------------------------------------------

  // Revision of the last event that is on disk; 0: none yet.
  uint64_t revision() const;
  // At most `max_events` events with a revision above `after`, oldest first. OUT_OF_RANGE: events
  // that old are no longer kept.
  absl::StatusOr<std::vector<OperatorEvent>> EventsAfter(uint64_t after, size_t max_events) const;
  // At most `max_events` events below `before` (0: the newest), newest first; only those of
  // operator `name` unless it is empty.
  std::vector<OperatorEvent> EventsBefore(uint64_t before, const std::string& name,
                                          size_t max_events) const;
  // Calls `wake` after new events (one call may cover several), without locks of the store. Returns
  // a token for Unsubscribe.
  uint64_t Subscribe(std::function<void()> wake);
  // `wake` is not called afterwards. Waits for a running call, so `wake` must not call it.
  void Unsubscribe(uint64_t token);

  // --- Durable buffers --------------------------------------------------------------

  std::vector<StoredBuffer> buffers() const;
  // Highest id that a durable buffer ever had.
  uint64_t highest_buffer() const;
  // Returns the contents; empty: never written. DATA_LOSS: the contents on disk are damaged.
  absl::StatusOr<std::string> ReadBuffer(uint64_t id) const;
  // Writes a buffer and all of its contents (empty: not written yet). If it fails, neither is
  // changed (INTERNAL: after a restart either both or neither are changed).
  absl::Status PutBuffer(const StoredBuffer& buffer, absl::Span<const uint8_t> contents);
  absl::Status DropBuffer(uint64_t id);

  // --- Graphs -----------------------------------------------------------------------

  // The loaded graphs; GetBlob(id) has the content of each.
  std::vector<StoredGraph> graphs() const;
  // Writes a graph and its holders. `content`: the serialized graph, whose SHA-256 is the id.
  // UNAVAILABLE: the folder cannot be written. INTERNAL: the disk failed; after a restart there is
  // either the old or the new row.
  absl::Status PutGraph(const StoredGraph& graph, std::string_view content);
  absl::Status DropGraph(const std::string& id);

  // --- Models -----------------------------------------------------------------------

  // The models; GetBlob has the contents of each version.
  std::vector<StoredModel> models() const;
  // Writes a model with its versions. `contents`: those of its blobs that may not be stored yet.
  // Errors: as of PutGraph.
  absl::Status PutModel(const StoredModel& model, absl::Span<const std::string_view> contents);
  absl::Status DropModel(const std::string& name);

  // --- Plans ------------------------------------------------------------------------

  PlanTable plans() const;
  // Errors: as of PutGraph.
  absl::Status PutPlans(const PlanTable& plans);

 private:
  // What has changed in memory since the last transaction.
  struct Changed {
    std::set<std::string> operators;
    uint64_t events = 0;  // Number of events, counted from the newest.
    bool removals = false;
  };

  explicit StateStore(const Options& options);
  absl::Status Load();

  // Records a change with its events in memory. REQUIRES: the model's Check is OK; the events have
  // their revisions.
  void Note(const RegistryChange* change, const VersionContent& content,
            std::vector<OperatorEvent> events) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Writes what has changed in memory, and `row` if not null, in one transaction.
  absl::Status WriteChanges(const StateRow* row) ABSL_EXCLUSIVE_LOCKS_REQUIRED(sync_mu_)
      ABSL_LOCKS_EXCLUDED(mu_);
  // The same with a row of a buffer or a graph. If it succeeds, `apply` changes the model. `what`:
  // names the row for errors.
  absl::Status WriteExtraRow(const std::string& what, const StateRow& row,
                             absl::FunctionRef<void(StateModel& model)> apply)
      ABSL_LOCKS_EXCLUDED(mu_, sync_mu_);
  // Writes the changes of a failed transaction, if there are any.
  absl::Status RetryFailedWrite() ABSL_LOCKS_EXCLUDED(mu_, sync_mu_);
  void CheckpointIfDue() ABSL_EXCLUSIVE_LOCKS_REQUIRED(sync_mu_) ABSL_LOCKS_EXCLUDED(mu_);
  // Removes the previous contents of a buffer unless another buffer has the same contents.
  void RemoveContents(const std::string& sha256) ABSL_EXCLUSIVE_LOCKS_REQUIRED(buffers_mu_);
  // Wakes subscribers if there are events above `revision`.
  void WakeAfter(uint64_t revision);
  void Log(const std::string& error) const;
  // The error without the path of the folder: callers see it. Logs have the path.
  absl::Status WithoutFolder(const absl::Status& status) const;
  absl::StatusOr<std::string> LogIfFailed(absl::StatusOr<std::string> result) const;

  const Options options_;
  std::vector<std::string> warnings_;
  std::unique_ptr<StateLock> lock_;

  // Serialises writes of buffers, so that changes of operators do not wait for buffer contents.
  mutable absl::Mutex buffers_mu_ ABSL_ACQUIRED_BEFORE(sync_mu_);
  // Held while the database is written. When a waiting caller gets it, its changes may already be
  // written.
  absl::Mutex sync_mu_ ABSL_ACQUIRED_BEFORE(mu_);
  std::unique_ptr<StateDatabase> database_ ABSL_GUARDED_BY(sync_mu_);  // Null: only in memory.
  uint64_t synced_ ABSL_GUARDED_BY(sync_mu_) = 0;                      // Number of changes on disk.
  uint64_t checkpoint_at_ ABSL_GUARDED_BY(sync_mu_);  // Size of the log for the next checkpoint.

  // Never held during a disk operation.
  mutable absl::Mutex mu_;
  StateModel model_ ABSL_GUARDED_BY(mu_);
  Changed changed_ ABSL_GUARDED_BY(mu_);
  uint64_t noted_ ABSL_GUARDED_BY(mu_) = 0;  // Number of changes in memory, since the start.
  uint64_t shown_ ABSL_GUARDED_BY(mu_) = 0;  // Revision up to which events are on disk.
  // The error of the last transaction. If not OK, Append fails until a transaction succeeds.
  absl::Status broken_ ABSL_GUARDED_BY(mu_);

  // Set by Open; they have their own locks.
  std::unique_ptr<BlobStore> blobs_;
  std::unique_ptr<BlobStore> contents_;

  absl::Mutex wake_mu_ ABSL_ACQUIRED_AFTER(mu_);
  std::map<uint64_t, std::function<void()>> wakes_ ABSL_GUARDED_BY(wake_mu_);
  uint64_t next_token_ ABSL_GUARDED_BY(wake_mu_) = 1;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_STATE_STATE_STORE_H_
