// TestDisk: a VFS for SQLite that calls a test's hook before and after each step that changes the
// disk, and in the middle of each write. Everything else is done by the system's VFS.
//
// Only for databases with an exclusive lock, because it has no shared memory.
//
// Thread safety: the hook may be changed while no database is in use.
//
//   TestDisk disk;
//   disk.hook = [](const TestDisk::Step& step) { return SQLITE_OK; };  // Or the disk's error.
//   StateStore::Open({.directory = folder, .vfs = TestDisk::kName});
#ifndef RESIDENT_RUNTIME_STATE_TEST_DISK_H_
#define RESIDENT_RUNTIME_STATE_TEST_DISK_H_

#include <functional>
#include <string>

namespace resident {

class TestDisk {
 public:
  static constexpr char kName[] = "test";

  struct Step {
    enum class Kind { kWrite, kSync, kTruncate, kDelete };
    enum class Phase { kBefore, kMiddle, kAfter };
    Kind kind;
    Phase phase;
    std::string path;
  };
  // If the hook returns an error, the step returns it too. Before the step, the step is then
  // skipped.
  std::function<int(const Step& step)> hook;

  // There may be one object at a time.
  TestDisk();
  ~TestDisk();
  TestDisk(const TestDisk&) = delete;
  TestDisk& operator=(const TestDisk&) = delete;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_STATE_TEST_DISK_H_
