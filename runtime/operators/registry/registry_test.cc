#include "runtime/operators/registry/registry.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <optional>
#include <set>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "runtime/base/fake_time.h"
#include "runtime/base/status_macros.h"

namespace resident {
namespace {

constexpr char kSignature[] = "x: in f32[*S], out: out f32[*S]";

std::unique_ptr<Registry> Make(bool test_operators, uint32_t devices = 1) {
  auto registry = Registry::Create({.devices = devices, .test_operators = test_operators});
  EXPECT_TRUE(registry.ok()) << registry.status();
  return *std::move(registry);
}

VersionSpec Spec(const std::string& signature = kSignature) {
  VersionSpec spec;
  spec.signature = signature;
  spec.split = "out 4096";
  spec.content_hash = "c0ffee";
  return spec;
}

VersionSpec Bytecode() {
  VersionSpec spec;
  spec.kind = OperatorKind::kBytecode;
  spec.bytecode = std::make_shared<const std::string>("\x01\x02");
  return spec;
}

TEST(BuiltinOperatorsTest, EveryOperatorHasTwoSlotsOfItsOwn) {
  const auto registry = Make(true);
  std::set<uint32_t> slots;
  for (const OperatorView& op : registry->List()) {
    ASSERT_EQ(op.versions.size(), 1u);
    const uint32_t slot = op.versions[0].slot;
    EXPECT_EQ(slot % 2, 0u) << op.op->name();
    EXPECT_TRUE(slots.insert(slot).second) << op.op->name();
    EXPECT_EQ(registry->FindBySlot(slot)->op, op.op);
  }
  EXPECT_EQ(*slots.rbegin(), 2 * (slots.size() - 1));
}

TEST(BuiltinOperatorsTest, TestOperatorsAreRegisteredOnRequestAndFollowTheBuiltins) {
  const auto without = Make(false);
  const auto with = Make(true);
  EXPECT_FALSE(without->Resolve("test.spin", 0).ok());
  const auto spin = with->Resolve("test.spin", 0);
  ASSERT_TRUE(spin.ok());
  EXPECT_GE(spin->version->slot, 2 * without->List().size());
  // Built-ins keep their slots.
  EXPECT_EQ(with->Resolve("add", 0)->version->slot, without->Resolve("add", 0)->version->slot);
}

TEST(BuiltinOperatorsTest, UnknownNameSuggestsTheNearest) {
  const auto registry = Make(false);
  EXPECT_EQ(registry->Resolve("ad", 0).status().message(),
            "no operator 'ad'. Fix: did you mean 'add'? Operators.List lists all operators");
  EXPECT_EQ(registry->Resolve("sum_row", 0).status().message(),
            "no operator 'sum_row'. Fix: did you mean 'sum_rows'? Operators.List lists all "
            "operators");
  EXPECT_EQ(registry->Resolve("convolution", 0).status().message(),
            "no operator 'convolution'. Fix: see Operators.List for all operators");
}

TEST(BuiltinOperatorsTest, HugeOrUnprintableNamesAreShortenedInTheMessage) {
  const auto registry = Make(false);
  const absl::Status status = registry->Resolve(std::string(1 << 20, '\x01'), 0).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_LT(status.message().size(), 400u);
}

TEST(BuiltinOperatorsTest, VersionsResolve) {
  const auto registry = Make(false);
  EXPECT_TRUE(registry->Resolve("add", 1).ok());
  EXPECT_EQ(registry->Resolve("add", 0)->version->version, 1u);
  const absl::Status status = registry->Resolve("add", 7).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_NE(status.message().find("no version 7"), std::string::npos);
}

TEST(BuiltinOperatorsTest, CountersAreKeptForEachDevice) {
  const auto registry = Make(false, 3);
  const ResolvedOperator add = *registry->Resolve("add", 0);
  add.stats(2)->CountTasks(0, 5);
  uint64_t counted = 0;
  registry->ForEachStats([&](uint32_t device, const std::shared_ptr<const OperatorStats>& stats) {
    if (stats->name() == "add" && device == 2) counted = stats->tasks(0);
  });
  EXPECT_EQ(counted, 5u);
  EXPECT_EQ(add.stats(0)->tasks(0), 0u);
}

// One chunk for each 64 KiB of weights, and at least one for 256 results.
TEST(BuiltinOperatorsTest, TwoParametersDecideAboutChunks) {
  const SplitRule linear = Make(true)->Resolve("linear", 0)->version->split;
  const auto chunks = [&](int64_t rows, int64_t columns, int64_t vectors, uint64_t workers = 0) {
    const std::vector<std::vector<int64_t>> shapes = {
        {vectors, columns}, {rows, columns}, {0}, {0}, {vectors, rows}};
    return linear.Chunks(
        [&](int parameter) -> absl::Span<const int64_t> { return shapes[parameter]; }, workers);
  };
  EXPECT_EQ(chunks(128, 128, 1), 1u);
  EXPECT_EQ(chunks(128, 129, 1), 2u);
  EXPECT_EQ(chunks(512, 512, 1), 16u);
  EXPECT_EQ(chunks(512, 512, 16), 32u);
  EXPECT_EQ(chunks(512, 512, 64), 128u);
  EXPECT_EQ(chunks(512, 512, 4096), 1024u);
  EXPECT_EQ(chunks(512, 512, 4096, 132), 262u);
  EXPECT_EQ(chunks(0, 512, 1), 1u);
}

TEST(BuiltinOperatorsTest, ChunksFollowTheSplitRule) {
  const auto registry = Make(true);
  const SplitRule add = registry->Resolve("add", 0)->version->split;
  EXPECT_EQ(add.Chunks({1024}), 1u);
  EXPECT_EQ(add.Chunks({int64_t{1} << 60}), 1024u);
  EXPECT_EQ(add.Chunks({int64_t{1} << 60}, 264), 526u);
  EXPECT_EQ(add.Chunks({int64_t{1} << 60}, 1000), 1024u);
  EXPECT_EQ(add.Chunks({int64_t{1} << 60}, 1), 1024u);
  EXPECT_EQ(add.Chunks({4, 32768}, 264), 4u);
  const SplitRule copy_bytes = registry->Resolve("copy_bytes", 0)->version->split;
  EXPECT_EQ(copy_bytes.Chunks({int64_t{1} << 60}), kMaxTaskChunks);
  EXPECT_EQ(copy_bytes.Chunks({int64_t{1} << 60}, 263), kMaxTaskChunks);
  EXPECT_EQ(add.Chunks({32768}), 1u);
  EXPECT_EQ(add.Chunks({32769}), 2u);
  EXPECT_EQ(add.Chunks({4, 32768}), 4u);
  EXPECT_EQ(add.Chunks({0}), 1u);
  EXPECT_EQ(registry->Resolve("test.spin", 0)->version->split.Chunks({1 << 30}), 1u);
}

class RegistryTest : public testing::Test {
 protected:
  RegistryTest() : registry_(Make(false)) {
    commit_ = [this](const RegistryChange& change) -> absl::StatusOr<uint64_t> {
      if (!commit_status_.ok()) return commit_status_;
      kinds_.push_back(change.kind);
      return ++revision_;
    };
  }

