#include "runtime/base/atomic_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_folder.h"

namespace resident {
namespace {

using ::testing::HasSubstr;

std::string ReadContents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

size_t CountFiles(const std::string& folder) {
  return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder), {}));
}

TEST(AtomicFileTest, ReplacesTheContents) {
  testing::TempFolder folder("atomic_file");
  const std::string path = folder.path() + "/file";
  ASSERT_TRUE(WriteFileAtomically(path, {"old"}).ok());
  ASSERT_TRUE(WriteFileAtomically(path, {"new ", "contents"}, {.mode = 0644}).ok());
  EXPECT_EQ(ReadContents(path), "new contents");
  struct stat info;
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777u, 0644u);
  EXPECT_EQ(CountFiles(folder.path()), 1u);
}

TEST(AtomicFileTest, SymbolicLinksAreReplacedAndNotFollowed) {
  testing::TempFolder folder("atomic_file");
  const std::string victim = folder.path() + "/victim";
  const std::string path = folder.path() + "/file";
  ASSERT_TRUE(WriteFileAtomically(victim, {"precious"}).ok());
  ASSERT_EQ(symlink(victim.c_str(), path.c_str()), 0);
  ASSERT_TRUE(WriteFileAtomically(path, {"text"}).ok());
  EXPECT_EQ(ReadContents(victim), "precious");
  EXPECT_EQ(ReadContents(path), "text");
  EXPECT_FALSE(std::filesystem::is_symlink(path));
}

TEST(AtomicFileTest, AnErrorLeavesTheOldFileAndNothingElse) {
  testing::TempFolder folder("atomic_file");
  const std::string path = folder.path() + "/file";
  std::filesystem::create_directory(path);  // A file cannot replace a folder.
  const absl::Status status = WriteFileAtomically(path, {"new"});
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("rename: "));
  EXPECT_EQ(CountFiles(folder.path()), 1u);
  EXPECT_THAT(std::string(WriteFileAtomically(folder.path() + "/none/file", {"new"}).message()),
              HasSubstr("create: No such file"));
}

TEST(AtomicFileTest, AFileInPiecesIsReplacedByCommitOnly) {
  testing::TempFolder folder("atomic_file");
  const std::string path = folder.path() + "/file";
  ASSERT_TRUE(WriteFileAtomically(path, {"old"}).ok());
  {
    absl::StatusOr<AtomicFile> dropped = AtomicFile::Create(path);
    ASSERT_TRUE(dropped.ok());
    ASSERT_TRUE(dropped->Append("half").ok());
  }
  EXPECT_EQ(ReadContents(path), "old");
  EXPECT_EQ(CountFiles(folder.path()), 1u);
  absl::StatusOr<AtomicFile> file = AtomicFile::Create(path, {.mode = 0640});
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE(file->Append("in ").ok());
  AtomicFile moved = *std::move(file);
  ASSERT_TRUE(moved.Append("pieces").ok());
  EXPECT_EQ(ReadContents(path), "old");
  ASSERT_TRUE(moved.Commit().ok());
  EXPECT_EQ(ReadContents(path), "in pieces");
  struct stat info;
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777u, 0640u);
  EXPECT_EQ(CountFiles(folder.path()), 1u);
}

}  // namespace
}  // namespace resident
