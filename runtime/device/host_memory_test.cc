#include "runtime/device/host_memory.h"

#include <string>

#include "gtest/gtest.h"

namespace resident {
namespace {

std::shared_ptr<HostUsage> Client() { return std::make_shared<HostUsage>(); }

TEST(HostMemoryTest, HoldOverEitherLimitIsRefusedAndCountsNothing) {
  HostMemory host(100, 150);
  const auto first = Client(), second = Client();
  auto held = host.Hold(first, 100);
  ASSERT_TRUE(held.ok());
  const absl::Status own = host.Hold(first, 1).status();
  EXPECT_EQ(own.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(std::string(own.message()).find("--max_client_host_mib"), std::string::npos);
  const absl::Status all = host.Hold(second, 51).status();
  EXPECT_NE(std::string(all.message()).find("--max_host_mib"), std::string::npos);
  EXPECT_EQ(host.used_bytes(), 100u);
  held->Clear();
  EXPECT_EQ(first->bytes(), 0u);
  EXPECT_TRUE(host.Hold(second, 100).ok());
  EXPECT_EQ(host.used_bytes(), 0u);
}

TEST(HostMemoryTest, ARefusedHoldTakesNothingFromOthers) {
  HostMemory host(0, 150);
  const auto greedy = Client(), modest = Client();
  EXPECT_FALSE(host.Hold(greedy, UINT64_MAX).ok());
  EXPECT_FALSE(host.Hold(greedy, 151).ok());
  EXPECT_EQ(greedy->bytes(), 0u);
  EXPECT_TRUE(host.Hold(modest, 150).ok());
}

TEST(HostMemoryTest, AMovedChargeCountsOnce) {
  HostMemory host(100, 100);
  const auto own = Client();
  HostMemory::Charge a = host.Count(own, 10);
  HostMemory::Charge b = std::move(a);
  a = host.Count(own, 5);
  a = std::move(b);
  EXPECT_EQ(own->bytes(), 10u);
}

}  // namespace
}  // namespace resident
