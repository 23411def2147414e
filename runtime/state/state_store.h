// StateStore: what a daemon knows again after a restart: operators and their versions,
// the audit log, durable buffers. In --state_dir, or in memory alone.
//
//   STATE_DIR/lock            held by the daemon that uses the folder (state_lock.h)
//   STATE_DIR/state.db        an SQLite database of small records (state_database.h)
//   STATE_DIR/state.db-wal    its log
//   STATE_DIR/blobs/SHA256    sources, programs, examples, by content (blob_store.h)
//   STATE_DIR/buffers/SHA256  contents of durable buffers, by content
//
// All records are in memory too (state_model.h); the database is read when the store is opened.
//
// Durability. A change is made in two steps, so that a switch does not wait for the disk: Append
// notes it in memory, then it is made; Sync writes all that was appended before in one transaction,
// and only then is it answered, and shown to Watch and Audit. One transaction serves everybody who
// waits. A crash before it has ended loses the last changes, all unanswered.
//
// A transaction that fails is tried once more at once. If that fails too, the changes have happened
// and may be gone after a crash, which their callers are told (INTERNAL). The next change first
// writes them, and is refused (UNAVAILABLE) while that does not work. A durable buffer whose
// transaction failed is not in memory, so that no later transaction writes it.
//
// // Revisions rise by one with each event, over all operators, and across restarts.
//
// Start. The end of a transaction that was not finished (the daemon was killed) is dropped, with a
// warning. Damage stops the start: DATA_LOSS names the file, and `residentctl state check|repair`.
// Files that nothing refers to are removed, unless something was dropped or there was no database:
// should that not have been a crash, they are needed to repair it.
//
// When the database's log has grown beyond Options::checkpoint_bytes, the Sync that finds this
// copies it into the database. Blobs that nothing refers to are removed then.
//
// // Thread safety: all members may be called from any thread. Append, the events and what is
// listed wait for no disk, unless a transaction has failed before (Append).
//
//   ASSIGN_OR_RETURN(auto store, StateStore::Open({.directory = "/var/lib/residentd"}));
//   for (const StoredOperator& op : store->operators()) ...;
//   ASSIGN_OR_RETURN(std::string hash, store->PutBlob(source));
//   registry->Stage(version, revision, [&](const RegistryChange& change) {
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
#include "runtime/model/registry_change.h"
#include "runtime/state/blob_store.h"
#include "runtime/state/state_database.h"
#include "runtime/state/state_lock.h"
#include "runtime/state/state_model.h"
#include "runtime/state/stored_operator.h"

namespace resident {

class StateStore {
 public:
  struct Options {
    // Made if it is not there. Empty: nothing is kept.
    std::string directory = {};
    // Bytes of the database's log after which it is copied into the database.
    uint64_t checkpoint_bytes = 8u << 20;
    // Events that Watch and Audit can go back to.
    size_t max_events = 10'000;
    // Told what went wrong without a caller whom it would concern; default: to stderr.
    // Must not call the store.
    std::function<void(const std::string& error)> log = {};
    // A VFS that is registered with SQLite, for tests; empty: the system's.
    std::string vfs = {};
  };

  // Who made a change, and what a version is made of (kInstalled).
  struct Origin {
    std::string actor = {};
    std::string message = {};
    VersionContent content = {};
  };

  // FAILED_PRECONDITION: another daemon has the folder (its pid is named), or it has a format
  // that this daemon does not read. DATA_LOSS: it is damaged. UNAVAILABLE: it cannot be read or
  // written.
  static absl::StatusOr<std::unique_ptr<StateStore>> Open(const Options& options);
  ~StateStore();

  bool in_memory() const { return options_.directory.empty(); }
  // What Open had to drop, and what is not kept at all; for the daemon's log.
  const std::vector<std::string>& warnings() const { return warnings_; }

  // --- Operators ------------------------------------------------------------------

  // All that are installed, by name, as of now.
  std::vector<StoredOperator> operators() const;
  // Operators that were removed, oldest first.
  std::vector<StoredRemoval> removed() const;
  // Of the last kGeneration event; 0: none.
  uint64_t generation() const;

  // Takes a change of the registry; what Registry's `commit` is to call. Versions
  // that it retires get events of their own before it. The revision of the change, which is
  // on disk once a Sync that began afterwards has returned OK.
  absl::StatusOr<uint64_t> Append(const RegistryChange& change, const Origin& origin);
  // What was appended before is on disk. INTERNAL: it may not be; see above.
  absl::Status Sync();
  // An event that changes no operator (kRejected, kGeneration, kRegressed). Its revision
  // and time are given here. Returns the revision, once it is on disk.
  absl::StatusOr<uint64_t> AppendEvent(OperatorEvent event);

  // Keeps the bytes; returns their SHA-256 in hex. What no installed version refers to is
  // dropped some time after it was put.
  absl::StatusOr<std::string> PutBlob(std::string_view bytes);
  // NOT_FOUND; DATA_LOSS: what is on disk is not what was put.
  absl::StatusOr<std::string> GetBlob(const std::string& sha256) const;

