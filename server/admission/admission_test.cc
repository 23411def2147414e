#include "server/admission/admission.h"

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "runtime/base/fake_time.h"
#include "runtime/device/fake_device.h"
#include "tests/support/eventually.h"

namespace resident {
namespace {

using ::resident::testing::Eventually;

constexpr uint64_t kStaging = 1000;
constexpr uint64_t kMaxTasks = 100;
constexpr Clock::time_point kNever = Clock::time_point::max();

class AdmissionTest : public ::testing::Test {
 protected:
  // The result that Acquire's callback got.
  struct Result {
    explicit Result(Admission& admission) : wait(admission) {}
    Admission::Wait wait;
    absl::Notification done;
    absl::StatusOr<Ticket> ticket = absl::UnknownError("none yet");
  };
  using Pending = std::shared_ptr<Result>;
  using Client = std::shared_ptr<ClientAccounts>;

  AdmissionTest() {
    limits_.max_queued_tasks = kMaxTasks;
    limits_.max_host_mib = 8;
    limits_.max_client_host_mib = 4;
    admission_ = std::make_unique<Admission>(limits_, &gate_, time_);
    admission_->AddDevice(kStaging);
    admission_->Start([this](std::function<void()> work) { post_(std::move(work)); });
  }

  Client NewClient() { return std::make_shared<ClientAccounts>(identity_, 1); }
  Needs Staging(uint64_t bytes) {
    Needs needs;
    needs.session = session_;
    needs.tasks = 1;
    needs.staging_bytes = bytes;
    return needs;
  }
  static Needs Tasks(uint64_t tasks, uint64_t host_bytes = 0) {
    Needs needs;
    needs.tasks = tasks;
    needs.host_bytes = host_bytes;
    return needs;
  }
  Pending NewPending() { return std::make_shared<Result>(*admission_); }
  void Acquire(const Pending& pending, const Client& client, const Needs& needs,
               Clock::time_point deadline = kNever) {
    admission_->Acquire(pending->wait, client, needs, deadline,
                        [pending](absl::StatusOr<Ticket> ticket) {
                          pending->ticket = std::move(ticket);
                          pending->done.Notify();  // Fails if it was called before.
                        });
  }
  Pending Acquire(const Client& client, const Needs& needs, Clock::time_point deadline = kNever) {
    const Pending pending = NewPending();
    Acquire(pending, client, needs, deadline);
    return pending;
  }
  void ExpectNothingHeld() {
    EXPECT_EQ(admission_->staging_used(0), 0u);
    EXPECT_EQ(admission_->host().used(), 0u);
    EXPECT_EQ(identity_->tasks_in_flight(), 0u);
    EXPECT_EQ(gate_.AwaitEmpty(absl::InfinitePast()), 0u);
  }
  static bool Served(const Pending& pending) {
    return pending->done.WaitForNotificationWithTimeout(absl::Seconds(30)) && pending->ticket.ok();
  }

  FakeTime time_;
  Limits limits_;
  DrainGate gate_;
  const std::shared_ptr<Account> identity_ =
      std::make_shared<Account>("anonymous", Rights{.roles = {}, .tasks_in_flight = 500});
  const std::shared_ptr<FakeSession> session_ = std::make_shared<FakeSession>(1, 0, kStaging);
  // Runs the callbacks of requests that waited. Set it while none waits.
  Admission::Post post_ = [](const std::function<void()>& work) { work(); };
  std::unique_ptr<Admission> admission_;
};

TEST_F(AdmissionTest, ATicketOwnsAllItsResourcesAndReleasesThem) {
  const Client client = NewClient();
  Needs needs = Staging(400);
  needs.tasks = 70;
  needs.host_bytes = 1000;
  {
    const Pending pending = Acquire(client, needs);
    ASSERT_TRUE(pending->done.HasBeenNotified()) << "free resources must be granted at once";
    ASSERT_TRUE(pending->ticket.ok()) << pending->ticket.status();
    EXPECT_NE(pending->ticket->staging(), nullptr);
    EXPECT_EQ(admission_->staging_used(0), 400u);
    EXPECT_EQ(admission_->host().used(), 1000u);
    EXPECT_EQ(identity_->tasks_in_flight(), 70u);
    EXPECT_EQ(admission_->TryAcquire(client, Tasks(31)).status().code(),
              absl::StatusCode::kResourceExhausted);
    // The answer stays charged after the ticket is released.
    const Budget::Charge answer = pending->ticket->TakeAnswer(300);
    pending->ticket->Release();
    EXPECT_EQ(admission_->host().used(Budget::Purpose::kAnswers), 300u);
    EXPECT_EQ(admission_->host().used(), 300u);
  }
  ExpectNothingHeld();
  EXPECT_TRUE(admission_->TryAcquire(client, Tasks(100)).ok());
}

// Lends one thing at a time, which up to three requests of a round share.
class FakeLender final : public Lender {
 public:
  struct State {
    std::weak_ptr<int> lent;
    std::shared_ptr<int> open;  // In a round.
    int sharing = 0;
    int settled = 0;
  };
  explicit FakeLender(std::shared_ptr<State> state) : state_(std::move(state)) {}
  absl::StatusOr<std::shared_ptr<void>> TryBorrow(bool shared) override {
    if (shared && state_->open != nullptr && state_->sharing < 3) {
      ++state_->sharing;
      return std::shared_ptr<void>(state_->open);
    }
    if (!state_->lent.expired()) return nullptr;
    const auto lent = std::make_shared<int>();
    state_->lent = lent;
    state_->sharing = 1;
    if (shared) state_->open = lent;
    return std::shared_ptr<void>(lent);
  }
  void Settle() override {
    state_->open = nullptr;
    ++state_->settled;
  }

