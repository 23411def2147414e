#include "gtest/gtest.h"
#include "runtime/operators/install/fake_operator_manager.h"
#include "server/metrics/daemon_sources.h"

namespace resident {
namespace {

OperatorEvent Of(EventKind kind) {
  OperatorEvent event;
  event.kind = kind;
  return event;
}

TEST(OperatorEventCounterTest, CountsEventsAfterItsConstruction) {
  FakeOperatorManager manager;
  manager.AddEvent(Of(EventKind::kInstalled));
  OperatorEventCounter counter(&manager);
  EXPECT_EQ(counter.counts().size(), 10u);
  EXPECT_EQ(counter.counts()["installed"], 0u);
  for (int i = 0; i < 200; ++i) manager.AddEvent(Of(EventKind::kActivated));
  manager.AddEvent(Of(EventKind::kRolledBack));
  EXPECT_EQ(counter.counts()["activated"], 200u);
  EXPECT_EQ(counter.counts()["rolled_back"], 1u);
  EXPECT_EQ(counter.counts()["installed"], 0u);
}

TEST(OperatorEventCounterTest, UnsubscribesFromTheManager) {
  FakeOperatorManager manager;
  { OperatorEventCounter counter(&manager); }
  EXPECT_EQ(manager.subscribers(), 0u);
  manager.AddEvent(Of(EventKind::kActivated));
}

}  // namespace
}  // namespace resident
