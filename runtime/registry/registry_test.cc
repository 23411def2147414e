#include "runtime/registry/registry.h"

#include <set>

#include "gtest/gtest.h"

namespace resident {
namespace {

std::unique_ptr<Registry> Make(bool test_operators, uint32_t devices = 1) {
  auto registry = Registry::Create({.devices = devices, .test_operators = test_operators});
  EXPECT_TRUE(registry.ok()) << registry.status();
  return *std::move(registry);
}

TEST(RegistryTest, EveryOperatorHasTwoSlotsOfItsOwn) {
  const auto registry = Make(true);
  std::set<uint32_t> slots;
  for (const Operator* op : registry->List()) {
    const uint32_t slot = op->active().slot;
    EXPECT_EQ(slot % 2, 0u) << op->name();
    EXPECT_TRUE(slots.insert(slot).second) << op->name();
    EXPECT_EQ(registry->FindBySlot(slot), op);
  }
  EXPECT_EQ(*slots.rbegin(), 2 * (slots.size() - 1));
}

TEST(RegistryTest, TestOperatorsAreThereOnlyWhenAskedForAndFollowTheBuiltins) {
  const auto without = Make(false);
  const auto with = Make(true);
  EXPECT_FALSE(without->Resolve("test.spin", 0).ok());
  const auto spin = with->Resolve("test.spin", 0);
  ASSERT_TRUE(spin.ok());
  EXPECT_GE(spin->version->slot, 2 * without->List().size());
  // Built-ins keep their slots.
  EXPECT_EQ(with->Resolve("add", 0)->version->slot, without->Resolve("add", 0)->version->slot);
}

TEST(RegistryTest, UnknownNameSuggestsTheNearest) {
  const auto registry = Make(false);
  EXPECT_EQ(registry->Resolve("ad", 0).status().message(),
            "no operator 'ad'. Fix: did you mean 'add'? Operators.List names all there are");
  EXPECT_EQ(registry->Resolve("sum_row", 0).status().message(),
            "no operator 'sum_row'. Fix: did you mean 'sum_rows'? Operators.List names all there "
            "are");
  EXPECT_EQ(registry->Resolve("convolution", 0).status().message(),
            "no operator 'convolution'. Fix: Operators.List names all there are");
}

TEST(RegistryTest, HugeOrUnprintableNamesAreShortenedInTheMessage) {
  const auto registry = Make(false);
  const absl::Status status = registry->Resolve(std::string(1 << 20, '\x01'), 0).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_LT(status.message().size(), 400u);
}

TEST(RegistryTest, VersionsResolve) {
  const auto registry = Make(false);
  EXPECT_TRUE(registry->Resolve("add", 1).ok());
  EXPECT_EQ(registry->Resolve("add", 0)->version->version, 1u);
  const absl::Status status = registry->Resolve("add", 7).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_NE(status.message().find("no version 7"), std::string::npos);
}

TEST(RegistryTest, CountersAreKeptForEachDevice) {
  const auto registry = Make(false, 3);
  const ResolvedOperator add = *registry->Resolve("add", 0);
  add.stats(2)->CountTasks(0, 5);
  uint64_t counted = 0;
  registry->ForEachStats([&](uint32_t device, const OperatorStats& stats) {
    if (stats.name() == "add" && device == 2) counted = stats.tasks(0);
  });
  EXPECT_EQ(counted, 5u);
  EXPECT_EQ(add.stats(0)->tasks(0), 0u);
}

TEST(RegistryTest, ChunksFollowTheSplitRule) {
  const auto registry = Make(true);
  const SplitRule add = registry->Resolve("add", 0)->op->split();
  EXPECT_EQ(add.Chunks({1024}), 1u);
  EXPECT_EQ(add.Chunks({32768}), 1u);
  EXPECT_EQ(add.Chunks({32769}), 2u);
  EXPECT_EQ(add.Chunks({4, 32768}), 4u);
  EXPECT_EQ(add.Chunks({0}), 1u);
  EXPECT_EQ(registry->Resolve("test.spin", 0)->op->split().Chunks({1 << 30}), 1u);
}

}  // namespace
}  // namespace resident
