#include "runtime/compile/work_folder.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "tests/support/temp_folder.h"

namespace resident {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxBytes = 1 << 20;
constexpr uint64_t kMaxEntries = 20;

class WorkFolderTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(fs::create_directory(folder_)); }
  bool IsOver() const { return ExceedsFolderLimit(folder_, kMaxBytes, kMaxEntries); }
  void WriteFile(const std::string& name, size_t bytes) const {
    std::ofstream(folder_ + "/" + name) << std::string(bytes, 'x');
  }

  // Another user cannot access Bazel's temporary folder.
  const testing::TempFolder parent_{"resident-work", "/tmp"};
  const std::string folder_ = parent_.path() + "/work";
};

// Root may read every folder, so the process is another user while this object exists.
class OtherUser {
 public:
  OtherUser() { EXPECT_EQ(seteuid(65534), 0); }
  ~OtherUser() { EXPECT_EQ(seteuid(0), 0); }
};

TEST_F(WorkFolderTest, FilesOfAllFoldersCount) {
  fs::create_directories(folder_ + "/a/b");
  WriteFile("a/b/small", 1000);
  EXPECT_FALSE(IsOver());
  WriteFile("a/b/large", kMaxBytes);
  EXPECT_TRUE(IsOver());
  fs::remove(folder_ + "/a/b/large");
  EXPECT_FALSE(IsOver());
  for (uint64_t i = 0; i < kMaxEntries; ++i) WriteFile(std::to_string(i), 0);
  EXPECT_TRUE(IsOver());
  RemoveFolder(folder_);
  EXPECT_FALSE(fs::exists(folder_));
}

TEST_F(WorkFolderTest, AFolderThatCannotBeReadCountsAsOverTheLimitAndIsRemoved) {
  const bool root = geteuid() == 0;
  if (root) {
    for (const std::string& path : {parent_.path(), folder_}) {
      ASSERT_EQ(chmod(path.c_str(), 0777), 0);
    }
  }
  const auto check = [&] {
    fs::create_directories(folder_ + "/hidden/inner");
    WriteFile("hidden/large", kMaxBytes);
    ASSERT_EQ(chmod((folder_ + "/hidden/inner").c_str(), 0), 0);
    ASSERT_EQ(chmod((folder_ + "/hidden").c_str(), 0300), 0);
    EXPECT_TRUE(IsOver());
    // Even if its contents are below the limit.
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

TEST_F(WorkFolderTest, AFileWhosePathIsTooLongCountsAsOverTheLimit) {
  // A compiler can make such a path by changing its current folder.
  const fs::path before = fs::current_path();
  fs::current_path(folder_);
  const std::string name(250, 'd');
  for (uint64_t i = 0; i < kMaxEntries - 1; ++i) {
    ASSERT_TRUE(fs::create_directory(name));
    fs::current_path(name);
  }
  fs::current_path(before);
  EXPECT_TRUE(IsOver());
  RemoveFolder(folder_);
  EXPECT_FALSE(fs::exists(folder_));
}

TEST_F(WorkFolderTest, FoldersThatAreCreatedAndRemovedDoNotHideAFile) {
  WriteFile("large", 2 * kMaxBytes);
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

TEST_F(WorkFolderTest, AMissingFolderCountsAsOverTheLimit) {
  fs::remove(folder_);
  EXPECT_TRUE(IsOver());
}

// A process that has made a work folder with a file in it, and runs until it is killed.
class Owner {
 public:
  explicit Owner(const std::string& parent) {
    int ready[2];
    EXPECT_EQ(pipe(ready), 0);
    pid_ = fork();
    if (pid_ == 0) {
      const auto work = WorkFolder::Create(parent);
      if (!work.ok()) _exit(1);
      std::ofstream((*work)->path() + "/source.cc") << "x";
      const std::string& path = (*work)->path();
      if (write(ready[1], path.data(), path.size()) < 0) _exit(1);
      close(ready[1]);
      while (true) pause();
    }
    close(ready[1]);
    char path[4096];
    const ssize_t got = read(ready[0], path, sizeof(path));
    close(ready[0]);
    EXPECT_GT(got, 0);
    path_ = std::string(path, static_cast<size_t>(std::max<ssize_t>(got, 0)));
  }
  ~Owner() { Kill(); }
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  const std::string& path() const { return path_; }

 private:
  pid_t pid_ = 0;
  std::string path_;
};

TEST_F(WorkFolderTest, TheNextStartRemovesTheFolderOfAKilledProcess) {
  Owner killed(parent_.path()), living(parent_.path());
  const auto own = WorkFolder::Create(parent_.path());
  ASSERT_TRUE(own.ok()) << own.status();
  killed.Kill();
  EXPECT_TRUE(fs::exists(killed.path() + "/source.cc"));

  const auto next = WorkFolder::Create(parent_.path());
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_FALSE(fs::exists(killed.path()));
  EXPECT_TRUE(fs::exists(living.path() + "/source.cc"));
  EXPECT_TRUE(fs::exists((*own)->path()));
  EXPECT_NE((*next)->path(), (*own)->path());
}

TEST_F(WorkFolderTest, OnlyFoldersOfItsOwnKindAreRemoved) {
  fs::create_directory(parent_.path() + "/residentd-other");
  std::ofstream(parent_.path() + "/residentd-compile-file") << "x";
  fs::create_directory_symlink(folder_, parent_.path() + "/residentd-compile-link");
  WriteFile("kept", 1);
  const auto work = WorkFolder::Create(parent_.path());
  ASSERT_TRUE(work.ok()) << work.status();
  for (const char* name :
       {"/residentd-other", "/residentd-compile-file", "/residentd-compile-link", "/work/kept"}) {
    EXPECT_TRUE(fs::exists(parent_.path() + name)) << name;
  }
}

TEST_F(WorkFolderTest, AnotherUsersFolderIsNotRemoved) {
  if (geteuid() != 0) return;  // Only root can make one.
  const std::string others = parent_.path() + "/residentd-compile-others";
  ASSERT_TRUE(fs::create_directory(others));
  ASSERT_EQ(chown(others.c_str(), 65534, 65534), 0);
  ASSERT_TRUE(WorkFolder::Create(parent_.path()).ok());
  EXPECT_TRUE(fs::exists(others));
}

TEST_F(WorkFolderTest, IsRemovedWithItsObject) {
  std::string path;
  {
    const auto work = WorkFolder::Create(parent_.path());
    ASSERT_TRUE(work.ok()) << work.status();
    path = (*work)->path();
    fs::create_directories(path + "/a/b");
  }
  EXPECT_FALSE(fs::exists(path));
  EXPECT_EQ(WorkFolder::Create(parent_.path() + "/none").status().code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace resident
