// OperatorsService over real gRPC, with a manager that only records: changes, watches, and what
// callers see. operators_install_test.cc has the installs.
#include "server/operators/operators_service.h"

#include <atomic>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "client/operators.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/base/errors/daemon_errors.h"
#include "server/operators/operators_service_harness.h"
#include "tests/support/eventually.h"

namespace resident {
namespace {

using testing::Eventually;
using ::testing::HasSubstr;

OperatorEvent Event(const std::string& name, EventKind kind = EventKind::kActivated) {
  OperatorEvent event;
  event.operator_name = name;
  event.kind = kind;
  return event;
}

class OperatorsServiceTest : public OperatorsServiceHarness {
 protected:
  using OperatorsServiceHarness::OperatorsServiceHarness;

  // "swish", whose only version is quarantined.
  void QuarantineSwish() {
    const Registry::Commit commit = [](const RegistryChange&) { return 1; };
    VersionSpec spec;
    spec.signature = "x: in f32[*S], out: out f32[*S]";
    spec.content_hash = "abc";
    spec.installed_by = "deployer";
    auto reserved =
        registry_->Reserve("swish", spec, std::nullopt, absl::Now() + absl::Seconds(60));
    ASSERT_TRUE(reserved.ok()) << reserved.status();
    ASSERT_TRUE(registry_->Load(*std::move(reserved), std::nullopt, commit).ok());
    ASSERT_TRUE(registry_->Quarantine("swish", 1, "hung on x = 42", commit).ok());
  }
  // The details of it that List and Describe show to a caller with these roles.
  std::string SeenBy(RoleSet roles) {
    access_.Load({.identities = {{"anonymous", Rights{.roles = roles}}}}, {});
    const auto text = [](const v1::Operator& op) {
      EXPECT_EQ(op.versions_size(), 1);
      const v1::OperatorVersion& version = op.versions(0);
      EXPECT_EQ(version.state(), "quarantined");
      return version.installed_by() + "|" + version.content_hash() + "|" +
             version.quarantine_reason();
    };
    grpc::ClientContext describe, list;
    v1::DescribeOperatorRequest request;
    request.set_name("swish");
    v1::DescribeOperatorResponse described;
    EXPECT_TRUE(stub_->Describe(&describe, request, &described).ok());
    v1::ListOperatorsResponse listed;
    EXPECT_TRUE(stub_->List(&list, v1::ListOperatorsRequest(), &listed).ok());
    std::string in_list;
    for (const v1::Operator& op : listed.operators()) {
      if (op.name() == "swish") in_list = text(op);
    }
    EXPECT_EQ(in_list, text(described.operator_()));
    return in_list;
  }
};

class CredentialsTest : public OperatorsServiceTest {
 protected:
  CredentialsTest() : OperatorsServiceTest(MakeOptions({}, /*credentials=*/true)) {}
};

TEST_F(OperatorsServiceTest, ChangesPassOnAllFields) {
  client::ChangeOptions options;
  options.version = 4;
  options.expected_revision = 9;
  options.force = true;
  options.bake.set_action(v1::BakeOptions::ACTION_ROLL_BACK);
  options.bake.set_time_ms(60'000);
  options.bake.set_max_error_rate(0.01);
  options.bake.set_max_latency_ratio(1.5);
  options.bake.set_min_tasks(50);
  const auto activated = operators_->Activate("swish", options);
  ASSERT_TRUE(activated.ok()) << activated.status();
  EXPECT_EQ(activated->version(), 2u);
  EXPECT_EQ(activated->previous_version(), 1u);
  EXPECT_EQ(activated->switch_ns(), 40u);
  const auto back = operators_->Rollback("swish", 10);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->version(), 2u);
  EXPECT_EQ(back->from_version(), 1u);
  const auto switches = manager_.switches();
  EXPECT_EQ(switches[0].name, "swish");
  EXPECT_EQ(switches[0].version, 4u);
  EXPECT_EQ(switches[0].expected_revision, 9u);
  EXPECT_TRUE(switches[0].force);
  EXPECT_EQ(switches[0].bake.action, BakeAction::kRollBack);
  EXPECT_EQ(switches[0].bake.time, std::chrono::minutes(1));
  EXPECT_EQ(switches[0].bake.max_error_rate, 0.01);
  EXPECT_EQ(switches[0].bake.max_latency_ratio, 1.5);
  EXPECT_EQ(switches[0].bake.min_tasks, 50u);
  EXPECT_EQ(switches[1].expected_revision, 10u);
  ASSERT_TRUE(operators_->Promote("swish", 5, 10, options).ok());
  EXPECT_EQ(manager_.promotions()[0].shadow_percent, 5);
  EXPECT_EQ(manager_.promotions()[0].traffic_percent, 10);
  EXPECT_TRUE(operators_->Remove("swish").ok());
}

TEST_F(OperatorsServiceTest, ARollbackDoesNotWaitBehindForcedActivations) {
  const auto round = std::make_shared<absl::Notification>();
  manager_.set_round(round);
  std::vector<std::thread> forced;
  for (int i = 0; i < 3; ++i) {
    forced.emplace_back([&] {
      client::ChangeOptions options;
      options.force = true;
      EXPECT_TRUE(operators_->Activate("swish", options).ok());
    });
  }
  EXPECT_TRUE(Eventually([&] { return manager_.forced() > 0; }));
  EXPECT_TRUE(operators_->Rollback("swish").ok());
  EXPECT_TRUE(operators_->Promote("swish", 1, 1).ok());
  EXPECT_FALSE(round->HasBeenNotified());
  round->Notify();
  for (std::thread& thread : forced) thread.join();
}

TEST_F(OperatorsServiceTest, RemovalsThatWaitForTasksDelayNoOtherCalls) {
  const auto first = std::make_shared<absl::Notification>();
  const auto second = std::make_shared<absl::Notification>();
  manager_.set_drained({first, second});
  constexpr size_t kRemovals = 8;  // More than there are threads in any pool.
  std::atomic<size_t> ended = 0;
  std::vector<std::thread> threads;
  for (size_t i = 0; i < kRemovals; ++i) {
    threads.emplace_back([&] {
      EXPECT_TRUE(operators_->Remove("swish").ok());
      ++ended;
    });
  }
  EXPECT_TRUE(Eventually([&] { return manager_.removals() == kRemovals; }));
  EXPECT_TRUE(operators_->Audit("", 10).ok());  // Runs on a thread of `blocking`, like Resume.
  EXPECT_TRUE(operators_->Rollback("swish").ok());
  first->Notify();
  EXPECT_TRUE(operators_->Audit("", 10).ok());
  EXPECT_EQ(ended, 0u);
  second->Notify();
  for (std::thread& thread : threads) thread.join();
}

TEST_F(OperatorsServiceTest, ARemovalWhoseCallerHasGoneEnds) {
  manager_.set_drained({std::make_shared<absl::Notification>()});
  grpc::ClientContext context;
  std::thread caller([&] {
    v1::RemoveRequest request;
    request.set_name("swish");
    v1::RemoveResponse response;
    EXPECT_EQ(stub_->Remove(&context, request, &response).error_code(),
              grpc::StatusCode::CANCELLED);
  });
  EXPECT_TRUE(Eventually([&] { return manager_.removals() == 1; }));
  EXPECT_EQ(core_.gate.AwaitEmpty(absl::Now()), 1u);
  context.TryCancel();
  EXPECT_EQ(core_.gate.AwaitEmpty(absl::InfiniteFuture()), 0u);
  caller.join();
}

TEST_F(OperatorsServiceTest, ARemovalReportsAtItsDeadlineThatTasksStillRun) {
  manager_.set_drained({std::make_shared<absl::Notification>()});
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(50));
  v1::RemoveRequest request;
  request.set_name("swish");
  v1::RemoveResponse response;
  EXPECT_EQ(stub_->Remove(&context, request, &response).error_code(),
            grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_EQ(core_.gate.AwaitEmpty(absl::InfiniteFuture()), 0u);
}

TEST_F(OperatorsServiceTest, ManagersErrorsArriveUnchanged) {
  manager_.set_status(absl::AbortedError("revision 4 is stale. Fix: read it again"));
  for (const absl::Status& status :
       {operators_->Activate("swish").status(), operators_->Rollback("swish").status(),
        operators_->Remove("swish").status(), operators_->Promote("swish", 1, 1).status()}) {
    EXPECT_EQ(status, absl::AbortedError("revision 4 is stale. Fix: read it again"));
  }
}

TEST_F(OperatorsServiceTest, RefusesInvalidChanges) {
  const auto refused = [](const absl::Status& status, const std::string& part) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(part));
    EXPECT_THAT(std::string(status.message()), HasSubstr("Fix: "));
  };
  refused(operators_->Promote("swish", 101, 0).status(), "shadow_percent of 101");
  refused(operators_->Promote("swish", 0, -1).status(), "traffic_percent of -1");
  refused(operators_->Promote("swish", 0, NAN).status(), "traffic_percent of nan");
  client::ChangeOptions options;
  options.bake.set_max_error_rate(2);
  refused(operators_->Activate("swish", options).status(), "max_error_rate of 2");
  options.bake = {};
  options.bake.set_max_mismatch_rate(-0.1);
  refused(operators_->Promote("swish", 1, 1, options).status(), "max_mismatch_rate");
  options.bake = {};
  options.bake.set_max_latency_ratio(INFINITY);
  refused(operators_->Activate("swish", options).status(), "max_latency_ratio of inf");
  options.bake = {};
  options.bake.set_time_ms(UINT64_MAX);
  refused(operators_->Activate("swish", options).status(), "time_ms");
  options.bake = {};
  options.bake.set_action(static_cast<v1::BakeOptions::Action>(9));
  refused(operators_->Activate("swish", options).status(), "BakeOptions.action");
  refused(operators_->Audit("", 1001).status(), "count of 1001");
  EXPECT_TRUE(manager_.switches().empty());
  EXPECT_TRUE(manager_.promotions().empty());
}

