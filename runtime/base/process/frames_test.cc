#include "runtime/base/process/frames.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <thread>

namespace resident {
namespace {

constexpr uint64_t kMaxBytes = 1 << 20;

class FramesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int sockets[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sockets), 0);
    left_.Reset(sockets[0]);
    right_.Reset(sockets[1]);
  }

  absl::Status Write(absl::string_view message, int fd = -1) {
    return WriteFrame(left_.get(), message, WaitForever, fd);
  }
  absl::StatusOr<std::string> Read(UniqueFd* received = nullptr) {
    return ReadFrame(right_.get(), kMaxBytes, WaitForever, received);
  }

  UniqueFd left_, right_;
};

TEST_F(FramesTest, ArriveInOrderWhateverTheirSize) {
  const std::string large(kMaxBytes, 'x');  // More than a socket holds.
  std::thread writer([&] {
    EXPECT_TRUE(Write("").ok());
    EXPECT_TRUE(Write(large).ok());
    EXPECT_TRUE(Write("last").ok());
  });
  EXPECT_EQ(*Read(), "");
  EXPECT_EQ(*Read(), large);
  EXPECT_EQ(*Read(), "last");
  writer.join();
}

TEST_F(FramesTest, DescriptorArrivesWithItsFrame) {
  const UniqueFd object(memfd_create("object", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(object.get(), 12345), 0);
  ASSERT_TRUE(Write("without").ok());
  ASSERT_TRUE(Write("with", object.get()).ok());
  ASSERT_TRUE(Write("without").ok());
  UniqueFd received;
  ASSERT_TRUE(Read(&received).ok());
  EXPECT_EQ(received.get(), -1);
  ASSERT_TRUE(Read(&received).ok());
  struct stat info = {};
  ASSERT_EQ(fstat(received.get(), &info), 0);
  EXPECT_EQ(info.st_size, 12345);
  EXPECT_EQ(fcntl(received.get(), F_GETFD), FD_CLOEXEC);
  UniqueFd none;
  ASSERT_TRUE(Read(&none).ok());
  EXPECT_EQ(none.get(), -1);
}

TEST_F(FramesTest, EndAfterAFrameDiffersFromAnEndWithinOne) {
  ASSERT_TRUE(Write("whole").ok());
  const char part[] = {9, 0, 0, 0, 0, 0, 0, 0, 'p'};
  ASSERT_EQ(write(left_.get(), part, sizeof(part)), ssize_t{sizeof(part)});
  left_.Reset();
  EXPECT_EQ(*Read(), "whole");
  EXPECT_TRUE(absl::IsUnavailable(Read().status()));
  EXPECT_TRUE(absl::IsOutOfRange(Read().status()));
}

TEST_F(FramesTest, MessagesOverTheLimitAreRefusedBeforeTheyAreRead) {
  const char header[] = {1, 0, 16, 0, 0, 0, 0, 0};  // kMaxBytes + 1.
  ASSERT_EQ(write(left_.get(), header, sizeof(header)), ssize_t{sizeof(header)});
  EXPECT_TRUE(absl::IsResourceExhausted(Read().status()));
}

TEST_F(FramesTest, WriterReportsThatTheReaderIsGone) {
  right_.Reset();
  EXPECT_TRUE(absl::IsUnavailable(Write("lost")));
  const UniqueFd object(memfd_create("object", MFD_CLOEXEC));
  EXPECT_TRUE(absl::IsUnavailable(Write("lost", object.get())));
}

TEST_F(FramesTest, WaitEndsWithItsError) {
  const auto refuse = [](int, short) { return absl::CancelledError("enough"); };
  EXPECT_TRUE(absl::IsCancelled(ReadFrame(right_.get(), kMaxBytes, refuse).status()));
  EXPECT_TRUE(absl::IsCancelled(WriteFrame(left_.get(), std::string(kMaxBytes, 'x'), refuse)));
}

}  // namespace
}  // namespace resident
