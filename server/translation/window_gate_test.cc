#include "server/translation/window_gate.h"

#include <functional>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/device/fake_session.h"

namespace resident {
namespace {

constexpr uint64_t kWindow = 1000;

class Waiter final : public WindowWaiter {
 public:
  int woken = 0;

 private:
  std::function<void()> WindowWake() override {
    return [this] { ++woken; };
  }
};

class WindowGateTest : public ::testing::Test {
 protected:
  using Memory = std::shared_ptr<const WindowMemory>;
  using Use = std::shared_ptr<WindowUse>;

  Memory Take(const Use& own, uint64_t bytes) {
    auto memory = gate_.Allocate(session_, own, bytes);
    return memory.ok() ? *memory : nullptr;
  }
  Memory Take(const Use& own, uint64_t bytes, Waiter& waiter) {
    waits_ = false;
    auto memory = gate_.Allocate(session_, own, bytes, &waiter, &waits_);
    return memory.ok() ? *memory : nullptr;
  }
  static Use Client() { return std::make_shared<WindowUse>(); }

  FakeSession session_{1, 0, kWindow};
  WindowGate gate_{kWindow};
  bool waits_ = false;
};

TEST_F(WindowGateTest, MemoryGivenBackWakesWhoFitsInTheOrderOfArrival) {
  const Use holder = Client(), first = Client(), second = Client();
  Memory held = Take(holder, 900);
  Waiter a, b;
  EXPECT_EQ(Take(first, 500, a), nullptr);
  EXPECT_TRUE(waits_);
  EXPECT_EQ(Take(second, 600, b), nullptr);
  EXPECT_TRUE(waits_);
  held = nullptr;
  EXPECT_EQ(a.woken, 1);
  EXPECT_EQ(b.woken, 0);  // Both do not fit.
  Memory taken = Take(first, 500, a);
  ASSERT_NE(taken, nullptr);
  taken = nullptr;
  EXPECT_EQ(b.woken, 1);
  EXPECT_NE(Take(second, 600, b), nullptr);
  EXPECT_EQ(gate_.in_line(), 0u);
}

TEST_F(WindowGateTest, NeverFitsIsRefusedAndDoesNotWait) {
  Waiter waiter;
  EXPECT_EQ(Take(Client(), kWindow + 1, waiter), nullptr);
  EXPECT_FALSE(waits_);
  EXPECT_EQ(gate_.in_line(), 0u);
}

TEST_F(WindowGateTest, WokenAndUnwillingLeavesItsTurnToTheNext) {
  const Use holder = Client();
  Memory held = Take(holder, 900);
  Waiter a, b;
  EXPECT_EQ(Take(Client(), 700, a), nullptr);
  EXPECT_EQ(Take(Client(), 700, b), nullptr);
  held = nullptr;
  EXPECT_EQ(a.woken, 1);
  EXPECT_EQ(b.woken, 0);
  WindowGate::Leave(a);
  EXPECT_EQ(b.woken, 1);
}

TEST_F(WindowGateTest, WokenAndOvertakenKeepsItsPlace) {
  const Use early = Client();
  Memory held = Take(Client(), 900);
  Waiter a, b;
  EXPECT_EQ(Take(early, 600, a), nullptr);
  held = nullptr;
  ASSERT_EQ(a.woken, 1);
  Memory quicker = Take(Client(), 500);  // Nobody is in line at this moment.
  ASSERT_NE(quicker, nullptr);
  EXPECT_EQ(Take(Client(), 700, b), nullptr);
  EXPECT_TRUE(waits_);
  EXPECT_EQ(Take(early, 600, a), nullptr);  // Comes back behind b, and stands before it.
  EXPECT_TRUE(waits_);
  quicker = nullptr;
  EXPECT_EQ(a.woken, 2);
  EXPECT_EQ(b.woken, 0);
  EXPECT_NE(Take(early, 600, a), nullptr);
}

TEST_F(WindowGateTest, WithdrawnIsNotWoken) {
  Memory held = Take(Client(), 900);
  Waiter a;
  EXPECT_FALSE(gate_.Withdraw(a));
  EXPECT_EQ(Take(Client(), 500, a), nullptr);
  EXPECT_TRUE(gate_.Withdraw(a));
  held = nullptr;
  EXPECT_EQ(a.woken, 0);
}

TEST_F(WindowGateTest, WhoHoldsNothingGoesBeforeWhoHoldsSome) {
  const Use greedy = Client();
  const Memory some = Take(greedy, 100);
  Memory much = Take(greedy, 300);
  ASSERT_NE(much, nullptr);
  Waiter hungry;
  EXPECT_EQ(Take(Client(), 400, hungry), nullptr);
  ASSERT_TRUE(waits_);
  EXPECT_EQ(Take(greedy, 1), nullptr);  // It would fit.
  much = nullptr;
  EXPECT_EQ(hungry.woken, 1);
}

TEST_F(WindowGateTest, PassersByDoNotStarveABatchOfMostOfTheWindow) {
  const Use big = Client();
  Memory small = Take(Client(), 300);
  Waiter hungry;
  EXPECT_EQ(Take(big, 900, hungry), nullptr);
  uint32_t passed = 0;
  while (Memory next = Take(Client(), 300)) {
    small = next;  // There is always one that passes before the last has gone.
    ASSERT_LE(++passed, WindowGate::kMostPasses);
  }
  EXPECT_EQ(passed, WindowGate::kMostPasses);
  small = nullptr;
  EXPECT_EQ(hungry.woken, 1);
  EXPECT_NE(Take(big, 900, hungry), nullptr);
}

TEST_F(WindowGateTest, NewcomersOfOneClientDoNotStarveItsOwnBatch) {
  const Use own = Client();
  Memory small = Take(own, 50);
  Waiter big;
  EXPECT_EQ(Take(own, 600, big), nullptr);
  ASSERT_TRUE(waits_);
  uint32_t passed = 0;
  while (Memory next = Take(own, 50)) {
    small = next;  // The client always holds something.
    ASSERT_LE(++passed, WindowGate::kMostPasses);
  }
  EXPECT_EQ(passed, WindowGate::kMostPasses);
  small = nullptr;
  EXPECT_EQ(big.woken, 1);
  EXPECT_NE(Take(own, 600, big), nullptr);
}

TEST_F(WindowGateTest, MemoryOutlivesTheGate) {
  auto gate = std::make_unique<WindowGate>(kWindow);
  const Use own = Client();
  auto memory = gate->Allocate(session_, own, 10);
  ASSERT_TRUE(memory.ok());
  gate.reset();
  *memory = nullptr;
  EXPECT_EQ(own->bytes(), 0u);
}

TEST_F(WindowGateTest, PiecesOfTransfersLeaveRoomForOthers) {
  EXPECT_EQ(WindowGate(256 << 20).PieceBytes(4 << 20), 4u << 20);
  EXPECT_EQ(WindowGate(4 << 20).PieceBytes(4 << 20), 256u << 10);
  EXPECT_EQ(WindowGate(1 << 20).PieceBytes(100), 100u);
}

}  // namespace
}  // namespace resident
