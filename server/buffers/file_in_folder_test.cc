#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "gtest/gtest.h"
#include "server/buffers/transfers.h"
#include "tests/support/temp_folder.h"

namespace resident {
namespace {

class FileInFolderTest : public ::testing::Test {
 protected:
  FileInFolderTest() {
    mkdir((folder() + "/models").c_str(), 0700);
    std::ofstream(folder() + "/models/a.bin") << "inside";
    std::ofstream(outside()) << "secret";
  }
  std::string folder() const { return root_.path(); }
  std::string outside() const { return other_.path() + "/secret"; }
  std::string ReadAll(const std::string& path) {
    absl::StatusOr<UniqueFd> file = OpenFileInFolder(folder(), path);
    if (!file.ok()) return std::string(file.status().message());
    char text[16] = {};
    EXPECT_GE(read(file->get(), text, sizeof(text) - 1), 0);
    return text;
  }
  absl::StatusCode Code(const std::string& path) {
    return OpenFileInFolder(folder(), path).status().code();
  }

  const testing::TempFolder root_{"root"};
  const testing::TempFolder other_{"other"};
};

TEST_F(FileInFolderTest, FilesBelowTheFolderAreOpened) {
  EXPECT_EQ(ReadAll("models/a.bin"), "inside");
  EXPECT_EQ(ReadAll("./models/../models/a.bin"), "inside");
  ASSERT_EQ(symlink("a.bin", (folder() + "/models/link").c_str()), 0);
  EXPECT_EQ(ReadAll("models/link"), "inside");
}

TEST_F(FileInFolderTest, PathsThatLeaveTheFolderAreRefused) {
  ASSERT_EQ(symlink(outside().c_str(), (folder() + "/link").c_str()), 0);
  ASSERT_EQ(symlink(other_.path().c_str(), (folder() + "/links").c_str()), 0);
  for (const std::string& path :
       {outside(), std::string("../") + outside(), std::string("models/../../x"),
        std::string("link"), std::string("links/secret"), std::string("/proc/self/maps")}) {
    EXPECT_EQ(Code(path), absl::StatusCode::kPermissionDenied) << path;
  }
}

TEST_F(FileInFolderTest, WhatIsNotThereOrCannotBeAFileIsRefused) {
  EXPECT_EQ(Code("none"), absl::StatusCode::kNotFound);
  EXPECT_EQ(Code("models/a.bin/x"), absl::StatusCode::kNotFound);
  EXPECT_EQ(Code(""), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Code(std::string("models/a.bin\0x", 14)), absl::StatusCode::kInvalidArgument);
  // A FIFO without a writer does not block the thread.
  ASSERT_EQ(mkfifo((folder() + "/fifo").c_str(), 0600), 0);
  EXPECT_TRUE(OpenFileInFolder(folder(), "fifo").ok());
}

}  // namespace
}  // namespace resident