  // --- Events ---------------------------------------------------------------------

  // Of the last event that is on disk; 0: none yet.
  uint64_t revision() const;
  // Events with a revision above `after`, oldest first, at most `most`. OUT_OF_RANGE:
  // events that old are no longer kept.
  absl::StatusOr<std::vector<OperatorEvent>> EventsAfter(uint64_t after, size_t most) const;
  // Events below `before` (0: the newest), newest first; of `name` unless empty.
  std::vector<OperatorEvent> EventsBefore(uint64_t before, const std::string& name,
                                          size_t most) const;
  // Calls `wake` after new events (some at a time), without locks of the store; returns a token for
  // Unsubscribe, after which `wake` is not called any more (it waits for a call that is
  // under way: not to be called from `wake`).
  uint64_t Subscribe(std::function<void()> wake);
  void Unsubscribe(uint64_t token);

  // --- Durable buffers --------------------------------------------------------------

  std::vector<StoredBuffer> buffers() const;
  // Highest id that a durable buffer ever had.
  uint64_t highest_buffer() const;
  // Empty: it was never written. DATA_LOSS: the contents on disk are damaged.
  absl::StatusOr<std::string> ReadBuffer(uint64_t id) const;
  // Writes a buffer and its contents (all of them, or empty: not yet written): both, or, if
  // this fails, neither (INTERNAL: a restart finds both or neither).
  absl::Status PutBuffer(const StoredBuffer& buffer, absl::Span<const uint8_t> contents);
  absl::Status DropBuffer(uint64_t id);

 private:
  // What has changed in memory since the last transaction.
  struct Changed {
    std::set<std::string> operators;
    uint64_t events = 0;  // The last ones.
    bool removals = false;
  };

  explicit StateStore(const Options& options);
  absl::Status Load();

  // Notes a change with its events. REQUIRES: the model's Check; events have their revisions.
  void Note(const RegistryChange* change, const VersionContent& content,
            std::vector<OperatorEvent> events) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Writes what has changed in memory, and `row` beside it, in one transaction.
  absl::Status WriteChanges(const StateRow* row) ABSL_EXCLUSIVE_LOCKS_REQUIRED(sync_mu_)
      ABSL_LOCKS_EXCLUDED(mu_);
  // The same for a row of a buffer, whose memory `apply` then changes.
  absl::Status WriteBuffer(uint64_t id, const StateRow& row,
                           absl::FunctionRef<void(StateModel& model)> apply)
      ABSL_LOCKS_EXCLUDED(mu_, sync_mu_);
  // Writes what a failed transaction has left to be written.
  absl::Status Mend() ABSL_LOCKS_EXCLUDED(mu_, sync_mu_);
  void CheckpointIfDue() ABSL_EXCLUSIVE_LOCKS_REQUIRED(sync_mu_) ABSL_LOCKS_EXCLUDED(mu_);
  // Removes a buffer's former contents unless another buffer has the same.
  void RemoveContents(const std::string& sha256) ABSL_EXCLUSIVE_LOCKS_REQUIRED(buffers_mu_);
  // Wakes subscribers if there are events above `revision`.
  void WakeAfter(uint64_t revision);
  void Log(const std::string& error) const;

  const Options options_;
  std::vector<std::string> warnings_;
  std::unique_ptr<StateLock> lock_;

  // Serialises what is written of buffers; changes of operators do not wait for their contents.
  mutable absl::Mutex buffers_mu_ ABSL_ACQUIRED_BEFORE(sync_mu_);
  // Held while the database is written. Who had to wait for it finds its own changes written.
  absl::Mutex sync_mu_ ABSL_ACQUIRED_BEFORE(mu_);
  std::unique_ptr<StateDatabase> database_ ABSL_GUARDED_BY(sync_mu_);  // Null: in memory.
  uint64_t synced_ ABSL_GUARDED_BY(sync_mu_) = 0;                      // Changes on disk.
  uint64_t checkpoint_at_ ABSL_GUARDED_BY(sync_mu_);                   // Bytes of the log.

  // Never held while the disk is waited for.
  mutable absl::Mutex mu_;
  StateModel model_ ABSL_GUARDED_BY(mu_);
  Changed changed_ ABSL_GUARDED_BY(mu_);
  uint64_t noted_ ABSL_GUARDED_BY(mu_) = 0;  // Changes, since the start.
  uint64_t shown_ ABSL_GUARDED_BY(mu_) = 0;  // Revision up to which events are on disk.
  // Why the last transaction failed. Not OK: nothing is appended until one succeeds.
  absl::Status broken_ ABSL_GUARDED_BY(mu_);

  // Set by Open; locks of their own.
  std::unique_ptr<BlobStore> blobs_;
  std::unique_ptr<BlobStore> contents_;

  absl::Mutex wake_mu_ ABSL_ACQUIRED_AFTER(mu_);
  std::map<uint64_t, std::function<void()>> wakes_ ABSL_GUARDED_BY(wake_mu_);
  uint64_t next_token_ ABSL_GUARDED_BY(wake_mu_) = 1;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_STATE_STATE_STORE_H_
