// The store's process is killed at each step of each write, and the machine goes down.
#include <fcntl.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "runtime/state/crash_point.h"
#include "runtime/state/files.h"
#include "runtime/state/script_for_test.h"
#include "runtime/state/state_store.h"
#include "runtime/state/state_store_for_test.h"
#include "runtime/state/test_disk.h"

namespace resident {
namespace {

constexpr char kScriptArgument[] = "--run_script";

// Bytes of the database's log: all of them on disk once a step is done.
struct LogState {
  int64_t bytes = 0;
  bool syncing = false;  // Not a step that is done: a sync of the log begins.
};

LogState FindLog(const std::string& folder) {
  struct stat found = {};
  (void)stat((folder + "/state.db-wal").c_str(), &found);
  return {.bytes = found.st_size};
}

struct Crash {
  int done = 0;   // Steps that it said were done; -1: it came to the end of the script.
  LogState then;  // When it said so last.
};

// Runs the script in a process that is killed at the given crash point.
Crash RunAndCrash(const std::string& folder, int crash_point, uint64_t checkpoint_bytes) {
  int pipe_fds[2];
  EXPECT_EQ(pipe2(pipe_fds, O_CLOEXEC), 0);
  const std::string point = absl::StrCat("RESIDENTD_CRASH_POINT=", crash_point);
  const pid_t child = fork();
  if (child == 0) {
    dup2(pipe_fds[1], STDOUT_FILENO);
    const std::string checkpoint = absl::StrCat(checkpoint_bytes);
    const char* const arguments[] = {"state_store_crash_test", kScriptArgument, folder.c_str(),
                                     checkpoint.c_str(), nullptr};
    const char* const environment[] = {point.c_str(), nullptr};
    execve("/proc/self/exe", const_cast<char**>(arguments), const_cast<char**>(environment));
    _exit(127);
  }
  close(pipe_fds[1]);
  Crash crash;
  LogState said;
  while (read(pipe_fds[0], &said, sizeof(said)) == sizeof(said)) {
    crash.then.syncing = said.syncing;
    if (said.syncing) continue;
    ++crash.done;
    crash.then = said;
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

class StateStoreCrashTest : public StateStoreTest {
 protected:
  // What the store holds before the script, and after each of its steps.
  std::vector<std::string> StatesOfScript() {
    auto store = Open({.directory = folder_, .checkpoint_bytes = kScriptCheckpointBytes});
    std::vector<std::string> states = {Describe(*store)};
    for (const ScriptStep& step : MakeScript()) {
      EXPECT_TRUE(step(*store).ok());
      states.push_back(Describe(*store));
    }
    return states;
  }
};

// As the test below, and the machine goes down too: what was written and not yet synced is
// gone, or its half is.
TEST_F(StateStoreCrashTest, WhatWasNotSyncedMayBeLostAndNothingElse) {
  const std::vector<std::string> states = StatesOfScript();
  int lost = 0;
  for (int point = 1;; ++point) {
    const std::string folder = MakeTemp();
    const Crash crash = RunAndCrash(folder, point, /*checkpoint_bytes=*/UINT64_MAX);
    if (crash.done < 0) break;
    const LogState now = FindLog(folder);
    if (crash.done > 0 && !crash.then.syncing && now.bytes > crash.then.bytes) {
      for (const off_t bytes : {(crash.then.bytes + now.bytes) / 2, crash.then.bytes}) {
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

TEST_F(StateStoreCrashTest, KilledAtAnyStepOfAnyWriteAStartFindsTheStateBeforeOrAfter) {
  const std::vector<std::string> states = StatesOfScript();
  int points = 0;
  for (int point = 1;; ++point) {
    const std::string folder = MakeTemp();
    const Crash crash = RunAndCrash(folder, point, kScriptCheckpointBytes);
    const int done = crash.done;
    if (done < 0) break;
    ++points;
    SCOPED_TRACE(absl::StrCat("crash point ", point, ", ", done, " steps done"));
    auto store = Open({.directory = folder, .checkpoint_bytes = kScriptCheckpointBytes});
    ASSERT_NE(store, nullptr);
    const std::string found = Describe(*store);
    // A step that was under way happened or did not; one that was done is there.
    if (found != states[done]) {
      ASSERT_LT(static_cast<size_t>(done) + 1, states.size());
      ASSERT_EQ(found, states[done + 1]);
    }
    // And all goes on from there.
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
        EXPECT_EQ(name.find(kDraftEnding), std::string::npos) << sub << "/" << name;
      }
    }
    store.reset();
    std::filesystem::remove_all(folder);
  }
  // Every step of the script has several.
  EXPECT_GT(points, static_cast<int>(3 * MakeScript().size()));
}

}  // namespace

// The child of RunAndCrash: the log to stdout for each step that is done.
int RunScriptIn(const std::string& folder, uint64_t checkpoint_bytes) {
  const auto say = [](LogState log) {
    return write(STDOUT_FILENO, &log, sizeof(log)) == sizeof(log);
  };
  TestDisk disk;
  disk.hook = [&](const TestDisk::Step& step) {
    using Step = TestDisk::Step;
    const bool before = step.phase == Step::Phase::kBefore;
    if (before && step.kind == Step::Kind::kSync && step.path.ends_with("-wal")) {
      say({.syncing = true});
    }
    // After a write is before the next one.
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
    if (!say(FindLog(folder))) return 4;
  }
  return 0;
}

}  // namespace resident

int main(int argc, char** argv) {
  if (argc == 4 && std::string(argv[1]) == resident::kScriptArgument) {
    return resident::RunScriptIn(argv[2], std::stoull(argv[3]));
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
