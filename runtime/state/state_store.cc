#include "runtime/state/state_store.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "runtime/errors/buffer_errors.h"
#include "runtime/errors/state_errors.h"
#include "runtime/state/files.h"

namespace resident {
namespace {

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
  stored.set_installed_by(spec.installed_by);
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
  stored.set_reason(change.reason);
  return stored;
}

}  // namespace

StateStore::StateStore(const Options& options) : options_(options), model_(options.most_events) {}

StateStore::~StateStore() = default;

absl::StatusOr<std::unique_ptr<StateStore>> StateStore::Open(const Options& options) {
  std::unique_ptr<StateStore> store(new StateStore(options));
  if (store->in_memory()) {
    absl::StatusOr<std::unique_ptr<BlobStore>> blobs = BlobStore::Open("");
    if (!blobs.ok()) return blobs.status();
    store->blobs_ = *std::move(blobs);
    store->warnings_.push_back(
        "no --state_dir: installed operators, the audit log and durable buffers are gone when "
        "this daemon ends");
    return store;
  }
  const absl::Status loaded = store->Load();
  if (!loaded.ok()) return loaded;
  return store;
}

absl::Status StateStore::Load() {
  const std::string& directory = options_.directory;
  absl::Status status = MakeFolder(directory);
  if (!status.ok()) return status;
  absl::StatusOr<std::unique_ptr<StateLock>> taken = StateLock::Take(directory);
  if (!taken.ok()) return taken.status();
  lock_ = *std::move(taken);
  absl::StatusOr<std::unique_ptr<BlobStore>> blobs = BlobStore::Open(directory + "/blobs");
  if (!blobs.ok()) return blobs.status();
  blobs_ = *std::move(blobs);

  absl::MutexLock lock(&mu_);
  absl::StatusOr<std::unique_ptr<BufferFiles>> files = BufferFiles::Open(directory + "/buffers");
  if (!files.ok()) return files.status();
  buffer_files_ = *std::move(files);

  const std::string path = JournalPath(directory);
  absl::StatusOr<JournalScan> scan = ScanJournal(path);
  if (absl::IsNotFound(scan.status())) {
    absl::StatusOr<std::unique_ptr<JournalWriter>> made = JournalWriter::Replace(path, {});
    if (!made.ok()) return made.status();
    journal_ = *std::move(made);
    return absl::OkStatus();
  }
  if (!scan.ok()) return scan.status();
  switch (scan->end) {
    case JournalScan::End::kClean:
      break;
    case JournalScan::End::kTorn:
      warnings_.push_back(absl::StrCat(
          path, ": the last record is torn (", scan->what,
          "): ", scan->file_bytes - scan->good_bytes, " bytes at offset ", scan->good_bytes,
          " are dropped. The daemon before this one was killed, or its machine went down, while "
          "it wrote them"));
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
    if (!fits.ok()) {
      // The message has a fix of its own.
      const std::string what(fits.message().substr(0, fits.message().find(". Fix:")));
      return errors::JournalDamaged(path, record.offset, what, directory);
    }
    model_.Apply(parsed);
  }
  absl::StatusOr<std::unique_ptr<JournalWriter>> writer =
      JournalWriter::Open(path, scan->good_bytes);
  if (!writer.ok()) return writer.status();
  journal_ = *std::move(writer);
  (void)RemoveFile(path + kDraftEnding);
  // What is not referred to was left by a crash, or by a version that is gone.
  status = blobs_->Collect(model_.UsedBlobs());
  if (status.ok()) status = buffer_files_->RemoveOthers(model_.UsedBufferFiles());
  if (status.ok() && journal_->bytes() > options_.compact_bytes) status = Compact();
  return status;
}

absl::Status StateStore::Compact() {
  absl::StatusOr<std::unique_ptr<JournalWriter>> made = JournalWriter::Replace(
      JournalPath(options_.directory), {model_.Snapshot().SerializeAsString()});
  if (!made.ok()) return made.status();
  journal_ = *std::move(made);
  compacted_bytes_ = journal_->bytes();
  return blobs_->Collect(model_.UsedBlobs());
}

