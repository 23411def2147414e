#include "runtime/state/state_store.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "runtime/base/errors/buffer_errors.h"
#include "runtime/base/errors/state_errors.h"
#include "runtime/base/limits.h"
#include "runtime/base/status_macros.h"
#include "runtime/state/crash_point.h"
#include "runtime/state/files.h"
#include "runtime/state/state_scan.h"

namespace resident {
namespace {

// A cause may bring a compiler's whole log, and thousands of events are kept.
std::string Shortened(const std::string& text) {
  if (text.size() <= kMaxEventTextBytes) return text;
  constexpr absl::string_view kMore = "...";
  return absl::StrCat(absl::string_view(text).substr(0, kMaxEventTextBytes - kMore.size()), kMore);
}

std::string WithoutFix(const absl::Status& status) {
  return std::string(status.message().substr(0, status.message().find(". Fix:")));
}

std::string JournalPath(const std::string& directory) { return directory + "/journal"; }

internal::StoredVersion ToStored(const RegistryChange& change, const VersionContent& content) {
  internal::StoredVersion stored;
  const VersionSpec& spec = *change.spec;
  stored.set_version(change.version);
  stored.set_state(static_cast<uint32_t>(VersionState::kStaged));
  stored.set_in_slot(true);
  if (change.slot != kNoSlot) stored.set_slot(change.slot);
  stored.set_kind(static_cast<uint32_t>(spec.kind));
  stored.set_summary(spec.summary);
  stored.set_signature(spec.signature);
  stored.set_split(spec.split);
  stored.set_content_hash(spec.content_hash);
  stored.set_installed_by(Shortened(spec.installed_by));
  stored.set_installed_ms(spec.installed_ms);
  stored.set_task_time_limit_ms(spec.task_time_limit.count());
  stored.set_scratch_bytes(spec.scratch_bytes);
  stored.set_allow_spills(spec.allow_spills);
  stored.set_body(content.body);
  stored.mutable_blobs()->insert(content.blobs.begin(), content.blobs.end());
  return stored;
}

internal::StoredChange ToStored(const RegistryChange& change) {
  internal::StoredChange stored;
  stored.set_kind(static_cast<uint32_t>(change.kind));
  stored.set_name(change.name);
  stored.set_version(change.version);
  stored.set_active_version(change.active_version);
  stored.set_previous_version(change.previous_version);
  stored.set_standby_version(change.standby_version);
  for (const uint32_t version : change.retired) stored.add_retired(version);
  stored.set_traffic_percent(change.traffic_percent);
  stored.set_shadow_percent(change.shadow_percent);
  stored.set_reason(Shortened(change.reason));
  return stored;
}

}  // namespace

StateStore::StateStore(const Options& options)
    : options_(options),
      model_(options.most_events),
      compact_at_(options.compact_bytes),
      events_(options.most_events) {}

StateStore::~StateStore() = default;

absl::StatusOr<std::unique_ptr<StateStore>> StateStore::Open(const Options& options) {
  std::unique_ptr<StateStore> store(new StateStore(options));
  if (store->in_memory()) {
    ASSIGN_OR_RETURN(std::unique_ptr<BlobStore> blobs, BlobStore::Open(""));
    store->blobs_ = std::move(blobs);
    store->warnings_.push_back(
        "no --state_dir: installed operators, the audit log and durable buffers are gone when "
        "this daemon ends");
    return store;
  }
  RETURN_IF_ERROR(store->Load());
  return store;
}

absl::Status StateStore::Load() {
  const std::string& directory = options_.directory;
  absl::Status status = MakeFolder(directory);
  if (!status.ok()) return status;
  ASSIGN_OR_RETURN(std::unique_ptr<StateLock> taken, StateLock::Take(directory));
  lock_ = std::move(taken);
  ASSIGN_OR_RETURN(std::unique_ptr<BlobStore> blobs, BlobStore::Open(directory + "/blobs"));
  blobs_ = std::move(blobs);

  ASSIGN_OR_RETURN(std::unique_ptr<BufferFiles> files, BufferFiles::Open(directory + "/buffers"));
  buffer_files_ = std::move(files);

  absl::MutexLock sync(&sync_mu_);
  bool whole = false;
  std::set<std::string> used_blobs;
  std::set<std::pair<uint64_t, uint64_t>> used_files;
  {
    absl::MutexLock lock(&mu_);
    status = ReadJournal(&whole);
    if (!status.ok()) return status;
    events_.StartAt(model_.revision());
    events_.Add({model_.events().begin(), model_.events().end()});
    used_blobs = model_.UsedBlobs();
    used_files = model_.UsedBufferFiles();
  }
  (void)RemoveFile(JournalPath(directory) + kDraftEnding);
  // Nor is it compacted: what could be mended would be gone.
  if (!whole) return absl::OkStatus();
  // What is not referred to was left by a crash, or by a version that is gone.
  status = blobs_->Collect(used_blobs);
  if (status.ok()) status = buffer_files_->RemoveOthers(used_files);
  if (status.ok()) CompactIfDue();
  return status;
}

absl::Status StateStore::ReadJournal(bool* whole) {
  const std::string& directory = options_.directory;
  const std::string path = JournalPath(directory);
  absl::StatusOr<JournalScan> scan = ScanState(path);
  const bool made = absl::IsNotFound(scan.status());
  if (!made && !scan.ok()) return scan.status();
  // Or it has a header alone, to which a first record could come half.
  if (made || (scan->end == JournalScan::End::kClean && scan->records.empty())) {
    ASSIGN_OR_RETURN(std::unique_ptr<JournalWriter> writer,
                     JournalWriter::Replace(path, {EmptyState()}));
    journal_ = std::move(writer);
    return absl::OkStatus();
  }
  switch (scan->end) {
    case JournalScan::End::kClean:
      break;
    case JournalScan::End::kTorn:
      warnings_.push_back(absl::StrCat(
          path, ": the last record is torn (", scan->what,
          "): ", scan->file_bytes - scan->good_bytes, " bytes at offset ", scan->good_bytes,
          " are dropped. The daemon before this one was killed, or its machine went down, while "
          "it wrote them. Files that nothing refers to are left until the next start"));
      break;
    case JournalScan::End::kDamaged:
    case JournalScan::End::kNotAJournal:
      return errors::JournalDamaged(path, scan->good_bytes, scan->what, directory);
    case JournalScan::End::kNewer:
      return errors::JournalNewer(path, scan->what);
  }
  for (const JournalScan::Record& record : scan->records) {
    internal::StateRecord parsed;
    const absl::Status fits = parsed.ParseFromString(record.payload)
                                  ? model_.Check(parsed)
                                  : errors::RecordDoesNotFit("its contents are not a record");
    if (!fits.ok()) return errors::JournalDamaged(path, record.offset, WithoutFix(fits), directory);
    model_.Apply(parsed);
  }
  // It syncs what the daemon before this one may not have.
  ASSIGN_OR_RETURN(std::unique_ptr<JournalWriter> writer,
                   JournalWriter::Open(path, scan->good_bytes));
  journal_ = std::move(writer);
  *whole = scan->end == JournalScan::End::kClean;
  return absl::OkStatus();
}

// --- Writing ------------------------------------------------------------------------

absl::Status StateStore::AppendTo(JournalWriter& journal, internal::StateRecord& record) {
  record.set_synced_bytes(journal.synced_bytes());
  return journal.Append(record.SerializeAsString());
}

absl::Status StateStore::Write(internal::StateRecord record) {
  if (!broken_.ok()) return broken_;
  // Before it is in the file: a record that does not fit would stop the next start.
  RETURN_IF_ERROR(model_.Check(record));
  if (journal_ != nullptr) {
    internal::StateRecord again;
    if (!again.ParseFromString(record.SerializeAsString())) {
      return errors::RecordDoesNotFit("one of its names is not UTF-8");
    }
    const absl::Status appended = AppendTo(*journal_, record);
    if (!journal_->broken().ok()) broken_ = journal_->broken();
    if (!appended.ok()) return appended;
    if (meanwhile_.has_value()) meanwhile_->push_back(record);
  }
  model_.Apply(record);
  ++written_;
  const size_t added = std::min<size_t>(record.events_size(), model_.events().size());
  unshown_.insert(unshown_.end(), model_.events().end() - static_cast<int64_t>(added),
                  model_.events().end());
  return absl::OkStatus();
}

absl::Status StateStore::Sync() {
  CrashPoint();  // What was appended has been made.
  uint64_t written = 0;
  {
    absl::MutexLock lock(&mu_);
    written = written_;
  }
  const uint64_t shown = events_.revision();
  absl::Status status;
  {
    absl::MutexLock sync(&sync_mu_);
    if (synced_ < written) {
      status = SyncWritten();
      if (status.ok()) CompactIfDue();
    }
  }
  if (events_.revision() != shown) Wake();
  return status;
}

absl::Status StateStore::SyncWritten() {
  std::shared_ptr<JournalWriter> journal;
  uint64_t written = 0;
  uint64_t revision = 0;
  absl::Status broken;
  {
    absl::MutexLock lock(&mu_);
    journal = journal_;
    written = written_;
    revision = model_.revision();
    broken = broken_;
  }
  const std::string path = JournalPath(options_.directory);
  if (broken.ok() && journal != nullptr) {
    absl::Status status = BeforeSync(path);
    if (status.ok()) status = journal->Sync();
    if (!status.ok()) {
      Log(absl::StrCat(status.message(), "; the journal is written anew"));
      absl::MutexLock lock(&mu_);
      broken = broken_ = errors::JournalBroken(path, WithoutFix(status));
    }
  }
  if (!broken.ok()) {
    const absl::Status status = Rewrite();
    if (status.ok()) return status;
    Log(absl::StrCat("the journal cannot be written anew: ", status.message()));
    return errors::NotOnDisk(path, WithoutFix(status));
  }
  Show(written, revision);
  return absl::OkStatus();
}

absl::Status StateStore::Mend() {
  {
    absl::MutexLock lock(&mu_);
    if (broken_.ok()) return absl::OkStatus();
  }
  const uint64_t shown = events_.revision();
  {
    absl::MutexLock sync(&sync_mu_);
    {
      absl::MutexLock lock(&mu_);
      if (broken_.ok()) return absl::OkStatus();
    }
    const absl::Status status = Rewrite();
    if (!status.ok()) {
      return errors::JournalBroken(JournalPath(options_.directory), WithoutFix(status));
    }
  }
  if (events_.revision() != shown) Wake();
  return absl::OkStatus();
}

absl::Status StateStore::Rewrite() {
  const std::string path = JournalPath(options_.directory);
  internal::StateRecord snapshot;
  uint64_t written = 0;
  {
    absl::MutexLock lock(&mu_);
    snapshot = model_.Snapshot();
    written = written_;
    meanwhile_.emplace();
  }
  absl::Status status = BeforeSync(path + kDraftEnding);
  std::unique_ptr<JournalWriter> draft;
  if (status.ok()) {
    auto made =
        JournalWriter::Draft(path, {snapshot.SerializeAsString()}, options_.most_record_bytes);
    status = made.status();
    if (made.ok()) draft = *std::move(made);
  }
  {
    absl::MutexLock lock(&mu_);
    std::vector<internal::StateRecord> appended = *std::exchange(meanwhile_, std::nullopt);
    for (internal::StateRecord& record : appended) {
      if (status.ok()) status = AppendTo(*draft, record);
    }
    if (status.ok()) status = draft->TakePlace();
    if (!status.ok()) return status;
    journal_ = std::move(draft);
    // A snapshot itself may be larger than the limit; it has to grow by as much again.
    compact_at_ = options_.compact_bytes + 2 * journal_->bytes();
  }
  // Until this is done a crash may bring the old journal back, without what comes after.
  status = BeforeSync(options_.directory);
  if (status.ok()) status = SyncFolder(options_.directory);
  {
    absl::MutexLock lock(&mu_);
    broken_ = status.ok() ? status : errors::JournalBroken(path, WithoutFix(status));
  }
  if (status.ok()) Show(written, snapshot.snapshot().revision());
  return status;
}

void StateStore::CompactIfDue() {
  {
    absl::MutexLock lock(&mu_);
    if (journal_ == nullptr || journal_->bytes() <= compact_at_) return;
  }
  absl::Status status = Rewrite();
  std::set<std::string> used;
  {
    absl::MutexLock lock(&mu_);
    used = model_.UsedBlobs();
  }
  // What is referred to since then was used since then.
  if (status.ok()) status = blobs_->Collect(used);
  if (status.ok()) return;
  Log(absl::StrCat("the journal is not compacted and goes on to grow: ", status.message()));
  absl::MutexLock lock(&mu_);
  // All is on disk as it is. Not with every record again: it may be much.
  compact_at_ = journal_->bytes() + options_.compact_bytes;
}

void StateStore::Show(uint64_t records, uint64_t revision) {
  synced_ = std::max(synced_, records);
  std::vector<EventLog::Event> shown;
  {
    absl::MutexLock lock(&mu_);
    while (!unshown_.empty() && unshown_.front()->revision() <= revision) {
      shown.push_back(std::move(unshown_.front()));
      unshown_.pop_front();
    }
  }
  events_.Add(shown);
}

absl::Status StateStore::BeforeSync(const std::string& path) const {
  return options_.before_sync == nullptr ? absl::OkStatus() : options_.before_sync(path);
}

void StateStore::Log(const std::string& error) const {
  if (options_.log != nullptr) return options_.log(error);
  fprintf(stderr, "residentd: error: %s\n", error.c_str());
}

// --- Operators ----------------------------------------------------------------------

std::vector<StoredOperator> StateStore::operators() const {
  absl::MutexLock lock(&mu_);
  return model_.operators();
}

std::vector<StoredRemoval> StateStore::removed() const {
  absl::MutexLock lock(&mu_);
  return model_.removed();
}

uint64_t StateStore::generation() const {
  absl::MutexLock lock(&mu_);
  return model_.generation();
}

absl::StatusOr<uint64_t> StateStore::Append(const RegistryChange& change, const Origin& origin) {
  RETURN_IF_ERROR(Mend());
  if (change.kind == EventKind::kInstalled) {
    for (const auto& [name, sha256] : origin.content.blobs) {
      if (!blobs_->Use(sha256)) return errors::NoBlob(sha256);
    }
  }
  uint64_t revision = 0;
  {
    absl::MutexLock lock(&mu_);
    internal::StateRecord record;
    *record.mutable_change() = ToStored(change);
    OperatorEvent event;
    event.revision = model_.revision();
    event.time_ms = absl::ToUnixMillis(absl::Now());
    event.operator_name = change.name;
    event.actor = Shortened(origin.actor);
    if (change.kind != EventKind::kRemoved && change.kind != EventKind::kRetired) {
      event.kind = EventKind::kRetired;
      for (const uint32_t version : change.retired) {
        ++event.revision;
        event.version = version;
        *record.add_events() = ToStored(event);
      }
    }
    revision = ++event.revision;
    event.kind = change.kind;
    event.version = change.version;
    event.message = Shortened(origin.message.empty() ? change.reason : origin.message);
    if (change.kind == EventKind::kInstalled) {
      *record.mutable_change()->mutable_installed() = ToStored(change, origin.content);
    }
    event.content_hash = change.spec != nullptr ? change.spec->content_hash
                                                : model_.ContentHash(change.name, change.version);
    *record.add_events() = ToStored(event);
    record.mutable_change()->set_revision(revision);
    RETURN_IF_ERROR(Write(record));
  }
  return revision;
}

absl::StatusOr<uint64_t> StateStore::AppendEvent(OperatorEvent event) {
  RETURN_IF_ERROR(Mend());
  {
    absl::MutexLock lock(&mu_);
    event.revision = model_.revision() + 1;
    event.time_ms = absl::ToUnixMillis(absl::Now());
    event.actor = Shortened(event.actor);
    event.message = Shortened(event.message);
    internal::StateRecord record;
    *record.add_events() = ToStored(event);
    RETURN_IF_ERROR(Write(record));
  }
  RETURN_IF_ERROR(Sync());
  return event.revision;
}

absl::StatusOr<std::string> StateStore::PutBlob(std::string_view bytes) {
  return blobs_->Put(bytes);
}

absl::StatusOr<std::string> StateStore::GetBlob(const std::string& sha256) const {
  return blobs_->Get(sha256);
}

// --- Events -------------------------------------------------------------------------

uint64_t StateStore::revision() const { return events_.revision(); }

absl::StatusOr<std::vector<OperatorEvent>> StateStore::EventsAfter(uint64_t after,
                                                                   size_t most) const {
  return events_.EventsAfter(after, most);
}

std::vector<OperatorEvent> StateStore::EventsBefore(uint64_t before, const std::string& name,
                                                    size_t most) const {
  return events_.EventsBefore(before, name, most);
}

uint64_t StateStore::Subscribe(std::function<void()> wake) {
  absl::MutexLock lock(&wake_mu_);
  wakes_[next_token_] = std::move(wake);
  return next_token_++;
}

void StateStore::Unsubscribe(uint64_t token) {
  absl::MutexLock lock(&wake_mu_);
  wakes_.erase(token);
}

void StateStore::Wake() {
  // Held during the calls: Unsubscribe returns once none is under way.
  absl::MutexLock lock(&wake_mu_);
  for (const auto& [token, wake] : wakes_) wake();
}

// --- Durable buffers ------------------------------------------------------------------

std::vector<StoredBuffer> StateStore::buffers() const {
  absl::MutexLock lock(&mu_);
  std::vector<StoredBuffer> list;
  for (const auto& [id, stored] : model_.buffers()) {
    StoredBuffer buffer;
    buffer.id = id;
    buffer.name = stored.name();
    buffer.device = stored.device();
    buffer.dtype = stored.dtype();
    buffer.shape = {stored.shape().begin(), stored.shape().end()};
    buffer.size_bytes = stored.size_bytes();
    list.push_back(std::move(buffer));
  }
  return list;
}

uint64_t StateStore::highest_buffer() const {
  absl::MutexLock lock(&mu_);
  return model_.highest_buffer();
}

absl::StatusOr<std::string> StateStore::ReadBuffer(uint64_t id) const {
  absl::MutexLock buffers(&buffers_mu_);
  internal::StoredBuffer stored;
  {
    absl::MutexLock lock(&mu_);
    const auto found = model_.buffers().find(id);
    if (found == model_.buffers().end()) return errors::UnknownBuffer(id);
    stored = found->second;
  }
  if (stored.sequence() == 0) return "";
  return buffer_files_->Read(id, stored.sequence(), stored.size_bytes(), stored.contents_crc());
}

absl::Status StateStore::PutBuffer(const StoredBuffer& buffer, absl::Span<const uint8_t> contents) {
  if (in_memory()) return absl::OkStatus();
  absl::MutexLock buffers(&buffers_mu_);
  internal::StoredBuffer stored;
  uint64_t before = 0;
  {
    absl::MutexLock lock(&mu_);
    const auto found = model_.buffers().find(buffer.id);
    if (found != model_.buffers().end()) before = found->second.sequence();
  }
  stored.set_id(buffer.id);
  stored.set_name(buffer.name);
  stored.set_device(buffer.device);
  stored.set_dtype(buffer.dtype);
  for (const int64_t dim : buffer.shape) stored.add_shape(dim);
  stored.set_size_bytes(buffer.size_bytes);
  if (!contents.empty()) {
    stored.set_sequence(before + 1);
    // Without mu_: changes of operators do not wait for gigabytes.
    ASSIGN_OR_RETURN(const uint32_t crc, buffer_files_->Write(buffer.id, before + 1, contents));
    stored.set_contents_crc(crc);
  }
  internal::StateRecord record;
  *record.mutable_buffer() = std::move(stored);
  RETURN_IF_ERROR(Mend());
  {
    absl::MutexLock lock(&mu_);
    RETURN_IF_ERROR(Write(record));
  }
  RETURN_IF_ERROR(Sync());
  // What could not be removed is at the next start.
  if (before != 0) (void)buffer_files_->Remove(buffer.id, before);
  return absl::OkStatus();
}

absl::Status StateStore::DropBuffer(uint64_t id) {
  absl::MutexLock buffers(&buffers_mu_);
  RETURN_IF_ERROR(Mend());
  uint64_t sequence = 0;
  {
    absl::MutexLock lock(&mu_);
    const auto found = model_.buffers().find(id);
    if (found == model_.buffers().end()) return absl::OkStatus();
    sequence = found->second.sequence();
    internal::StateRecord record;
    record.set_buffer_freed(id);
    RETURN_IF_ERROR(Write(record));
  }
  RETURN_IF_ERROR(Sync());
  if (sequence != 0) (void)buffer_files_->Remove(id, sequence);
  return absl::OkStatus();
}

}  // namespace resident
