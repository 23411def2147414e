// StateStore: what a daemon knows again after a restart: operators and their versions,
// the audit log, durable buffers. In --state_dir, or in memory alone.
//
//   STATE_DIR/lock          held by the daemon that uses the folder (state_lock.h)
//   STATE_DIR/journal       records with checksums, appended (journal.h)
//   STATE_DIR/blobs/SHA256  sources, programs, examples, by content (blob_store.h)
//   STATE_DIR/buffers/      contents of durable buffers (buffer_files.h)
//
// Why a file and not an embedded store. The state is small (some hundred operators), is
// read once, at the start, and is changed some times a minute, always by one writer that
// is the only one to have it open. What is needed is that a change is on disk before it
// is visible, that a torn write is told from a damaged one, and that a person can see
// which record is bad and cut it off. A log with checksums is all of that in a few hundred
// lines that can be read; a B-tree with its own pages, cache and locks would be a
// dependency whose recovery nobody here could explain, for queries that are never asked.
//
// Durability. A change is made in two steps, so that a switch does not wait for the disk:
// Append writes it to the journal (where a crash of this process cannot lose it, but that of
// the machine can), then it is made; Sync brings to disk all that was appended before, and
// only then is it answered, and shown to Watch and Audit. One fdatasync serves everybody who
// waits. What a crash of the machine loses is the last records, all unanswered, and every
// one behind the first that is lost (state_scan.h).
//
// After an Append that failed the journal is as before it. After a Sync that failed the
// change has happened and may be gone after a crash, which its caller is told (INTERNAL).
// Which records are on disk is not known then, so the journal is written anew from what is
// in memory: by that Sync at once, else by the next change, which is refused (UNAVAILABLE)
// until this works.
//
// Revisions rise by one with each event, over all operators, and across restarts.
//
// Start. A last record that is torn (the daemon was killed while it wrote) is cut off,
// with a warning. A damaged one before it stops the start: DATA_LOSS names the file, the
// offset, and `residentctl state check|repair`. Files that nothing refers to are removed,
// unless an end was cut off or there was no journal: should that not have been a crash, they
// are what it could be mended with.
//
// When the journal has grown beyond Options::compact_bytes, the Sync that finds this writes
// it again as one snapshot, beside the old one, and puts it in its place (rename). Changes
// that come meanwhile go to both. Blobs that nothing refers to go then. If it fails, the old
// journal goes on.
//
// Thread safety: all members may be called from any thread. Appends wait for each other,
// and while a snapshot is copied in memory, but not for the disk. EventsAfter, EventsBefore
// and revision wait for neither.
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
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "runtime/model/operator_event.h"
#include "runtime/model/registry_change.h"
#include "runtime/state/blob_store.h"
#include "runtime/state/buffer_files.h"
#include "runtime/state/event_log.h"
#include "runtime/state/journal.h"
#include "runtime/state/state_lock.h"
#include "runtime/state/state_model.h"
#include "runtime/state/stored_operator.h"

namespace resident {

class StateStore {
 public:
  struct Options {
    // Made if it is not there. Empty: nothing is kept.
    std::string directory = {};
    // Bytes of the journal after which it is compacted.
    uint64_t compact_bytes = 8u << 20;
    // Of a record, and so of the snapshot that a compaction writes; tests lower it.
    uint64_t most_record_bytes = kMaxRecordBytes;
    // Events that Watch and Audit can go back to.
    size_t most_events = 10'000;
    // Told what went wrong without a caller whom it would concern; default: to stderr.
    // Must not call the store.
    std::function<void(const std::string& error)> log = {};
    // For tests: called before a file or folder is synced; an error stands for the disk's.
    std::function<absl::Status(const std::string& path)> before_sync = {};
  };

  // Who made a change, and what a version is made of (kInstalled).
  struct Origin {
    std::string actor = {};
    std::string message = {};
    VersionContent content = {};
  };

  // FAILED_PRECONDITION: another daemon has the folder (its pid is named). DATA_LOSS: a
  // record is damaged. UNAVAILABLE: the folder cannot be read or written.
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

  // Writes a change of the registry down; what Registry's `commit` is to call. Versions
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
  explicit StateStore(const Options& options);
  absl::Status Load();
  // `whole`: all that was ever written to it is there, as far as can be told.
  absl::Status ReadJournal(bool* whole) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Appends the record and applies it. REQUIRES: events have their revisions.
  absl::Status Write(internal::StateRecord record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  static absl::Status AppendTo(JournalWriter& journal, internal::StateRecord& record);
  // A journal that can be appended to, after a failure too.
  absl::Status Mend() ABSL_LOCKS_EXCLUDED(mu_, sync_mu_);
  // Brings to disk what was written so far; the journal anew, if that fails.
  absl::Status SyncWritten() ABSL_EXCLUSIVE_LOCKS_REQUIRED(sync_mu_) ABSL_LOCKS_EXCLUDED(mu_);
  // Writes the journal anew, as a snapshot: all that was written before is on disk then.
  // After an error it is as it was, or broken_.
  absl::Status Rewrite() ABSL_EXCLUSIVE_LOCKS_REQUIRED(sync_mu_) ABSL_LOCKS_EXCLUDED(mu_);
  // Rewrite, if the journal has grown enough.
  void CompactIfDue() ABSL_EXCLUSIVE_LOCKS_REQUIRED(sync_mu_) ABSL_LOCKS_EXCLUDED(mu_);
  // So many records, and the events up to this revision, are on disk.
  void Show(uint64_t records, uint64_t revision) ABSL_EXCLUSIVE_LOCKS_REQUIRED(sync_mu_)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status BeforeSync(const std::string& path) const;
  void Wake();
  void Log(const std::string& error) const;

  const Options options_;
  std::vector<std::string> warnings_;
  std::unique_ptr<StateLock> lock_;

  // Serialises what is written of buffers; the journal is free meanwhile.
  mutable absl::Mutex buffers_mu_ ABSL_ACQUIRED_BEFORE(sync_mu_);
  // Held while the disk is waited for. Who had to wait for it finds its own records synced.
  absl::Mutex sync_mu_ ABSL_ACQUIRED_BEFORE(mu_);
  uint64_t synced_ ABSL_GUARDED_BY(sync_mu_) = 0;  // Records that are on disk.

  mutable absl::Mutex mu_;
  StateModel model_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<JournalWriter> journal_ ABSL_GUARDED_BY(mu_);  // Null: in memory.
  uint64_t written_ ABSL_GUARDED_BY(mu_) = 0;                    // Records, since the start.
  // Events of records that are not on disk yet.
  std::deque<EventLog::Event> unshown_ ABSL_GUARDED_BY(mu_);
  // Set: nothing is appended until the journal was written anew.
  absl::Status broken_ ABSL_GUARDED_BY(mu_);
  // Set while the journal is written anew: what has been appended since.
  std::optional<std::vector<internal::StateRecord>> meanwhile_ ABSL_GUARDED_BY(mu_);
  uint64_t compact_at_ ABSL_GUARDED_BY(mu_);  // Bytes of the journal.

  EventLog events_;
  // Set by Open; locks of their own, or none needed.
  std::unique_ptr<BlobStore> blobs_;
  std::unique_ptr<BufferFiles> buffer_files_;

  absl::Mutex wake_mu_ ABSL_ACQUIRED_AFTER(mu_);
  std::map<uint64_t, std::function<void()>> wakes_ ABSL_GUARDED_BY(wake_mu_);
  uint64_t next_token_ ABSL_GUARDED_BY(wake_mu_) = 1;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_STATE_STATE_STORE_H_
