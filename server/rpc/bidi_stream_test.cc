#include "server/rpc/bidi_stream.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "google/protobuf/wrappers.pb.h"
#include "gtest/gtest.h"
#include "runtime/base/limits.h"
#include "runtime/operators/install/fake_operator_manager.h"
#include "runtime/operators/registry/registry.h"
#include "server/admission/admission.h"
#include "server/auth/access.h"
#include "server/core/core.h"
#include "server/rpc/fake_call.h"
#include "tests/support/eventually.h"

namespace resident {
namespace {

using google::protobuf::Int64Value;
using ::resident::testing::Eventually;

Int64Value Message(int64_t value) {
  Int64Value message;
  message.set_value(value);
  return message;
}

// Records the calls of hooks; the tests call its operations.
class TestStream final : public BidiStream<Int64Value, Int64Value> {
 public:
  TestStream(Transport& transport, Core& core) : BidiStream(transport, core) { ++alive; }
  ~TestStream() override { --alive; }

  void OnRequest(Int64Value& request) override { requests.push_back(request.value()); }
  void OnHalfClose() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    ++half_closes;
    BidiStream::OnHalfClose();
  }
  void OnWritten() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    ++written;
    if (write_more) Write(Message(1000 + written));
  }
  void OnEnd(const absl::Status& status) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    ++ends;
    Conclude(status);
  }
  void OnMayRead() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { Read(); }
  bool Busy() const override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return busy; }
  void OnFinish() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { ++finishes; }
  void OnDone() override { done = true; }

  void Register(LiveStreams::Recheck recheck = nullptr) { BidiStream::Register(recheck); }
  void Read1() {
    absl::MutexLock lock(&mu_);
    Read();
  }
  void Write1(int64_t value, Budget::Charge charge = {}) {
    absl::MutexLock lock(&mu_);
    Write(Message(value), std::move(charge));
  }
  void Conclude1(const absl::Status& status) {
    absl::MutexLock lock(&mu_);
    Conclude(status);
  }
  void SetBusy(bool now) {
    absl::MutexLock lock(&mu_);
    busy = now;
    Advance();
  }
  void EndEarly(const absl::Status& status) {
    absl::MutexLock lock(&mu_);
    DropUnread();
    Conclude(status);
  }
  void Drop() {
    absl::MutexLock lock(&mu_);
    DropQueued();
  }
  void Rest() {
    absl::MutexLock lock(&mu_);
    SendHeaders();
    CancelCall();
  }
  bool Wait(const std::shared_ptr<ClientAccounts>& accounts) {
    absl::MutexLock lock(&mu_);
    return WaitToRead(accounts);
  }
  void AbortAfter(std::chrono::milliseconds delay) {
    CallAfter(alarm, delay, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { CancelCall(); });
  }
  void CountAfter(std::chrono::milliseconds delay) {
    CallAfter(alarm, delay, [this] { ++alarms; });
  }

  static inline std::atomic<int> alive{0};
  std::vector<int64_t> requests;
  std::atomic<int> written{0};
  std::atomic<int> alarms{0};
  int half_closes = 0;
  int ends = 0;
  int finishes = 0;
  bool busy = false;
  bool write_more = false;
  bool done = false;
  grpc::Alarm alarm;
};

class BidiStreamTest : public ::testing::Test {
 protected:
  ~BidiStreamTest() override { EXPECT_EQ(TestStream::alive, 0); }

  static Limits SmallLimits() {
    Limits limits;
    limits.max_host_mib = 1;
    return limits;
  }
  static std::vector<int64_t> Written(const FakeCall<TestStream>& call) {
    std::vector<int64_t> values;
    for (const Int64Value& message : call.written()) values.push_back(message.value());
    return values;
  }

  const std::unique_ptr<Registry> registry_ = *Registry::Create({});
  FakeOperatorManager manager_;
  Access access_;
  Core core_{{.limits = SmallLimits()}, {}, *registry_, manager_, access_};
};

using Values = std::vector<int64_t>;

TEST_F(BidiStreamTest, ReadIsNotStartedTwice) {
  FakeCall<TestStream> call(core_);
  call->Read1();
  call->Read1();  // FakeCall fails the test if this starts one.
  EXPECT_TRUE(call.reading());
  call.EndRead(Message(7));
  EXPECT_FALSE(call.reading());
  call->Read1();
  call.EndRead(Message(8));
  EXPECT_EQ(call->requests, Values({7, 8}));
  call->End(absl::UnavailableError("over"));
  call.Done();
}

