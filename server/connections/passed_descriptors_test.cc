#include "server/connections/passed_descriptors.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>
#include <tuple>
#include <vector>

namespace resident {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using Clock = PassedDescriptors::Clock;
using enum PassedDescriptors::Kind;

int NewDescriptor() {
  const int fd = memfd_create("test", MFD_CLOEXEC);
  EXPECT_GE(fd, 0);
  return fd;
}

bool IsOpen(int fd) { return fcntl(fd, F_GETFD) >= 0; }

bool EverySession(const std::string&) { return true; }

void ExpectRefused(const absl::Status& status, absl::StatusCode code, const std::string& part) {
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  EXPECT_THAT(std::string(status.message()), HasSubstr("Fix: "));
}

TEST(PassedDescriptorsTest, ATokenIsValidOnceForItsSession) {
  PassedDescriptors passed;
  const Clock::time_point now = Clock::now();
  const int fd = NewDescriptor();
  const auto token = passed.Add(kSharedMemory, "alice", 1000, fd, now);
  ASSERT_TRUE(token.ok()) << token.status();
  EXPECT_EQ(token->size(), 32u);
  ExpectRefused(passed.Take(kSharedMemory, *token, "bob", now).status(),
                absl::StatusCode::kNotFound, "session");
  ExpectRefused(passed.Take(kSharedMemory, "", "alice", now).status(), absl::StatusCode::kNotFound,
                "30 s");
  // The attempt of another session had no effect.
  const auto taken = passed.Take(kSharedMemory, *token, "alice", now);
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_EQ(*taken, fd);
  ExpectRefused(passed.Take(kSharedMemory, *token, "alice", now).status(),
                absl::StatusCode::kNotFound, "imported");
  EXPECT_EQ(passed.size(), 0u);
  EXPECT_TRUE(IsOpen(fd));
  close(fd);
}

TEST(PassedDescriptorsTest, ATokenIsNotValidForAnotherKindOfMemory) {
  for (const auto& [passed_as, taken_as, fix] :
       {std::tuple(kDeviceMemory, kSharedMemory, "ImportCuda"),
        std::tuple(kSharedMemory, kDeviceMemory, "ImportShared")}) {
    PassedDescriptors passed;
    const int fd = NewDescriptor();
    const auto token = passed.Add(passed_as, "alice", 1000, fd, Clock::now());
    ASSERT_TRUE(token.ok()) << token.status();
    // It reveals nothing to another session.
    ExpectRefused(passed.Take(taken_as, *token, "bob", Clock::now()).status(),
                  absl::StatusCode::kNotFound, "session");
    ExpectRefused(passed.Take(taken_as, *token, "alice", Clock::now()).status(),
                  absl::StatusCode::kInvalidArgument, fix);
    EXPECT_FALSE(IsOpen(fd));
    ExpectRefused(passed.Take(passed_as, *token, "alice", Clock::now()).status(),
                  absl::StatusCode::kNotFound, "imported");
  }
}

TEST(PassedDescriptorsTest, TokensDiffer) {
  PassedDescriptors passed;
  const auto first = passed.Add(kSharedMemory, "alice", 1000, NewDescriptor(), Clock::now());
  const auto second = passed.Add(kSharedMemory, "alice", 1000, NewDescriptor(), Clock::now());
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_NE(*first, *second);
}

TEST(PassedDescriptorsTest, ATokenExpiresAndItsDescriptorIsClosed) {
  PassedDescriptors passed({.lifetime = milliseconds(1000)});
  const Clock::time_point now = Clock::now();
  const int fd = NewDescriptor();
  const auto token = passed.Add(kSharedMemory, "alice", 1000, fd, now);
  ASSERT_TRUE(token.ok());
  passed.Sweep(now + milliseconds(999), EverySession);
  EXPECT_TRUE(IsOpen(fd));
  // An expired token is refused even before the sweep.
  ExpectRefused(passed.Take(kSharedMemory, *token, "alice", now + milliseconds(1000)).status(),
                absl::StatusCode::kNotFound, "more than 1 s ago");
  passed.Sweep(now + milliseconds(1000), EverySession);
  EXPECT_FALSE(IsOpen(fd));
  EXPECT_EQ(passed.size(), 0u);
}

TEST(PassedDescriptorsTest, TheEndOfASessionClosesItsDescriptors) {
  PassedDescriptors passed;
  const int ended = NewDescriptor();
  const int open = NewDescriptor();
  ASSERT_TRUE(passed.Add(kSharedMemory, "ended", 1000, ended, Clock::now()).ok());
  ASSERT_TRUE(passed.Add(kSharedMemory, "open", 1000, open, Clock::now()).ok());
  passed.Sweep(Clock::now(), [](const std::string& session) { return session == "open"; });
  EXPECT_FALSE(IsOpen(ended));
  EXPECT_TRUE(IsOpen(open));
}

TEST(PassedDescriptorsTest, LimitsPerSessionUserAndInTotalAreEnforced) {
  PassedDescriptors passed({.in_all = 4, .of_user = 3, .of_session = 2});
  const auto add = [&](const std::string& session, uid_t user) {
    const int fd = NewDescriptor();
    const absl::Status status = passed.Add(kSharedMemory, session, user, fd, Clock::now()).status();
    if (!status.ok()) {
      EXPECT_TRUE(IsOpen(fd)) << "a refused descriptor was closed";
      close(fd);
    }
    return status;
  };
  EXPECT_TRUE(add("a", 1).ok());
  EXPECT_TRUE(add("a", 1).ok());
  ExpectRefused(add("a", 1), absl::StatusCode::kResourceExhausted, "2 descriptors of this session");
  EXPECT_TRUE(add("b", 1).ok());
  ExpectRefused(add("c", 1), absl::StatusCode::kResourceExhausted, "3 descriptors of user 1");
  EXPECT_TRUE(add("d", 2).ok());
  ExpectRefused(add("e", 2), absl::StatusCode::kResourceExhausted, "4 descriptors of all clients");
}

TEST(PassedDescriptorsTest, DestructorClosesRemainingDescriptors) {
  const int fd = NewDescriptor();
  {
    PassedDescriptors passed;
    ASSERT_TRUE(passed.Add(kSharedMemory, "alice", 1000, fd, Clock::now()).ok());
  }
  EXPECT_FALSE(IsOpen(fd));
}

}  // namespace
}  // namespace resident
