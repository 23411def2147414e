// The manager without engines: bytecode operators, and devices that accept every
// generation.
#include "runtime/operators/install/live_operator_manager.h"

#include <stdlib.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/device/fake_device.h"
#include "runtime/engine/engines.h"
#include "runtime/operators/install/fake_compiler.h"
#include "runtime/operators/install/version_builder.h"

namespace resident {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A FLUX program: MUL R0, R0, R0; HALT.
const std::string kSquare = {0x22, 0, 0, 0, 0x00};

bool Eventually(const std::function<bool()>& condition) {
  for (int i = 0; i < 60'000; ++i) {
    if (condition()) return true;
    absl::SleepFor(absl::Milliseconds(1));
  }
  return false;
}

class LiveOperatorManagerTest : public ::testing::Test {
 protected:
  // Installs a version of a bytecode operator.
  void Install(const std::string& name, VersionState until) {
    InstallRequest request;
    request.name = name;
    request.kind = OperatorKind::kBytecode;
    request.body = kSquare;
    request.wait_for = until;
    const absl::Status installed = manager_.Install(
        request, [](const InstallProgress&) {}, [] { return false; });
    ASSERT_TRUE(installed.ok()) << installed;
  }
  // Installs version 1 (active) and version 2 (loaded).
  void InstallTwo(const std::string& name) {
    Install(name, VersionState::kActive);
    Install(name, VersionState::kLoaded);
  }
  // Records shadow comparisons of version 2.
  void Compare(const std::string& name, uint64_t tasks, uint64_t mismatches) {
    const auto version = registry_->ResolveProgram(name, 2);
    ASSERT_TRUE(version.ok()) << version.status();
    manager_.RecordShadow(*version->version, tasks, mismatches);
  }
  // Counts tasks of a version, which took this time each.
  void Run(const std::string& name, uint32_t version, uint64_t tasks, uint64_t ns) {
    const auto program = registry_->ResolveProgram(name, version);
    ASSERT_TRUE(program.ok()) << program.status();
    OperatorStats* const stats = program->stats(0);
    for (uint64_t i = 0; i < tasks; ++i) stats->device.Observe(ns);
    stats->CountTasks(0, tasks);
  }
  static SwitchRequest MakeSwitch(const std::string& name, BakeAction action = BakeAction::kOff) {
    SwitchRequest request;
    request.name = name;
    request.bake.action = action;
    request.bake.time = std::chrono::hours(1);
    request.bake.min_tasks = 10;
    return request;
  }
  uint32_t Active(const std::string& name) const {
    const auto view = registry_->Describe(name);
    return view.ok() ? view->active_version : 0;
  }
  // Installs and activates a native version; returns its slot.
  uint32_t InstallNative(const std::string& name) {
    VersionSpec spec;
    spec.kind = OperatorKind::kSource;
    spec.signature = "x: in f32[*S], out: out f32[*S]";
    auto version = *registry_->Reserve(name, spec, std::nullopt, absl::InfiniteFuture());
    auto payload = std::make_shared<UnitPayload>();
    payload->symbol = "resident_op_0123456789abcdef";
    payload->units[device_.snapshot().info.traits.compile_target] = {
        std::make_shared<const std::string>("unit"), {}};
    version->payload = payload;
    const uint32_t slot = version->slot;
    const Registry::Commit commit = [this](const RegistryChange& change) {
      return state_->Append(change, {});
    };
    EXPECT_TRUE(registry_->Load(std::move(version), std::nullopt, commit).ok());
    EXPECT_TRUE(registry_->Activate(name, 0, std::nullopt, false, commit).ok());
    return slot;
  }

  // Lets a form serve for the program; returns its code.
  std::shared_ptr<const OperatorVersion> ServeNative(const OperatorVersion& program) {
    auto payload = std::make_shared<UnitPayload>();
    payload->symbol = "resident_op_0123456789abcdef";
    payload->units[device_.snapshot().info.traits.compile_target] = {
        std::make_shared<const std::string>("unit"), {}};
    auto code = *registry_->ReserveNative(program, payload, absl::InfiniteFuture());
    code->state = VersionState::kLoaded;
    EXPECT_TRUE(program.native->Begin());
    program.native->Serve(code, std::nullopt);
    return code;
  }

