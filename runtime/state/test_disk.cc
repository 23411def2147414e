#include "runtime/state/test_disk.h"

#include <sqlite3.h>

namespace resident {
namespace {

using Kind = TestDisk::Step::Kind;
using Phase = TestDisk::Step::Phase;

TestDisk* current = nullptr;
sqlite3_vfs vfs;

sqlite3_vfs* System() { return static_cast<sqlite3_vfs*>(vfs.pAppData); }

// In memory, the system's file follows it.
struct File {
  sqlite3_file base;
  const char* path;
  sqlite3_file* system() { return reinterpret_cast<sqlite3_file*>(this + 1); }
};

sqlite3_file* SystemFile(sqlite3_file* file) { return reinterpret_cast<File*>(file)->system(); }

int Call(Kind kind, Phase phase, const char* path) {
  return current->hook == nullptr ? SQLITE_OK : current->hook({kind, phase, path});
}

template <typename Work>
int Around(Kind kind, const char* path, Work work) {
  int code = Call(kind, Phase::kBefore, path);
  if (code == SQLITE_OK) code = work();
  if (code == SQLITE_OK) code = Call(kind, Phase::kAfter, path);
  return code;
}

const char* FilePath(sqlite3_file* file) { return reinterpret_cast<File*>(file)->path; }

int Close(sqlite3_file* file) { return SystemFile(file)->pMethods->xClose(SystemFile(file)); }
int Read(sqlite3_file* file, void* data, int bytes, sqlite3_int64 offset) {
  return SystemFile(file)->pMethods->xRead(SystemFile(file), data, bytes, offset);
}
int Write(sqlite3_file* file, const void* data, int bytes, sqlite3_int64 offset) {
  return Around(Kind::kWrite, FilePath(file), [&] {
    const auto put = [&](int from, int to) {
      return SystemFile(file)->pMethods->xWrite(
          SystemFile(file), static_cast<const char*>(data) + from, to - from, offset + from);
    };
    const int half = bytes / 2;
    int code = half == 0 ? SQLITE_OK : put(0, half);
    if (code == SQLITE_OK) code = Call(Kind::kWrite, Phase::kMiddle, FilePath(file));
    return code == SQLITE_OK ? put(half, bytes) : code;
  });
}
int Truncate(sqlite3_file* file, sqlite3_int64 bytes) {
  return Around(Kind::kTruncate, FilePath(file),
                [&] { return SystemFile(file)->pMethods->xTruncate(SystemFile(file), bytes); });
}
int Sync(sqlite3_file* file, int flags) {
  return Around(Kind::kSync, FilePath(file),
                [&] { return SystemFile(file)->pMethods->xSync(SystemFile(file), flags); });
}
int FileSize(sqlite3_file* file, sqlite3_int64* bytes) {
  return SystemFile(file)->pMethods->xFileSize(SystemFile(file), bytes);
}
int Lock(sqlite3_file* file, int level) {
  return SystemFile(file)->pMethods->xLock(SystemFile(file), level);
}
int Unlock(sqlite3_file* file, int level) {
  return SystemFile(file)->pMethods->xUnlock(SystemFile(file), level);
}
int CheckReservedLock(sqlite3_file* file, int* reserved) {
  return SystemFile(file)->pMethods->xCheckReservedLock(SystemFile(file), reserved);
}
int FileControl(sqlite3_file* file, int operation, void* argument) {
  return SystemFile(file)->pMethods->xFileControl(SystemFile(file), operation, argument);
}
int SectorSize(sqlite3_file* file) {
  return SystemFile(file)->pMethods->xSectorSize(SystemFile(file));
}
int Characteristics(sqlite3_file* file) {
  return SystemFile(file)->pMethods->xDeviceCharacteristics(SystemFile(file));
}

// Version 1 has no shared memory and no mappings.
constexpr sqlite3_io_methods kMethods = {1,
                                         Close,
                                         Read,
                                         Write,
                                         Truncate,
                                         Sync,
                                         FileSize,
                                         Lock,
                                         Unlock,
                                         CheckReservedLock,
                                         FileControl,
                                         SectorSize,
                                         Characteristics,
                                         nullptr,
                                         nullptr,
                                         nullptr,
                                         nullptr,
                                         nullptr,
                                         nullptr};

int Open(sqlite3_vfs*, const char* path, sqlite3_file* file, int flags, int* out_flags) {
  File* const opened = reinterpret_cast<File*>(file);
  opened->base.pMethods = nullptr;
  opened->path = path == nullptr ? "" : path;  // SQLite keeps the string while the file is open.
  const int code = System()->xOpen(System(), path, opened->system(), flags, out_flags);
  if (code == SQLITE_OK) opened->base.pMethods = &kMethods;
  return code;
}
int Delete(sqlite3_vfs*, const char* path, int sync_folder) {
  return Around(Kind::kDelete, path,
                [&] { return System()->xDelete(System(), path, sync_folder); });
}

}  // namespace

TestDisk::TestDisk() {
  current = this;
  sqlite3_vfs* const system = sqlite3_vfs_find(nullptr);
  vfs = *system;
  vfs.pNext = nullptr;
  vfs.zName = kName;
  vfs.pAppData = system;
  vfs.szOsFile = static_cast<int>(sizeof(File)) + system->szOsFile;
  vfs.xOpen = Open;
  vfs.xDelete = Delete;
  sqlite3_vfs_register(&vfs, /*makeDflt=*/0);
}

TestDisk::~TestDisk() {
  sqlite3_vfs_unregister(&vfs);
  current = nullptr;
}

}  // namespace resident
