#include "runtime/state/blob_store.h"

#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "runtime/state/files.h"

namespace resident {
namespace {

class BlobStoreTest : public testing::Test {
 protected:
  BlobStoreTest() {
    folder_ = testing::TempDir() + "/blobs.XXXXXX";
    EXPECT_NE(mkdtemp(folder_.data()), nullptr);
    blobs_ = *BlobStore::Open(folder_);
  }
  ~BlobStoreTest() override { std::filesystem::remove_all(folder_); }

  // Changes when the file is written again.
  ino_t Inode(const std::string& sha256) const {
    struct stat found = {};
    EXPECT_EQ(stat((folder_ + "/" + sha256).c_str(), &found), 0);
    return found.st_ino;
  }

  std::string folder_;
  std::unique_ptr<BlobStore> blobs_;
};

TEST_F(BlobStoreTest, ACollectKeepsWhatWasPutSinceThePreviousOne) {
  const std::string sha256 = *blobs_->Put("text");
  ASSERT_TRUE(blobs_->Collect({}).ok());
  EXPECT_EQ(*blobs_->Get(sha256), "text");
  ASSERT_TRUE(blobs_->Collect({}).ok());
  EXPECT_EQ(blobs_->Get(sha256).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(BlobStoreTest, ARemovedBlobIsForgotten) {
  const std::string sha256 = *blobs_->Put("text");
  ASSERT_TRUE(blobs_->Remove(sha256).ok());
  ASSERT_TRUE(WriteWholeFile(folder_ + "/" + sha256, {"text"}).ok());
  ASSERT_TRUE(blobs_->Collect({}).ok());
  EXPECT_EQ(blobs_->Get(sha256).status().code(), absl::StatusCode::kNotFound);
}

// It may be left of a write that failed before its folder was synced.
TEST_F(BlobStoreTest, AFileThatThisStoreHasNotSyncedIsWrittenAgain) {
  const std::string sha256 = *blobs_->Put("text");
  ino_t file = Inode(sha256);
  ASSERT_TRUE(blobs_->Put("text").ok());
  EXPECT_EQ(Inode(sha256), file);
  blobs_ = *BlobStore::Open(folder_);
  const std::string link = folder_ + "/link";  // Keeps the inode's number in use.
  std::filesystem::create_hard_link(folder_ + "/" + sha256, link);
  ASSERT_TRUE(blobs_->Put("text").ok());
  EXPECT_NE(Inode(sha256), file);
  file = Inode(sha256);
  ASSERT_TRUE(blobs_->Put("text").ok());
  EXPECT_EQ(Inode(sha256), file);
}

}  // namespace
}  // namespace resident
