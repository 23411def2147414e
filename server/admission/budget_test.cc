#include "server/admission/budget.h"

#include <memory>
#include <optional>

#include "gtest/gtest.h"

namespace resident {
namespace {

using Charge = std::optional<Budget::Charge>;
using Client = std::shared_ptr<Budget::Account>;

Client NewClient() { return std::make_shared<Budget::Account>(); }

TEST(BudgetTest, GreedyClientsLeaveAShareToTheNext) {
  Budget budget({.limit = 120});
  const Client first = NewClient(), second = NewClient(), third = NewClient();
  const Charge one = budget.Acquire(first, 30), two = budget.Acquire(first, 30);
  ASSERT_TRUE(one.has_value() && two.has_value());
  EXPECT_FALSE(budget.Acquire(first, 1).has_value());  // The client holds half of the budget.
  const Charge half_of_the_rest = budget.Acquire(second, 30);
  ASSERT_TRUE(half_of_the_rest.has_value());
  EXPECT_FALSE(budget.Acquire(second, 1).has_value());
  EXPECT_TRUE(budget.Acquire(third, 15).has_value());
  EXPECT_FALSE(budget.Acquire(third, 16).has_value());
}

TEST(BudgetTest, AllOfAnUnusedBudgetCanBeAcquiredAndNotMore) {
  Budget budget({.limit = 100});
  const Client client = NewClient();
  EXPECT_FALSE(budget.MayFit(101));
  EXPECT_FALSE(budget.Acquire(client, 101).has_value());
  EXPECT_FALSE(budget.Acquire(client, UINT64_MAX).has_value());
  EXPECT_EQ(client->acquired(), 0u);
  Charge all = budget.Acquire(client, 100);
  ASSERT_TRUE(all.has_value());
  EXPECT_FALSE(budget.Acquire(NewClient(), 1).has_value());
  all->Clear();
  EXPECT_EQ(client->acquired(), 0u);
  EXPECT_EQ(budget.used(), 0u);
}

TEST(BudgetTest, TheFirstAmountOfAClientMayExceedItsOwnLimit) {
  Budget budget({.limit = 1000, .client_limit = 100});
  const Client client = NewClient();
  Charge large = budget.Acquire(client, 120);
  ASSERT_TRUE(large.has_value());
  EXPECT_TRUE(budget.OverClientLimit(*client, 1));
  EXPECT_FALSE(budget.Acquire(client, 1).has_value());
  large->Clear();
  Charge some = budget.Acquire(client, 60);
  EXPECT_FALSE(budget.Acquire(client, 41).has_value());
  EXPECT_TRUE(budget.Acquire(client, 40).has_value());
}

TEST(BudgetTest, AClientThatHoldsNothingGetsMoreThanHalfIfItIsFree) {
  Budget budget({.limit = 100});
  const Charge some = budget.Acquire(NewClient(), 10);
  EXPECT_TRUE(budget.Acquire(NewClient(), 90).has_value());
  EXPECT_FALSE(budget.Acquire(NewClient(), 91).has_value());
  // An amount that would fit into a share is refused until it does.
  EXPECT_FALSE(budget.Acquire(NewClient(), 50).has_value());
}

TEST(BudgetTest, NoLimitRefusesNothing) {
  Budget budget({});
  const Client client = NewClient();
  const Charge much = budget.Acquire(client, uint64_t{1} << 60);
  EXPECT_TRUE(budget.Acquire(client, uint64_t{1} << 60).has_value());
  EXPECT_FALSE(budget.Full(*client));
}

TEST(BudgetTest, CountedAmountsReduceWhatCanBeAcquired) {
  Budget budget({.limit = 100});
  const Client reader = NewClient();
  EXPECT_FALSE(budget.Full(*reader));
  const Budget::Charge first = budget.Count(reader, 12);
  // Half of the quarter is reserved for clients that have counted nothing.
  EXPECT_TRUE(budget.Full(*reader));
  EXPECT_FALSE(budget.Full(*NewClient()));
  Budget::Charge more = budget.Count(reader, 500);  // Its read was already in progress.
  EXPECT_TRUE(budget.Full(*NewClient()));
  EXPECT_EQ(budget.used(Budget::Purpose::kRequests), 512u);
  // Requests that wait do not prevent each other from being admitted.
  const Charge some = budget.Acquire(NewClient(), 1);
  EXPECT_FALSE(budget.Acquire(NewClient(), 75).has_value());
  EXPECT_TRUE(budget.Acquire(NewClient(), 74).has_value());
  more.Clear();
  EXPECT_FALSE(budget.Full(*NewClient()));
}

TEST(BudgetTest, AChargeThatIsMovedOrChangedCountsOnce) {
  Budget budget({.limit = 1000});
  const Client client = NewClient();
  Charge batch = budget.Acquire(client, 100);
  Budget::Charge answer = *std::move(batch);
  batch.reset();
  EXPECT_EQ(budget.used(Budget::Purpose::kBatches), 100u);
  answer.Become(Budget::Purpose::kAnswers, 40);
  EXPECT_EQ(budget.used(Budget::Purpose::kBatches), 0u);
  EXPECT_EQ(budget.used(Budget::Purpose::kAnswers), 40u);
  EXPECT_EQ(client->acquired(), 40u);
  answer.Become(Budget::Purpose::kAnswers, 400);
  EXPECT_EQ(budget.used(), 400u);
  answer = budget.Count(client, 5);
  EXPECT_EQ(client->acquired(), 0u);
  EXPECT_EQ(budget.used(), 5u);
  answer.Clear();
  EXPECT_EQ(budget.used(), 0u);
}

TEST(BudgetTest, ReleasedIsCalledForAClearedChargeAndNotForAnUndoneOne) {
  int released = 0;
  Budget budget({.limit = 100, .released = [&] { ++released; }});
  Charge charge = budget.Acquire(NewClient(), 10);
  charge->Undo();
  EXPECT_EQ(released, 0);
  EXPECT_EQ(budget.used(), 0u);
  charge = budget.Acquire(NewClient(), 10);
  charge->Become(Budget::Purpose::kAnswers, 4);
  EXPECT_EQ(released, 1);
  charge->Clear();
  EXPECT_EQ(released, 2);
}

class OrderedBudgetTest : public ::testing::Test {
 protected:
  Budget budget_{{.limit = 1000, .ordered = true}};
  Charge Take(const Client& client, uint64_t amount, Budget::Place* place = nullptr) {
    return budget_.Acquire(client, amount, Budget::Purpose::kBatches, place);
  }
};

TEST_F(OrderedBudgetTest, WaitersAreServedInOrder) {
  Charge held = Take(NewClient(), 900);
  const Client first = NewClient(), second = NewClient();
  Budget::Place a, b;
  EXPECT_FALSE(Take(first, 600, &a).has_value());
  EXPECT_FALSE(Take(second, 600, &b).has_value());
  Charge quicker = Take(NewClient(), 50);
  held->Clear();
  EXPECT_FALSE(Take(second, 600, &b).has_value());  // The first one is next.
  EXPECT_TRUE(Take(first, 600, &a).has_value());
  EXPECT_TRUE(Take(second, 600, &b).has_value());
}

TEST_F(OrderedBudgetTest, AWaiterThatLeavesDoesNotBlockTheNext) {
  Charge held = Take(NewClient(), 400);
  Budget::Place a, b;
  EXPECT_FALSE(Take(NewClient(), 700, &a).has_value());
  EXPECT_FALSE(Take(NewClient(), 600, &b).has_value());
  a.Leave();
  EXPECT_TRUE(Take(NewClient(), 600, &b).has_value());
}

TEST_F(OrderedBudgetTest, AClientThatHoldsNothingIsServedBeforeOneThatHoldsSome) {
  const Client greedy = NewClient();
  const Charge some = Take(greedy, 100);
  Charge much = Take(greedy, 300);
  ASSERT_TRUE(much.has_value());
  const Client idle = NewClient();
  Budget::Place place;
  EXPECT_FALSE(Take(idle, 400, &place).has_value());
  EXPECT_FALSE(Take(greedy, 1).has_value());  // It would fit.
  much->Clear();
  EXPECT_TRUE(Take(idle, 400, &place).has_value());
}

TEST_F(OrderedBudgetTest, OthersDoNotStarveARequestForMostOfTheBudget) {
  const Client big = NewClient();
  Charge small = Take(NewClient(), 300);
  Budget::Place place;
  EXPECT_FALSE(Take(big, 900, &place).has_value());
  uint32_t passed = 0;
  while (Charge next = Take(NewClient(), 300)) {
    small = std::move(next);  // The next one is served before the previous one is released.
    ASSERT_LE(++passed, Budget::kMaxPasses);
  }
  EXPECT_EQ(passed, Budget::kMaxPasses);
  small.reset();
  EXPECT_TRUE(Take(big, 900, &place).has_value());
}

TEST_F(OrderedBudgetTest, NewcomersOfOneClientDoNotStarveItsOwnRequest) {
  const Client own = NewClient();
  Charge small = Take(own, 50);
  Budget::Place place;
  EXPECT_FALSE(Take(own, 600, &place).has_value());
  uint32_t passed = 0;
  while (Charge next = Take(own, 50)) {
    small = std::move(next);  // The client always holds something.
    ASSERT_LE(++passed, Budget::kMaxPasses);
  }
  EXPECT_EQ(passed, Budget::kMaxPasses);
  small.reset();
  EXPECT_TRUE(Take(own, 600, &place).has_value());
}

}  // namespace
}  // namespace resident
