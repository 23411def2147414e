#include "runtime/engine/process/descriptor_channel.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/status/status.h"

namespace resident {
namespace {

class DescriptorChannelTest : public ::testing::Test {
 protected:
  DescriptorChannelTest() {
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets_), 0);
    object_ = memfd_create("object", MFD_CLOEXEC);
  }
  ~DescriptorChannelTest() override {
    close(sockets_[0]);
    if (sockets_[1] >= 0) close(sockets_[1]);
    close(object_);
  }
  static ino_t Inode(int fd) {
    struct stat info = {};
    EXPECT_EQ(fstat(fd, &info), 0);
    return info.st_ino;
  }
  int sockets_[2];
  int object_;
};

TEST_F(DescriptorChannelTest, ReceivedDescriptorIsTheSameObject) {
  ASSERT_TRUE(SendDescriptor(sockets_[0], object_, 1).ok());
  const auto fd = ReceiveDescriptor(sockets_[1], 1);
  ASSERT_TRUE(fd.ok()) << fd.status();
  EXPECT_EQ(Inode(*fd), Inode(object_));
  EXPECT_EQ(fcntl(*fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
  close(*fd);
}

TEST_F(DescriptorChannelTest, DescriptorsNobodyAskedForAreClosed) {
  const int other = memfd_create("other", MFD_CLOEXEC);
  ASSERT_TRUE(SendDescriptor(sockets_[0], other, 1).ok());
  ASSERT_TRUE(SendDescriptor(sockets_[0], other, 2).ok());
  ASSERT_TRUE(SendDescriptor(sockets_[0], object_, 3).ok());
  const int next_free = dup(object_);
  close(next_free);
  const auto fd = ReceiveDescriptor(sockets_[1], 3);
  ASSERT_TRUE(fd.ok()) << fd.status();
  EXPECT_EQ(Inode(*fd), Inode(object_));
  close(*fd);
  const int still_next_free = dup(object_);
  EXPECT_EQ(still_next_free, next_free);
  close(still_next_free);
  close(other);
}

TEST_F(DescriptorChannelTest, NothingSentIsNotFoundAndDoesNotBlock) {
  EXPECT_EQ(ReceiveDescriptor(sockets_[1], 1).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(DescriptorChannelTest, OtherEndGoneIsUnavailable) {
  close(sockets_[1]);
  sockets_[1] = -1;
  EXPECT_EQ(SendDescriptor(sockets_[0], object_, 1).code(), absl::StatusCode::kUnavailable);
}

TEST_F(DescriptorChannelTest, FullChannelIsRefusedAndDoesNotBlock) {
  absl::Status status;
  uint64_t token = 0;
  while ((status = SendDescriptor(sockets_[0], object_, ++token)).ok()) {
    ASSERT_LT(token, 1'000'000u);
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  const auto fd = ReceiveDescriptor(sockets_[1], token - 1);
  ASSERT_TRUE(fd.ok());
  close(*fd);
}

}  // namespace
}  // namespace resident
