#include "runtime/state/state_database.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cassert>
#include <chrono>
#include <iterator>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "resident/internal/state.pb.h"
#include "runtime/base/status_macros.h"
#include "runtime/model/dtype.h"
#include "runtime/model/signature.h"
#include "runtime/state/blob_store.h"
#include "runtime/state/errors.h"
#include "runtime/state/files.h"
#include "runtime/state/wal_check.h"

namespace resident {
namespace {

constexpr char kOperators[] = "operators";
constexpr char kEvents[] = "events";
constexpr char kBuffers[] = "buffers";
constexpr char kFacts[] = "facts";
constexpr const char* kTables[] = {kOperators, kEvents, kBuffers, kFacts};
constexpr char kCounters[] = "counters";
constexpr char kRemovals[] = "removals";
constexpr char kPlans[] = "plans";
constexpr char kGraphPrefix[] = "graph/";
constexpr char kModelPrefix[] = "model/";

std::string DatabasePath(const std::string& folder) { return folder + "/state.db"; }
std::string LogPath(const std::string& folder) { return folder + "/state.db-wal"; }

bool KeyIsNumber(std::string_view table) { return table == kEvents || table == kBuffers; }

std::string TableSql(const char* table) {
  return absl::StrCat("CREATE TABLE ", table, " (key ", KeyIsNumber(table) ? "INTEGER" : "BLOB",
                      " PRIMARY KEY NOT NULL, record BLOB NOT NULL, crc INTEGER NOT NULL)");
}

int64_t Crc(std::string_view table, const std::variant<int64_t, std::string>& key,
            std::string_view record) {
  uLong crc = crc32(0, nullptr, 0);
  const auto add = [&](std::string_view bytes) {
    crc = crc32_z(crc, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size());
  };
  const int64_t* const number = std::get_if<int64_t>(&key);
  const std::string text = number != nullptr ? absl::StrCat(*number) : std::get<std::string>(key);
  add(absl::StrCat(std::string(table), " ", text.size(), " ", text, " "));
  add(record);
  return static_cast<int64_t>(crc);
}

std::string RowName(std::string_view table, const std::variant<int64_t, std::string>& key) {
  const int64_t* const number = std::get_if<int64_t>(&key);
  const std::string text = number != nullptr ? absl::StrCat(*number)
                                             : absl::StrCat("'", std::get<std::string>(key), "'");
  return absl::StrCat("row ", text, " of table ", std::string(table));
}

// --- Records ------------------------------------------------------------------------

void ToProto(const StoredVersion& version, internal::StoredVersion* stored) {
  const VersionSpec& spec = version.spec;
  stored->set_version(version.version);
  stored->set_state(static_cast<uint32_t>(version.state));
  stored->set_in_slot(version.in_slot);
  if (version.slot != kNoSlot) stored->set_slot(version.slot);
  stored->set_kind(static_cast<uint32_t>(spec.kind));
  stored->set_summary(spec.summary);
  stored->set_signature(spec.signature);
  stored->set_split(spec.split);
  stored->set_content_hash(spec.content_hash);
  stored->set_installed_by(spec.installed_by);
  stored->set_installed_ms(spec.installed_ms);
  stored->set_task_time_limit_ms(spec.task_time_limit.count());
  stored->set_scratch_bytes(spec.scratch_bytes);
  stored->set_allow_spills(spec.allow_spills);
  stored->set_isolation(static_cast<uint32_t>(spec.isolation));
  stored->set_isolation_reason(spec.isolation_reason);
  stored->set_native_off(spec.native_off);
  stored->set_label(version.label);
  stored->set_set(spec.set);
  stored->set_quarantine_reason(version.quarantine_reason);
  stored->set_body(version.content.body);
  for (const auto& [name, sha256] : version.content.blobs) {
    internal::StoredVersion::Blob* const blob = stored->add_blobs();
    blob->set_name(name);
    blob->set_sha256(sha256);
  }
}

template <typename Enum>
bool IsBetween(uint32_t value, Enum first, Enum last) {
  return value >= static_cast<uint32_t>(first) && value <= static_cast<uint32_t>(last);
}

bool IsShare(double percent) { return percent >= 0 && percent <= 100; }

// nullopt: a value is out of range.
std::optional<StoredVersion> FromProto(const internal::StoredVersion& stored) {
  if (!IsBetween(stored.state(), VersionState::kSubmitted, VersionState::kRejected) ||
      !IsBetween(stored.kind(), OperatorKind::kSource, OperatorKind::kBytecode) ||
      !IsBetween(stored.isolation(), Isolation::kUnspecified, Isolation::kConfined) ||
      stored.task_time_limit_ms() < 0 || stored.task_time_limit_ms() > UINT32_MAX) {
    return std::nullopt;
  }
  StoredVersion version;
  version.version = stored.version();
  version.state = static_cast<VersionState>(stored.state());
  version.in_slot = stored.in_slot();
  version.slot = stored.has_slot() ? stored.slot() : kNoSlot;
  version.spec.kind = static_cast<OperatorKind>(stored.kind());
  version.spec.summary = stored.summary();
  version.spec.signature = stored.signature();
  version.spec.split = stored.split();
  version.spec.content_hash = stored.content_hash();
  version.spec.installed_by = stored.installed_by();
  version.spec.installed_ms = stored.installed_ms();
  version.spec.task_time_limit = std::chrono::milliseconds(stored.task_time_limit_ms());
  version.spec.scratch_bytes = stored.scratch_bytes();
  version.spec.allow_spills = stored.allow_spills();
  version.spec.isolation = static_cast<Isolation>(stored.isolation());
  version.spec.isolation_reason = stored.isolation_reason();
  version.spec.native_off = stored.native_off();
  version.content.body = stored.body();
  for (const auto& blob : stored.blobs()) version.content.blobs[blob.name()] = blob.sha256();
  version.quarantine_reason = stored.quarantine_reason();
  version.label = stored.label();
  version.spec.set = stored.set();
  return version;
}

bool ReadOperator(const std::string& name, const std::string& record, StateModel* model) {
  internal::StoredOperator stored;
  if (!stored.ParseFromString(record) || !IsShare(stored.traffic_percent()) ||
      !IsShare(stored.shadow_percent())) {
    return false;
  }
  StoredOperator op;
  op.name = name;
  op.revision = stored.revision();
  op.last_version = stored.last_version();
  op.trial_version = stored.trial_version();
  op.traffic_percent = stored.traffic_percent();
  op.shadow_percent = stored.shadow_percent();
  for (const auto& stored_version : stored.versions()) {
    std::optional<StoredVersion> version = FromProto(stored_version);
    if (!version.has_value()) return false;
    op.versions.push_back(*std::move(version));
  }
  model->operators[name] = std::move(op);
  return true;
}

bool ReadEvent(int64_t revision, const std::string& record, StateModel* model) {
  internal::StoredEvent stored;
  if (!stored.ParseFromString(record) ||
      !IsBetween(stored.kind(), EventKind::kInstalled, EventKind::kRegressed)) {
    return false;
  }
  OperatorEvent event;
  event.revision = static_cast<uint64_t>(revision);
  event.time_ms = stored.time_ms();
  event.kind = static_cast<EventKind>(stored.kind());
  event.operator_name = stored.operator_();
  event.version = stored.version();
  event.actor = stored.actor();
  event.content_hash = stored.content_hash();
  event.message = stored.message();
  event.generation = stored.generation();
  event.plan = stored.plan();
  event.set = stored.set();
  model->events.push_back(std::make_shared<const OperatorEvent>(std::move(event)));
  return true;
}

bool ReadBuffer(int64_t id, const std::string& record, StateModel* model) {
  internal::StoredBuffer stored;
  if (!stored.ParseFromString(record)) return false;
  if (stored.dtype() > INT32_MAX || stored.shape_size() > static_cast<int>(kMaxRank)) return false;
  const DTypeInfo* const dtype = FindDType(static_cast<int>(stored.dtype()));
  const std::optional<int64_t> elements = ElementCount(stored.shape());
  if (dtype == nullptr || !elements.has_value() || stored.size_bytes() % dtype->size_bytes() != 0 ||
      stored.size_bytes() / dtype->size_bytes() != static_cast<uint64_t>(*elements)) {
    return false;
  }
  StoredBuffer& buffer = model->buffers[static_cast<uint64_t>(id)];
  buffer.id = static_cast<uint64_t>(id);
  buffer.name = stored.name();
  buffer.device = stored.device();
  buffer.dtype = stored.dtype();
  buffer.shape = {stored.shape().begin(), stored.shape().end()};
  buffer.size_bytes = stored.size_bytes();
  buffer.sha256 = stored.sha256();
  return true;
}

bool ReadGraph(const std::string& id, const std::string& record, StateModel* model) {
  internal::StoredGraph stored;
  if (!IsSha256(id) || !stored.ParseFromString(record) || stored.holders().empty()) return false;
  StoredGraph& graph = model->graphs[id];
  graph.id = id;
  for (const auto& holder : stored.holders()) {
    graph.holders.push_back({holder.name(), holder.loaded_ms()});
  }
  return true;
}

bool ReadModel(const std::string& name, const std::string& record, StateModel* state) {
  internal::StoredModel stored;
  if (name.empty() || !stored.ParseFromString(record) || stored.versions().empty()) return false;
  StoredModel& model = state->models[name];
  model.name = name;
  model.revision = stored.revision();
  model.last_version = stored.last_version();
  model.active = stored.active();
  model.previous = stored.previous();
  model.share_version = stored.share_version();
  model.share_percent = stored.share_percent();
  for (const auto& from : stored.versions()) {
    if (!IsSha256(from.content_hash()) || !IsSha256(from.graph_sha256())) return false;
    StoredModel::Version& version = model.versions.emplace_back();
    version.version = from.version();
    version.content_hash = from.content_hash();
    version.graph_sha256 = from.graph_sha256();
    version.device = from.device();
    version.instances = from.instances();
    version.max_combined_rows = from.max_combined_rows();
    version.loaded_ms = from.loaded_ms();
    version.loaded_by = from.loaded_by();
    version.plan_rules = from.plan_rules();
    version.source_sha256 = from.source_sha256();
    const bool has_plans = !version.plan_rules.empty();
    if (has_plans ? !IsSha256(version.source_sha256) : !version.source_sha256.empty()) return false;
    for (const auto& weight : from.weights()) {
      if (!IsSha256(weight.sha256())) return false;
      version.weights.push_back({weight.tensor(), weight.sha256()});
    }
  }
  return true;
}

bool ReadPlans(const std::string& record, PlanTable* plans) {
  internal::StoredPlans stored;
  if (!stored.ParseFromString(record)) return false;
  for (const auto& from : stored.plans()) {
    if (!IsBetween(from.state(), PlanState::kRunning, PlanState::kDone)) return false;
    PlanRecord& plan = plans->plans.emplace_back();
    plan.plan = from.plan();
    plan.set = from.set();
    plan.state = static_cast<PlanState>(from.state());
    plan.holder = from.holder();
    plan.claimed_ms = from.claimed_ms();
    for (const auto& before : from.before()) {
      plan.before.emplace_back(before.name(), before.content_hash());
    }
  }
  plans->lease = stored.lease();
  plans->claimed = stored.claimed();
  plans->ttl = std::chrono::milliseconds(stored.ttl_ms());
  const internal::StoredPlans::Folder& folder = stored.folder();
  plans->folder = {.digest = folder.digest(),
                   .plan = folder.plan(),
                   .set = folder.set(),
                   .applied = folder.applied(),
                   .during = folder.during(),
                   .superseded_by = folder.superseded_by(),
                   .superseded_ms = folder.superseded_ms()};
  return true;
}

bool ReadFact(const std::string& name, const std::string& record, StateModel* model,
              uint64_t* transactions) {
  if (name == kCounters) {
    internal::StoredCounters stored;
    if (!stored.ParseFromString(record)) return false;
    model->revision = stored.revision();
    model->generation = stored.generation();
    model->highest_buffer = stored.highest_buffer();
    model->node_id = stored.node_id();
    *transactions = stored.transactions();
    return true;
  }
  if (absl::StartsWith(name, kGraphPrefix)) {
    return ReadGraph(name.substr(sizeof(kGraphPrefix) - 1), record, model);
  }
  if (absl::StartsWith(name, kModelPrefix)) {
    return ReadModel(name.substr(sizeof(kModelPrefix) - 1), record, model);
  }
  if (name == kPlans) return ReadPlans(record, &model->plans);
  internal::StoredRemovals stored;
  if (name != kRemovals || !stored.ParseFromString(record)) return false;
  for (const auto& removal : stored.removals()) {
    model->removed.push_back({removal.name(), removal.last_version()});
  }
  return true;
}

// Derives missing counters from the remaining rows, so that the model is consistent.
void Complete(StateModel* model) {
  for (const auto& [name, op] : model->operators) {
    model->revision = std::max(model->revision, op.revision);
  }
  if (!model->events.empty()) {
    model->revision = std::max(model->revision, model->events.back()->revision);
  }
  for (const auto& event : model->events) {
    model->generation = std::max(model->generation, event->generation);
  }
  if (!model->buffers.empty()) {
    model->highest_buffer = std::max(model->highest_buffer, model->buffers.rbegin()->first);
  }
  // Events must end at `revision`, without gaps.
  auto first = model->events.end();
  for (uint64_t next = model->revision;
       first != model->events.begin() && (*std::prev(first))->revision == next; --next) {
    --first;
  }
  model->events.erase(model->events.begin(), first);
}

bool EventsAreContiguous(const StateModel& model) {
  uint64_t revision = model.first_revision();
  return std::all_of(model.events.begin(), model.events.end(),
                     [&](const auto& event) { return event->revision == revision++; });
}

absl::Status WriteRow(Sqlite& db, const StateRow& row) {
  const bool deletes = !row.record.has_value();
  Sqlite::Statement statement(
      db, deletes ? absl::StrCat("DELETE FROM ", row.table, " WHERE key = ?")
                  : absl::StrCat("INSERT OR REPLACE INTO ", row.table, " VALUES (?, ?, ?)"));
  if (const int64_t* const number = std::get_if<int64_t>(&row.key)) {
    statement.Bind(1, *number);
  } else {
    statement.Bind(1, std::string_view(std::get<std::string>(row.key)));
  }
  if (!deletes) statement.Bind(2, *row.record).Bind(3, Crc(row.table, row.key, *row.record));
  return statement.Run();
}

StateRow CountersRow(const StateModel& model, uint64_t transactions) {
  internal::StoredCounters stored;
  stored.set_revision(model.revision);
  stored.set_generation(model.generation);
  stored.set_highest_buffer(model.highest_buffer);
  stored.set_transactions(transactions);
  stored.set_node_id(model.node_id);
  return {kFacts, kCounters, stored.SerializeAsString()};
}

absl::Status WriteAll(Sqlite& db, const StateModel& model) {
  absl::Status status = WriteRow(db, CountersRow(model, 1));
  if (status.ok()) status = WriteRow(db, RemovalsRow(model));
  for (const auto& [name, op] : model.operators) {
    if (status.ok()) status = WriteRow(db, MakeRow(op));
  }
  for (const auto& [id, buffer] : model.buffers) {
    if (status.ok()) status = WriteRow(db, MakeRow(buffer));
  }
  for (const auto& [id, graph] : model.graphs) {
    if (status.ok()) status = WriteRow(db, MakeRow(graph));
  }
  for (const auto& [name, each] : model.models) {
    if (status.ok()) status = WriteRow(db, MakeRow(each));
  }
  const bool plans = !model.plans.plans.empty() || !model.plans.folder.digest.empty();
  if (status.ok() && plans) status = WriteRow(db, MakeRow(model.plans));
  for (const auto& event : model.events) {
    if (status.ok()) status = WriteRow(db, MakeRow(*event));
  }
  return status;
}

// Copies the log of the folder's database into the database, as far as it can be read.
absl::Status EmptyLog(const std::string& folder) {
  absl::Status status;
  if (access(DatabasePath(folder).c_str(), F_OK) == 0) {
    absl::StatusOr<std::unique_ptr<Sqlite>> db = Sqlite::Open(DatabasePath(folder), {});
    status = db.status();
    // SQLite opens the log when it reads the database.
    if (status.ok()) status = (*db)->Text("PRAGMA user_version").status();
    if (status.ok()) status = (*db)->Checkpoint();
  }
  return absl::IsDataLoss(status) ? absl::OkStatus() : status;
}

}  // namespace

StateRow MakeRow(const StoredOperator& op) {
  internal::StoredOperator stored;
  stored.set_revision(op.revision);
  stored.set_last_version(op.last_version);
  stored.set_trial_version(op.trial_version);
  stored.set_traffic_percent(op.traffic_percent);
  stored.set_shadow_percent(op.shadow_percent);
  for (const StoredVersion& version : op.versions) ToProto(version, stored.add_versions());
  return {kOperators, op.name, stored.SerializeAsString()};
}

StateRow MakeRow(const OperatorEvent& event) {
  internal::StoredEvent stored;
  stored.set_time_ms(event.time_ms);
  stored.set_kind(static_cast<uint32_t>(event.kind));
  stored.set_operator_(event.operator_name);
  stored.set_version(event.version);
  stored.set_actor(event.actor);
  stored.set_content_hash(event.content_hash);
  stored.set_message(event.message);
  stored.set_generation(event.generation);
  stored.set_plan(event.plan);
  stored.set_set(event.set);
  return {kEvents, static_cast<int64_t>(event.revision), stored.SerializeAsString()};
}

StateRow MakeRow(const StoredBuffer& buffer) {
  internal::StoredBuffer stored;
  stored.set_name(buffer.name);
  stored.set_device(buffer.device);
  stored.set_dtype(buffer.dtype);
  for (const int64_t dim : buffer.shape) stored.add_shape(dim);
  stored.set_size_bytes(buffer.size_bytes);
  stored.set_sha256(buffer.sha256);
  return {kBuffers, static_cast<int64_t>(buffer.id), stored.SerializeAsString()};
}

StateRow MakeRow(const StoredGraph& graph) {
  internal::StoredGraph stored;
  for (const StoredGraph::Holder& holder : graph.holders) {
    internal::StoredGraph::Holder* const added = stored.add_holders();
    added->set_name(holder.name);
    added->set_loaded_ms(holder.loaded_ms);
  }
  return {kFacts, kGraphPrefix + graph.id, stored.SerializeAsString()};
}

StateRow MakeRow(const StoredModel& model) {
  internal::StoredModel stored;
  stored.set_revision(model.revision);
  stored.set_last_version(model.last_version);
  stored.set_active(model.active);
  stored.set_previous(model.previous);
  stored.set_share_version(model.share_version);
  stored.set_share_percent(model.share_percent);
  for (const StoredModel::Version& version : model.versions) {
    internal::StoredModel::Version* const added = stored.add_versions();
    added->set_version(version.version);
    added->set_content_hash(version.content_hash);
    added->set_graph_sha256(version.graph_sha256);
    added->set_device(version.device);
    added->set_instances(version.instances);
    added->set_max_combined_rows(version.max_combined_rows);
    added->set_loaded_ms(version.loaded_ms);
    added->set_loaded_by(version.loaded_by);
    added->set_plan_rules(version.plan_rules);
    added->set_source_sha256(version.source_sha256);
    for (const StoredModel::Weight& weight : version.weights) {
      internal::StoredModel::Weight* const to = added->add_weights();
      to->set_tensor(weight.tensor);
      to->set_sha256(weight.sha256);
    }
  }
  return {kFacts, kModelPrefix + model.name, stored.SerializeAsString()};
}

StateRow MakeRow(const PlanTable& plans) {
  internal::StoredPlans stored;
  for (const PlanRecord& plan : plans.plans) {
    internal::StoredPlans::Plan* const added = stored.add_plans();
    added->set_plan(plan.plan);
    added->set_set(plan.set);
    added->set_state(static_cast<uint32_t>(plan.state));
    added->set_holder(plan.holder);
    added->set_claimed_ms(plan.claimed_ms);
    for (const auto& [name, content_hash] : plan.before) {
      internal::StoredPlans::Before* const before = added->add_before();
      before->set_name(name);
      before->set_content_hash(content_hash);
    }
  }
  stored.set_lease(plans.lease);
  stored.set_claimed(plans.claimed);
  stored.set_ttl_ms(static_cast<uint32_t>(plans.ttl.count()));
  if (!plans.folder.digest.empty()) {
    internal::StoredPlans::Folder& folder = *stored.mutable_folder();
    folder.set_digest(plans.folder.digest);
    folder.set_plan(plans.folder.plan);
    folder.set_set(plans.folder.set);
    folder.set_applied(plans.folder.applied);
    folder.set_during(plans.folder.during);
    folder.set_superseded_by(plans.folder.superseded_by);
    folder.set_superseded_ms(plans.folder.superseded_ms);
  }
  return {kFacts, kPlans, stored.SerializeAsString()};
}

StateRow RemovalsRow(const StateModel& model) {
  internal::StoredRemovals stored;
  for (const StoredRemoval& removal : model.removed) {
    internal::StoredRemovals::Removal* const added = stored.add_removals();
    added->set_name(removal.name);
    added->set_last_version(removal.last_version);
  }
  return {kFacts, kRemovals, stored.SerializeAsString()};
}

StateRow DeletedOperator(const std::string& name) { return {kOperators, name, std::nullopt}; }
StateRow DeletedBuffer(uint64_t id) { return {kBuffers, static_cast<int64_t>(id), std::nullopt}; }
StateRow DeletedGraph(const std::string& id) { return {kFacts, kGraphPrefix + id, std::nullopt}; }
StateRow DeletedModel(const std::string& name) {
  return {kFacts, kModelPrefix + name, std::nullopt};
}

StateDatabase::StateDatabase(std::string folder, std::unique_ptr<Sqlite> db)
    : folder_(std::move(folder)), path_(DatabasePath(folder_)), db_(std::move(db)) {}

absl::StatusOr<bool> StateDatabase::Exists(const std::string& folder) {
  if (access(DatabasePath(folder).c_str(), F_OK) == 0) return true;
  if (access((folder + "/journal").c_str(), F_OK) == 0) return errors::OlderStateFolder(folder);
  struct stat log = {};
  if (stat(LogPath(folder).c_str(), &log) == 0 && log.st_size > 0) {
    // SQLite would remove the log, and the last changes with it.
    return errors::DatabaseMissing(DatabasePath(folder), LogPath(folder));
  }
  return false;
}

absl::Status StateDatabase::Create(const std::string& folder, const StateModel& model) {
  const std::string path = DatabasePath(folder);
  const std::string temporary = path + kTemporarySuffix;
  // SQLite accepts an empty file as a new database. Creating it here makes it accessible only to
  // its owner.
  absl::Status status = RemoveFile(temporary + "-journal");
  if (status.ok()) status = RemoveFile(temporary + "-wal");
  if (status.ok()) status = WriteWholeFile(temporary, {});
  if (!status.ok()) return status;
  {
    ASSIGN_OR_RETURN(std::unique_ptr<Sqlite> db, Sqlite::Open(temporary, {}));
    std::string schema;
    for (const char* table : kTables) absl::StrAppend(&schema, TableSql(table), "; ");
    status = db->Transact([&]() -> absl::Status {
      absl::Status made =
          db->Execute(absl::StrCat(schema, "PRAGMA user_version = ", kStateVersion));
      return made.ok() ? WriteAll(*db, model) : made;
    });
    if (status.ok()) status = db->Execute("PRAGMA journal_mode = WAL");
    if (status.ok()) status = db->Checkpoint();
  }
  (void)unlink((temporary + "-wal").c_str());
  (void)unlink((temporary + "-journal").c_str());
  // SQLite would apply the log of an old database to the new one. Without its log, the old one
  // would lack the last transactions after a crash before the rename.
  if (status.ok()) status = EmptyLog(folder);
  if (status.ok()) status = RemoveFile(LogPath(folder));
  if (status.ok()) status = SyncFolder(folder);
  if (status.ok()) status = RenameFile(temporary, path);
  if (!status.ok()) unlink(temporary.c_str());
  return status;
}

absl::StatusOr<std::unique_ptr<StateDatabase>> StateDatabase::Open(const std::string& folder,
                                                                   const Options& options) {
  const std::string path = DatabasePath(folder);
  assert(access(path.c_str(), F_OK) == 0);
  ASSIGN_OR_RETURN(const WalCheck log, CheckWal(LogPath(folder)));
  ASSIGN_OR_RETURN(std::unique_ptr<Sqlite> db,
                   Sqlite::Open(path, {.read_only = options.read_only, .vfs = options.vfs}));
  std::unique_ptr<StateDatabase> database(new StateDatabase(folder, std::move(db)));
  ASSIGN_OR_RETURN(const std::string version, database->db_->Text("PRAGMA user_version"));
  // An empty file has version 0. SQLite treats it as a new database, but here it is a damaged one.
  if (version == "0") return errors::DatabaseDamaged(path, "it is empty, or not a state database");
  if (version != absl::StrCat(kStateVersion)) {
    return errors::OtherStateVersion(folder, version, kStateVersion);
  }
  if (log.end == WalCheck::End::kTorn) database->torn_bytes_ = log.file_bytes - log.good_bytes;
  return database;
}

absl::Status StateDatabase::CheckStructure() {
  ASSIGN_OR_RETURN(const WalCheck log, CheckWal(LogPath(folder_)));
  if (log.end == WalCheck::End::kDamaged) {
    return errors::DatabaseDamaged(
        LogPath(folder_), absl::StrCat("a transaction at offset ", log.good_bytes,
                                       " has a wrong checksum, and other transactions follow it"));
  }
  ASSIGN_OR_RETURN(const std::string sound, db_->Text("PRAGMA integrity_check(1)"));
  if (sound != "ok") return errors::DatabaseDamaged(path_, sound);
  Sqlite::Statement schema(*db_, "SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL");
  size_t tables = 0;
  absl::StatusOr<bool> row = schema.Step();
  for (; row.ok() && *row; row = schema.Step(), ++tables) {
    const std::string name(schema.Bytes(0));
    if (std::none_of(std::begin(kTables), std::end(kTables), [&](const char* table) {
          return name == table && schema.Bytes(1) == TableSql(table);
        })) {
      return errors::DatabaseDamaged(path_, absl::StrCat("it has an unknown table '", name, "'"));
    }
  }
  if (!row.ok()) return row.status();
  if (tables != std::size(kTables)) return errors::DatabaseDamaged(path_, "a table is missing");
  return absl::OkStatus();
}

absl::Status StateDatabase::ReadTable(const char* table, StateModel* model,
                                      std::vector<std::string>* problems) {
  Sqlite::Statement rows(*db_, absl::StrCat("SELECT key, record, crc FROM ", table,
                                            KeyIsNumber(table) ? " ORDER BY key" : ""));
  while (true) {
    ASSIGN_OR_RETURN(const bool row, rows.Step());
    if (!row) return absl::OkStatus();
    std::variant<int64_t, std::string> key = rows.Integer(0);
    if (!KeyIsNumber(table)) key = std::string(rows.Bytes(0));
    const std::string record(rows.Bytes(1));
    const bool intact = rows.Integer(2) == Crc(table, key, record);
    bool good = intact;
    if (good && table == kOperators) good = ReadOperator(std::get<1>(key), record, model);
    if (good && table == kEvents) good = ReadEvent(std::get<0>(key), record, model);
    if (good && table == kBuffers) good = ReadBuffer(std::get<0>(key), record, model);
    if (good && table == kFacts) {
      good = ReadFact(std::get<1>(key), record, model, &transactions_);
    }
    if (good) continue;
    const std::string what = absl::StrCat(
        RowName(table, key), intact ? " has an invalid value" : " has a wrong checksum");
    if (problems == nullptr) return errors::DatabaseDamaged(path_, what);
    problems->push_back(absl::StrCat(path_, ": ", what));
  }
}

absl::Status StateDatabase::Read(StateModel* model, std::vector<std::string>* problems) {
  const auto note = [&](const absl::Status& status) {
    if (problems == nullptr || !absl::IsDataLoss(status)) return status;
    problems->push_back(std::string(status.message().substr(0, status.message().find(". Fix:"))));
    return absl::OkStatus();
  };
  absl::Status status = note(CheckStructure());
  for (const char* table : kTables) {
    if (status.ok()) status = note(ReadTable(table, model, problems));
  }
  if (!status.ok()) return status;
  if (problems != nullptr && !problems->empty()) {
    Complete(model);
  } else if (!EventsAreContiguous(*model)) {
    status = note(errors::DatabaseDamaged(path_, "its events do not end at its last revision"));
    Complete(model);
  }
  return status;
}

absl::Status StateDatabase::Write(const std::vector<StateRow>& rows, const StateModel& counters,
                                  uint64_t first_event) {
  return db_->Transact([&]() -> absl::Status {
    absl::Status status = WriteRow(*db_, CountersRow(counters, ++transactions_));
    for (const StateRow& row : rows) {
      if (status.ok()) status = WriteRow(*db_, row);
    }
    if (!status.ok()) return status;
    Sqlite::Statement drop_events(*db_, "DELETE FROM events WHERE key < ?");
    return drop_events.Bind(1, static_cast<int64_t>(first_event)).Run();
  });
}

uint64_t StateDatabase::log_bytes() const {
  struct stat log = {};
  return stat(LogPath(folder_).c_str(), &log) == 0 ? static_cast<uint64_t>(log.st_size) : 0;
}

}  // namespace resident
