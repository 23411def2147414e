#include "runtime/engine/control/descriptor_channel.h"

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
  const auto fd = DescriptorInbox(sockets_[1]).Receive(1);
  ASSERT_TRUE(fd.ok()) << fd.status();
  EXPECT_EQ(Inode(*fd), Inode(object_));
  EXPECT_EQ(fcntl(*fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
  close(*fd);
}

TEST_F(DescriptorChannelTest, CallsMayBeServedInAnotherOrder) {
  const int other = memfd_create("other", MFD_CLOEXEC);
  ASSERT_TRUE(SendDescriptor(sockets_[0], other, 1).ok());
  ASSERT_TRUE(SendDescriptor(sockets_[0], object_, 2).ok());
  DescriptorInbox inbox(sockets_[1]);
  const auto second = inbox.Receive(2);
  const auto first = inbox.Receive(1);
  ASSERT_TRUE(second.ok() && first.ok());
  EXPECT_EQ(Inode(*second), Inode(object_));
  EXPECT_EQ(Inode(*first), Inode(other));
  for (int fd : {*second, *first, other}) close(fd);
}

TEST_F(DescriptorChannelTest, DescriptorsNobodyAsksForAreClosed) {
  constexpr uint64_t kSent = DescriptorInbox::kMostUnclaimed + 5;
  const int next_free = dup(object_);
  close(next_free);
  {
    DescriptorInbox inbox(sockets_[1]);
    for (uint64_t token = 1; token <= kSent; ++token) {
      ASSERT_TRUE(SendDescriptor(sockets_[0], object_, token).ok());
    }
    const auto last = inbox.Receive(kSent);
    ASSERT_TRUE(last.ok()) << last.status();
    close(*last);
    EXPECT_FALSE(inbox.Receive(1).ok());
    const auto kept = inbox.Receive(kSent - 1);
    ASSERT_TRUE(kept.ok()) << kept.status();
    close(*kept);
  }
  const int still_next_free = dup(object_);
  EXPECT_EQ(still_next_free, next_free);
  close(still_next_free);
}

TEST_F(DescriptorChannelTest, NothingSentIsNotFoundAndDoesNotBlock) {
  EXPECT_EQ(DescriptorInbox(sockets_[1]).Receive(1).status().code(), absl::StatusCode::kNotFound);
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
  DescriptorInbox inbox(sockets_[1]);
  const auto fd = inbox.Receive(token - 1);
  ASSERT_TRUE(fd.ok());
  close(*fd);
}

}  // namespace
}  // namespace resident