absl::Status StateStore::Write(const internal::StateRecord& record) {
  // Before it is on disk: a record that does not fit would stop the next start.
  const absl::Status fits = model_.Check(record);
  if (!fits.ok()) return fits;
  if (journal_ != nullptr) {
    const absl::Status appended = journal_->Append(record.SerializeAsString());
    if (!appended.ok()) return appended;
  }
  model_.Apply(record);
  // A snapshot itself may be larger than the limit; it has to grow by as much again.
  if (journal_ != nullptr && journal_->bytes() > options_.compact_bytes + 2 * compacted_bytes_) {
    // The record is on disk, whatever becomes of this; the next one tries again.
    (void)Compact();
  }
  return absl::OkStatus();
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
  uint64_t revision = 0;
  {
    absl::MutexLock lock(&mu_);
    internal::StateRecord record;
    *record.mutable_change() = ToStored(change);
    OperatorEvent event;
    event.revision = model_.revision();
    event.time_ms = absl::ToUnixMillis(absl::Now());
    event.operator_name = change.name;
    event.actor = origin.actor;
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
    event.message = origin.message.empty() ? change.reason : origin.message;
    if (change.kind == EventKind::kInstalled) {
      for (const auto& [name, sha256] : origin.content.blobs) {
        if (!blobs_->Has(sha256)) return errors::NoBlob(sha256);
      }
      *record.mutable_change()->mutable_installed() = ToStored(change, origin.content);
    }
    event.content_hash = change.spec != nullptr ? change.spec->content_hash
                                                : model_.ContentHash(change.name, change.version);
    *record.add_events() = ToStored(event);
    record.mutable_change()->set_revision(revision);
    const absl::Status written = Write(record);
    if (!written.ok()) return written;
  }
  Wake();
  return revision;
}

absl::StatusOr<uint64_t> StateStore::AppendEvent(OperatorEvent event) {
  {
    absl::MutexLock lock(&mu_);
    event.revision = model_.revision() + 1;
    event.time_ms = absl::ToUnixMillis(absl::Now());
    internal::StateRecord record;
    *record.add_events() = ToStored(event);
    const absl::Status written = Write(record);
    if (!written.ok()) return written;
  }
  Wake();
  return event.revision;
}

absl::StatusOr<std::string> StateStore::PutBlob(std::string_view bytes) {
  return blobs_->Put(bytes);
}

absl::StatusOr<std::string> StateStore::GetBlob(const std::string& sha256) const {
  return blobs_->Get(sha256);
}

// --- Events -------------------------------------------------------------------------

uint64_t StateStore::revision() const {
  absl::MutexLock lock(&mu_);
  return model_.revision();
}

absl::StatusOr<std::vector<OperatorEvent>> StateStore::EventsAfter(uint64_t after,
                                                                   size_t most) const {
  absl::MutexLock lock(&mu_);
  return model_.EventsAfter(after, most);
}

std::vector<OperatorEvent> StateStore::EventsBefore(uint64_t before, const std::string& name,
                                                    size_t most) const {
  absl::MutexLock lock(&mu_);
  return model_.EventsBefore(before, name, most);
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
    const absl::StatusOr<uint32_t> crc = buffer_files_->Write(buffer.id, before + 1, contents);
    if (!crc.ok()) return crc.status();
    stored.set_contents_crc(*crc);
  }
  internal::StateRecord record;
  *record.mutable_buffer() = std::move(stored);
  {
    absl::MutexLock lock(&mu_);
    const absl::Status written = Write(record);
    if (!written.ok()) return written;
  }
  // What could not be removed is at the next start.
  if (before != 0) (void)buffer_files_->Remove(buffer.id, before);
  return absl::OkStatus();
}

absl::Status StateStore::DropBuffer(uint64_t id) {
  absl::MutexLock buffers(&buffers_mu_);
  uint64_t sequence = 0;
  {
    absl::MutexLock lock(&mu_);
    const auto found = model_.buffers().find(id);
    if (found == model_.buffers().end()) return absl::OkStatus();
    sequence = found->second.sequence();
    internal::StateRecord record;
    record.set_buffer_freed(id);
    const absl::Status written = Write(record);
    if (!written.ok()) return written;
  }
  if (sequence != 0) (void)buffer_files_->Remove(id, sequence);
  return absl::OkStatus();
}

}  // namespace resident