 private:
  const std::shared_ptr<State> state_;
};

TEST_F(AdmissionTest, RequestsThatWaitShareALoanUntilTheRoundEnds) {
  const auto state = std::make_shared<FakeLender::State>();
  Needs needs = Tasks(1, 10);
  const auto acquire = [&](const Client& client) {
    needs.lender = std::make_shared<FakeLender>(state);
    return Acquire(client, needs);
  };
  // The first one has it alone.
  const Pending first = acquire(NewClient());
  ASSERT_TRUE(first->done.HasBeenNotified());
  ASSERT_TRUE(first->ticket.ok()) << first->ticket.status();
  std::vector<Pending> waiting;
  for (int i = 0; i < 4; ++i) waiting.push_back(acquire(NewClient()));
  EXPECT_EQ(identity_->tasks_in_flight(), 1u) << "a request that waits holds nothing";
  first->ticket->Release();
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(Served(waiting[i]));
  EXPECT_EQ(waiting[0]->ticket->loan(), waiting[2]->ticket->loan());
  EXPECT_EQ(identity_->tasks_in_flight(), 3u) << "each has a ticket of its own";
  EXPECT_EQ(state->settled, 3);
  EXPECT_FALSE(waiting[3]->done.HasBeenNotified());
  for (int i = 0; i < 3; ++i) waiting[i]->ticket->Release();
  ASSERT_TRUE(Served(waiting[3]));
  waiting[3]->ticket->Release();
  ExpectNothingHeld();
}

TEST_F(AdmissionTest, MemoryForAGraphIsLimitedForEachClientAndForAll) {
  const Client client = NewClient();
  const auto acquire = [&](const Client& of, uint64_t bytes) {
    return admission_->AcquireForGraph(*of, bytes, Budget::Purpose::kBatches);
  };
  auto first = acquire(client, 1 << 20);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(admission_->host().used(Budget::Purpose::kBatches), 1u << 20);
  const auto refused = [&](const Client& of, uint64_t bytes, const std::string& limit,
                           const std::string& flag) {
    const absl::Status status = acquire(of, bytes).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    const std::string message(status.message());
    EXPECT_NE(message.find(limit), std::string::npos) << message;
    EXPECT_NE(message.find("close graph sessions"), std::string::npos) << message;
    EXPECT_EQ(message.substr(message.size() - flag.size()), flag);
  };
  refused(client, 4 << 20, "one client may use 4 MiB", " --max_client_host_mib");
  refused(NewClient(), 8 << 20, "all may use 8 MiB", " --max_host_mib");
  const Client other = NewClient();
  const auto second = acquire(other, 1 << 20);
  ASSERT_TRUE(second.ok()) << second.status();
  // It would have more than half of the 7 MiB that the first client does not have.
  refused(other, 3 << 20, "this client may use 3 MiB", " --max_host_mib");
  first->Clear();
  EXPECT_EQ(admission_->host().used(), 1u << 20);
}

TEST_F(AdmissionTest, ARefusedRequestHoldsNothing) {
  const Client client = NewClient();
  Needs needs = Staging(kStaging + 1);
  needs.host_bytes = 1000;
  const Pending never = Acquire(client, needs);
  ASSERT_TRUE(never->done.HasBeenNotified());
  EXPECT_EQ(never->ticket.status().code(), absl::StatusCode::kResourceExhausted);
  const absl::Status host = admission_->TryAcquire(client, Tasks(1, 9 << 20)).status();
  EXPECT_NE(std::string(host.message()).find("--max_host_mib"), std::string::npos) << host;
  EXPECT_EQ(identity_->tasks_in_flight(), 0u);
  EXPECT_EQ(admission_->host().used(), 0u);
  EXPECT_EQ(gate_.AwaitEmpty(absl::InfinitePast()), 0u);
}

TEST_F(AdmissionTest, WaitersAreServedInTheOrderOfArrival) {
  auto held = admission_->TryAcquire(NewClient(), Staging(900));
  ASSERT_TRUE(held.ok());
  const Pending first = Acquire(NewClient(), Staging(500)),
                second = Acquire(NewClient(), Staging(600));
  EXPECT_EQ(admission_->staging_waiting(0), 2u);
  held->Release();
  ASSERT_TRUE(Served(first));
  EXPECT_FALSE(second->done.HasBeenNotified());  // Both do not fit.
  first->ticket->Release();
  EXPECT_TRUE(Served(second));
  EXPECT_EQ(admission_->staging_waiting(0), 0u);
}

TEST_F(AdmissionTest, ARequestThatLacksMemoryReservesNoStagingMemory) {
  const Client silent = NewClient();
  Needs needs = Staging(800);
  needs.host_bytes = 3 << 20;
  auto held = admission_->TryAcquire(silent, needs);
  ASSERT_TRUE(held.ok());
  const Pending again = Acquire(silent, needs), other = Acquire(NewClient(), Staging(800));
  // The client does not read its answer.
  const Budget::Charge unread = held->TakeAnswer(3 << 20);
  held->Release();
  EXPECT_TRUE(Served(other));
  EXPECT_FALSE(again->done.HasBeenNotified());
}

TEST_F(AdmissionTest, AClientsOtherRequestsDoNotWaitForResourcesThatTheyDoNotNeed) {
  const Client client = NewClient();
  auto held = admission_->TryAcquire(NewClient(), Staging(900));
  auto tasks = admission_->TryAcquire(client, Tasks(60));
  ASSERT_TRUE(held.ok() && tasks.ok());
  const Pending staging = Acquire(client, Staging(500)), queue = Acquire(client, Tasks(50));
  tasks->Release();
  EXPECT_TRUE(Served(queue));
  EXPECT_FALSE(staging->done.HasBeenNotified());
  held->Release();
  EXPECT_TRUE(Served(staging));
}

TEST_F(AdmissionTest, AWaiterEndsWithinOnePollIntervalOfItsDeadlineForEachResourceItLacks) {
  constexpr std::chrono::milliseconds kTimeout{200};
  const Client client = NewClient();
  const auto poor = std::make_shared<Account>("poor", Rights{.roles = {}, .tasks_in_flight = 10});
  const Client limited = std::make_shared<ClientAccounts>(poor, 1);
  auto tasks = admission_->TryAcquire(client, Tasks(60, 3 << 20));
  auto quota = admission_->TryAcquire(limited, Tasks(6));
  auto held = admission_->TryAcquire(NewClient(), Staging(900));
  ASSERT_TRUE(tasks.ok() && quota.ok() && held.ok());
  const Clock::time_point deadline = time_.Now() + kTimeout;
  std::vector<Pending> waiting;
  // Two for each resource: the second waits behind the first.
  for (int i = 0; i < 2; ++i) {
    for (const Needs& needs : {Tasks(60), Tasks(1, 2 << 20), Staging(800)}) {
      waiting.push_back(Acquire(client, needs, deadline));
    }
    waiting.push_back(Acquire(limited, Tasks(8), deadline));
  }
  const Pending unlimited = Acquire(client, Tasks(60));
  time_.AwaitSleepers(1);
  time_.Advance(kTimeout - std::chrono::nanoseconds(1));
  time_.AwaitSleepers(1);
  for (const Pending& pending : waiting) EXPECT_FALSE(pending->done.HasBeenNotified());
  time_.Advance(std::chrono::nanoseconds(1) + Admission::kPollInterval);
  for (const Pending& pending : waiting) {
    ASSERT_TRUE(pending->done.WaitForNotificationWithTimeout(absl::Seconds(30)));
    EXPECT_EQ(pending->ticket.status().code(), absl::StatusCode::kDeadlineExceeded);
  }
  EXPECT_FALSE(unlimited->done.HasBeenNotified());
  EXPECT_TRUE(unlimited->wait.Cancel());
}

TEST_F(AdmissionTest, ARequestWaitsForQuotaOnlyWhileItsClientHasTickets) {
  const auto poor = std::make_shared<Account>("poor", Rights{.roles = {}, .tasks_in_flight = 10});
  const Client client = std::make_shared<ClientAccounts>(poor, 1);
  auto some = admission_->TryAcquire(client, Tasks(6));
  ASSERT_TRUE(some.ok());
  const Pending waits = Acquire(client, Tasks(8)), never = Acquire(client, Tasks(11));
  EXPECT_FALSE(waits->done.HasBeenNotified());
  some->Release();
  ASSERT_TRUE(Served(waits));
  waits->ticket->Release();
  ASSERT_TRUE(never->done.WaitForNotificationWithTimeout(absl::Seconds(30)));
  EXPECT_EQ(never->ticket.status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(AdmissionTest, DrainRefusesWaitingRequests) {
  auto held = admission_->TryAcquire(NewClient(), Staging(900));
  const Client client = NewClient();
  const Pending first = Acquire(client, Staging(500)), second = Acquire(client, Staging(500));
  gate_.Close();
  for (const Pending& pending : {first, second}) {
    // Nothing was released: the next poll sees the drain.
    ASSERT_TRUE(Eventually([&] {
      time_.Advance(Admission::kPollInterval);
      return pending->done.HasBeenNotified();
    }));
    EXPECT_EQ(pending->ticket.status().code(), absl::StatusCode::kUnavailable);
  }
}

TEST_F(AdmissionTest, TheCallbackOfACancelledRequestIsNotCalled) {
  auto held = admission_->TryAcquire(NewClient(), Staging(900));
  const Pending pending = Acquire(NewClient(), Staging(500));
  EXPECT_TRUE(pending->wait.Cancel());
  EXPECT_FALSE(pending->wait.Cancel());
  EXPECT_EQ(admission_->staging_waiting(0), 0u);
  held->Release();
  const Pending next = Acquire(NewClient(), Staging(900));
  EXPECT_TRUE(Served(next));
  EXPECT_FALSE(pending->done.HasBeenNotified());
}

// The steps of a request are: Acquire tries, and lets it wait; a scan grants it; its callback runs.
// The tests that follow cancel it before each of them.

TEST_F(AdmissionTest, ACancelBeforeARequestRefusesItAlsoIfTheResourcesAreFree) {
  const Pending pending = NewPending();
  EXPECT_FALSE(pending->wait.Cancel());
  Acquire(pending, NewClient(), Staging(500));
  ASSERT_TRUE(pending->done.HasBeenNotified());
  EXPECT_EQ(pending->ticket.status().code(), absl::StatusCode::kCancelled);
  ExpectNothingHeld();
}

TEST_F(AdmissionTest, ACancelAfterTheTryRefusesTheRequestBeforeItWaits) {
  const auto held = admission_->TryAcquire(NewClient(), Staging(100));
  ASSERT_TRUE(held.ok());
  const Pending pending = NewPending();
  Needs needs = Staging(300);
  bool tried = false;
  needs.session = std::make_shared<FullSession>([&](int) {
    tried = true;
    EXPECT_FALSE(pending->wait.Cancel());
  });
  Acquire(pending, NewClient(), needs);
  EXPECT_TRUE(tried);
  ASSERT_TRUE(pending->done.HasBeenNotified());
  EXPECT_EQ(pending->ticket.status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(admission_->staging_waiting(0), 0u);
  EXPECT_EQ(identity_->tasks_in_flight(), 1u);  // Those of `held`.
}

TEST_F(AdmissionTest, ACancelAfterTheGrantComesTooLate) {
  std::function<void()> granted;
  absl::Notification posted;
  post_ = [&](std::function<void()> work) {
    granted = std::move(work);
    posted.Notify();
  };
  auto held = admission_->TryAcquire(NewClient(), Staging(900));
  ASSERT_TRUE(held.ok());
  const Pending pending = Acquire(NewClient(), Staging(500));
  held->Release();
  ASSERT_TRUE(posted.WaitForNotificationWithTimeout(absl::Seconds(30)));
  EXPECT_FALSE(pending->wait.Cancel());
  EXPECT_FALSE(pending->done.HasBeenNotified());
  std::exchange(granted, nullptr)();
  EXPECT_TRUE(Served(pending));
  EXPECT_EQ(admission_->staging_used(0), 500u);
  // The next request with this wait is refused nevertheless.
  const Pending next = NewPending();
  admission_->Acquire(pending->wait, NewClient(), Staging(100), kNever,
                      [next](absl::StatusOr<Ticket> ticket) {
                        next->ticket = std::move(ticket);
                        next->done.Notify();
                      });
  ASSERT_TRUE(next->done.HasBeenNotified());
  EXPECT_EQ(next->ticket.status().code(), absl::StatusCode::kCancelled);
}

TEST_F(AdmissionTest, ADestroyedWaitIsCancelled) {
  auto held = admission_->TryAcquire(NewClient(), Staging(900));
  ASSERT_TRUE(held.ok());
  {
    Admission::Wait wait(*admission_);
    admission_->Acquire(wait, NewClient(), Staging(500), kNever,
                        [](const absl::StatusOr<Ticket>&) { ADD_FAILURE() << "not cancelled"; });
    EXPECT_EQ(admission_->staging_waiting(0), 1u);
  }
  EXPECT_EQ(admission_->staging_waiting(0), 0u);
  held->Release();
  EXPECT_TRUE(Served(Acquire(NewClient(), Staging(900))));
}

// In any order of Acquire, Cancel and the release of what it lacks, a request ends exactly once:
// Cancel took it, or its callback is called.
TEST_F(AdmissionTest, ARequestThatIsCancelledAtAnyTimeEndsOnce) {
  const Client client = NewClient(), other = NewClient();
  for (int i = 0; i < 300; ++i) {
    auto held = admission_->TryAcquire(other, Staging(900));
    ASSERT_TRUE(held.ok());
    const Pending pending = NewPending();
    absl::Notification start;
    std::thread acquires([&] {
      start.WaitForNotification();
      Acquire(pending, client, Staging(500));
    });
    std::thread releases([&] {
      start.WaitForNotification();
      held->Release();
    });
    start.Notify();
    for (int yields = i % 8; yields > 0; --yields) std::this_thread::yield();
    const bool cancelled = pending->wait.Cancel();
    acquires.join();
    releases.join();
    if (cancelled) {
      EXPECT_FALSE(pending->done.HasBeenNotified());
    } else {
      ASSERT_TRUE(pending->done.WaitForNotificationWithTimeout(absl::Seconds(30)));
      const absl::StatusCode code = pending->ticket.status().code();
      EXPECT_TRUE(code == absl::StatusCode::kOk || code == absl::StatusCode::kCancelled) << code;
      if (code == absl::StatusCode::kOk) pending->ticket->Release();
    }
    ExpectNothingHeld();
    EXPECT_EQ(admission_->staging_waiting(0), 0u);
  }
}

TEST_F(AdmissionTest, ReadingContinuesOnceRequestsAreReleased) {
  const Client client = NewClient();
  absl::Notification read;
  Admission::Wait wait(*admission_);
  EXPECT_FALSE(admission_->WaitToRead(wait, client, [&] { read.Notify(); }));
  Budget::Charge request = admission_->host().Count(client->host(), 5 << 20);
  ASSERT_TRUE(admission_->WaitToRead(wait, client, [&] { ADD_FAILURE() << "replaced"; }));
  ASSERT_TRUE(admission_->WaitToRead(wait, client, [&] { read.Notify(); }));
  Admission::Wait cancelled(*admission_);
  cancelled.Cancel();
  ASSERT_TRUE(admission_->WaitToRead(cancelled, client, [] { ADD_FAILURE() << "cancelled"; }));
  EXPECT_FALSE(read.HasBeenNotified());
  request.Clear();
  EXPECT_TRUE(read.WaitForNotificationWithTimeout(absl::Seconds(30)));
}

TEST_F(AdmissionTest, PiecesOfTransfersLeaveRoomForOthers) {
  admission_->Stop();
  Admission admission(limits_, &gate_, time_);
  for (const uint64_t mib : {256, 4, 1}) admission.AddDevice(mib << 20);
  EXPECT_EQ(admission.PieceBytes(0, 4 << 20), 4u << 20);
  EXPECT_EQ(admission.PieceBytes(1, 4 << 20), 256u << 10);
  EXPECT_EQ(admission.PieceBytes(2, 100), 100u);
}

}  // namespace
}  // namespace resident
