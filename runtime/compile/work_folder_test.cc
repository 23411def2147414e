#include "runtime/compile/work_folder.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "tests/support/temp_folder.h"

namespace resident {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMostBytes = 1 << 20;
constexpr uint64_t kMostEntries = 20;

class WorkFolderTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(fs::create_directory(folder_)); }
  bool IsOver() const { return IsFolderOver(folder_, kMostBytes, kMostEntries); }
  void WriteFile(const std::string& name, size_t bytes) const {
    std::ofstream(folder_ + "/" + name) << std::string(bytes, 'x');
  }

  // Another user cannot reach Bazel's.
  const testing::TempFolder parent_{"resident-work", "/tmp"};
  const std::string folder_ = parent_.path() + "/work";
};

// Root may read every folder: this is another user, until the object's end.
class OtherUser {
 public:
  OtherUser() { EXPECT_EQ(seteuid(65534), 0); }
  ~OtherUser() { EXPECT_EQ(seteuid(0), 0); }
};

TEST_F(WorkFolderTest, FilesOfAllFoldersCount) {
  fs::create_directories(folder_ + "/a/b");
  WriteFile("a/b/small", 1000);
  EXPECT_FALSE(IsOver());
  WriteFile("a/b/large", kMostBytes);
  EXPECT_TRUE(IsOver());
  fs::remove(folder_ + "/a/b/large");
  EXPECT_FALSE(IsOver());
  for (uint64_t i = 0; i < kMostEntries; ++i) WriteFile(std::to_string(i), 0);
  EXPECT_TRUE(IsOver());
  RemoveFolder(folder_);
  EXPECT_FALSE(fs::exists(folder_));
}

TEST_F(WorkFolderTest, AFolderThatCannotBeReadIsTooMuchAndIsRemoved) {
  const bool root = geteuid() == 0;
  if (root) {
    for (const std::string& path : {parent_.path(), folder_}) {
      ASSERT_EQ(chmod(path.c_str(), 0777), 0);
    }
  }
  const auto check = [&] {
    fs::create_directories(folder_ + "/hidden/inner");
    WriteFile("hidden/large", kMostBytes);
    ASSERT_EQ(chmod((folder_ + "/hidden/inner").c_str(), 0), 0);
    ASSERT_EQ(chmod((folder_ + "/hidden").c_str(), 0300), 0);
    EXPECT_TRUE(IsOver());
    // Even if nothing much is in it.
    fs::remove(folder_ + "/hidden/large");
    EXPECT_TRUE(IsOver());
    RemoveFolder(folder_);
    EXPECT_FALSE(fs::exists(folder_));
  };
  if (root) {
    const OtherUser user;
    check();
  } else {
    check();
  }
}

TEST_F(WorkFolderTest, AFileWhosePathIsTooLongIsTooMuch) {
  // As a compiler makes it: from within.
  const fs::path before = fs::current_path();
  fs::current_path(folder_);
  const std::string name(250, 'd');
  for (uint64_t i = 0; i < kMostEntries - 1; ++i) {
    ASSERT_TRUE(fs::create_directory(name));
    fs::current_path(name);
  }
  fs::current_path(before);
  EXPECT_TRUE(IsOver());
  RemoveFolder(folder_);
  EXPECT_FALSE(fs::exists(folder_));
}

TEST_F(WorkFolderTest, FoldersThatComeAndGoDoNotHideAFile) {
  WriteFile("large", 2 * kMostBytes);
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    while (!stop) {
      for (int i = 0; i < 8; ++i) mkdir((folder_ + "/" + std::to_string(i)).c_str(), 0700);
      for (int i = 0; i < 8; ++i) rmdir((folder_ + "/" + std::to_string(i)).c_str());
    }
  });
  for (int i = 0; i < 2'000; ++i) ASSERT_TRUE(IsOver()) << i;
  stop = true;
  busy.join();
}

TEST_F(WorkFolderTest, AFolderThatIsGoneIsTooMuch) {
  fs::remove(folder_);
  EXPECT_TRUE(IsOver());
}

}  // namespace
}  // namespace resident
