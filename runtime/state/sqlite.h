// Sqlite: a connection to an SQLite database, its statements and transactions, with
// absl::Status instead of result codes.
//
// The connection uses a write-ahead log, and a commit that returned OK is on disk (synchronous =
// FULL). It locks the database exclusively, so SQLite needs no shared memory. Only Checkpoint
// copies the log into the database, closing the connection does not: reading a damaged database
// changes nothing.
//
// Errors: DATA_LOSS (the database is damaged; the message contains the path), UNAVAILABLE (the disk
// is full or fails, or another process uses the database).
//
// Thread safety: a connection and its statements may be used by one thread at a time.
//
//   ASSIGN_OR_RETURN(auto db, Sqlite::Open(path, {}));
//   Sqlite::Statement insert(*db, "INSERT INTO t VALUES (?, ?)");
//   RETURN_IF_ERROR(insert.Bind(1, 7).Bind(2, "bytes").Run());
//   RETURN_IF_ERROR(db->Transact([&] { ...several statements...; return absl::OkStatus(); }));
#ifndef RESIDENT_RUNTIME_STATE_SQLITE_H_
#define RESIDENT_RUNTIME_STATE_SQLITE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

struct sqlite3;
struct sqlite3_stmt;

namespace resident {

class Sqlite {
 public:
  struct Options {
    bool read_only = false;
    // A VFS that is registered with SQLite, for tests; empty: the system's.
    std::string vfs = {};
  };
  // Opens an existing database.
  static absl::StatusOr<std::unique_ptr<Sqlite>> Open(const std::string& path,
                                                      const Options& options);
  ~Sqlite();
  Sqlite(const Sqlite&) = delete;
  Sqlite& operator=(const Sqlite&) = delete;

  // Executes statements without parameters and results.
  absl::Status Execute(const std::string& sql);
  // Returns the first column of the first row; empty: there is no row.
  absl::StatusOr<std::string> Text(const std::string& sql);
  // Runs `work` in a transaction. If this returns OK, all of it is on disk; otherwise nothing of it
  // is in the database, unless the error came from the disk and the process ends before a later
  // transaction succeeds.
  absl::Status Transact(absl::FunctionRef<absl::Status()> work);
  // Copies the log into the database, syncs that, and empties the log.
  absl::Status Checkpoint();

  class Statement {
   public:
    // The first call of Step or Run returns an error of the constructor.
    Statement(Sqlite& db, std::string_view sql);
    ~Statement();
    Statement(const Statement&) = delete;
    Statement& operator=(const Statement&) = delete;

    // Parameters count from 1. The bytes must stay valid until the next Run or Step has returned.
    Statement& Bind(int parameter, int64_t value);
    Statement& Bind(int parameter, std::string_view bytes);
    // Runs the statement to its end, and resets it so that it can be bound and run again.
    absl::Status Run();
    // Returns true if there is a row, false at the end.
    absl::StatusOr<bool> Step();
    // Values of the current row; columns count from 0. Bytes are valid until the next Step.
    int64_t Integer(int column) const;
    std::string_view Bytes(int column) const;

   private:
    void Note(int code);

    Sqlite& db_;
    sqlite3_stmt* statement_ = nullptr;
    absl::Status status_;
  };

 private:
  Sqlite(std::string path, sqlite3* db) : path_(std::move(path)), db_(db) {}
  absl::Status Error(int code) const;
  absl::Status Configure(const Options& options);

  const std::string path_;
  sqlite3* const db_;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_STATE_SQLITE_H_