  std::unique_ptr<Registry> registry_ = *Registry::Create({});
  std::unique_ptr<StateStore> state_ = *StateStore::Open({});
  FakeCompiler compiler_;
  FakeDevice device_{0};
  static LiveOperatorManager::Options Options() {
    LiveOperatorManager::Options options;
    options.flux_native = false;  // Native code is compared on an engine.
    options.engine_program = "/bin/false";
    return options;
  }
  LiveOperatorManager manager_{
      Options(),
      LiveOperatorManager::Sources{
          registry_.get(), state_.get(), &compiler_, {&device_}, {{&EngineTypes().back()}}}};
};

TEST_F(LiveOperatorManagerTest, ARefusedRollbackDoesNotEndTheBake) {
  InstallTwo("square");
  ASSERT_TRUE(manager_.Activate(MakeSwitch("square", BakeAction::kRollBack)).ok());
  SwitchRequest stale = MakeSwitch("square");
  stale.expected_revision = 1;
  EXPECT_EQ(manager_.Rollback(stale).status().code(), absl::StatusCode::kAborted);
  Compare("square", 100, 100);
  EXPECT_TRUE(Eventually([&] { return Active("square") == 1; }));
}

TEST_F(LiveOperatorManagerTest, ATrialsMismatchesDoNotCountForALaterActivation) {
  InstallTwo("a");
  InstallTwo("b");
  PromoteRequest trial;
  trial.name = "a";
  trial.shadow_percent = 100;
  trial.bake.action = BakeAction::kOff;
  ASSERT_TRUE(manager_.Promote(trial).ok());
  Compare("a", 100, 100);
  ASSERT_TRUE(manager_.Activate(MakeSwitch("a", BakeAction::kRollBack)).ok());
  // When the evaluation has handled b, it has handled a before.
  ASSERT_TRUE(manager_.Activate(MakeSwitch("b", BakeAction::kRollBack)).ok());
  Compare("b", 100, 100);
  EXPECT_TRUE(Eventually([&] { return Active("b") == 1; }));
  EXPECT_EQ(Active("a"), 2u);
  // Later mismatches count.
  Compare("a", 100, 100);
  EXPECT_TRUE(Eventually([&] { return Active("a") == 1; }));
}

TEST_F(LiveOperatorManagerTest, TimesOfEarlierTasksDoNotCountForALaterActivation) {
  InstallTwo("a");
  InstallTwo("b");
  Run("a", 1, 1000, 1'000);
  Run("a", 2, 1000, 1'000'000);
  ASSERT_TRUE(manager_.Activate(MakeSwitch("a", BakeAction::kRollBack)).ok());
  Run("a", 2, 1000, 1'000);
  // When the evaluation has handled b, it has handled a before.
  ASSERT_TRUE(manager_.Activate(MakeSwitch("b", BakeAction::kRollBack)).ok());
  Compare("b", 100, 100);
  EXPECT_TRUE(Eventually([&] { return Active("b") == 1; }));
  EXPECT_EQ(Active("a"), 2u);
  // Later ones count.
  Run("a", 2, 1000, 1'000'000);
  EXPECT_TRUE(Eventually([&] { return Active("a") == 1; }));
}

TEST_F(LiveOperatorManagerTest, AForcedActivationReloadsTheCodeBeforeItServes) {
  const uint32_t slot = InstallNative("times");
  DeviceFault fault;
  fault.reason = EngineEndReason::kFault;
  fault.cause = "it stored to a bad address";
  fault.suspects = {slot};
  const auto replacement = manager_.OnFault(device_, fault);
  EXPECT_THAT(FakeDevice::ListSlots(replacement), IsEmpty());
  EXPECT_EQ(Active("times"), 0u);
  device_.Restart(replacement);

  SwitchRequest force = MakeSwitch("times");
  force.force = true;
  ASSERT_TRUE(manager_.Activate(force).ok());
  EXPECT_EQ(Active("times"), 1u);
  EXPECT_THAT(device_.slots(), ElementsAre(slot));
}

TEST_F(LiveOperatorManagerTest, AStaleForcedActivationIsRefusedBeforeItWaitsForADevice) {
  DeviceFault fault;
  fault.reason = EngineEndReason::kFault;
  fault.suspects = {InstallNative("times")};
  device_.Restart(manager_.OnFault(device_, fault));
  SwitchRequest stale = MakeSwitch("times");
  stale.force = true;
  stale.expected_revision = 1;
  EXPECT_EQ(manager_.Activate(stale).status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(device_.loads(), 0u);
}

TEST_F(LiveOperatorManagerTest, NativeCodeThatDiffersInServiceIsTakenOutOfService) {
  Install("square", VersionState::kActive);
  const auto program = registry_->ResolveProgram("square", 0)->version;
  const auto code = ServeNative(*program);
  manager_.RecordShadow(*code, /*tasks=*/1, /*mismatches=*/0);
  EXPECT_EQ(program->native->Use(false).code, code);
  manager_.RecordShadow(*code, 1, 1);
  EXPECT_EQ(program->native->Use(false).code, nullptr);
  EXPECT_EQ(program->native->view().state, NativeForm::State::kQuarantined);
  EXPECT_EQ(Active("square"), 1u);
  const OperatorManager::NativeCounters counters = manager_.native_counters();
  EXPECT_EQ(counters.comparisons, 2u);
  EXPECT_EQ(counters.mismatches, 1u);
  EXPECT_EQ(counters.quarantined, 1u);
}

TEST_F(LiveOperatorManagerTest, VersionsWithNativeCodeAreNotComparedByTheirLatency) {
  for (const bool native : {false, true}) {
    const std::string name = native ? "native" : "interpreted";
    InstallTwo(name);
    if (native) ServeNative(*registry_->ResolveProgram(name, 1)->version);
    Run(name, 1, 100, 1'000);
    ASSERT_TRUE(manager_.Activate(MakeSwitch(name, BakeAction::kRollBack)).ok());
    Run(name, 2, 100, 1'000'000);
    // Also regresses in another way, which is looked at after the latency.
    if (native) Compare(name, 100, 100);
    ASSERT_TRUE(Eventually([&] { return Active(name) == 1; }));
    const std::vector<OperatorEvent> events = manager_.EventsBefore(0, name, 1);
    ASSERT_EQ(events.size(), 1u);
    EXPECT_THAT(events[0].message, HasSubstr(native ? "shadowed tasks differ" : "p99"));
  }
}

TEST_F(LiveOperatorManagerTest, AFaultOfNativeCodeQuarantinesItAndNotTheProgram) {
  Install("square", VersionState::kActive);
  const auto program = registry_->ResolveProgram("square", 0)->version;
  DeviceFault fault;
  fault.reason = EngineEndReason::kFault;
  fault.cause = "it stored to a bad address";
  fault.suspects = {ServeNative(*program)->slot};
  const auto replacement = manager_.OnFault(device_, fault);
  EXPECT_THAT(FakeDevice::ListSlots(replacement), IsEmpty());
  EXPECT_EQ(program->native->view().state, NativeForm::State::kQuarantined);
  EXPECT_THAT(program->native->view().reason, HasSubstr("it stored to a bad address"));
  EXPECT_EQ(Active("square"), 1u);
  EXPECT_EQ(registry_->Describe("square")->versions[0].state, VersionState::kActive);
}

TEST_F(LiveOperatorManagerTest, BytecodeIsStoredOnceAndRestored) {
  std::string folder = testing::TempDir() + "/manager.XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const auto install = [&](StateStore* state, Registry* registry) {
    LiveOperatorManager manager(
        Options(),
        LiveOperatorManager::Sources{registry, state, &compiler_, {&device_}, {EngineChoice()}});
    InstallRequest request;
    request.name = "square";
    request.kind = OperatorKind::kBytecode;
    request.body = kSquare;
    request.wait_for = VersionState::kActive;
    return manager.Install(
        request, [](const InstallProgress&) {}, [] { return false; });
  };
  {
    auto state = *StateStore::Open({.directory = folder});
    auto registry = *Registry::Create({});
    const absl::Status installed = install(state.get(), registry.get());
    ASSERT_TRUE(installed.ok()) << installed;
    const VersionContent content = state->operators()[0].versions[0].content;
    EXPECT_EQ(content.body, "");
    ASSERT_EQ(content.blobs.size(), 1u);
    EXPECT_EQ(*state->GetBlob(content.blobs.begin()->second), kSquare);
  }
  {
    auto state = *StateStore::Open({.directory = folder});
    auto registry = *Registry::Create({});
    LiveOperatorManager manager(
        Options(), LiveOperatorManager::Sources{
                       registry.get(), state.get(), &compiler_, {&device_}, {EngineChoice()}});
    std::vector<std::string> warnings;
    ASSERT_TRUE(manager.Restore(&warnings).ok());
    EXPECT_THAT(warnings, IsEmpty());
    const auto restored = registry->ResolveProgram("square", 0);
    ASSERT_TRUE(restored.ok()) << restored.status();
    EXPECT_EQ(*restored->version->spec.bytecode, kSquare);
  }
  std::filesystem::remove_all(folder);
}

TEST_F(LiveOperatorManagerTest, AStoredVersionWithoutItsMainFileIsNotRestored) {
  for (const OperatorKind kind : {OperatorKind::kObject, OperatorKind::kSource}) {
    VersionSpec spec;
    spec.kind = kind;
    spec.signature = "x: in f32[*S], out: out f32[*S]";
    RegistryChange change;
    change.kind = EventKind::kInstalled;
    change.name = kind == OperatorKind::kObject ? "object" : "source";
    change.version = change.standby_version = 1;
    change.slot = kind == OperatorKind::kObject ? 40 : 41;
    change.spec = &spec;
    ASSERT_TRUE(state_->Append(change, {.content = {.body = "times.ptx"}}).ok());
  }
  std::vector<std::string> warnings;
  EXPECT_TRUE(manager_.Restore(&warnings).ok());
  EXPECT_THAT(warnings, ElementsAre(HasSubstr("times.ptx"), HasSubstr("times.ptx")));
  EXPECT_EQ(registry_->Describe("object").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(LiveOperatorManagerTest, InstallsThatAreNotStoppableAreCountedByRule) {
  const auto compile = [&](Isolation isolation) {
    InstallRequest request;
    request.name = "plus";
    request.kind = OperatorKind::kExpression;
    request.body = "x + 1";
    request.isolation = isolation;
    std::string message;
    bool compiled = false;  // Nothing is validated: there is no engine.
    const absl::Status withdrawn = manager_.Install(
        request,
        [&](const InstallProgress& progress) {
          compiled |= progress.state == VersionState::kCompiled;
          message += progress.message;
        },
        [&] { return compiled; });
    EXPECT_EQ(withdrawn.code(), absl::StatusCode::kCancelled) << withdrawn;
    return message;
  };
  EXPECT_EQ(manager_.isolation_refusals()["C1"], 0u);
  EXPECT_EQ(compile(Isolation::kUnspecified), "isolation stoppable");
  compiler_.not_stoppable = "'trap' ends the engine (rule C1). Fix: install it as trusted";
  EXPECT_EQ(compile(Isolation::kUnspecified),
            "isolation trusted, because " + compiler_.not_stoppable);
  EXPECT_EQ(compile(Isolation::kTrusted), "isolation trusted");
  compiler_.not_stoppable = "a cubin. Fix: send PTX";
  compile(Isolation::kUnspecified);
  EXPECT_EQ(manager_.isolation_refusals()["C1"], 1u);
  EXPECT_EQ(manager_.isolation_refusals()["other"], 1u);
}

// What may have changed since the call was checked is checked again when its change is committed,
// when no other change is made.
TEST_F(LiveOperatorManagerTest, AChangeIsAuthorizedWhenItIsCommitted) {
  InstallTwo("square");
  const uint64_t revision = registry_->Revision("square");
  int calls = 0;
  ChangeContext context;
  context.authorize = [&]() -> absl::Status {
    ++calls;
    EXPECT_EQ(registry_->Describe("square")->versions.size(), 2u);
    return absl::PermissionDeniedError("another installer was faster");
  };
  InstallRequest install;
  install.name = "square";
  install.kind = OperatorKind::kBytecode;
  install.body = kSquare + kSquare;
  install.context = context;
  SwitchRequest change = MakeSwitch("square");
  change.context = context;
  PromoteRequest promote;
  promote.name = "square";
  promote.version = 2;
  promote.shadow_percent = 10;
  promote.context = context;
  for (const absl::Status& refused : std::vector<absl::Status>{
           manager_.Install(
               install, [](const InstallProgress&) {}, [] { return false; }),
           manager_.Activate(change).status(), manager_.Promote(promote).status(),
           manager_.Remove("square", std::nullopt, "somebody", context).status()}) {
    EXPECT_EQ(refused.code(), absl::StatusCode::kPermissionDenied) << refused;
  }
  EXPECT_EQ(calls, 4);
  EXPECT_EQ(registry_->Revision("square"), revision);
  EXPECT_EQ(Active("square"), 1u);
  ASSERT_TRUE(manager_.Activate(MakeSwitch("square")).ok());
  EXPECT_EQ(manager_.Rollback(change).status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(Active("square"), 2u);
}

TEST_F(LiveOperatorManagerTest, ARemovalReturnsNotificationsOfItsLastTasks) {
  Install("square", VersionState::kActive);
  auto task = registry_->ResolveProgram("square", 0);
  ASSERT_TRUE(task.ok());
  const auto removal = manager_.Remove("square", std::nullopt, "somebody", {});
  ASSERT_TRUE(removal.ok()) << removal.status();
  ASSERT_EQ(removal->drained.size(), 1u);
  EXPECT_FALSE(removal->drained[0]->HasBeenNotified());
  *task = {};
  EXPECT_TRUE(removal->drained[0]->HasBeenNotified());
}

}  // namespace
}  // namespace resident