TEST_F(OperatorsServiceTest, WatchResumesAndFollows) {
  for (int i = 0; i < 40; ++i) manager_.AddEvent(Event(i % 2 == 0 ? "swish" : "other"));
  auto watcher = *operators_->Watch(/*after_revision=*/3);
  v1::OperatorEvent event;
  for (uint64_t revision = 4; revision <= 40; ++revision) {
    ASSERT_TRUE(watcher->Next(&event));
    EXPECT_EQ(event.revision(), revision);
  }
  manager_.AddEvent(Event("swish", EventKind::kQuarantined));
  ASSERT_TRUE(watcher->Next(&event));
  EXPECT_EQ(event.revision(), 41u);
  EXPECT_EQ(event.kind(), v1::OperatorEvent::KIND_QUARANTINED);
  EXPECT_EQ(event.operator_(), "swish");
  auto one = *operators_->Watch(/*after_revision=*/1, "other");
  ASSERT_TRUE(one->Next(&event));
  EXPECT_EQ(event.revision(), 2u);
  ASSERT_TRUE(one->Next(&event));
  EXPECT_EQ(event.revision(), 4u);
  watcher->Cancel();
  one->Cancel();
  while (watcher->Next(&event)) {
  }
  EXPECT_EQ(watcher->Finish().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(Eventually([&] { return manager_.subscribers() == 0; }));
}

TEST_F(CredentialsTest, WatchShowsActorAndHashOnlyToAdmins) {
  manager_.AddEvent(Event("old"));
  OperatorEvent quarantined = Event("swish", EventKind::kQuarantined);
  quarantined.actor = "deployer";
  quarantined.content_hash = "abc";
  quarantined.message = "hung on x = 42";
  quarantined.version = 3;
  manager_.AddEvent(quarantined);
  const auto watched_by = [&](RoleSet roles) {
    access_.Load({.identities = {{"anonymous", Rights{.roles = roles}}}}, {});
    auto watcher = *operators_->Watch(/*after_revision=*/1);
    v1::OperatorEvent event;
    EXPECT_TRUE(watcher->Next(&event));
    EXPECT_EQ(event.operator_(), "swish");
    EXPECT_EQ(event.version(), 3u);
    EXPECT_EQ(event.kind(), v1::OperatorEvent::KIND_QUARANTINED);
    return event.actor() + "|" + event.content_hash() + "|" + event.message();
  };
  EXPECT_EQ(watched_by(Role::kAdmin), "deployer|abc|hung on x = 42");
  EXPECT_EQ(watched_by(RoleSet(Role::kSubmit) | Role::kInstall), "||");
}

TEST_F(CredentialsTest, ListAndDescribeHideFromOthersWhatWatchHides) {
  QuarantineSwish();
  EXPECT_EQ(SeenBy(Role::kAdmin), "deployer|abc|hung on x = 42");
  EXPECT_EQ(SeenBy(RoleSet(Role::kSubmit) | Role::kInstall), "||");
}

TEST_F(OperatorsServiceTest, WithoutCredentialsEveryCallerSeesEverything) {
  QuarantineSwish();
  EXPECT_EQ(SeenBy({}), "deployer|abc|hung on x = 42");
}

TEST_F(OperatorsServiceTest, WatchFromNowOnSendsNoOldEvents) {
  manager_.AddEvent(Event("old"));
  auto watcher = *operators_->Watch();
  ASSERT_TRUE(Eventually([&] { return manager_.subscribers() == 1; }));
  manager_.AddEvent(Event("new"));
  v1::OperatorEvent event;
  ASSERT_TRUE(watcher->Next(&event));
  EXPECT_EQ(event.operator_(), "new");
}

TEST_F(OperatorsServiceTest, AWatcherThatFellBehindGetsAnError) {
  for (int i = 0; i < 20; ++i) manager_.AddEvent(Event("swish"), /*keep=*/5);
  auto watcher = *operators_->Watch(/*after_revision=*/3);
  v1::OperatorEvent event;
  EXPECT_FALSE(watcher->Next(&event));
  EXPECT_EQ(watcher->Finish().code(), absl::StatusCode::kOutOfRange);
}

TEST_F(OperatorsServiceTest, WatchersAreLimitedAndAnEndedOneReleasesItsSlot) {
  std::vector<std::unique_ptr<client::Watcher>> watchers;
  // One caller's share; the rest is reserved for others.
  const uint32_t max_watches = kMaxWatchers - installs_.watch_slots.reserve();
  for (uint32_t i = 0; i < max_watches; ++i) watchers.push_back(*operators_->Watch());
  ASSERT_TRUE(Eventually([&] { return installs_.watch_slots.taken() == max_watches; }));
  auto refused = *operators_->Watch();
  v1::OperatorEvent event;
  EXPECT_FALSE(refused->Next(&event));
  const absl::Status status = refused->Finish();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("Fix: "));
  watchers.front()->Cancel();
  ASSERT_TRUE(Eventually([&] { return installs_.watch_slots.taken() == max_watches - 1; }));
  auto next = *operators_->Watch();
  ASSERT_TRUE(Eventually([&] { return manager_.subscribers() == max_watches; }));
  manager_.AddEvent(Event("swish"));
  EXPECT_TRUE(next->Next(&event));
}

