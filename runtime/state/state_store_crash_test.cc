// The store after its process is killed at each step of each write, also with a loss of unsynced
// data as after a power failure.
#include <fcntl.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"
#include "runtime/state/files.h"
#include "runtime/state/script_for_test.h"
#include "runtime/state/state_check.h"
#include "runtime/state/state_store.h"
#include "runtime/state/state_store_for_test.h"
#include "runtime/state/test_disk.h"

namespace resident {
namespace {

constexpr char kScriptArgument[] = "--run_script";
constexpr char kRepairArgument[] = "--repair";

// A message of the child: after each step of the script, and before each sync of the log.
struct LogState {
  int64_t bytes = 0;     // Size of the database's log; all of it is on disk after a step.
  bool syncing = false;  // A sync of the log begins; no step has ended.
};

LogState FindLog(const std::string& folder) {
  struct stat found = {};
  (void)stat((folder + "/state.db-wal").c_str(), &found);
  return {.bytes = found.st_size};
}

struct Crash {
  int done = 0;   // Number of steps that the child reported; -1: it completed the script.
  LogState last;  // The last report.
};

// Runs this program with two arguments, in a process that is killed at the given crash point.
Crash RunAndCrash(const char* what, const std::string& first, const std::string& second,
                  int crash_point) {
  int pipe_fds[2];
  EXPECT_EQ(pipe2(pipe_fds, O_CLOEXEC), 0);
  const std::string point = absl::StrCat("RESIDENTD_CRASH_POINT=", crash_point);
  const pid_t child = fork();
  if (child == 0) {
    dup2(pipe_fds[1], STDOUT_FILENO);
    const char* const arguments[] = {"state_store_crash_test", what, first.c_str(), second.c_str(),
                                     nullptr};
    const char* const environment[] = {point.c_str(), nullptr};
    execve("/proc/self/exe", const_cast<char**>(arguments), const_cast<char**>(environment));
    _exit(127);
  }
  close(pipe_fds[1]);
  Crash crash;
  LogState report;
  while (read(pipe_fds[0], &report, sizeof(report)) == sizeof(report)) {
    crash.last.syncing = report.syncing;
    if (report.syncing) continue;
    ++crash.done;
    crash.last = report;
  }
  close(pipe_fds[0]);
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  if (WIFEXITED(status)) {
    EXPECT_EQ(WEXITSTATUS(status), 0);
    crash.done = -1;
    return crash;
  }
  EXPECT_EQ(WTERMSIG(status), SIGKILL);
  return crash;
}

Crash RunScriptAndCrash(const std::string& folder, int crash_point, uint64_t checkpoint_bytes) {
  return RunAndCrash(kScriptArgument, folder, absl::StrCat(checkpoint_bytes), crash_point);
}

// Without the buffers: a repair drops those whose contents are damaged.
std::string DescribeOperators(const StateStore& store) {
  std::vector<std::string> lines = absl::StrSplit(Describe(store), '\n');
  std::erase_if(lines, [](const std::string& line) { return line.starts_with("buffer "); });
  return absl::StrJoin(lines, "\n");
}

class StateStoreCrashTest : public StateStoreTest {
 protected:
  // Returns the contents of the store before the script, and after each of its steps.
  std::vector<std::string> ListStatesOfScript() {
    auto store = Open({.directory = folder_, .checkpoint_bytes = kScriptCheckpointBytes});
    std::vector<std::string> states = {Describe(*store)};
    for (const ScriptStep& step : MakeScript()) {
      EXPECT_TRUE(step(*store).ok());
      states.push_back(Describe(*store));
    }
    return states;
  }
  // Calls `check` with copies of the folder, in which a repair was killed at each of its steps.
  void ForEachKilledRepair(const std::function<void(const std::string& folder)>& check) {
    for (int point = 1;; ++point) {
      SCOPED_TRACE(absl::StrCat("crash point ", point));
      const std::string folder = MakeTemp();
      std::filesystem::copy(folder_, folder, std::filesystem::copy_options::recursive);
      const Crash crash = RunAndCrash(kRepairArgument, folder, "", point);
      check(folder);
      std::filesystem::remove_all(folder);
      if (crash.done >= 0) continue;
      EXPECT_GT(point, 20);
      break;
    }
  }
};

// Like the test below, but data that was written and not yet synced is lost, or half of it.
TEST_F(StateStoreCrashTest, OnlyUnsyncedDataMayBeLost) {
  const std::vector<std::string> states = ListStatesOfScript();
  int lost = 0;
  for (int point = 1;; ++point) {
    const std::string folder = MakeTemp();
    const Crash crash = RunScriptAndCrash(folder, point, /*checkpoint_bytes=*/UINT64_MAX);
    if (crash.done < 0) break;
    const LogState now = FindLog(folder);
    if (crash.done > 0 && !crash.last.syncing && now.bytes > crash.last.bytes) {
      for (const off_t bytes : {(crash.last.bytes + now.bytes) / 2, crash.last.bytes}) {
        SCOPED_TRACE(absl::StrCat("crash point ", point, ", ", bytes, " of ", now.bytes));
        const std::string down = MakeTemp();
        std::filesystem::copy(folder, down, std::filesystem::copy_options::recursive);
        ASSERT_EQ(truncate((down + "/state.db-wal").c_str(), bytes), 0);
        auto store = Open({.directory = down});
        ASSERT_NE(store, nullptr);
        EXPECT_EQ(Describe(*store), states[crash.done]);
        store.reset();
        std::filesystem::remove_all(down);
        ++lost;
      }
    }
    std::filesystem::remove_all(folder);
  }
  EXPECT_GT(lost, 2 * static_cast<int>(MakeScript().size()));
}

TEST_F(StateStoreCrashTest, AfterAKillAtAnyStepAStartFindsTheStateBeforeOrAfterTheStep) {
  const std::vector<std::string> states = ListStatesOfScript();
  int points = 0;
  for (int point = 1;; ++point) {
    const std::string folder = MakeTemp();
    const Crash crash = RunScriptAndCrash(folder, point, kScriptCheckpointBytes);
    const int done = crash.done;
    if (done < 0) break;
    ++points;
    SCOPED_TRACE(absl::StrCat("crash point ", point, ", ", done, " steps done"));
    auto store = Open({.directory = folder, .checkpoint_bytes = kScriptCheckpointBytes});
    ASSERT_NE(store, nullptr);
    const std::string found = Describe(*store);
    // The step that was running may have happened or not; all completed steps have happened.
    if (found != states[done]) {
      ASSERT_LT(static_cast<size_t>(done) + 1, states.size());
      ASSERT_EQ(found, states[done + 1]);
    }
    // The store works after that.
    ASSERT_TRUE(store->AppendEvent({.kind = EventKind::kRejected}).ok());
    const uint64_t revision = store->revision();
    store.reset();
    store = Open({.directory = folder});
    EXPECT_TRUE(store->warnings().empty());
    EXPECT_EQ(store->revision(), revision);
    for (const std::string sub : {"", "/blobs", "/buffers"}) {
      const auto names = ListFiles(folder + sub);
      ASSERT_TRUE(names.ok());
      for (const std::string& name : *names) {
        EXPECT_EQ(name.find(kTemporarySuffix), std::string::npos) << sub << "/" << name;
      }
    }
    store.reset();
    std::filesystem::remove_all(folder);
  }
  // Each step of the script has several crash points.
  EXPECT_GT(points, static_cast<int>(3 * MakeScript().size()));
}

// The last transactions are only in the log, and only the contents of a buffer are damaged.
TEST_F(StateStoreCrashTest, ARepairOfABufferThatIsKilledAtAnyStepLosesNoTransaction) {
  auto store = Open();
  RunScript(*store);
  const std::string expected = DescribeOperators(*store);
  LeaveAsKilled(std::move(store));
  Flip(absl::StrCat(folder_, "/buffers/", ListFiles(folder_ + "/buffers")->front()), 3);
  ForEachKilledRepair([&](const std::string& folder) {
    auto found = Open({.directory = folder});
    ASSERT_NE(found, nullptr);
    EXPECT_EQ(DescribeOperators(*found), expected);
  });
}

// Also in front of the damage of the log.
TEST_F(StateStoreCrashTest, ARepairOfTheLogThatIsKilledAtAnyStepLosesNoTransactionBeforeTheDamage) {
  auto store = Open();
  RunScript(*store, 6);
  const std::string expected = DescribeOperators(*store);
  const uint64_t damaged = ReadWholeFile(LogPath())->size();
  ASSERT_TRUE(MakeScript()[6](*store).ok());
  ASSERT_TRUE(MakeScript()[7](*store).ok());
  LeaveAsKilled(std::move(store));
  Flip(LogPath(), damaged + 1000);
  ForEachKilledRepair([&](const std::string& folder) {
    const auto repaired = RepairState(folder);
    ASSERT_TRUE(repaired.ok()) << repaired.status();
    auto found = Open({.directory = folder});
    ASSERT_NE(found, nullptr);
    EXPECT_EQ(DescribeOperators(*found), expected);
  });
}

}  // namespace

// The child of RunScriptAndCrash. It writes its reports to stdout.
int RunScriptIn(const std::string& folder, uint64_t checkpoint_bytes) {
  const auto report = [](LogState log) {
    return write(STDOUT_FILENO, &log, sizeof(log)) == sizeof(log);
  };
  TestDisk disk;
  disk.hook = [&](const TestDisk::Step& step) {
    using Step = TestDisk::Step;
    const bool before = step.phase == Step::Phase::kBefore;
    if (before && step.kind == Step::Kind::kSync && step.path.ends_with("-wal")) {
      report({.syncing = true});
    }
    // The point after a write is the same as the point before the next step.
    if (step.phase ==
        (step.kind == Step::Kind::kWrite ? Step::Phase::kMiddle : Step::Phase::kAfter)) {
      CrashPoint();
    }
    return SQLITE_OK;
  };
  auto store = StateStore::Open(
      {.directory = folder, .checkpoint_bytes = checkpoint_bytes, .vfs = TestDisk::kName});
  if (!store.ok()) return 2;
  for (const ScriptStep& step : MakeScript()) {
    if (!step(**store).ok()) return 3;
    if (!report(FindLog(folder))) return 4;
  }
  return 0;
}

}  // namespace resident

int main(int argc, char** argv) {
  if (argc == 4 && std::string(argv[1]) == resident::kScriptArgument) {
    return resident::RunScriptIn(argv[2], std::stoull(argv[3]));
  }
  if (argc == 4 && std::string(argv[1]) == resident::kRepairArgument) {
    return resident::RepairState(argv[2]).ok() ? 0 : 2;
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
