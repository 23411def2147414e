#include "runtime/ring/shared_region.h"

#include <errno.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "absl/status/status.h"

namespace resident {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint64_t kStagingBytes = 1u << 20;

int Duplicate(int fd) { return fcntl(fd, F_DUPFD_CLOEXEC, 0); }

TEST(SharedRegionTest, BothMappingsAreTheSameMemory) {
  auto created = SharedRegion::Create(64, kStagingBytes);
  ASSERT_TRUE(created.ok()) << created.status();
  auto attached = SharedRegion::Attach(Duplicate((*created)->fd()));
  ASSERT_TRUE(attached.ok()) << attached.status();

  EXPECT_NE((*created)->base(), (*attached)->base());
  EXPECT_EQ((*attached)->layout().slots, 64u);
  EXPECT_EQ((*attached)->layout().staging_bytes, kStagingBytes);
  (*created)->staging()[kStagingBytes - 1] = 42;
  EXPECT_EQ((*attached)->staging()[kStagingBytes - 1], 42);
  (*attached)->control()->heartbeat = 7;
  EXPECT_EQ((*created)->control()->heartbeat, 7u);
}

TEST(SharedRegionTest, AttachedMappingOutlivesItsCreator) {
  auto created = SharedRegion::Create(64, kStagingBytes);
  ASSERT_TRUE(created.ok());
  (*created)->staging()[0] = 9;
  auto attached = SharedRegion::Attach(Duplicate((*created)->fd()));
  ASSERT_TRUE(attached.ok());
  created->reset();
  EXPECT_EQ((*attached)->staging()[0], 9);
}

TEST(SharedRegionTest, PartsDoNotOverlapAndAreAligned) {
  for (uint32_t slots : {64u, 1024u, 65536u}) {
    auto region = SharedRegion::Create(slots, kStagingBytes);
    ASSERT_TRUE(region.ok()) << region.status();
    const RegionLayout& layout = (*region)->layout();
    EXPECT_GE(layout.breadcrumbs, sizeof(ControlBlock));
    EXPECT_GE(layout.submissions, layout.breadcrumbs + kMaxWorkers * sizeof(Breadcrumb));
    EXPECT_GE(layout.completions, layout.submissions + slots * sizeof(RingSlot));
    EXPECT_GE(layout.argument_blocks, layout.completions + slots * sizeof(RingSlot));
    EXPECT_GE(layout.staging, layout.argument_blocks + slots * sizeof(ArgumentBlock));
    EXPECT_EQ(layout.submissions % 64, 0u);
    EXPECT_EQ(layout.completions % 64, 0u);
    EXPECT_EQ(layout.argument_blocks % 64, 0u);
    EXPECT_EQ(layout.staging % 4096, 0u);
    // The last byte of the last part is mapped.
    (*region)->staging()[kStagingBytes - 1] = 1;
  }
}

TEST(SharedRegionTest, RejectsNonPowerOfTwoSize) {
  for (uint32_t slots : {0u, 1u, 32u, 65u, 100u, 131072u}) {
    auto region = SharedRegion::Create(slots, kStagingBytes);
    EXPECT_EQ(region.status().code(), absl::StatusCode::kInvalidArgument) << slots;
    EXPECT_THAT(std::string(region.status().message()), HasSubstr("Fix: "));
  }
}

TEST(SharedRegionTest, RejectsStagingMemoryThatIsNotAMultipleOfThePageSize) {
  EXPECT_EQ(SharedRegion::Create(64, 100).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(SharedRegion::Create(64, 0).ok());
}

TEST(SharedRegionTest, SizeIsSealed) {
  auto region = SharedRegion::Create(64, kStagingBytes);
  ASSERT_TRUE(region.ok());
  EXPECT_EQ(ftruncate((*region)->fd(), 4096), -1);
  EXPECT_EQ(errno, EPERM);
}

TEST(SharedRegionTest, AttachRefusesAnotherLayout) {
  auto region = SharedRegion::Create(64, kStagingBytes);
  ASSERT_TRUE(region.ok());
  (*region)->control()->layout_hash ^= 1;
  auto attached = SharedRegion::Attach(Duplicate((*region)->fd()));
  EXPECT_EQ(attached.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(attached.status().message()),
              AllOf(HasSubstr("layout differs"), HasSubstr("Fix: ")));
}

TEST(SharedRegionTest, AttachRefusesADescriptorThatIsNotARegion) {
  auto region = SharedRegion::Create(64, kStagingBytes);
  ASSERT_TRUE(region.ok());
  (*region)->control()->magic = 0;
  auto attached = SharedRegion::Attach(Duplicate((*region)->fd()));
  EXPECT_EQ(attached.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(attached.status().message()), HasSubstr("magic"));

  const int empty = memfd_create("empty", MFD_CLOEXEC);
  EXPECT_EQ(SharedRegion::Attach(empty).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(SharedRegionTest, AttachRefusesASizeThatDoesNotMatch) {
  auto region = SharedRegion::Create(64, kStagingBytes);
  ASSERT_TRUE(region.ok());
  (*region)->control()->slots = 128;
  EXPECT_EQ(SharedRegion::Attach(Duplicate((*region)->fd())).status().code(),
            absl::StatusCode::kFailedPrecondition);
  (*region)->control()->slots = 0;
  EXPECT_EQ(SharedRegion::Attach(Duplicate((*region)->fd())).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(SharedRegionTest, RefusedAttachClosesTheDescriptor) {
  auto region = SharedRegion::Create(64, kStagingBytes);
  ASSERT_TRUE(region.ok());
  (*region)->control()->magic = 0;
  const int fd = Duplicate((*region)->fd());
  EXPECT_FALSE(SharedRegion::Attach(fd).ok());
  EXPECT_EQ(fcntl(fd, F_GETFD), -1);
}

}  // namespace
}  // namespace resident
