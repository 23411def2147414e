#include "server/core/shared_slots.h"

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/base/status_macros.h"

namespace resident {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

SharedSlots Sessions(uint32_t total) {
  return SharedSlots({.what = "sessions", .flag = "--max_sessions", .quota = "sessions"}, total);
}

// Takes slots until one is refused.
absl::Status TakeAll(SharedSlots& slots, const std::string& holder,
                     std::vector<SharedSlots::Ticket>* tickets) {
  for (;;) {
    ASSIGN_OR_RETURN(auto ticket, slots.Take(holder));
    tickets->push_back(std::move(ticket));
  }
}

TEST(SharedSlotsTest, OneHolderLeavesTheReserveToHoldersWithoutASlot) {
  SharedSlots slots = Sessions(32);
  std::vector<SharedSlots::Ticket> greedy;
  const absl::Status refused = TakeAll(slots, "identity 'a'", &greedy);
  EXPECT_EQ(greedy.size(), 28u);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(
      std::string(refused.message()),
      AllOf(HasSubstr("identity 'a'"), HasSubstr("28 of 32 sessions"),
            HasSubstr("the 4 that are free"), HasSubstr("Fix: "), HasSubstr("--max_sessions")));
  std::vector<SharedSlots::Ticket> others;
  for (const char* holder : {"b", "c", "d", "e"}) {
    auto first = slots.Take(holder);
    ASSERT_TRUE(first.ok()) << holder << ": " << first.status();
    others.push_back(*std::move(first));
    EXPECT_FALSE(slots.Take(holder).ok()) << holder;
  }
  EXPECT_THAT(std::string(slots.Take("f").status().message()), HasSubstr("all 32 sessions"));
  others.pop_back();
  EXPECT_FALSE(slots.Take("identity 'a'").ok()) << "the slot that was released is in the reserve";
  EXPECT_TRUE(slots.Take("f").ok());
}

TEST(SharedSlotsTest, AQuotaAppliesHoweverManySlotsAreFree) {
  SharedSlots slots = Sessions(32);
  const auto first = slots.Take("identity 'a'", 1);
  ASSERT_TRUE(first.ok());
  const absl::Status refused = slots.Take("identity 'a'", 1).status();
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("quota of 1"), HasSubstr("quotas.sessions"), HasSubstr("Fix: ")));
  EXPECT_TRUE(slots.Take("identity 'a'", 2).ok());
  EXPECT_FALSE(slots.Take("b", 0).ok());
}

TEST(SharedSlotsTest, FewSlotsHaveNoReserve) {
  for (const uint32_t total : {1u, 2u, 3u, 4u, 5u, 8u, 9u}) {
    SharedSlots slots = Sessions(total);
    std::vector<SharedSlots::Ticket> tickets;
    EXPECT_FALSE(TakeAll(slots, "a", &tickets).ok());
    EXPECT_EQ(tickets.size(), total - slots.reserve());
    EXPECT_EQ(slots.reserve(), total < 4 ? 0u : total <= 8 ? 1u : 2u) << total;
  }
}

TEST(SharedSlotsTest, TicketsReleaseTheirSlotOnceAndMayOutliveTheSlots) {
  SharedSlots::Ticket kept;
  {
    SharedSlots slots = Sessions(2);
    auto ticket = slots.Take("a");
    ASSERT_TRUE(ticket.ok());
    kept = *std::move(ticket);
    EXPECT_EQ(slots.taken(), 1u);
    SharedSlots::Ticket moved = std::move(kept);
    moved.Release();
    moved.Release();
    EXPECT_EQ(slots.taken(), 0u);
    kept = *slots.Take("a");
  }
}

TEST(SharedSlotsTest, ConcurrentThreadsTakeAndReleaseWithoutLoss) {
  SharedSlots slots = Sessions(8);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&slots, holder = std::to_string(t)] {
      for (int i = 0; i < 10'000; ++i) (void)slots.Take(holder);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(slots.taken(), 0u);
}

TEST(HolderTest, IsTheIdentityOrTheAddress) {
  const Account anonymous("anonymous", {}, /*shared=*/true);
  const auto address = [&](const std::string& peer) { return NameHolder(anonymous, peer); };
  EXPECT_EQ(address("ipv4:10.0.0.1:4242"), "address 10.0.0.1");
  EXPECT_EQ(address("ipv6:[::1]:4242"), "address ::1");
  EXPECT_EQ(address("ipv6:%5B::1%5D:4242"), "address ::1");
  EXPECT_EQ(address("ipv6:[::ffff:10.0.0.1]:4242"), "address 10.0.0.1");
  EXPECT_EQ(address("ipv6:%5B2001:db8:0:7:1:2:3:4%5D:1"), "address 2001:db8:0:7::/64");
  EXPECT_EQ(address("ipv6:%5B2001:db8:0:7::9%5D:1"), "address 2001:db8:0:7::/64");
  EXPECT_EQ(address("ipv6:%5Bfe80::1%25eth0%5D:1"), "address fe80::/64");
  EXPECT_EQ(address("unix:/run/residentd"), "address unix:/run/residentd");
  EXPECT_EQ(address(""), "address ");
  const Account ranking("ranking", {});
  EXPECT_EQ(NameHolder(ranking, "ipv4:10.0.0.1:4242"), "identity 'ranking'");
}

}  // namespace
}  // namespace resident
