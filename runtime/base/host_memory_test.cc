#include "runtime/base/host_memory.h"

#include <string>

#include "gtest/gtest.h"

namespace resident {
namespace {

std::shared_ptr<HostUse> Client() { return std::make_shared<HostUse>(); }

TEST(HostMemoryTest, HoldRefusesOverEitherLimitAndChargesNothingThen) {
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

TEST(HostMemoryTest, WhatIsRefusedTakesNothingFromOthers) {
  HostMemory host(0, 150);
  const auto greedy = Client(), modest = Client();
  EXPECT_FALSE(host.Hold(greedy, UINT64_MAX).ok());
  EXPECT_FALSE(host.Hold(greedy, 151).ok());
  EXPECT_EQ(greedy->bytes(), 0u);
  EXPECT_TRUE(host.Hold(modest, 150).ok());
}

TEST(HostMemoryTest, WhatIsSharedNeverPassesTheLimitOfAll) {
  HostMemory host(100, 160);
  const auto first = Client(), second = Client(), third = Client();
  // The first of a client may be over its own limit.
  auto large = host.Share(first, 120);
  ASSERT_TRUE(large.ok());
  const absl::Status own = host.Share(first, 1).status();
  EXPECT_EQ(own.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(std::string(own.message()).find("--max_client_host_mib"), std::string::npos);
  const absl::Status all = host.Share(second, 41).status();
  EXPECT_EQ(all.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(std::string(all.message()).find("--max_host_mib"), std::string::npos);
  EXPECT_EQ(second->bytes(), 0u);
  EXPECT_TRUE(host.Share(second, 40).ok());
  EXPECT_FALSE(host.MayFit(161));
  large->Clear();
  // A client that has some leaves half to those who have none.
  auto some = host.Share(first, 30);
  ASSERT_TRUE(some.ok());
  EXPECT_FALSE(host.Share(first, 30).ok());
  auto more = host.Share(first, 20);
  EXPECT_TRUE(more.ok());
  EXPECT_TRUE(host.Share(third, 110).ok());
  EXPECT_EQ(host.used_bytes(), 50u);
}

TEST(HostMemoryTest, WhoWaitsForRoomIsWokenOnceThereIsEnough) {
  HostMemory host(0, 100);
  const auto holder = Client(), waiter = Client();
  auto much = host.Share(holder, 60);
  auto more = host.Share(Client(), 30);
  ASSERT_TRUE(much.ok() && more.ok());
  int woken = 0;
  const auto wake = [&] { ++woken; };
  EXPECT_FALSE(host.WaitForRoom(waiter, 10, &woken, wake)) << "there is room";
  EXPECT_FALSE(host.WaitForRoom(waiter, 101, &woken, wake)) << "there will never be";
  EXPECT_TRUE(host.WaitForRoom(waiter, 50, &woken, wake));
  more->Clear();
  EXPECT_EQ(woken, 0) << "40 are free";
  much->Clear();
  EXPECT_EQ(woken, 1);
  EXPECT_TRUE(host.Share(waiter, 50).ok());
}

TEST(HostMemoryTest, FullWakesOnceThereIsRoom) {
  HostMemory host(100, 0);
  const auto own = Client();
  int woken = 0;
  EXPECT_FALSE(host.WaitIfFull(own, &woken, [&] { ++woken; }));
  HostMemory::Charge much = host.Count(own, 100);
  HostMemory::Charge more = host.Count(own, 100);
  EXPECT_TRUE(host.WaitIfFull(own, &woken, [&] { ++woken; }));
  EXPECT_TRUE(host.WaitIfFull(own, &woken, [&] { ++woken; }));
  more.Clear();
  EXPECT_EQ(woken, 0);
  much.Clear();
  EXPECT_EQ(woken, 1);
}

TEST(HostMemoryTest, GreedyClientsLeaveAShareToTheNext) {
  HostMemory host(0, 120);
  const auto first = Client(), second = Client(), third = Client();
  const HostMemory::Charge a = host.Count(first, 60);
  EXPECT_TRUE(host.Full(*first));
  EXPECT_FALSE(host.Full(*second));
  const HostMemory::Charge b = host.Count(second, 30);
  EXPECT_TRUE(host.Full(*second));
  EXPECT_FALSE(host.Full(*third));
}

TEST(HostMemoryTest, HalfIsKeptForThoseWhoHoldNothing) {
  HostMemory host(0, 100);
  const auto greedy = Client(), modest = Client();
  const HostMemory::Charge a = host.Count(greedy, 24);
  EXPECT_FALSE(host.Full(*greedy));
  const HostMemory::Charge b = host.Count(greedy, 75);  // It was under way.
  EXPECT_TRUE(host.Full(*greedy));
  EXPECT_FALSE(host.Full(*modest));
  const HostMemory::Charge c = host.Count(modest, 1);
  EXPECT_TRUE(host.Full(*modest));
  EXPECT_TRUE(host.Full(*Client()));
}

TEST(HostMemoryTest, AnothersMemoryWakesWhoWaitsForThatOfAll) {
  HostMemory host(0, 100);
  const auto first = Client(), second = Client();
  HostMemory::Charge a = host.Count(first, 100);
  int woken = 0, withdrawn = 0;
  EXPECT_TRUE(host.WaitIfFull(second, &woken, [&] { ++woken; }));
  EXPECT_TRUE(host.WaitIfFull(second, &withdrawn, [&] { ++withdrawn; }));
  host.Withdraw(&withdrawn);
  a.Clear();
  EXPECT_EQ(woken, 1);
  EXPECT_EQ(withdrawn, 0);
}

TEST(HostMemoryTest, ChargeThatIsMovedCountsOnce) {
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