  // Installs a version and leaves it loaded.
  absl::StatusOr<RegistryChange> TryLoad(const std::string& name, const VersionSpec& spec,
                                         std::optional<uint64_t> expected = std::nullopt) {
    ASSIGN_OR_RETURN(auto reserved,
                     registry_->Reserve(name, spec, expected, absl::Now() + absl::Seconds(60)));
    return registry_->Load(std::move(reserved), expected, commit_);
  }
  RegistryChange Load(const std::string& name, const VersionSpec& spec = Spec()) {
    auto change = TryLoad(name, spec);
    EXPECT_TRUE(change.ok()) << change.status();
    return change.ok() ? *change : RegistryChange();
  }
  RegistryChange Activate(const std::string& name, uint32_t version = 0, bool force = false) {
    auto change = registry_->Activate(name, version, std::nullopt, force, commit_);
    EXPECT_TRUE(change.ok()) << change.status();
    return change.ok() ? *change : RegistryChange();
  }
  // Installs versions 1 (previous) and 2 (active).
  void InstallTwo(const std::string& name) {
    for (int i = 0; i < 2; ++i) {
      Load(name);
      Activate(name);
    }
  }
  absl::StatusCode ActivateCode(const std::string& name, uint32_t version) {
    return registry_->Activate(name, version, std::nullopt, false, commit_).status().code();
  }
  uint32_t Serves(const std::string& name) {
    const auto op = registry_->Resolve(name, 0);
    return op.ok() ? op->version->version : 0;
  }
  VersionState FindState(const std::string& name, uint32_t version) {
    const auto op = registry_->Describe(name);
    if (!op.ok() || op->Find(version) == nullptr) return VersionState::kRejected;
    return op->Find(version)->state;
  }

