
#include "runtime/state/state_store.h"

#include <sys/random.h>

#include <algorithm>
#include <cassert>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "runtime/base/limits.h"
#include "runtime/base/log.h"
#include "runtime/base/status_macros.h"
#include "runtime/base/utf8.h"
#include "runtime/state/errors.h"
#include "runtime/state/files.h"

namespace resident {
namespace {

// A text may contain the whole log of a compiler, and thousands of events are kept.
std::string Shorten(const std::string& text) {
  if (text.size() <= kMaxEventTextBytes) return text;
  constexpr absl::string_view kMore = "...";
  return absl::StrCat(CutUtf8(text, kMaxEventTextBytes - kMore.size()), kMore);
}

// A random UUID (RFC 9562, version 4).
std::string NewUuid() {
  unsigned char bits[16];
  size_t have = 0;
  while (have < sizeof(bits)) {
    const ssize_t got = getrandom(bits + have, sizeof(bits) - have, 0);
    if (got > 0) have += static_cast<size_t>(got);
  }
  bits[6] = static_cast<unsigned char>((bits[6] & 0x0F) | 0x40);
  bits[8] = static_cast<unsigned char>((bits[8] & 0x3F) | 0x80);
  std::string uuid;
  for (size_t i = 0; i < sizeof(bits); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) uuid += '-';
    absl::StrAppend(&uuid, absl::Hex(bits[i], absl::kZeroPad2));
  }
  return uuid;
}

// Events that are copied under the lock at a time.
constexpr size_t kEventsAtOnce = 256;

}  // namespace

StateStore::StateStore(const Options& options)
    : options_(options), checkpoint_at_(options.checkpoint_bytes) {}

StateStore::~StateStore() {
  absl::MutexLock sync(&sync_mu_);
  if (database_ == nullptr) return;
  bool pending = false;
  {
    absl::MutexLock lock(&mu_);
    pending = synced_ < noted_ || !broken_.ok();
  }
  if (pending) WriteChanges(nullptr).IgnoreError();
  database_->Checkpoint().IgnoreError();
}

