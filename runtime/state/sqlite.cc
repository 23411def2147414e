
#include "runtime/state/sqlite.h"

#include <sqlite3.h>
#include <string.h>

#include "absl/strings/str_cat.h"
#include "runtime/base/status_macros.h"
#include "runtime/state/errors.h"
#include "runtime/state/files.h"

namespace resident {
namespace {

// Limit of a row. Records are much smaller; a damaged length is refused before memory is allocated.
constexpr int kMaxRowBytes = 256 << 20;

}  // namespace

absl::StatusOr<std::unique_ptr<Sqlite>> Sqlite::Open(const std::string& path,
                                                     const Options& options) {
  sqlite3* db = nullptr;
  const int code = sqlite3_open_v2(path.c_str(), &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_EXRESCODE,
                                   options.vfs.empty() ? nullptr : options.vfs.c_str());
  std::unique_ptr<Sqlite> opened(new Sqlite(path, db));
  if (code != SQLITE_OK) return opened->Error(code);
  RETURN_IF_ERROR(opened->Configure(options));
  return opened;
}

absl::Status Sqlite::Configure(const Options& options) {
  // A damaged or forged database must only cause errors: its schema must not run code, its sizes
  // are checked, and it is not mapped, because a truncated file would raise SIGBUS.
  sqlite3_db_config(db_, SQLITE_DBCONFIG_DEFENSIVE, 1, nullptr);
  sqlite3_db_config(db_, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, nullptr);
  sqlite3_db_config(db_, SQLITE_DBCONFIG_ENABLE_TRIGGER, 0, nullptr);
  sqlite3_db_config(db_, SQLITE_DBCONFIG_ENABLE_VIEW, 0, nullptr);
  sqlite3_db_config(db_, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, nullptr);
  sqlite3_limit(db_, SQLITE_LIMIT_LENGTH, kMaxRowBytes);
  absl::Status status = Execute(
      "PRAGMA cell_size_check = ON; PRAGMA mmap_size = 0; PRAGMA locking_mode = EXCLUSIVE; "
      "PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = 0");
  if (status.ok() && options.read_only) status = Execute("PRAGMA query_only = ON");
  return status;
}

Sqlite::~Sqlite() { sqlite3_close(db_); }

absl::Status Sqlite::Error(int code) const {
  const std::string what = absl::StrCat(db_ == nullptr ? "out of memory" : sqlite3_errmsg(db_));
  switch (code & 0xff) {
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
    case SQLITE_TOOBIG:
    case SQLITE_ERROR:  // A table is missing, or has other columns.
      return errors::DatabaseDamaged(path_, what);
    default:
      break;
  }
  const int system = db_ == nullptr ? 0 : sqlite3_system_errno(db_);
  const bool full = (code & 0xff) == SQLITE_FULL;
  return errors::DatabaseUnavailable(
      path_, absl::StrCat(what, system == 0 ? "" : absl::StrCat(" (", strerror(system), ")")),
      full);
}

absl::Status Sqlite::Execute(const std::string& sql) {
  const int code = sqlite3_exec(db_, sql.c_str(), nullptr, nullptr, nullptr);
  return code == SQLITE_OK ? absl::OkStatus() : Error(code);
}

absl::StatusOr<std::string> Sqlite::Text(const std::string& sql) {
  Statement statement(*this, sql);
  ASSIGN_OR_RETURN(const bool row, statement.Step());
  return row ? std::string(statement.Bytes(0)) : std::string();
}

absl::Status Sqlite::Transact(absl::FunctionRef<absl::Status()> work) {
  CrashPoint();
  absl::Status status = Execute("BEGIN IMMEDIATE");
  if (status.ok()) status = work();
  CrashPoint();
  if (status.ok()) status = Execute("COMMIT");
  CrashPoint();
  // After some errors SQLite has already rolled back.
  if (!status.ok() && sqlite3_get_autocommit(db_) == 0) Execute("ROLLBACK").IgnoreError();
  return status;
}

absl::Status Sqlite::Checkpoint() {
  CrashPoint();
  const int code =
      sqlite3_wal_checkpoint_v2(db_, nullptr, SQLITE_CHECKPOINT_TRUNCATE, nullptr, nullptr);
  CrashPoint();
  return code == SQLITE_OK ? absl::OkStatus() : Error(code);
}

Sqlite::Statement::Statement(Sqlite& db, std::string_view sql) : db_(db) {
  Note(sqlite3_prepare_v2(db.db_, sql.data(), static_cast<int>(sql.size()), &statement_, nullptr));
}

Sqlite::Statement::~Statement() { sqlite3_finalize(statement_); }

void Sqlite::Statement::Note(int code) {
  if (code != SQLITE_OK && status_.ok()) status_ = db_.Error(code);
}

Sqlite::Statement& Sqlite::Statement::Bind(int parameter, int64_t value) {
  Note(sqlite3_bind_int64(statement_, parameter, value));
  return *this;
}

Sqlite::Statement& Sqlite::Statement::Bind(int parameter, std::string_view bytes) {
  Note(sqlite3_bind_blob64(statement_, parameter, bytes.data() == nullptr ? "" : bytes.data(),
                           bytes.size(), SQLITE_STATIC));
  return *this;
}

absl::StatusOr<bool> Sqlite::Statement::Step() {
  if (!status_.ok()) return status_;
  const int code = sqlite3_step(statement_);
  if (code == SQLITE_ROW) return true;
  if (code == SQLITE_DONE) return false;
  Note(code);
  return status_;
}

absl::Status Sqlite::Statement::Run() {
  absl::StatusOr<bool> row = Step();
  while (row.ok() && *row) row = Step();
  if (!row.ok()) return row.status();
  sqlite3_reset(statement_);
  return absl::OkStatus();
}

int64_t Sqlite::Statement::Integer(int column) const {
  return sqlite3_column_int64(statement_, column);
}

std::string_view Sqlite::Statement::Bytes(int column) const {
  const void* const bytes = sqlite3_column_blob(statement_, column);
  return {static_cast<const char*>(bytes == nullptr ? "" : bytes),
          static_cast<size_t>(sqlite3_column_bytes(statement_, column))};
}

}  // namespace resident
