// The fixture of the state store's tests: a temporary folder in which the script runs.
#ifndef RESIDENT_RUNTIME_STATE_STATE_STORE_FOR_TEST_H_
#define RESIDENT_RUNTIME_STATE_STATE_STORE_FOR_TEST_H_

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/state/files.h"
#include "runtime/state/script_for_test.h"
#include "runtime/state/state_store.h"

namespace resident {

class StateStoreTest : public testing::Test {
 protected:
  StateStoreTest() { folder_ = MakeTemp(); }
  ~StateStoreTest() override { std::filesystem::remove_all(folder_); }

  // Uses a folder in memory if there is one. The tests kill processes, not machines, so a disk
  // would make them slower but not change the results.
  static std::string MakeTemp() {
    std::string folder =
        (access("/dev/shm", W_OK) == 0 ? "/dev/shm" : testing::TempDir()) + "/state_test.XXXXXX";
    EXPECT_NE(mkdtemp(folder.data()), nullptr);
    return folder;
  }
  std::unique_ptr<StateStore> Open() { return Open({.directory = folder_}); }
  static std::unique_ptr<StateStore> Open(const StateStore::Options& options) {
    auto store = StateStore::Open(options);
    EXPECT_TRUE(store.ok()) << store.status();
    return store.ok() ? *std::move(store) : nullptr;
  }
  // Runs the first `steps` of the script.
  void RunScript(StateStore& store, size_t steps = SIZE_MAX) {
    const std::vector<ScriptStep> script = MakeScript();
    for (size_t i = 0; i < std::min(steps, script.size()); ++i) {
      const absl::Status done = script[i](store);
      ASSERT_TRUE(done.ok()) << done << " in step " << i;
    }
  }
  std::string DatabasePath() const { return folder_ + "/state.db"; }
  std::string LogPath() const { return folder_ + "/state.db-wal"; }
  // Replaces the folder by a copy in the state that a kill would leave now. REQUIRES: `store` is
  // still open, because closing it empties the log. It is closed after the copy was made.
  void LeaveAsKilled(std::unique_ptr<StateStore> store) {
    ASSERT_NE(store, nullptr);
    const std::string killed = MakeTemp();
    std::filesystem::copy(folder_, killed, std::filesystem::copy_options::recursive);
    store.reset();
    std::filesystem::remove_all(folder_);
    folder_ = killed;
  }
  static void Flip(const std::string& path, uint64_t byte) {
    std::string bytes = *ReadWholeFile(path);
    ASSERT_LT(byte, bytes.size());
    bytes[byte] = static_cast<char>(bytes[byte] ^ 16);
    ASSERT_TRUE(WriteWholeFile(path, {bytes}).ok());
  }

  std::string folder_;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_STATE_STATE_STORE_FOR_TEST_H_
