// The store's process is killed at each step of each write, and the machine goes down.
#include <fcntl.h>
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
#include "runtime/state/files.h"
#include "runtime/state/script_for_test.h"
#include "runtime/state/state_store.h"
#include "runtime/state/state_store_for_test.h"

namespace resident {
namespace {

constexpr char kScriptArgument[] = "--run_script";

// The file that the journal is in, and its bytes: all of them on disk once a step is done.
struct JournalFile {
  ino_t inode = 0;
  off_t bytes = 0;
  bool syncing = false;  // Not a step that is done: one's sync begins.
};

JournalFile FindJournal(const std::string& folder) {
  struct stat found = {};
  (void)stat((folder + "/journal").c_str(), &found);
  return {found.st_ino, found.st_size, false};
}

struct Crash {
  int done = 0;      // Steps that it said were done; -1: it came to the end of the script.
  JournalFile then;  // When it said so last.
};

// Runs the script in a process that is killed at the given crash point.
Crash RunAndCrash(const std::string& folder, int crash_point) {
  int pipe_fds[2];
  EXPECT_EQ(pipe2(pipe_fds, O_CLOEXEC), 0);
  const std::string point = absl::StrCat("RESIDENTD_CRASH_POINT=", crash_point);
  const pid_t child = fork();
  if (child == 0) {
    dup2(pipe_fds[1], STDOUT_FILENO);
    const char* const arguments[] = {"state_store_crash_test", kScriptArgument, folder.c_str(),
                                     nullptr};
    const char* const environment[] = {point.c_str(), nullptr};
    execve("/proc/self/exe", const_cast<char**>(arguments), const_cast<char**>(environment));
    _exit(127);
  }
  close(pipe_fds[1]);
  Crash crash;
  JournalFile said;
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
    auto store = Open({.directory = folder_, .compact_bytes = kScriptCompactBytes});
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
    const Crash crash = RunAndCrash(folder, point);
    if (crash.done < 0) break;
    const JournalFile now = FindJournal(folder);
    // Behind a compaction the snapshot is synced, and all that was done is in it.
    if (crash.done > 0 && !crash.then.syncing && now.inode == crash.then.inode &&
        now.bytes > crash.then.bytes) {
      const std::string path = folder + "/journal";
      for (const off_t bytes : {(crash.then.bytes + now.bytes) / 2, crash.then.bytes}) {
        SCOPED_TRACE(absl::StrCat("crash point ", point, ", ", bytes, " of ", now.bytes));
        ASSERT_EQ(truncate(path.c_str(), bytes), 0);
        auto store = Open({.directory = folder});
        ASSERT_NE(store, nullptr);
        EXPECT_EQ(Describe(*store), states[crash.done]);
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
    const Crash crash = RunAndCrash(folder, point);
    const int done = crash.done;
    if (done < 0) break;
    ++points;
    SCOPED_TRACE(absl::StrCat("crash point ", point, ", ", done, " steps done"));
    auto store = Open({.directory = folder, .compact_bytes = kScriptCompactBytes});
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

// The child of RunAndCrash: the journal to stdout for each step that is done.
int RunScriptIn(const std::string& folder) {
  const auto say = [](JournalFile file) {
    return write(STDOUT_FILENO, &file, sizeof(file)) == sizeof(file);
  };
  const auto before_sync = [&](const std::string& path) {
    if (path.ends_with("/journal")) say({.syncing = true});
    return absl::OkStatus();
  };
  auto store = StateStore::Open(
      {.directory = folder, .compact_bytes = kScriptCompactBytes, .before_sync = before_sync});
  if (!store.ok()) return 2;
  for (const ScriptStep& step : MakeScript()) {
    if (!step(**store).ok()) return 3;
    if (!say(FindJournal(folder))) return 4;
  }
  return 0;
}

}  // namespace resident

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == resident::kScriptArgument) {
    return resident::RunScriptIn(argv[2]);
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