absl::StatusOr<std::unique_ptr<StateStore>> StateStore::Open(const Options& options) {
  std::unique_ptr<StateStore> store(new StateStore(options));
  if (store->in_memory()) {
    ASSIGN_OR_RETURN(std::unique_ptr<BlobStore> blobs, BlobStore::Open(""));
    store->blobs_ = std::move(blobs);
    {
      absl::MutexLock lock(&store->mu_);
      store->model_.node_id = NewUuid();
    }
    store->warnings_.push_back(
        "no --state_dir: installed operators, the audit log and durable buffers are lost when "
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
  ASSIGN_OR_RETURN(const bool exists, StateDatabase::Exists(directory));
  ASSIGN_OR_RETURN(std::unique_ptr<BlobStore> blobs, BlobStore::Open(directory + "/blobs"));
  blobs_ = std::move(blobs);
  ASSIGN_OR_RETURN(std::unique_ptr<BlobStore> contents, BlobStore::Open(directory + "/buffers"));
  contents_ = std::move(contents);

  // Files of a repair that was killed.
  for (const char* left : {"/state.db.new", "/state.db.new-wal", "/state.db.new-journal"}) {
    (void)RemoveFile(directory + left);
  }
  if (!exists) status = StateDatabase::Create(directory, StateModel{.node_id = NewUuid()});
  if (!status.ok()) return status;
  ASSIGN_OR_RETURN(auto database, StateDatabase::Open(directory, {.vfs = options_.vfs}));
  StateModel model;
  status = database->Read(&model, /*problems=*/nullptr);
  if (!status.ok()) return status;
  const std::set<std::string> used_blobs = model.UsedBlobs();
  const std::set<std::string> used_contents = model.UsedBufferContents();
  const uint64_t torn_bytes = database->torn_bytes();
  {
    absl::MutexLock sync(&sync_mu_);
    absl::MutexLock lock(&mu_);
    database_ = std::move(database);
    model_ = std::move(model);
    shown_ = model_.revision;
    // This only empties the log, so an error (a full disk) does not prevent the start.
    status = database_->Checkpoint();
    if (!status.ok()) warnings_.emplace_back(status.message());
    if (model_.node_id.empty()) {  // An older daemon wrote the folder.
      model_.node_id = NewUuid();
      status = database_->Write({}, model_, model_.first_revision());
      if (!status.ok()) warnings_.emplace_back(status.message());
    }
  }
  if (torn_bytes > 0) {
    warnings_.push_back(absl::StrCat(
        directory, "/state.db-wal: its last ", torn_bytes,
        " bytes are an incomplete transaction and are dropped. The previous daemon was killed, or "
        "its machine went down, while it wrote them. Files that nothing refers to are kept until "
        "the next start"));
  }
  // Keep files that may be needed for a repair.
  if (torn_bytes > 0 || !exists) return absl::OkStatus();
  // Files that nothing refers to were left by a crash, or by a removed version.
  status = blobs_->Collect(used_blobs);
  if (status.ok()) status = contents_->Collect(used_contents);
  return status;
}

// --- Writing ------------------------------------------------------------------------

void StateStore::Note(const RegistryChange* change, const VersionContent& content,
                      std::vector<OperatorEvent> events) {
  if (change != nullptr) {
    assert(model_.Check(*change).ok());
    model_.Apply(*change, content);
    changed_.operators.insert(change->name);
    changed_.removals |= change->kind == EventKind::kRemoved;
  }
  for (OperatorEvent& event : events) model_.AddEvent(std::move(event), options_.max_events);
  changed_.events += events.size();
  ++noted_;
}

absl::Status StateStore::Sync() {
  CrashPoint();  // The appended changes have taken effect.
  uint64_t noted = 0;
  uint64_t shown = 0;
  {
    absl::MutexLock lock(&mu_);
    noted = noted_;
    shown = shown_;
  }
  absl::Status status;
  {
    absl::MutexLock sync(&sync_mu_);
    if (synced_ < noted) {
      status = WriteChanges(nullptr);
      if (status.ok()) CheckpointIfDue();
    }
    if (!status.ok()) status = errors::NotOnDisk(errors::WithoutFix(WithoutFolder(status)));
  }
  WakeAfter(shown);
  return status;
}

absl::Status StateStore::WriteChanges(const StateRow* row) {
  std::vector<StateRow> rows;
  StateModel counters;
  Changed changed;
  uint64_t noted = 0;
  uint64_t first_event = 0;
  {
    absl::MutexLock lock(&mu_);
    changed = std::exchange(changed_, {});
    noted = noted_;
    first_event = model_.first_revision();
    counters.revision = model_.revision;
    counters.generation = model_.generation;
    counters.highest_buffer = model_.highest_buffer;
    counters.node_id = model_.node_id;
    if (database_ != nullptr) {
      for (const std::string& name : changed.operators) {
        const auto found = model_.operators.find(name);
        rows.push_back(found == model_.operators.end() ? DeletedOperator(name)
                                                       : MakeRow(found->second));
      }
      if (changed.removals) rows.push_back(RemovalsRow(model_));
      const size_t events = std::min<size_t>(changed.events, model_.events.size());
      for (auto it = model_.events.end() - static_cast<int64_t>(events); it != model_.events.end();
           ++it) {
        rows.push_back(MakeRow(**it));
      }
    }
  }
  absl::Status status;
  if (database_ != nullptr) {
    if (row != nullptr) {
      rows.push_back(*row);
      // Only rows of buffers have numbers.
      const int64_t* const id = std::get_if<int64_t>(&row->key);
      if (id != nullptr && row->record.has_value()) {
        counters.highest_buffer = std::max(counters.highest_buffer, static_cast<uint64_t>(*id));
      }
    }
    status = database_->Write(rows, counters, first_event);
    if (!status.ok()) {
      // A start could mistake what failed transactions leave in the log for damage, so the log is
      // emptied as soon as possible.
      checkpoint_at_ = 0;
      Log(absl::StrCat(status.message(), "; retrying once"));
      status = database_->Write(rows, counters, first_event);
    }
    if (status.ok() && checkpoint_at_ == 0 && database_->Checkpoint().ok()) {
      checkpoint_at_ = options_.checkpoint_bytes;
    }
  }
  absl::MutexLock lock(&mu_);
  if (status.ok()) {
    broken_ = status;
    synced_ = noted;
    shown_ = counters.revision;
    return status;
  }
  broken_ = errors::ChangesRefused(errors::WithoutFix(WithoutFolder(status)));
  changed_.operators.merge(changed.operators);
  changed_.events += changed.events;
  changed_.removals |= changed.removals;
  return status;
}

absl::Status StateStore::RetryFailedWrite() {
  uint64_t shown = 0;
  {
    absl::MutexLock lock(&mu_);
    if (broken_.ok()) return absl::OkStatus();
    shown = shown_;
  }
  {
    absl::MutexLock sync(&sync_mu_);
    {
      absl::MutexLock lock(&mu_);
      if (broken_.ok()) return absl::OkStatus();
    }
    if (!WriteChanges(nullptr).ok()) {
      absl::MutexLock lock(&mu_);
      return broken_;
    }
  }
  WakeAfter(shown);
  return absl::OkStatus();
}

void StateStore::CheckpointIfDue() {
  if (database_ == nullptr || database_->log_bytes() <= checkpoint_at_) return;
  std::set<std::string> used;
  {
    absl::MutexLock lock(&mu_);
    used = model_.UsedBlobs();
  }
  absl::Status status = database_->Checkpoint();
  // A blob that became referenced after UsedBlobs() was also used after it, so Collect keeps it.
  if (status.ok()) status = blobs_->Collect(used);
  checkpoint_at_ = options_.checkpoint_bytes;
  if (status.ok()) return;
  Log(absl::StrCat("the log of the state's database continues to grow: ", status.message()));
  // Do not try again with every change.
  checkpoint_at_ += database_->log_bytes();
}

absl::Status StateStore::WithoutFolder(const absl::Status& status) const {
  if (status.ok() || in_memory()) return status;
  return absl::Status(status.code(),
                      absl::StrReplaceAll(status.message(), {{options_.directory + "/", ""},
                                                             {options_.directory, "--state_dir"}}));
}

absl::StatusOr<std::string> StateStore::LogIfFailed(absl::StatusOr<std::string> result) const {
  if (result.ok()) return result;
  Log(std::string(result.status().message()));
  return WithoutFolder(result.status());
}

void StateStore::Log(const std::string& error) const {
  if (options_.log != nullptr) return options_.log(error);
  LogError(error);
}

std::string StateStore::node_id() const {
  absl::MutexLock lock(&mu_);
  return model_.node_id;
}

// --- Operators ----------------------------------------------------------------------

std::vector<StoredOperator> StateStore::operators() const {
  absl::MutexLock lock(&mu_);
  std::vector<StoredOperator> list;
  for (const auto& [name, op] : model_.operators) list.push_back(op);
  return list;
}

std::vector<StoredRemoval> StateStore::removed() const {
  absl::MutexLock lock(&mu_);
  return {model_.removed.begin(), model_.removed.end()};
}

uint64_t StateStore::generation() const {
  absl::MutexLock lock(&mu_);
  return model_.generation;
}

absl::StatusOr<uint64_t> StateStore::Append(const RegistryChange& change, const Origin& origin) {
  RETURN_IF_ERROR(RetryFailedWrite());
  if (change.kind == EventKind::kInstalled) {
    for (const auto& [name, sha256] : origin.content.blobs) {
      if (!blobs_->Use(sha256)) return errors::NoBlob(sha256);
    }
  }
  absl::MutexLock lock(&mu_);
  if (!broken_.ok()) return broken_;
  RETURN_IF_ERROR(model_.Check(change));
  std::vector<OperatorEvent> events;
  OperatorEvent event;
  event.revision = model_.revision;
  event.time_ms = absl::ToUnixMillis(absl::Now());
  event.operator_name = change.name;
  event.actor = Shorten(origin.actor);
  event.plan = origin.context.plan;
  event.set = origin.context.set;
  if (change.kind != EventKind::kRemoved && change.kind != EventKind::kRetired) {
    event.kind = EventKind::kRetired;
    for (const uint32_t version : change.retired) {
      ++event.revision;
      event.version = version;
      events.push_back(event);
    }
  }
  ++event.revision;
  event.kind = change.kind;
  event.version = change.version;
  event.message = Shorten(origin.message.empty() ? change.reason : origin.message);
  event.content_hash = change.spec != nullptr ? change.spec->content_hash
                                              : model_.ContentHash(change.name, change.version);
  events.push_back(event);
  RegistryChange noted = change;
  noted.revision = event.revision;
  noted.reason = Shorten(change.reason);
  VersionSpec spec;
  if (change.spec != nullptr) {
    spec = *change.spec;
    spec.installed_by = Shorten(spec.installed_by);
    noted.spec = &spec;
  }
  Note(&noted, origin.content, std::move(events));
  return event.revision;
}

absl::StatusOr<uint64_t> StateStore::AppendEvent(OperatorEvent event) {
  RETURN_IF_ERROR(RetryFailedWrite());
  uint64_t revision = 0;
  {
    absl::MutexLock lock(&mu_);
    if (!broken_.ok()) return broken_;
    revision = event.revision = model_.revision + 1;
    event.time_ms = absl::ToUnixMillis(absl::Now());
    event.actor = Shorten(event.actor);
    event.message = Shorten(event.message);
    Note(nullptr, {}, {std::move(event)});
  }
  RETURN_IF_ERROR(Sync());
  return revision;
}

absl::StatusOr<std::string> StateStore::PutBlob(std::string_view bytes) {
  return LogIfFailed(blobs_->Put(bytes));
}

absl::StatusOr<std::string> StateStore::GetBlob(const std::string& sha256) const {
  return LogIfFailed(blobs_->Get(sha256));
}

// --- Events -------------------------------------------------------------------------

uint64_t StateStore::revision() const {
  absl::MutexLock lock(&mu_);
  return shown_;
}

absl::StatusOr<std::vector<OperatorEvent>> StateStore::EventsAfter(uint64_t after,
                                                                   size_t max_events) const {
  std::vector<std::shared_ptr<const OperatorEvent>> found;
  {
    absl::MutexLock lock(&mu_);
    if (after >= shown_) return std::vector<OperatorEvent>();
    const uint64_t first = model_.first_revision();
    if (after + 1 < first) return errors::EventsGone(after, first);
    const auto begin = model_.events.begin() + static_cast<int64_t>(after + 1 - first);
    found.assign(begin,
                 begin + static_cast<int64_t>(std::min<uint64_t>(max_events, shown_ - after)));
  }
  std::vector<OperatorEvent> list;
  list.reserve(found.size());
  for (const auto& event : found) list.push_back(*event);
  return list;
}

std::vector<OperatorEvent> StateStore::EventsBefore(uint64_t before, const std::string& name,
                                                    size_t max_events) const {
  std::vector<OperatorEvent> list;
  uint64_t next = before == 0 ? UINT64_MAX : before;  // Revisions below it are still to be read.
  while (list.size() < max_events) {
    std::vector<std::shared_ptr<const OperatorEvent>> some;  // Newest last.
    {
      absl::MutexLock lock(&mu_);
      next = std::min(next, shown_ + 1);
      const uint64_t first = model_.first_revision();
      if (next <= first) break;
      const auto end = model_.events.begin() + static_cast<int64_t>(next - first);
      some.assign(end - static_cast<int64_t>(std::min<uint64_t>(kEventsAtOnce, next - first)), end);
    }
    next -= some.size();
    for (auto it = some.rbegin(); it != some.rend() && list.size() < max_events; ++it) {
      if (name.empty() || (*it)->operator_name == name) list.push_back(**it);
    }
  }
  return list;
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

void StateStore::WakeAfter(uint64_t revision) {
  if (this->revision() == revision) return;
  // Held during the calls, so that Unsubscribe waits for a running call.
  absl::MutexLock lock(&wake_mu_);
  for (const auto& [token, wake] : wakes_) wake();
}

// --- Durable buffers ------------------------------------------------------------------

std::vector<StoredBuffer> StateStore::buffers() const {
  absl::MutexLock lock(&mu_);
  std::vector<StoredBuffer> list;
  for (const auto& [id, buffer] : model_.buffers) list.push_back(buffer);
  return list;
}

uint64_t StateStore::highest_buffer() const {
  absl::MutexLock lock(&mu_);
  return model_.highest_buffer;
}

absl::StatusOr<std::string> StateStore::ReadBuffer(uint64_t id) const {
  absl::MutexLock buffers(&buffers_mu_);
  StoredBuffer buffer;
  {
    absl::MutexLock lock(&mu_);
    const auto found = model_.buffers.find(id);
    if (found == model_.buffers.end()) return errors::UnknownBuffer(id);
    buffer = found->second;
  }
  if (buffer.sha256.empty()) return "";
  return LogIfFailed(contents_->Get(buffer.sha256));
}

absl::Status StateStore::WriteExtraRow(const std::string& what, const StateRow& row,
                                       absl::FunctionRef<void(StateModel& model)> apply) {
  const uint64_t shown = revision();
  {
    absl::MutexLock sync(&sync_mu_);
    const absl::Status written = WriteChanges(&row);
    if (!written.ok()) return errors::RowNotSaved(what, errors::WithoutFix(WithoutFolder(written)));
    {
      absl::MutexLock lock(&mu_);
      apply(model_);
    }
    CheckpointIfDue();
  }
  WakeAfter(shown);
  return absl::OkStatus();
}

void StateStore::RemoveContents(const std::string& sha256) {
  {
    absl::MutexLock lock(&mu_);
    if (sha256.empty() || model_.UsedBufferContents().contains(sha256)) return;
  }
  // If this fails, the next start removes the file.
  (void)contents_->Remove(sha256);
}

absl::Status StateStore::PutBuffer(const StoredBuffer& buffer, absl::Span<const uint8_t> contents) {
  if (in_memory()) return absl::OkStatus();
  absl::MutexLock buffers(&buffers_mu_);
  RETURN_IF_ERROR(RetryFailedWrite());
  StoredBuffer stored = buffer;
  stored.sha256.clear();
  if (!contents.empty()) {
    ASSIGN_OR_RETURN(std::string sha256,
                     LogIfFailed(contents_->Put(
                         {reinterpret_cast<const char*>(contents.data()), contents.size()})));
    stored.sha256 = std::move(sha256);
  }
  std::string previous;
  const absl::Status written = WriteExtraRow(
      absl::StrCat("durable buffer ", buffer.id), MakeRow(stored), [&](StateModel& model) {
        StoredBuffer& kept = model.buffers[buffer.id];
        previous = kept.sha256;
        kept = stored;
        model.highest_buffer = std::max(model.highest_buffer, buffer.id);
      });
  // After an error, a crash may restore either contents, so both files are kept.
  if (written.ok()) RemoveContents(previous);
  return written;
}

absl::Status StateStore::DropBuffer(uint64_t id) {
  absl::MutexLock buffers(&buffers_mu_);
  RETURN_IF_ERROR(RetryFailedWrite());
  {
    absl::MutexLock lock(&mu_);
    if (!model_.buffers.contains(id)) return absl::OkStatus();
  }
  std::string previous;
  const absl::Status written =
      WriteExtraRow(absl::StrCat("durable buffer ", id), DeletedBuffer(id), [&](StateModel& model) {
        previous = model.buffers[id].sha256;
        model.buffers.erase(id);
      });
  if (written.ok()) RemoveContents(previous);
  return written;
}

// --- Graphs -------------------------------------------------------------------------

std::vector<StoredGraph> StateStore::graphs() const {
  absl::MutexLock lock(&mu_);
  std::vector<StoredGraph> list;
  for (const auto& [id, graph] : model_.graphs) list.push_back(graph);
  return list;
}

absl::Status StateStore::PutGraph(const StoredGraph& graph, std::string_view content) {
  if (in_memory()) return absl::OkStatus();
  RETURN_IF_ERROR(RetryFailedWrite());
  RETURN_IF_ERROR(LogIfFailed(blobs_->Put(content)).status());
  return WriteExtraRow(absl::StrCat("graph ", graph.id), MakeRow(graph),
                       [&](StateModel& model) { model.graphs[graph.id] = graph; });
}

absl::Status StateStore::DropGraph(const std::string& id) {
  if (in_memory()) return absl::OkStatus();
  RETURN_IF_ERROR(RetryFailedWrite());
  // The next checkpoint or start removes the blob.
  return WriteExtraRow(absl::StrCat("graph ", id), DeletedGraph(id),
                       [&](StateModel& model) { model.graphs.erase(id); });
}

// --- Models -------------------------------------------------------------------------

std::vector<StoredModel> StateStore::models() const {
  absl::MutexLock lock(&mu_);
  std::vector<StoredModel> list;
  for (const auto& [name, model] : model_.models) list.push_back(model);
  return list;
}

absl::Status StateStore::PutModel(const StoredModel& model,
                                  absl::Span<const std::string_view> contents) {
  if (in_memory()) return absl::OkStatus();
  RETURN_IF_ERROR(RetryFailedWrite());
  for (const std::string_view bytes : contents) {
    RETURN_IF_ERROR(LogIfFailed(blobs_->Put(bytes)).status());
  }
  return WriteExtraRow(absl::StrCat("model ", model.name), MakeRow(model),
                       [&](StateModel& state) { state.models[model.name] = model; });
}

absl::Status StateStore::DropModel(const std::string& name) {
  if (in_memory()) return absl::OkStatus();
  RETURN_IF_ERROR(RetryFailedWrite());
  // The next checkpoint or start removes the blobs.
  return WriteExtraRow(absl::StrCat("model ", name), DeletedModel(name),
                       [&](StateModel& state) { state.models.erase(name); });
}

// --- Plans --------------------------------------------------------------------------

PlanTable StateStore::plans() const {
  absl::MutexLock lock(&mu_);
  return model_.plans;
}

absl::Status StateStore::PutPlans(const PlanTable& plans) {
  if (in_memory()) return absl::OkStatus();
  RETURN_IF_ERROR(RetryFailedWrite());
  return WriteExtraRow("the claim", MakeRow(plans),
                       [&](StateModel& model) { model.plans = plans; });
}

}  // namespace resident