TEST_F(BidiStreamTest, ResponsesAreWrittenInOrderAndOneAtATime) {
  FakeCall<TestStream> call(core_);
  for (int i = 1; i <= 3; ++i) call->Write1(i);
  EXPECT_EQ(Written(call), Values({1}));
  call.EndWrite();
  EXPECT_EQ(Written(call), Values({1, 2}));
  call->Write1(4);
  for (int i = 0; i < 3; ++i) call.EndWrite();
  EXPECT_EQ(Written(call), Values({1, 2, 3, 4}));
  EXPECT_EQ(call->written, 4);
  call->Conclude1(absl::OkStatus());
  call.Done();
}

TEST_F(BidiStreamTest, ResponsesThatAreQueuedAreSentTogether) {
  FakeCall<TestStream> call(core_);
  for (int i = 1; i <= 4; ++i) call->Write1(i);
  for (int i = 0; i < 4; ++i) call.EndWrite();
  call->Write1(5);
  call.EndWrite();
  // The first one was alone when its write began. The fourth is the last that was queued.
  EXPECT_EQ(call.more_follow(), std::vector<bool>({false, true, true, false, false}));
  call->Conclude1(absl::OkStatus());
  call.Done();
}

TEST_F(BidiStreamTest, MemoryOfAResponseIsChargedUntilItIsWritten) {
  const auto account = std::make_shared<Budget::Account>();
  FakeCall<TestStream> call(core_);
  call->Write1(1, core_.admission.host().Count(account, 100));
  call->Write1(2, core_.admission.host().Count(account, 10));
  EXPECT_EQ(account->counted(), 110u);
  call.EndWrite();
  EXPECT_EQ(account->counted(), 10u);
  call->OnCancel();  // The write that is under way keeps its charge.
  EXPECT_EQ(account->counted(), 10u);
  call->Write1(3, core_.admission.host().Count(account, 1000));
  EXPECT_EQ(account->counted(), 10u);
  call.EndWrite(false);
  EXPECT_EQ(account->counted(), 0u);
  EXPECT_EQ(call->written, 3);
  call.Done();
}

TEST_F(BidiStreamTest, EndWithNothingUnderWayFinishesAtOnce) {
  FakeCall<TestStream> call(core_);
  call->End(absl::UnavailableError("over"));
  EXPECT_EQ(call.finished(), absl::UnavailableError("over"));
  EXPECT_EQ(call->finishes, 1);
  call.Done();
}

TEST_F(BidiStreamTest, EndDoesNotWaitForARead) {
  FakeCall<TestStream> call(core_);
  call->Read1();
  call->End(absl::UnavailableError("over"));
  EXPECT_EQ(call.finished(), absl::UnavailableError("over"));
  call.EndRead(Message(1));  // The read ends after Finish; nothing may be started for it.
  call->Read1();
  call->Write1(2);
  EXPECT_FALSE(call.reading());
  EXPECT_TRUE(call.written().empty());
  EXPECT_EQ(call->written, 1) << "the dropped response must be reported too";
  call.Done();
}

TEST_F(BidiStreamTest, EndWaitsForQueuedResponses) {
  FakeCall<TestStream> call(core_);
  call->Write1(1);
  call->Write1(2);
  call->End(absl::UnavailableError("over"));
  EXPECT_FALSE(call.finished().has_value());
  call.EndWrite();
  EXPECT_FALSE(call.finished().has_value());
  call.EndWrite();
  EXPECT_EQ(call.finished(), absl::UnavailableError("over"));
  EXPECT_EQ(Written(call), Values({1, 2}));
  call.Done();
}

TEST_F(BidiStreamTest, NothingIsStartedAfterFinish) {
  FakeCall<TestStream> call(core_);
  call->Conclude1(absl::OkStatus());
  // FakeCall fails the test if one of these reaches it.
  call->Read1();
  call->Write1(1);
  call->Rest();
  call->Conclude1(absl::InternalError("late"));
  call->End(absl::InternalError("late"));
  call->OnCancel();
  call->SetBusy(true);
  call->SetBusy(false);
  EXPECT_EQ(call.finished(), absl::OkStatus());
  EXPECT_EQ(call->finishes, 1);
  EXPECT_EQ(call->ends, 0);
  call.Done();
}