  std::unique_ptr<Registry> registry_;
  uint64_t revision_ = 100;
  absl::Status commit_status_;
  std::vector<EventKind> kinds_;
  Registry::Commit commit_;
};

TEST_F(RegistryTest, ALoadedVersionDoesNotServeUntilItIsActivated) {
  const RegistryChange loaded = Load("swish");
  EXPECT_EQ(loaded.version, 1u);
  EXPECT_EQ(loaded.active_version, 0u);
  EXPECT_EQ(loaded.revision, 101u);
  const absl::Status none = registry_->Resolve("swish", 0).status();
  EXPECT_EQ(none.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(none.message(),
            "operator 'swish' has no active version: version 1 is loaded. Fix: activate it");
  EXPECT_EQ(registry_->Resolve("swish", 1)->version->version, 1u);
  const RegistryChange active = Activate("swish");
  EXPECT_EQ(active.version, 1u);
  EXPECT_EQ(active.previous_version, 0u);
  EXPECT_EQ(Serves("swish"), 1u);
  EXPECT_EQ(FindState("swish", 1), VersionState::kActive);
  EXPECT_EQ(registry_->Revision("swish"), 102u);
}

TEST_F(RegistryTest, AChangeWhoseCommitFailedIsNotVisible) {
  Load("swish");
  commit_status_ = absl::InternalError("disk full");
  EXPECT_EQ(ActivateCode("swish", 0), absl::StatusCode::kInternal);
  EXPECT_EQ(Serves("swish"), 0u);
  EXPECT_EQ(TryLoad("other", Spec()).status().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(registry_->Describe("other").status().code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(registry_->Remove("swish", std::nullopt, commit_, nullptr).ok());
  EXPECT_TRUE(registry_->Describe("swish").ok());
  EXPECT_EQ(registry_->Revision("swish"), 101u);
}

TEST_F(RegistryTest, AFaultyVersionIsQuarantinedEvenIfTheCommitFails) {
  InstallTwo("swish");
  commit_status_ = absl::InternalError("disk full");
  const auto change = registry_->Quarantine("swish", 2, "stored to null", commit_);
  ASSERT_TRUE(change.ok());
  EXPECT_EQ(change->commit_status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(change->revision, 104u);
  EXPECT_EQ(Serves("swish"), 1u);
}

TEST_F(RegistryTest, AQuarantineWhoseCommitFailedIsCommittedBeforeTheNextChange) {
  InstallTwo("swish");
  InstallTwo("other");
  commit_status_ = absl::UnavailableError("disk full");
  ASSERT_TRUE(registry_->Quarantine("swish", 2, "stored to null", commit_).ok());
  ASSERT_TRUE(registry_->Quarantine("other", 2, "stored to null", commit_).ok());
  const uint64_t before = registry_->Revision("swish");
  EXPECT_EQ(ActivateCode("swish", 2), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(TryLoad("third", Spec()).status().code(), absl::StatusCode::kUnavailable);
  kinds_.clear();
  commit_status_ = absl::OkStatus();
  Load("third");
  EXPECT_EQ(kinds_, (std::vector<EventKind>{EventKind::kQuarantined, EventKind::kQuarantined,
                                            EventKind::kInstalled}));
  EXPECT_GT(registry_->Revision("swish"), before);
  EXPECT_LT(registry_->Revision("swish"), registry_->Revision("other"));
  // Each of them is committed only once.
  Load("swish");
  EXPECT_EQ(kinds_.size(), 4u);
}

TEST_F(RegistryTest, ASecondRollbackDoesNotReverseTheFirst) {
  InstallTwo("swish");
  EXPECT_EQ(FindState("swish", 1), VersionState::kPrevious);
  const auto change = registry_->Rollback("swish", std::nullopt, commit_);
  ASSERT_TRUE(change.ok());
  EXPECT_EQ(change->version, 1u);
  EXPECT_EQ(change->previous_version, 2u);
  EXPECT_EQ(Serves("swish"), 1u);
  // A second rollback, sent by another operator of the service, must not reactivate version
  // 2.
  EXPECT_EQ(registry_->Rollback("swish", std::nullopt, commit_).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Serves("swish"), 1u);
  Activate("swish", 2);
  EXPECT_EQ(Serves("swish"), 2u);
}

TEST_F(RegistryTest, AStaleRevisionIsAbortedAndBothAreReported) {
  const RegistryChange first = Load("swish");
  Activate("swish");
  const auto stale = registry_->Activate("swish", 0, first.revision, false, commit_);
  EXPECT_EQ(stale.status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(
      stale.status().message(),
      "operator 'swish' was expected at revision 101 and it is at revision 102: another "
      "caller has changed it. Fix: read its state again, then repeat the call with its revision");
  EXPECT_EQ(TryLoad("swish", Spec(), first.revision).status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(TryLoad("swish", Spec(), 0).status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(TryLoad("new", Spec(), 7).status().code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(TryLoad("new", Spec(), 0).ok());
}

TEST_F(RegistryTest, OneOfTwoConcurrentInstallsIsAborted) {
  const uint64_t revision = Load("swish").revision;
  const absl::Time soon = absl::Now() + absl::Seconds(60);
  auto a = *registry_->Reserve("swish", Spec(), revision, soon);
  auto b = *registry_->Reserve("swish", Spec(), revision, soon);
  EXPECT_NE(a->slot, b->slot);
  EXPECT_TRUE(registry_->Load(a, revision, commit_).ok());
  EXPECT_EQ(registry_->Load(b, revision, commit_).status().code(), absl::StatusCode::kAborted);
  // The aborted install did not consume a version number.
  EXPECT_EQ(FindState("swish", 2), VersionState::kLoaded);
  EXPECT_EQ(Load("swish").version, 3u);
}

TEST_F(RegistryTest, NamesAreChecked) {
  const auto code = [&](const std::string& name) { return TryLoad(name, Spec()).status().code(); };
  EXPECT_EQ(code(""), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code("1st"), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code("a/b"), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(std::string(65, 'a')), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code("add"), absl::StatusCode::kAlreadyExists);
  // Also reserved if they are not registered: the daemon may later be started with them.
  EXPECT_EQ(code("test.spin"), absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(TryLoad(std::string(64, 'a'), Spec()).ok());
  EXPECT_TRUE(TryLoad("a-b.C_9", Spec()).ok());
}

TEST_F(RegistryTest, VersionsOfAnOperatorHaveOneSignature) {
  Load("swish");
  // The same types with other dimension names.
  EXPECT_TRUE(TryLoad("swish", Spec("x: in f32[*T], out: out f32[*T]")).ok());
  const absl::Status other =
      TryLoad("swish", Spec("x: in f32[*S], y: in f32[*S], out: out f32[*S]")).status();
  EXPECT_EQ(other.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(other.message().find(kSignature), std::string::npos);
  EXPECT_EQ(TryLoad("swish", Spec("x: in f16[*S], out: out f32[*S]")).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(TryLoad("swish", Spec("nonsense")).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(TryLoad("swish", Bytecode()).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(RegistryTest, BuiltinOperatorsCannotBeChanged) {
  EXPECT_EQ(ActivateCode("add", 0), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(registry_->Remove("add", std::nullopt, commit_, nullptr).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(registry_->Quarantine("add", 1, "?", commit_).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(registry_->Resolve("add", 0).ok());
}

TEST_F(RegistryTest, CountersOfAVersionStayForAWhileAfterItLeftTheKernel) {
  FakeTime time;
  registry_ = *Registry::Create({.time = &time});
  const auto versions = [&](const std::string& name) {
    std::set<uint32_t> found;
    registry_->ForEachStats([&](uint32_t, const std::shared_ptr<const OperatorStats>& stats) {
      if (stats->name() != name) return;
      EXPECT_TRUE(found.insert(stats->version()).second);
    });
    return found;
  };
  InstallTwo("swish");
  InstallTwo("other");
  std::optional<ResolvedOperator> pinned = *registry_->Resolve("swish", 1);
  Load("swish");  // Version 1 is retired.
  EXPECT_EQ(versions("swish"), (std::set<uint32_t>{1, 2, 3}));
  time.Advance(Registry::kKeepStats);
  ASSERT_TRUE(registry_->Remove("other", std::nullopt, commit_, nullptr).ok());
  EXPECT_EQ(versions("other"), (std::set<uint32_t>{1, 2}));
  time.Advance(std::chrono::nanoseconds(1));
  EXPECT_EQ(versions("swish"), (std::set<uint32_t>{1, 2, 3})) << "a task still uses version 1";
  pinned.reset();
  EXPECT_EQ(versions("swish"), (std::set<uint32_t>{2, 3}));
  time.Advance(Registry::kKeepStats);
  EXPECT_EQ(versions("other"), (std::set<uint32_t>{}));
  EXPECT_EQ(versions("add"), (std::set<uint32_t>{1}));
}

TEST_F(RegistryTest, TheNumberOfCountersThatStayIsLimited) {
  for (size_t i = 0; i < Registry::kMaxKeptStats + 10; ++i) Load("swish");
  uint32_t first = UINT32_MAX;
  size_t found = 0;
  registry_->ForEachStats([&](uint32_t, const std::shared_ptr<const OperatorStats>& stats) {
    if (stats->name() != "swish") return;
    first = std::min(first, stats->version());
    ++found;
  });
  EXPECT_EQ(found, Registry::kMaxKeptStats + 1);
  EXPECT_EQ(first, 10u);
}

TEST_F(RegistryTest, BytecodeIsCalledWithProgramsAndNativeCodeWithTasks) {
  EXPECT_EQ(Load("rule", Bytecode()).slot, kNoSlot);
  Activate("rule");
  const absl::Status tasks = registry_->Resolve("rule", 0).status();
  EXPECT_EQ(tasks.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(tasks.message().find("Batch.programs"), std::string::npos);
  const absl::Status programs = registry_->ResolveProgram("add", 0).status();
  EXPECT_EQ(programs.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(programs.message().find("Batch.tasks"), std::string::npos);
  const auto rule = registry_->ResolveProgram("rule", 0);
  ASSERT_TRUE(rule.ok());
  EXPECT_EQ(*rule->version->spec.bytecode, "\x01\x02");
  EXPECT_NE(rule->stats(0), nullptr);
}

TEST_F(RegistryTest, ASlotIsNotReusedWhileABatchPinsItsVersion) {
  Load("swish");
  Activate("swish");
  ResolvedOperator batch = *registry_->Resolve("swish", 0);
  const uint32_t slot = batch.version->slot;
  Load("swish");
  Activate("swish");  // Version 1 is the previous one.
  EXPECT_EQ(Load("swish").retired, std::vector<uint32_t>{1});
  EXPECT_EQ(FindState("swish", 1), VersionState::kRetired);
  EXPECT_EQ(registry_->Resolve("swish", 1).status().code(), absl::StatusCode::kNotFound);
  // The slot still belongs to that version, so that a fault in the slot can be attributed.
  EXPECT_EQ(registry_->FindBySlot(slot)->version, 1u);
  EXPECT_EQ(batch.version->state, VersionState::kRetired);
  const absl::Time soon = absl::Now() + absl::Seconds(60);
  EXPECT_NE((*registry_->Reserve("other", Spec(), 0, soon))->slot, slot);
  EXPECT_FALSE(batch.version->drained->HasBeenNotified());
  const auto drained = batch.version->drained;
  batch.stats(0)->CountTasks(0, 3);
  batch = ResolvedOperator();
  EXPECT_TRUE(drained->HasBeenNotified());
  EXPECT_EQ(registry_->FindBySlot(slot), nullptr);
  EXPECT_EQ((*registry_->Reserve("other", Spec(), 0, soon))->slot, slot);
  // Its counters can still be read.
  EXPECT_EQ(registry_->Describe("swish")->Find(1)->tasks(), 3u);
}

TEST_F(RegistryTest, ReserveWaitsForASlotThatIsStillInUse) {
  std::vector<std::shared_ptr<OperatorVersion>> taken;
  const auto reserve = [&](absl::Time deadline) {
    return registry_->Reserve("swish", Spec(), 0, deadline);
  };
  for (auto slot = reserve(absl::InfinitePast()); slot.ok(); slot = reserve(absl::InfinitePast())) {
    taken.push_back(*std::move(slot));
  }
  EXPECT_GE(taken.size(), 2 * kMaxInstalledOperators);
  EXPECT_EQ(reserve(absl::InfinitePast()).status().code(), absl::StatusCode::kDeadlineExceeded);
  const uint32_t last = taken.back()->slot;
  std::thread ends([&] { taken.pop_back(); });
  const auto slot = reserve(absl::InfiniteFuture());
  ends.join();
  ASSERT_TRUE(slot.ok());
  EXPECT_EQ((*slot)->slot, last);
}

TEST_F(RegistryTest, RemoveNotifiesWhenTheLastTaskHasEnded) {
  InstallTwo("swish");
  ResolvedOperator batch = *registry_->Resolve("swish", 0);
  std::vector<std::shared_ptr<absl::Notification>> drained;
  const auto removed = registry_->Remove("swish", std::nullopt, commit_, &drained);
  ASSERT_TRUE(removed.ok());
  EXPECT_EQ(removed->retired, (std::vector<uint32_t>{2, 1}));
  ASSERT_EQ(drained.size(), 2u);
  EXPECT_FALSE(drained[0]->HasBeenNotified());
  EXPECT_TRUE(drained[1]->HasBeenNotified());
  EXPECT_EQ(registry_->Resolve("swish", 0).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(batch.op->name(), "swish");  // The batch may still use it.
  batch = ResolvedOperator();
  EXPECT_TRUE(drained[0]->HasBeenNotified());
}

TEST_F(RegistryTest, VersionNumbersAreNotUsedAgainAfterARemoval) {
  InstallTwo("swish");
  ASSERT_TRUE(registry_->Remove("swish", std::nullopt, commit_, nullptr).ok());
  EXPECT_EQ(Load("swish", Spec("x: in i32[*S], out: out i32[*S]")).version, 3u);
  // Also after the name itself was dropped from the list of removed operators.
  ASSERT_TRUE(registry_->Remove("swish", std::nullopt, commit_, nullptr).ok());
  for (uint32_t i = 0; i < kMaxRemovedNames + 2; ++i) {
    registry_->RestoreRemoved(absl::StrCat("other", i), 1);
  }
  EXPECT_GE(Load("swish").version, 4u);
}

TEST_F(RegistryTest, RemovingOneNameOftenDoesNotDropTheNumbersOfOthers) {
  registry_->RestoreRemoved("swish", 7);
  for (uint32_t i = 0; i < kMaxRemovedNames + 2; ++i) registry_->RestoreRemoved("other", i);
  EXPECT_EQ(Load("another").version, 1u);
  EXPECT_EQ(Load("swish").version, 8u);
  EXPECT_EQ(Load("other").version, kMaxRemovedNames + 2);
}

TEST_F(RegistryTest, QuarantineActivatesThePreviousVersion) {
  InstallTwo("swish");
  const auto change = registry_->Quarantine("swish", 2, "stored to null", commit_);
  ASSERT_TRUE(change.ok());
  EXPECT_EQ(change->active_version, 1u);
  EXPECT_EQ(change->standby_version, 2u);
  EXPECT_EQ(Serves("swish"), 1u);
  EXPECT_EQ(FindState("swish", 2), VersionState::kQuarantined);
  EXPECT_EQ(registry_->Describe("swish")->Find(2)->quarantine_reason, "stored to null");
  EXPECT_EQ(registry_->Resolve("swish", 2).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ActivateCode("swish", 2), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(registry_->Rollback("swish", std::nullopt, commit_).status().code(),
            absl::StatusCode::kFailedPrecondition);
  Activate("swish", 2, /*force=*/true);
  EXPECT_EQ(Serves("swish"), 2u);
  EXPECT_EQ(FindState("swish", 1), VersionState::kPrevious);
}

TEST_F(RegistryTest, QuarantineDoesNotActivateAVersionThatNeverServed) {
  Load("swish");
  Activate("swish");
  Load("swish");  // Version 2, loaded.
  const std::string reason = absl::StrCat("looped for ever", kArgumentsOfReason, "n=42");
  const auto change = registry_->Quarantine("swish", 1, reason, commit_);
  ASSERT_TRUE(change.ok());
  EXPECT_EQ(change->active_version, 0u);
  const absl::Status none = registry_->Resolve("swish", 0).status();
  EXPECT_EQ(none.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(none.message().find("looped for ever"), std::string::npos);
  // A caller of the operator must not see the arguments of other callers.
  EXPECT_EQ(none.message().find("42"), std::string::npos);
  for (const absl::Status& status :
       {registry_->Resolve("swish", 1).status(),
        registry_->Activate("swish", 1, std::nullopt, /*force=*/false, commit_).status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_NE(status.message().find("looped for ever"), std::string::npos) << status;
    EXPECT_EQ(status.message().find("42"), std::string::npos) << status;
  }
  EXPECT_EQ(registry_->Describe("swish")->Find(1)->quarantine_reason, reason);
}

TEST_F(RegistryTest, ALoadedVersionSurvivesTheQuarantineOfThePreviousOne) {
  InstallTwo("swish");
  ASSERT_TRUE(registry_->Quarantine("swish", 1, "?", commit_).ok());
  EXPECT_EQ(Serves("swish"), 2u);
  EXPECT_EQ(registry_->Quarantine("swish", 9, "?", commit_).status().code(),
            absl::StatusCode::kNotFound);
}

TEST_F(RegistryTest, ATrialGetsExactlyItsShareEvenlySpread) {
  InstallTwo("swish");  // 2 serves, 1 is standby.
  ASSERT_TRUE(registry_->SetTrial("swish", 1, 10, 5, std::nullopt, commit_).ok());
  int standby = 0, shadowed = 0, longest = 0, since = 0;
  for (int i = 0; i < 10'000; ++i) {
    const ResolvedOperator op = *registry_->Resolve("swish", 0);
    ++since;
    if (op.version->version == 1) {
      ++standby;
      since = 0;
      EXPECT_EQ(op.shadow, nullptr);
    }
    if (op.shadow != nullptr) ++shadowed;
    longest = std::max(longest, since);
  }
  // 10 % as a share of 2^32 is rounded: one batch more or less is possible.
  EXPECT_NEAR(standby, 1000, 1);
  EXPECT_LE(longest, 11);
  EXPECT_NEAR(shadowed, 450, 1);  // 5 % of the others.
  // A request that names a version gets that version.
  EXPECT_EQ(registry_->Resolve("swish", 2)->version->version, 2u);
}

TEST_F(RegistryTest, AWithdrawnRequestIsNotCountedForATrial) {
  InstallTwo("swish");  // 2 serves, 1 is standby.
  ASSERT_TRUE(registry_->SetTrial("swish", 1, 10, 25, std::nullopt, commit_).ok());
  int standby = 0, shadowed = 0;
  for (int i = 0; i < 1000; ++i) {
    const ResolvedOperator first = *registry_->Resolve("swish", 0);
    registry_->Withdraw(first);
    // The next request gets what the withdrawn one had.
    const ResolvedOperator second = *registry_->Resolve("swish", 0);
    EXPECT_EQ(second.version, first.version);
    EXPECT_EQ(second.shadow, first.shadow);
    standby += second.version->version == 1;
    shadowed += second.shadow != nullptr;
  }
  EXPECT_NEAR(standby, 100, 1);
  EXPECT_NEAR(shadowed, 225, 1);
}

TEST_F(RegistryTest, ATrialCanTakeAllTrafficOrNone) {
  InstallTwo("swish");
  ASSERT_TRUE(registry_->SetTrial("swish", 0, 100, 0, std::nullopt, commit_).ok());
  for (int i = 0; i < 100; ++i) EXPECT_EQ(Serves("swish"), 1u);
  ASSERT_TRUE(registry_->SetTrial("swish", 0, 0, 0, std::nullopt, commit_).ok());
  for (int i = 0; i < 100; ++i) EXPECT_EQ(Serves("swish"), 2u);
  EXPECT_EQ(registry_->Describe("swish")->trial.version, 0u);
}

TEST_F(RegistryTest, ATrialBlocksInstallsAndEndsWithASwitch) {
  InstallTwo("swish");
  Load("swish");  // Version 3.
  ASSERT_TRUE(registry_->SetTrial("swish", 3, 50, 0, std::nullopt, commit_).ok());
  EXPECT_EQ(TryLoad("swish", Spec()).status().code(), absl::StatusCode::kFailedPrecondition);
  // A rollback ends the trial; the version that was active stays.
  const auto rolled_back = registry_->Rollback("swish", std::nullopt, commit_);
  ASSERT_TRUE(rolled_back.ok());
  EXPECT_EQ(rolled_back->version, 2u);
  EXPECT_EQ(FindState("swish", 3), VersionState::kLoaded);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(Serves("swish"), 2u);
  ASSERT_TRUE(registry_->SetTrial("swish", 3, 50, 0, std::nullopt, commit_).ok());
  Activate("swish");
  for (int i = 0; i < 4; ++i) EXPECT_EQ(Serves("swish"), 3u);
  EXPECT_EQ(registry_->Describe("swish")->trial.version, 0u);
}

TEST_F(RegistryTest, InvalidTrialsAreRefused) {
  const auto code = [&](uint32_t version, double traffic, double shadow) {
    return registry_->SetTrial("swish", version, traffic, shadow, std::nullopt, commit_)
        .status()
        .code();
  };
  Load("swish");
  EXPECT_EQ(code(1, 10, 0), absl::StatusCode::kFailedPrecondition);  // Nothing is active.
  Activate("swish");
  EXPECT_EQ(code(1, 10, 0), absl::StatusCode::kFailedPrecondition);  // No standby.
  Load("swish");
  EXPECT_EQ(code(1, 10, 0), absl::StatusCode::kFailedPrecondition);  // It is the active one.
  EXPECT_EQ(code(2, 101, 0), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(2, 0, -1), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(2, std::nan(""), 0), absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(registry_->Quarantine("swish", 2, "?", commit_).ok());
  EXPECT_EQ(code(2, 10, 0), absl::StatusCode::kFailedPrecondition);
}

TEST_F(RegistryTest, ListingsKeepOnlyTheLastVersions) {
  for (uint32_t i = 0; i < kMaxRetiredVersions + 6; ++i) Load("swish");
  const OperatorView op = *registry_->Describe("swish");
  EXPECT_EQ(op.versions.size(), kMaxRetiredVersions + 1);
  EXPECT_EQ(op.versions.back().version, kMaxRetiredVersions + 6);
  EXPECT_EQ(op.versions.back().state, VersionState::kLoaded);
}

TEST_F(RegistryTest, RestoredOperatorsAreAsTheyWere) {
  Registry::RestoredOperator op;
  op.name = "swish";
  op.revision = 77;
  op.last_version = 5;
  op.versions = {
      {.version = 2, .state = VersionState::kRetired, .spec = Spec()},
      {.version = 3, .state = VersionState::kActive, .slot = 200, .spec = Spec()},
      {.version = 4, .state = VersionState::kLoaded, .slot = 201, .spec = Spec()},
  };
  op.trial = {4, 50, 0};
  ASSERT_TRUE(registry_->Restore(op).ok());
  const OperatorView view = *registry_->Describe("swish");
  EXPECT_EQ(view.revision, 77u);
  EXPECT_EQ(view.active_version, 3u);
  EXPECT_EQ(view.standby_version, 4u);
  EXPECT_EQ(view.Find(3)->slot, 200u);
  EXPECT_EQ(view.Find(2)->state, VersionState::kRetired);
  EXPECT_EQ(view.trial.version, 4u);
  EXPECT_NE(Serves("swish"), Serves("swish"));
  Activate("swish", 4);
  EXPECT_EQ(Load("swish").version, 6u);
  EXPECT_EQ(registry_->Restore(op).code(), absl::StatusCode::kAborted);  // Restored twice.
  op.name = "add";
  EXPECT_EQ(registry_->Restore(op).code(), absl::StatusCode::kAlreadyExists);
}

TEST_F(RegistryTest, ARestoredQuarantinedVersionStaysQuarantined) {
  ASSERT_TRUE(registry_
                  ->Restore({.name = "swish",
                             .revision = 5,
                             .last_version = 1,
                             .versions = {{.version = 1,
                                           .state = VersionState::kQuarantined,
                                           .slot = 100,
                                           .spec = Spec(),
                                           .quarantine_reason = "stored to null"}},
                             .trial = {}})
                  .ok());
  EXPECT_EQ(registry_->Resolve("swish", 0).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ActivateCode("swish", 0), absl::StatusCode::kFailedPrecondition);
  Activate("swish", 0, /*force=*/true);
  EXPECT_EQ(Serves("swish"), 1u);
}

// Readers resolve and use a version while versions are installed, activated, rolled back
// and retired. A pinned version must not change, and there is always an active version.
TEST_F(RegistryTest, ConcurrentResolveNeverSeesAPartialChange) {
  InstallTwo("swish");
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> resolved{0};
  std::vector<std::thread> readers;
  for (int r = 0; r < 4; ++r) {
    readers.emplace_back([&] {
      uint32_t newest = 0;
      while (!stop.load()) {
        const auto op = registry_->Resolve("swish", 0);
        ASSERT_TRUE(op.ok()) << op.status();
        ASSERT_EQ(op->op, op->version->op.get());
        // The slot belongs to this version for as long as the version is pinned.
        const auto holder = registry_->FindBySlot(op->version->slot);
        ASSERT_EQ(holder, op->version);
        op->stats(0)->CountTasks(0, 1);
        // Versions increase, except for a rollback, which decreases the version by one.
        ASSERT_GE(op->version->version + 2, newest);
        newest = std::max(newest, op->version->version);
        resolved.fetch_add(1);
      }
    });
  }
  for (int round = 0; round < 300; ++round) {
    Load("swish");
    ASSERT_TRUE(registry_->SetTrial("swish", 0, 30, 20, std::nullopt, commit_).ok());
    Activate("swish");
    ASSERT_TRUE(registry_->Rollback("swish", std::nullopt, commit_).ok());
    Activate("swish");
    if (round % 7 == 0) {
      const uint32_t active = registry_->Describe("swish")->active_version;
      ASSERT_TRUE(registry_->Quarantine("swish", active, "?", commit_).ok());
      Activate("swish", active, /*force=*/true);
    }
    (void)registry_->List();
  }
  while (resolved.load() < 1000) std::this_thread::yield();
  stop = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(registry_->Describe("swish")->active_version, 302u);
  // Besides the built-ins' slots, two slots are in use.
  EXPECT_EQ(registry_->SlotHolders().size() - Make(false)->SlotHolders().size(),
            registry_->Describe("swish")->standby_version == 0 ? 1u : 2u);
}

TEST_F(RegistryTest, AResolveAfterAChangeReturnedSeesTheChange) {
  InstallTwo("swish");
  std::atomic<uint32_t> activated{2};
  std::atomic<bool> stop{false};
  std::vector<std::thread> readers;
  for (int r = 0; r < 3; ++r) {
    readers.emplace_back([&] {
      while (!stop.load()) {
        const uint32_t min_version = activated.load();
        ASSERT_GE(Serves("swish"), min_version);
      }
    });
  }
  for (int i = 0; i < 1000; ++i) {
    Load("swish");
    activated.store(Activate("swish").version);
  }
  stop = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(Serves("swish"), 1002u);
}

// Versions that requests name by their contents or their label.
class NamedVersionsTest : public RegistryTest {
 protected:
  // Loads a version whose content hash is this digit, 64 times.
  RegistryChange LoadWith(char digit, const std::string& label = "") {
    VersionSpec spec = Spec();
    spec.content_hash = std::string(64, digit);
    auto reserved =
        registry_->Reserve("swish", spec, std::nullopt, absl::Now() + absl::Seconds(60));
    EXPECT_TRUE(reserved.ok()) << reserved.status();
    auto change = registry_->Load(*std::move(reserved), std::nullopt, commit_, label);
    EXPECT_TRUE(change.ok()) << change.status();
    return change.ok() ? *change : RegistryChange();
  }
  absl::StatusOr<ResolvedOperator> ByHash(std::string_view digits) {
    VersionRef ref;
    ref.content_hash = digits;
    return registry_->Resolve("swish", ref);
  }
  absl::StatusOr<ResolvedOperator> ByLabel(std::string_view label) {
    VersionRef ref;
    ref.label = label;
    return registry_->Resolve("swish", ref);
  }
  static uint32_t Number(const absl::StatusOr<ResolvedOperator>& found) {
    EXPECT_TRUE(found.ok()) << found.status();
    return found.ok() ? found->version->version : 0;
  }
};

TEST_F(NamedVersionsTest, AHashNamesItsVersionWhateverServes) {
  LoadWith('a');
  EXPECT_EQ(Number(ByHash("aaaaaaaaaaaa")), 1u);
  Activate("swish");
  LoadWith('b');
  EXPECT_EQ(Number(ByHash(std::string(64, 'a'))), 1u);
  EXPECT_EQ(Number(ByHash(std::string(64, 'b'))), 2u);
  Activate("swish");
  EXPECT_EQ(Number(ByHash("aaaaaaaaaaaa")), 1u);
  EXPECT_EQ(Number(ByHash("bbbbbbbbbbbb")), 2u);
  ASSERT_TRUE(registry_->Rollback("swish", std::nullopt, commit_).ok());
  EXPECT_EQ(Number(ByHash("bbbbbbbbbbbb")), 2u);
}

TEST_F(NamedVersionsTest, AHashThatIsNotInTheKernelIsNotFoundAndTheMessageListsWhatIs) {
  LoadWith('a', "first");
  Activate("swish");
  LoadWith('b');
  LoadWith('c');
  const absl::Status retired = ByHash("bbbbbbbbbbbb").status();
  EXPECT_EQ(retired.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(
      retired.message(),
      "operator 'swish' has no version with the content hash bbbbbbbbbbbb in the kernel, which "
      "has version 1 (active, label 'first'), version 3 (loaded). Fix: name one of these, or "
      "install that version again; the kernel keeps two versions of an operator");
  EXPECT_EQ(ByLabel("second").status().code(), absl::StatusCode::kNotFound);
  // A built-in operator has neither.
  VersionRef ref;
  ref.label = "first";
  EXPECT_EQ(registry_->Resolve("add", ref).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(NamedVersionsTest, AQuarantinedVersionIsAFailedPrecondition) {
  LoadWith('a', "old");
  Activate("swish");
  LoadWith('b', "new");
  Activate("swish");
  ASSERT_TRUE(registry_->Quarantine("swish", 2, "stored to null", commit_).ok());
  EXPECT_EQ(ByHash("bbbbbbbbbbbb").status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ByLabel("new").status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Number(ByLabel("old")), 1u);
}

TEST_F(NamedVersionsTest, OfEqualContentsTheActiveVersionRuns) {
  LoadWith('a');
  Activate("swish");
  LoadWith('a');
  EXPECT_EQ(Number(ByHash("aaaaaaaaaaaa")), 1u);
  Activate("swish");
  EXPECT_EQ(Number(ByHash("aaaaaaaaaaaa")), 2u);
  // Also if the other one is quarantined.
  ASSERT_TRUE(registry_->Quarantine("swish", 2, "stored to null", commit_).ok());
  EXPECT_EQ(Number(ByHash("aaaaaaaaaaaa")), 1u);
}

TEST_F(NamedVersionsTest, DigitsOfTwoVersionsAreAmbiguous) {
  LoadWith('a');
  Activate("swish");
  VersionSpec spec = Spec();
  spec.content_hash = std::string(12, 'a').append(52, 'b');
  Load("swish", spec);
  EXPECT_EQ(ByHash("aaaaaaaaaaaa").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Number(ByHash("aaaaaaaaaaaaa")), 1u);
  EXPECT_EQ(Number(ByHash("aaaaaaaaaaaab")), 2u);
}

TEST_F(NamedVersionsTest, ALabelMovesWithTheInstallAndLeavesWithItsVersion) {
  const auto labels = [&] {
    std::vector<std::string> all;
    const OperatorView view = *registry_->Describe("swish");
    for (const VersionView& version : view.versions) all.push_back(version.label);
    return all;
  };
  LoadWith('a', "stable");
  Activate("swish");
  LoadWith('b', "next");
  EXPECT_EQ(labels(), (std::vector<std::string>{"stable", "next"}));
  // A switch moves no label.
  Activate("swish");
  EXPECT_EQ(Number(ByLabel("stable")), 1u);
  EXPECT_EQ(Number(ByLabel("next")), 2u);
  // Version 1 leaves the kernel, and version 3 takes the label of version 2.
  LoadWith('c', "next");
  EXPECT_EQ(labels(), (std::vector<std::string>{"", "", "next"}));
  EXPECT_EQ(Number(ByLabel("next")), 3u);
  EXPECT_EQ(ByLabel("stable").status().code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(registry_->SetTrial("swish", 0, 10, 0, std::nullopt, commit_).ok());
  EXPECT_EQ(Number(ByLabel("next")), 3u);
  ASSERT_TRUE(registry_->Rollback("swish", std::nullopt, commit_).ok());
  EXPECT_EQ(Number(ByLabel("next")), 3u);
  // Version 2 is quarantined while it serves, and version 3, which never served, is retired.
  ASSERT_TRUE(registry_->Quarantine("swish", 2, "?", commit_).ok());
  EXPECT_EQ(ByLabel("next").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(NamedVersionsTest, AReaderSeesALabelMoveInOneStep) {
  LoadWith('a', "stable");
  Activate("swish");
  std::atomic<bool> stop{false};
  std::vector<std::thread> readers;
  for (int r = 0; r < 3; ++r) {
    readers.emplace_back([&] {
      uint32_t newest = 0;
      while (!stop.load()) {
        const uint32_t found = Number(ByLabel("stable"));
        ASSERT_GE(found, newest);
        newest = found;
      }
    });
  }
  for (int i = 0; i < 1000; ++i) {
    LoadWith(i % 2 == 0 ? 'b' : 'a', "stable");
    if (i % 3 == 0) Activate("swish");
  }
  stop = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(Number(ByLabel("stable")), 1001u);
}

TEST_F(NamedVersionsTest, TheTimeSinceAVersionBecameActiveBeginsWithEachSwitch) {
  FakeTime time;
  registry_ = *Registry::Create({.time = &time});
  const auto active_for = [&](uint32_t version) {
    return std::chrono::duration_cast<std::chrono::seconds>(
               registry_->Describe("swish")->Find(version)->active_for)
        .count();
  };
  LoadWith('a');
  Activate("swish");
  time.Advance(std::chrono::seconds(5));
  LoadWith('b');  // Changes nothing.
  EXPECT_EQ(active_for(1), 5);
  EXPECT_EQ(active_for(2), 0);
  ASSERT_TRUE(registry_->SetTrial("swish", 0, 10, 0, std::nullopt, commit_).ok());
  ASSERT_TRUE(registry_->Rollback("swish", std::nullopt, commit_).ok());  // Ends only the trial.
  EXPECT_EQ(active_for(1), 5);
  Activate("swish");
  time.Advance(std::chrono::seconds(3));
  EXPECT_EQ(active_for(1), 0);
  EXPECT_EQ(active_for(2), 3);
  ASSERT_TRUE(registry_->Rollback("swish", std::nullopt, commit_).ok());
  time.Advance(std::chrono::seconds(1));
  EXPECT_EQ(active_for(1), 1);
}

}  // namespace
}  // namespace resident