TEST_F(OperatorsServiceTest, WatchEndsWithTheDaemon) {
  auto watcher = *operators_->Watch();
  ASSERT_TRUE(Eventually([&] { return manager_.subscribers() == 1; }));
  core_.streams.EndAll(errors::Draining());
  v1::OperatorEvent event;
  EXPECT_FALSE(watcher->Next(&event));
  EXPECT_EQ(watcher->Finish().code(), absl::StatusCode::kUnavailable);
}

TEST_F(OperatorsServiceTest, ASummaryHasTheInstalledVersionsInTheKernel) {
  const Registry::Commit commit = [](const RegistryChange&) { return 7; };
  const auto load = [&](const std::string& name, const std::string& hash,
                        const std::string& label) {
    VersionSpec spec;
    spec.signature = "x: in f32[*S], out: out f32[*S]";
    spec.content_hash = hash;
    auto reserved = registry_->Reserve(name, spec, std::nullopt, absl::Now() + absl::Seconds(60));
    ASSERT_TRUE(reserved.ok()) << reserved.status();
    ASSERT_TRUE(registry_->Load(*std::move(reserved), std::nullopt, commit, label).ok());
  };
  const auto activate = [&](const std::string& name) {
    ASSERT_TRUE(registry_->Activate(name, 0, std::nullopt, false, commit).ok());
  };
  const auto none = operators_->Summary();
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_EQ(none->operators_size(), 0);

  load("swish", "first", "");
  load("swish", "second", "stable");
  activate("swish");
  load("swish", "third", "");
  load("other", "fourth", "");
  const auto summary = operators_->Summary();
  ASSERT_TRUE(summary.ok()) << summary.status();
  ASSERT_EQ(summary->operators_size(), 2);
  EXPECT_EQ(summary->operators(0).name(), "other");
  ASSERT_EQ(summary->operators(0).versions_size(), 1);
  EXPECT_EQ(summary->operators(0).versions(0).state(), v1::VERSION_STATE_LOADED);
  const v1::SummaryResponse::Operator& swish = summary->operators(1);
  EXPECT_EQ(swish.revision(), 7u);
  ASSERT_EQ(swish.versions_size(), 2);
  EXPECT_EQ(swish.versions(0).content_hash(), "second");
  EXPECT_EQ(swish.versions(0).state(), v1::VERSION_STATE_ACTIVE);
  EXPECT_EQ(swish.versions(0).label(), "stable");
  EXPECT_EQ(swish.versions(1).content_hash(), "third");
  EXPECT_EQ(swish.versions(1).state(), v1::VERSION_STATE_LOADED);

  // The digest is that of what serves.
  EXPECT_NE(summary->digest(), none->digest());
  load("swish", "fifth", "");
  EXPECT_EQ(operators_->Summary()->digest(), summary->digest());
  activate("swish");
  EXPECT_NE(operators_->Summary()->digest(), summary->digest());
  ASSERT_TRUE(registry_->Rollback("swish", std::nullopt, commit).ok());
  EXPECT_EQ(operators_->Summary()->digest(), summary->digest());
}