TEST_F(BidiStreamTest, TheFirstConclusionDecidesTheStatus) {
  FakeCall<TestStream> call(core_);
  call->Write1(1);
  call->Conclude1(absl::OkStatus());
  call->Conclude1(absl::InternalError("second"));
  call->End(absl::UnavailableError("third"));
  call.EndWrite();
  EXPECT_EQ(call.finished(), absl::OkStatus());
  EXPECT_EQ(call->ends, 0);
  call.Done();
}

TEST_F(BidiStreamTest, CancellationDropsQueuedResponses) {
  FakeCall<TestStream> call(core_);
  for (int i = 1; i <= 3; ++i) call->Write1(i);
  call->OnCancel();
  call->OnCancel();
  EXPECT_EQ(call->written, 2) << "the first is still under way";
  EXPECT_FALSE(call.finished().has_value());
  call.EndWrite(false);
  EXPECT_EQ(call->written, 3);
  EXPECT_EQ(Written(call), Values({1}));
  EXPECT_EQ(call.finished()->code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(call->ends, 1);
  call.Done();
}

TEST_F(BidiStreamTest, WriteThatFailsCancels) {
  FakeCall<TestStream> call(core_);
  call->Write1(1);
  call->Write1(2);
  call.EndWrite(false);
  EXPECT_EQ(call.finished()->code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(call->written, 2);
  call.Done();
}

TEST_F(BidiStreamTest, CancellationReachesAHandlerThatWasEnded) {
  FakeCall<TestStream> call(core_);
  call->SetBusy(true);
  call->End(absl::UnavailableError("over"));
  call->OnCancel();
  EXPECT_EQ(call->ends, 2);
  call->SetBusy(false);
  EXPECT_EQ(call.finished(), absl::UnavailableError("over"));
  call.Done();
}

TEST_F(BidiStreamTest, HandlerThatIsBusyDelaysTheEnd) {
  FakeCall<TestStream> call(core_);
  call->SetBusy(true);
  call->End(absl::UnavailableError("over"));
  EXPECT_FALSE(call.finished().has_value());
  call->Write1(1);  // It may still answer.
  call->SetBusy(false);
  EXPECT_FALSE(call.finished().has_value());
  call.EndWrite();
  EXPECT_EQ(call.finished(), absl::UnavailableError("over"));
  call.Done();
}

TEST_F(BidiStreamTest, HandlerMayWriteInOnWritten) {
  FakeCall<TestStream> call(core_);
  call->write_more = true;
  call->Write1(1);
  call.EndWrite();
  call.EndWrite();
  EXPECT_EQ(Written(call), Values({1, 1001, 1002}));
  call->write_more = false;
  call->End(absl::UnavailableError("over"));
  call.EndWrite();
  call.Done();
}

TEST_F(BidiStreamTest, DroppingKeepsTheResponseThatIsBeingWritten) {
  FakeCall<TestStream> call(core_);
  for (int i = 1; i <= 3; ++i) call->Write1(i);
  call->Drop();
  EXPECT_EQ(call->written, 2);
  call->Conclude1(absl::OkStatus());
  call.EndWrite();
  EXPECT_EQ(Written(call), Values({1}));
  EXPECT_TRUE(call.finished().has_value());
  call.Done();
}

TEST_F(BidiStreamTest, HalfCloseConcludes) {
  FakeCall<TestStream> call(core_);
  call->Write1(1);
  call->Read1();
  call.HalfClose();
  EXPECT_EQ(call->half_closes, 1);
  call.EndWrite();
  EXPECT_EQ(call.finished(), absl::OkStatus());
  call.Done();
}

TEST_F(BidiStreamTest, HandlerThatIsEndingGetsNoHalfClose) {
  FakeCall<TestStream> call(core_);
  call->Read1();
  call->Write1(1);
  call->End(absl::UnavailableError("over"));
  call.HalfClose();
  call.EndWrite();
  EXPECT_EQ(call->half_closes, 0);
  EXPECT_EQ(call.finished(), absl::UnavailableError("over"));
  call.Done();
}

TEST_F(BidiStreamTest, ReadsContinueOnceThereIsMemory) {
  Limits limits = SmallLimits();
  const auto accounts = std::make_shared<ClientAccounts>(nullptr, 0);
  FakeCall<TestStream> call(core_);
  EXPECT_FALSE(call->Wait(accounts));
  Budget::Charge charge = core_.admission.host().Count(accounts->host(), limits.max_host_mib << 20);
  ASSERT_TRUE(call->Wait(accounts));
  charge.Clear();
  EXPECT_TRUE(Eventually([&] { return call.reading(); }));
  call->End(absl::UnavailableError("over"));
  call.Done();
}

TEST_F(BidiStreamTest, DestructionWhileWaitingForMemoryIsSafe) {
  const auto accounts = std::make_shared<ClientAccounts>(nullptr, 0);
  Budget::Charge charge = core_.admission.host().Count(accounts->host(), 1u << 20);
  for (int i = 0; i < 100; ++i) {
    FakeCall<TestStream> call(core_);
    ASSERT_TRUE(call->Wait(accounts));
    call->End(absl::UnavailableError("over"));
    if (i == 50) charge.Clear();
    if (i >= 50) charge = core_.admission.host().Count(accounts->host(), 1u << 20);
    call.Done();
    EXPECT_EQ(call.stream(), nullptr);
  }
}

TEST_F(BidiStreamTest, AlarmAbortsACallThatIsNotFinished) {
  FakeCall<TestStream> call(core_);
  call->Write1(1);
  call->End(absl::UnavailableError("over"));
  call->AbortAfter(std::chrono::milliseconds(1));
  EXPECT_TRUE(Eventually([&] { return call.aborted(); }));
  call.EndWrite(false);
  call.Done();
}

TEST_F(BidiStreamTest, AlarmOfAFinishedStreamDoesNothing) {
  FakeCall<TestStream> finished(core_), open(core_);
  finished->End(absl::UnavailableError("over"));
  finished->CountAfter(std::chrono::milliseconds(1));
  open->CountAfter(std::chrono::milliseconds(30));  // Passes after the other alarm.
  EXPECT_TRUE(Eventually([&] { return open->alarms == 1; }));
  EXPECT_EQ(finished->alarms, 0);
  open->End(absl::UnavailableError("over"));
  finished.Done();
  open.Done();
}

TEST_F(BidiStreamTest, AlarmOfADestroyedStreamDoesNothing) {
  for (int i = 0; i < 20; ++i) {
    FakeCall<TestStream> call(core_);
    call->AbortAfter(std::chrono::milliseconds(i % 3));
    call->End(absl::UnavailableError("over"));
    call.Done();  // FakeCall fails the test if the alarm reaches it.
  }
}

TEST_F(BidiStreamTest, DaemonEndsTheStreamsThatAreRegistered) {
  FakeCall<TestStream> refused(core_), let_in(core_), unchecked(core_);
  refused->Register([] { return absl::PermissionDeniedError("withdrawn"); });
  let_in->Register([] { return absl::OkStatus(); });
  unchecked->Register();
  core_.streams.EndRefused();
  EXPECT_EQ(refused.finished(), absl::PermissionDeniedError("withdrawn"));
  EXPECT_FALSE(let_in.finished().has_value());
  EXPECT_FALSE(unchecked.finished().has_value());
  core_.streams.EndAll(absl::UnavailableError("stopping"));
  EXPECT_EQ(let_in.finished(), absl::UnavailableError("stopping"));
  EXPECT_EQ(unchecked.finished(), absl::UnavailableError("stopping"));
  for (auto* call : {&refused, &let_in, &unchecked}) call->Done();
  core_.streams.EndAll(absl::UnavailableError("again"));  // All streams have been destroyed.
}

// So that a stream ends with the reason, and not because its session has ended.
TEST(LiveStreamsTest, RefusedStreamsEndBeforeSessions) {
  struct Named final : LiveStream {
    Named(std::vector<std::string>& ended, std::string name) : ended(ended), name(name) {}
    void End(const absl::Status&) override { ended.push_back(name); }
    bool is_session() const override { return name == "session"; }
    std::vector<std::string>& ended;
    const std::string name;
  };
  LiveStreams streams;
  std::vector<std::string> ended;
  std::vector<std::shared_ptr<Named>> all;
  // The streams have no order of their own.
  for (const char* name : {"work", "session", "work", "session", "work", "session", "work"}) {
    all.push_back(std::make_shared<Named>(ended, name));
    streams.Add(all.back(), [] { return absl::UnauthenticatedError("withdrawn"); });
  }
  streams.EndRefused();
  EXPECT_EQ(ended, (std::vector<std::string>{"work", "work", "work", "work", "session", "session",
                                             "session"}));
}

// gRPC ends a write before the client has read all of the response, and sends the status after it.
TEST_F(BidiStreamTest, ACallWhoseClientDoesNotReadTheStatusIsAborted) {
  FakeCall<TestStream> call(core_);
  call->Write1(1);
  call.EndWrite();
  call->EndEarly(absl::UnavailableError("stopping"));
  EXPECT_EQ(call.finished(), absl::UnavailableError("stopping"));
  EXPECT_FALSE(call.aborted());
  EXPECT_TRUE(Eventually([&] { return call.aborted(); }));
  call.Done();
}

TEST_F(BidiStreamTest, ACallWhoseClientDoesNotReadTheLastResponseIsAborted) {
  FakeCall<TestStream> call(core_);
  call->Write1(1);
  call->EndEarly(absl::UnavailableError("stopping"));
  EXPECT_FALSE(call.finished().has_value());
  EXPECT_TRUE(Eventually([&] { return call.aborted(); }));
  call.EndWrite(false);
  EXPECT_EQ(call.finished(), absl::UnavailableError("stopping"));
  call.Done();
}

TEST_F(BidiStreamTest, ACallWhoseClientReadsTheLastResponseAndNotTheStatusIsAborted) {
  FakeCall<TestStream> call(core_);
  call->Write1(1);
  call->EndEarly(absl::UnavailableError("stopping"));
  call.EndWrite();
  EXPECT_EQ(call.finished(), absl::UnavailableError("stopping"));
  EXPECT_FALSE(call.aborted());
  EXPECT_TRUE(Eventually([&] { return call.aborted(); }));
  call.Done();
}

TEST_F(BidiStreamTest, ACallThatEndsEarlyAndIsOverIsNotAborted) {
  FakeCall<TestStream> call(core_), unread(core_);
  const std::shared_ptr<TestStream> work = call.stream();  // Outlives the call.
  call->EndEarly(absl::UnavailableError("stopping"));
  call.Done();
  unread->EndEarly(absl::UnavailableError("stopping"));  // After `call`.
  EXPECT_TRUE(Eventually([&] { return unread.aborted(); }));
  EXPECT_FALSE(call.aborted());
  unread.Done();
}

TEST_F(BidiStreamTest, WorkKeepsTheStreamAliveAfterTheCall) {
  std::shared_ptr<TestStream> work;
  {
    FakeCall<TestStream> call(core_);
    work = call.stream();
    call->OnCancel();
    call.Done();
    EXPECT_TRUE(work->done);
  }
  work->Write1(1);  // The answer follows the end of the call.
  EXPECT_EQ(work->written, 1);
}

// Operations, their ends, an end and a cancellation, all at the same time. FakeCall checks the
// rules, and a sanitizer the memory.
TEST_F(BidiStreamTest, RulesHoldUnderConcurrentEvents) {
  constexpr int kWriters = 3, kWrites = 50;
  for (int round = 0; round < 50; ++round) {
    FakeCall<TestStream> call(core_);
    call->Register();
    std::atomic<bool> go{false};
    std::vector<std::thread> threads;
    const auto start = [&](std::function<void()> act) {
      threads.emplace_back([&go, act = std::move(act)] {
        while (!go) std::this_thread::yield();
        act();
      });
    };
    for (int writer = 0; writer < kWriters; ++writer) {
      start([&] {
        for (int i = 0; i < kWrites; ++i) call->Write1(i);
      });
    }
    start([&] {
      while (!call.finished().has_value() || call.writing()) {
        if (call.writing()) call.EndWrite(/*ok=*/round % 3 != 0);
      }
    });
    start([&] {
      for (int i = 0; i < kWrites; ++i) {
        call->Read1();
        if (call.reading()) call.EndRead(Message(i));
      }
    });
    start([&] { core_.streams.EndAll(absl::UnavailableError("stopping")); });
    if (round % 2 == 0) start([&] { call->OnCancel(); });
    go = true;
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(call->finishes, 1);
    EXPECT_EQ(call->written, kWriters * kWrites);
    call.Done();
  }
}

}  // namespace
}  // namespace resident