TEST_F(OperatorsServiceTest, ChangesHaveTheContextOfTheirCalls) {
  v1::ChangeContext context;
  context.set_plan(std::string(64, 'a'));
  context.set_set("ranking");
  context.set_lease(7);
  ASSERT_TRUE(operators_->Activate("swish", {.context = context}).ok());
  ASSERT_TRUE(operators_->Promote("swish", 1, 1, {.context = context}).ok());
  client::Installation installation = Source();
  *installation.header().mutable_context() = context;
  ASSERT_TRUE(operators_->Install(installation).ok());
  ASSERT_EQ(manager_.switches().size(), 1u);
  ASSERT_EQ(manager_.promotions().size(), 1u);
  ASSERT_EQ(manager_.installs().size(), 1u);
  for (const ChangeContext& got : {manager_.switches()[0].context, manager_.promotions()[0].context,
                                   manager_.installs()[0].context}) {
    EXPECT_EQ(got.plan, context.plan());
    EXPECT_EQ(got.set, "ranking");
    EXPECT_EQ(got.lease, 7u);
  }
}

TEST_F(OperatorsServiceTest, AClaimThatIsMalformedIsRefused) {
  const auto refused = [&](auto change) {
    v1::ClaimRequest request;
    request.set_plan(std::string(64, 'a'));
    request.set_set("ranking");
    request.add_names("swish");
    change(request);
    const absl::Status status = operators_->Claim(request).status();
    if (status.ok()) return std::string();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("Fix: "));
    return std::string(status.message());
  };
  using Request = v1::ClaimRequest;
  EXPECT_EQ(refused([](Request&) {}), "");
  EXPECT_EQ(manager_.claims()[0].ttl, std::chrono::milliseconds(kDefaultClaimTtlMs));
  EXPECT_THAT(refused([](Request& r) { r.set_plan("abc"); }), HasSubstr("'abc'"));
  EXPECT_THAT(refused([](Request& r) { r.set_set("No Set"); }), HasSubstr("'No Set'"));
  EXPECT_THAT(refused([](Request& r) { r.set_set(""); }), HasSubstr("''"));
  EXPECT_THAT(refused([](Request& r) { r.set_holder(std::string(129, 'h')); }), HasSubstr("129"));
  EXPECT_THAT(refused([](Request& r) { r.set_ttl_ms(999); }), HasSubstr("999"));
  EXPECT_THAT(refused([](Request& r) { r.set_ttl_ms(600'001); }), HasSubstr("600001"));
  EXPECT_THAT(refused([](Request& r) { r.add_names("swish"); }), HasSubstr("'swish'"));
  EXPECT_THAT(refused([](Request& r) { r.add_names(""); }), HasSubstr("''"));
  EXPECT_THAT(refused([](Request& r) {
                for (int i = 0; i < 1024; ++i) r.add_names("n" + std::to_string(i));
              }),
              HasSubstr("1025"));
  EXPECT_THAT(refused([](Request& r) { r.set_state(static_cast<v1::PlanState::State>(9)); }),
              HasSubstr("STATE_RUNNING"));
  v1::ChangeContext context;
  context.set_lease(1);
  EXPECT_EQ(operators_->Activate("swish", {.context = context}).status().code(),
            absl::StatusCode::kInvalidArgument);
  context.set_plan("short");
  EXPECT_EQ(operators_->Remove("swish", {.context = context}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(OperatorsServiceTest, AuditIsNewestFirst) {
  for (int i = 0; i < 5; ++i) manager_.AddEvent(Event(i % 2 == 0 ? "swish" : "other"));
  const auto all = operators_->Audit();
  ASSERT_TRUE(all.ok()) << all.status();
  ASSERT_EQ(all->events_size(), 5);
  EXPECT_EQ(all->events(0).revision(), 5u);
  EXPECT_EQ(all->node_id(), "node-id");
  EXPECT_EQ(all->node_name(), "node-name");
  const auto some = operators_->Audit("swish", 1, /*before_revision=*/5);
  ASSERT_EQ(some->events_size(), 1);
  EXPECT_EQ(some->events(0).revision(), 3u);
}

}  // namespace
}  // namespace resident
