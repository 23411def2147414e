// Handlers of streaming calls without a network: how their calls end, and when batches with a
// timeout are answered.
#include <algorithm>
#include <chrono>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "resident/v1/executor.pb.h"
#include "resident/v1/operators.pb.h"
#include "runtime/base/errors/daemon_errors.h"
#include "runtime/base/fake_time.h"
#include "runtime/base/limits.h"
#include "runtime/device/fake_device.h"
#include "runtime/operators/install/fake_operator_manager.h"
#include "runtime/operators/registry/registry.h"
#include "runtime/queue/manual_device.h"
#include "server/core/core.h"
#include "server/operators/install_stream.h"
#include "server/operators/watch_stream.h"
#include "server/rpc/executor_service.h"
#include "server/rpc/fake_call.h"
#include "server/rpc/message_bytes.h"
#include "tests/support/eventually.h"

namespace resident {
namespace {

using ::resident::testing::Eventually;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint64_t kMemory = 64u << 20;
constexpr uint64_t kMaxQueuedTasks = 10;

constexpr MessageLimits kNoLimits{UINT64_MAX, UINT64_MAX};

class StreamsTest : public ::testing::Test {
 protected:
  static Limits SmallQueue() {
    Limits limits;
    limits.max_queued_tasks = kMaxQueuedTasks;
    limits.max_installs = 1;
    return limits;
  }
  // A batch of one program that halts at once.
  static v1::Batch HaltBatch(uint64_t id) {
    v1::Batch batch;
    batch.set_id(id);
    batch.mutable_programs()->set_bytecode(std::string(1, '\0'));
    batch.mutable_programs()->set_count(1);
    batch.mutable_programs()->set_max_cycles(10);
    return batch;
  }
  static grpc::ByteBuffer Halt(uint64_t id) {
    v1::SubmitRequest request;
    *request.mutable_batch() = HaltBatch(id);
    return ToBytes(request);
  }
  // The same with several batches in one message. `max_results`: those of a response.
  static grpc::ByteBuffer HaltAll(const std::vector<uint64_t>& ids, uint32_t max_results = 0) {
    v1::SubmitRequest request;
    for (const uint64_t id : ids) *request.add_batches() = HaltBatch(id);
    request.set_max_results(max_results);
    return ToBytes(request);
  }
  // Takes all places in the client's queue.
  Ticket FillQueue() {
    const auto client = core_.clients.ForCall("", context_.peer(), access_.anonymous()->account());
    EXPECT_TRUE(client.ok()) << client.status();
    Needs needs;
    needs.tasks = kMaxQueuedTasks;
    auto ticket = core_.admission.TryAcquire((*client)->accounts(), needs);
    EXPECT_TRUE(ticket.ok()) << ticket.status();
    return *std::move(ticket);
  }
  static v1::BatchResult Result(grpc::ByteBuffer bytes) {
    v1::SubmitResponse response;
    EXPECT_TRUE(ParseMessage(bytes, kNoLimits, &response).ok());
    return response.result();
  }
  // The ids of the results in each response.
  static std::vector<std::vector<uint64_t>> JoinedIds(
      const std::vector<grpc::ByteBuffer>& written) {
    std::vector<std::vector<uint64_t>> all;
    for (grpc::ByteBuffer bytes : written) {
      v1::SubmitResponse response;
      EXPECT_TRUE(ParseMessage(bytes, kNoLimits, &response).ok());
      EXPECT_FALSE(response.has_result());
      std::vector<uint64_t>& ids = all.emplace_back();
      for (const v1::BatchResult& result : response.results()) ids.push_back(result.id());
    }
    return all;
  }
  static OperatorEvent Event(const std::string& name) {
    OperatorEvent event;
    event.operator_name = name;
    event.kind = EventKind::kActivated;
    return event;
  }

  const grpc::CallbackServerContext context_;
  FakeTime time_;
  // Its queue has no engine.
  FakeDevice device_{0, kMemory, kMemory, {.spin = std::chrono::microseconds(0), .time = &time_}};
  const std::unique_ptr<Registry> registry_ = *Registry::Create({});
  FakeOperatorManager manager_;
  Access access_;
  Core core_{{.limits = SmallQueue(), .staging_bytes = kMemory, .time = &time_},
             {&device_},
             *registry_,
             manager_,
             access_};
  Installs installs_{core_};
};

TEST_F(StreamsTest, SubmitRefusesABatchAndContinuesToRead) {
  FakeCall<SubmitStream> call(core_);
  call->Open(context_);
  call.EndRead(Halt(7));
  ASSERT_EQ(call.written().size(), 1u);
  const v1::BatchResult refused = Result(call.written()[0]);
  EXPECT_EQ(refused.id(), 7u);
  EXPECT_EQ(refused.refused().code(), static_cast<int>(absl::StatusCode::kUnavailable));
  EXPECT_TRUE(call.reading());
  call.HalfClose();
  EXPECT_FALSE(call.finished().has_value()) << "the refusal is not written yet";
  call.EndWrite();
  EXPECT_EQ(call.finished(), absl::OkStatus());
  call.Done();
}

TEST_F(StreamsTest, SubmitEndsAfterAMessageThatCannotBeParsed) {
  FakeCall<SubmitStream> call(core_);
  call->Open(context_);
  grpc::Slice slice(std::string("\xff\xff\xff\xff"));
  call.EndRead(grpc::ByteBuffer(&slice, 1));
  ASSERT_TRUE(call.finished().has_value());
  EXPECT_EQ(call.finished()->code(), absl::StatusCode::kInvalidArgument);
  call.Done();
}

TEST_F(StreamsTest, SubmitAnswersEachBatchOfAMessage) {
  FakeCall<SubmitStream> call(core_);
  call->Open(context_);
  v1::SubmitRequest request;
  *request.mutable_batch() = HaltBatch(7);
  for (const uint64_t id : {8, 9}) *request.add_batches() = HaltBatch(id);
  call.EndRead(ToBytes(request));
  EXPECT_TRUE(call.reading());
  call.HalfClose();
  for (const uint64_t id : {7, 8, 9}) {
    EXPECT_FALSE(call.finished().has_value());
    EXPECT_EQ(Result(call.written().back()).id(), id);
    call.EndWrite();
  }
  EXPECT_EQ(call.finished(), absl::OkStatus());
  EXPECT_EQ(call.written().size(), 3u);
  call.Done();
  EXPECT_EQ(core_.admission.host().used(), 0u);
}

TEST_F(StreamsTest, SubmitRefusesAMessageWithoutABatch) {
  FakeCall<SubmitStream> call(core_);
  call->Open(context_);
  call.EndRead(ToBytes(v1::SubmitRequest()));
  ASSERT_EQ(call.written().size(), 1u);
  EXPECT_EQ(Result(call.written()[0]).refused().code(),
            static_cast<int>(absl::StatusCode::kInvalidArgument));
  EXPECT_TRUE(call.reading());
  call.EndWrite();
  call.HalfClose();
  EXPECT_EQ(call.finished(), absl::OkStatus());
  call.Done();
}

TEST_F(StreamsTest, SubmitEndsAfterAMessageWithTooManyBatches) {
  std::vector<uint64_t> ids(kMaxMessageBatches);
  std::iota(ids.begin(), ids.end(), uint64_t{1});
  FakeCall<SubmitStream> call(core_);
  call->Open(context_);
  call.EndRead(HaltAll(ids, 1));
  EXPECT_FALSE(call.reading()) << "as many batches are unanswered as a stream may have";
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i == 1) {
      ids.push_back(0);
      call.EndRead(HaltAll(ids));
      ids.pop_back();
    }
    EXPECT_FALSE(call.finished().has_value());
    EXPECT_THAT(JoinedIds({call.written().back()}), ElementsAre(ElementsAre(ids[i])));
    call.EndWrite();
  }
  ASSERT_TRUE(call.finished().has_value());
  EXPECT_EQ(call.finished()->code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(call.finished()->message(), HasSubstr("65 batches; at most 64"));
  EXPECT_EQ(call.written().size(), ids.size());
  call.Done();
}

// What is answered during a write is in the next response.
TEST_F(StreamsTest, SubmitJoinsResultsIfTheClientAcceptsThat) {
  FakeCall<SubmitStream> call(core_);
  call->Open(context_);
  call.EndRead(HaltAll({1, 2, 3, 4, 5}, 3));
  call.EndRead(HaltAll({6}, 1));  // Only the first request sets the number.
  call.EndWrite();
  call.HalfClose();
  call.EndWrite();
  EXPECT_FALSE(call.finished().has_value());
  call.EndWrite();
  EXPECT_EQ(call.finished(), absl::OkStatus());
  EXPECT_THAT(JoinedIds(call.written()),
              ElementsAre(ElementsAre(1), ElementsAre(2, 3, 4), ElementsAre(5, 6)));
  EXPECT_THAT(call.more_follow(), ElementsAre(false, true, false));
  call.Done();
  EXPECT_EQ(core_.admission.host().used(), 0u);
}

TEST_F(StreamsTest, SubmitDropsJoinedResultsOfACancelledCall) {
  FakeCall<SubmitStream> call(core_);
  call->Open(context_);
  call.EndRead(HaltAll({1, 2, 3, 4}, 2));
  call.EndWrite();
  call->OnCancel();
  call.EndWrite(false);
  ASSERT_TRUE(call.finished().has_value());
  EXPECT_THAT(JoinedIds(call.written()), ElementsAre(ElementsAre(1), ElementsAre(2, 3)));
  call.Done();
  EXPECT_EQ(core_.admission.host().used(), 0u);
}

// The second batch of a message waits: what follows it waits, too, and is answered if the call
// ends.
TEST_F(StreamsTest, SubmitAnswersTheRestOfAMessageThatWaitsBeforeItEnds) {
  Ticket others = FillQueue();
  FakeCall<SubmitStream> call(core_);
  call->Open(context_);
  v1::SubmitRequest request;
  *request.add_batches() = HaltBatch(1);
  request.mutable_batches(0)->clear_work();
  *request.add_batches() = HaltBatch(2);
  *request.add_batches() = HaltBatch(3);
  request.set_max_results(4);
  call.EndRead(ToBytes(request));
  EXPECT_THAT(JoinedIds(call.written()), ElementsAre(ElementsAre(1)));
  EXPECT_FALSE(call.reading());
  call.EndWrite();
  EXPECT_EQ(call.written().size(), 1u);
  call->End(errors::Draining());
  call.EndWrite();
  call.EndWrite();
  EXPECT_THAT(JoinedIds(call.written()),
              ElementsAre(ElementsAre(1), ElementsAre(2), ElementsAre(3)));
  EXPECT_EQ(call.finished(), errors::Draining());
  call.Done();
  others.Release();
  EXPECT_EQ(core_.admission.host().used(), 0u);
}

// Unknown fields are not in the arena of the request, and take many times their bytes in it. A
// message with more of them is refused before it is parsed.
TEST_F(StreamsTest, SubmitCountsTheUnknownFieldsOfAMessageThatWaits) {
  for (const size_t fields : {100, 16'000}) {
    Ticket others = FillQueue();
    FakeCall<SubmitStream> call(core_);
    call->Open(context_);
    v1::SubmitRequest request;
    *request.add_batches() = HaltBatch(1);
    for (size_t i = 0; i < fields; ++i) {
      request.GetReflection()->MutableUnknownFields(&request)->AddLengthDelimited(1000);
    }
    const uint64_t before = core_.admission.host().used();
    call.EndRead(ToBytes(request));
    EXPECT_GE(core_.admission.host().used() - before, fields * sizeof(std::string));
    call->End(errors::Draining());
    call.EndWrite();
    EXPECT_EQ(call.finished(), errors::Draining());
    call.Done();
    others.Release();
    EXPECT_EQ(core_.admission.host().used(), 0u);
  }
}

// The end comes while another thread plans and admits the batches of a message.
TEST_F(StreamsTest, SubmitAnswersTheRestOfAMessageThatIsReadAtItsEnd) {
  Ticket others = FillQueue();
  FakeCall<SubmitStream> call(core_);
  call->Open(context_);
  // The first batch waits. That thread goes on with the others when the queue has space.
  std::vector<uint64_t> ids(kMaxMessageBatches);
  std::iota(ids.begin(), ids.end(), 1);
  call.EndRead(HaltAll(ids, kMaxMessageBatches));
  others.Release();
  call->End(errors::Draining());
  while (call.writing() || !call.finished().has_value()) {
    if (call.writing()) call.EndWrite();
  }
  EXPECT_EQ(call.finished(), errors::Draining());
  std::vector<uint64_t> answered;
  for (const std::vector<uint64_t>& some : JoinedIds(call.written())) {
    answered.insert(answered.end(), some.begin(), some.end());
  }
  EXPECT_EQ(answered, ids);
  call.Done();
  EXPECT_EQ(core_.counters.batches(), kMaxMessageBatches);
  EXPECT_EQ(core_.counters.refused(static_cast<int>(absl::StatusCode::kUnavailable)),
            kMaxMessageBatches);
  EXPECT_TRUE(Eventually([&] { return core_.admission.host().used() == 0; }));
}

TEST_F(StreamsTest, SubmitContinuesWithTheRestOfAMessageThatWaited) {
  Ticket others = FillQueue();
  FakeCall<SubmitStream> call(core_);
  call->Open(context_);
  call.EndRead(HaltAll({1, 2, 3}, 4));
  EXPECT_TRUE(call.written().empty());
  others.Release();
  ASSERT_TRUE(Eventually([&] { return call.reading() && call.writing(); }));
  call.EndWrite();
  call.EndWrite();
  EXPECT_THAT(JoinedIds(call.written()), ElementsAre(ElementsAre(1), ElementsAre(2, 3)));
  call.HalfClose();
  EXPECT_EQ(call.finished(), absl::OkStatus());
  call.Done();
  EXPECT_TRUE(Eventually([&] { return core_.admission.host().used() == 0; }));
}

TEST_F(StreamsTest, SubmitAnswersABatchThatWaitsBeforeItEnds) {
  Ticket others = FillQueue();
  FakeCall<SubmitStream> call(core_);
  call->Open(context_);
  call.EndRead(Halt(7));
  EXPECT_FALSE(call.reading()) << "nothing is read while a batch waits";
  EXPECT_TRUE(call.written().empty());
  call->End(errors::Draining());
  EXPECT_FALSE(call.finished().has_value());
  ASSERT_EQ(call.written().size(), 1u);
  EXPECT_EQ(Result(call.written()[0]).id(), 7u);
  EXPECT_EQ(Result(call.written()[0]).refused().message(), errors::Draining().message());
  call.EndWrite();
  EXPECT_EQ(call.finished(), errors::Draining());
  call.Done();
}

// The end comes after the stream has tried to admit the batch, and before the batch waits.
TEST_F(StreamsTest, SubmitAnswersABatchThatIsAboutToWaitWhenItEnds) {
  // It requests staging memory without waiting, then to wait.
  for (const int end_in : {0, 1}) {
    for (const bool cancelled : {false, true}) {
      FakeCall<SubmitStream> call(core_);
      const std::shared_ptr<EngineSession> session = device_.session();
      device_.set_session(std::make_shared<FullSession>([&](int before) {
        if (before != end_in) return;
        if (cancelled) {
          call->OnCancel();
        } else {
          call->End(errors::Draining());
        }
      }));
      // Staging memory is in use, so that the batch would wait for its release.
      const auto client =
          core_.clients.ForCall("", context_.peer(), access_.anonymous()->account());
      ASSERT_TRUE(client.ok()) << client.status();
      Needs needs;
      needs.session = session;
      needs.staging_bytes = 64;
      auto others = core_.admission.TryAcquire((*client)->accounts(), needs);
      ASSERT_TRUE(others.ok()) << others.status();

      call->Open(context_);
      v1::SubmitRequest request;
      v1::Batch& batch = *request.mutable_batch();
      batch.set_id(7);
      batch.mutable_tasks()->set_operator_("fill");
      batch.mutable_tasks()->set_count(1);
      batch.mutable_tasks()->add_arguments()->mutable_returned()->set_dtype(v1::DTYPE_F32);
      batch.mutable_tasks()->mutable_arguments(0)->mutable_returned()->add_shape(1);
      batch.mutable_tasks()->add_arguments()->mutable_scalar()->add_f64(1);
      call.EndRead(ToBytes(request));
      if (!cancelled) {
        ASSERT_EQ(call.written().size(), 1u);
        EXPECT_EQ(Result(call.written()[0]).id(), 7u);
        EXPECT_EQ(Result(call.written()[0]).refused().message(), errors::Draining().message());
        call.EndWrite();
      }
      EXPECT_EQ(call.finished(), cancelled ? errors::Cancelled() : errors::Draining());
      EXPECT_EQ(core_.admission.staging_waiting(0), 0u);
      call.Done();
      others->Release();
      EXPECT_EQ(core_.admission.host().used(), 0u);
      device_.set_session(session);
    }
  }
}

TEST_F(StreamsTest, CancelledSubmitDropsABatchThatWaits) {
  Ticket others = FillQueue();
  std::weak_ptr<SubmitStream> stream;
  {
    FakeCall<SubmitStream> call(core_);
    stream = call.stream();
    call->Open(context_);
    call.EndRead(Halt(7));
    call->OnCancel();
    EXPECT_TRUE(call.written().empty());
    ASSERT_TRUE(call.finished().has_value());
    call.Done();
  }
  EXPECT_TRUE(stream.expired());
  others.Release();
  EXPECT_EQ(core_.admission.host().used(), 0u);
}

TEST_F(StreamsTest, SubmitContinuesWithABatchThatWaited) {
  Ticket others = FillQueue();
  FakeCall<SubmitStream> call(core_);
  call->Open(context_);
  call.EndRead(Halt(7));
  others.Release();
  // It is admitted, and then refused, because there is no engine.
  ASSERT_TRUE(Eventually([&] { return call.reading() && call.writing(); }));
  EXPECT_THAT(Result(call.written()[0]).refused().message(), HasSubstr("engine"));
  call.EndWrite();
  call.HalfClose();
  EXPECT_EQ(call.finished(), absl::OkStatus());
  call.Done();
  EXPECT_TRUE(Eventually([&] { return core_.admission.host().used() == 0; }));
}

// A stream whose device the test controls step by step.
class TimeoutTest : public StreamsTest {
 protected:
  static constexpr std::chrono::milliseconds kTimeout{200};
  // A client of the queue that has no session.
  static constexpr ClientId kOther = UINT64_MAX - 1;

  TimeoutTest() {
    // The first engine of the queue: the epoch of the device's session.
    EXPECT_EQ(device_.queue().SetRing(manual_.NewRing()), 1u);
    device_.queue().AddClient(kOther);
    call_->Open(context_);
  }
  ~TimeoutTest() override {
    device_.queue().LoseRing("the test has ended", {});
    if (call_.writing()) call_.EndWrite();
    call_->End(errors::Draining());
    call_.Done();
  }

  // Tasks of another client fill the ring, and one more waits.
  void FillRing() {
    const uint32_t before = device_.queue().counters().in_flight;
    auto others = std::make_shared<Batch>();
    others->epoch = 1;
    others->tasks.resize(ManualDevice::kSlots - before + 1);
    ASSERT_TRUE(device_.queue().Enqueue(kOther, others).ok());
    ASSERT_TRUE(
        Eventually([&] { return device_.queue().counters().in_flight == ManualDevice::kSlots; }));
  }
  // A batch of tasks with a timeout.
  static v1::Batch Fill(
      uint32_t tasks, v1::BatchOptions::Ordering ordering = v1::BatchOptions::ORDERING_UNORDERED) {
    v1::Batch batch;
    batch.set_id(7);
    batch.mutable_options()->set_ordering(ordering);
    batch.mutable_options()->set_timeout_us(
        std::chrono::duration_cast<std::chrono::microseconds>(kTimeout).count());
    batch.mutable_tasks()->set_operator_("fill");
    batch.mutable_tasks()->set_count(tasks);
    batch.mutable_tasks()->add_arguments()->mutable_returned()->set_dtype(v1::DTYPE_F32);
    batch.mutable_tasks()->mutable_arguments(0)->mutable_returned()->add_shape(1);
    batch.mutable_tasks()->add_arguments()->mutable_scalar()->add_f64(1);
    return batch;
  }
  void Send(uint32_t tasks,
            v1::BatchOptions::Ordering ordering = v1::BatchOptions::ORDERING_UNORDERED) {
    v1::SubmitRequest request;
    *request.mutable_batch() = Fill(tasks, ordering);
    call_.EndRead(ToBytes(request));
  }
  // The batch is not answered before its timeout, and is answered within one interval after it.
  // `sleepers`: threads that look at the time while the batch waits. They must sleep when it
  // advances.
  v1::BatchResult AwaitAnswer(size_t sleepers = 0) {
    constexpr std::chrono::nanoseconds kBefore{1};
    time_.AwaitSleepers(sleepers);
    time_.Advance(kTimeout - kBefore);
    time_.AwaitSleepers(sleepers);
    EXPECT_TRUE(call_.written().empty());
    time_.Advance(kBefore +
                  std::max(Admission::kPollInterval, DeviceQueue::kDeadlineCheckInterval));
    EXPECT_TRUE(Eventually([&] { return !call_.written().empty(); }));
    return call_.written().empty() ? v1::BatchResult() : Result(call_.written()[0]);
  }

  static auto AllLate() {
    return ElementsAre(v1::TASK_STATUS_DEADLINE_EXCEEDED, v1::TASK_STATUS_DEADLINE_EXCEEDED);
  }

  ManualDevice manual_;
  FakeCall<SubmitStream> call_{core_};
};

TEST_F(TimeoutTest, OfABatchThatWaitsForQueueSpace) {
  const Ticket others = FillQueue();
  Send(1);
  const v1::BatchResult result = AwaitAnswer(/*sleepers=*/1);
  EXPECT_EQ(result.id(), 7u);
  EXPECT_EQ(result.refused().code(), static_cast<int>(absl::StatusCode::kDeadlineExceeded));
}

// Its time begins when the message arrives, not when the batch before it is admitted.
TEST_F(TimeoutTest, OfABatchBehindOneThatWaits) {
  Ticket others = FillQueue();
  v1::SubmitRequest request;
  *request.add_batches() = Fill(1);
  request.mutable_batches(0)->set_id(6);
  request.mutable_batches(0)->clear_options();
  *request.add_batches() = Fill(1);
  request.set_max_results(1);
  call_.EndRead(ToBytes(request));
  time_.Advance(kTimeout + std::chrono::milliseconds(1));
  EXPECT_TRUE(call_.written().empty());
  others.Release();
  ASSERT_TRUE(Eventually([&] { return call_.writing(); }));
  v1::SubmitResponse response;
  grpc::ByteBuffer bytes = call_.written()[0];
  ASSERT_TRUE(ParseMessage(bytes, kNoLimits, &response).ok());
  EXPECT_EQ(response.results(0).id(), 7u);
  EXPECT_THAT(response.results(0).status(), ElementsAre(v1::TASK_STATUS_DEADLINE_EXCEEDED));
  call_.EndWrite();
  manual_.Complete(0);
  EXPECT_TRUE(Eventually([&] { return call_.written().size() == 2; }));
}

TEST_F(TimeoutTest, OfABatchInItsClientsQueue) {
  FillRing();
  Send(2);
  EXPECT_THAT(AwaitAnswer().status(), AllLate());
}

TEST_F(TimeoutTest, OfABatchWhoseNextTaskWaits) {
  Send(2, v1::BatchOptions::ORDERING_IN_ORDER);
  ASSERT_TRUE(Eventually([&] { return device_.queue().counters().in_flight == 1; }));
  FillRing();
  manual_.Complete(0);
  ASSERT_TRUE(
      Eventually([&] { return device_.queue().counters().next_sequence > ManualDevice::kSlots; }));
  EXPECT_THAT(AwaitAnswer().status(),
              ElementsAre(v1::TASK_STATUS_OK, v1::TASK_STATUS_DEADLINE_EXCEEDED));
}

TEST_F(TimeoutTest, OfABatchWhileTheDeviceIsParked) {
  ASSERT_TRUE(device_.queue().BeginPark().ok());
  Send(2);
  EXPECT_THAT(AwaitAnswer().status(), AllLate());
}

TEST_F(StreamsTest, WatchReadsAnEventOnceThePreviousOneIsWritten) {
  FakeCall<WatchStream> call(installs_);
  call->Open(context_, {});
  EXPECT_TRUE(call.headers_sent());
  for (const char* name : {"a", "b", "c"}) manager_.AddEvent(Event(name));
  EXPECT_EQ(call.written().size(), 1u);
  call.EndWrite();
  ASSERT_EQ(call.written().size(), 2u);
  EXPECT_EQ(call.written()[1].event().operator_(), "b");
  call->End(errors::Draining());
  EXPECT_FALSE(call.finished().has_value()) << "an event is being written";
  call.EndWrite();
  EXPECT_EQ(call.written().size(), 2u);
  EXPECT_EQ(call.finished(), errors::Draining());
  call.Done();
  EXPECT_EQ(manager_.subscribers(), 0u);
  manager_.AddEvent(Event("d"));
}

TEST_F(StreamsTest, InstallThatIsCancelledWaitsForTheManager) {
  manager_.set_script({{}, absl::OkStatus(), /*until_withdrawn=*/true});
  FakeCall<InstallStream> call(installs_);
  call->Open(context_);
  v1::InstallRequest message;
  message.mutable_header()->set_name("swish");
  message.mutable_header()->set_expression("x");
  call.EndRead(ToBytes(message));
  call.HalfClose();
  ASSERT_TRUE(call.writing());  // SUBMITTED
  ASSERT_TRUE(Eventually([&] { return manager_.installs().size() == 1; }));
  EXPECT_FALSE(call.finished().has_value());
  call->OnCancel();
  call.EndWrite(false);
  ASSERT_TRUE(Eventually([&] { return call.finished().has_value(); }));
  EXPECT_EQ(call.finished()->code(), absl::StatusCode::kCancelled);
  // The slot is free when the client has the status.
  FakeCall<InstallStream> next(installs_);
  next->Open(context_);
  EXPECT_TRUE(next.reading());
  next->End(errors::Draining());
  EXPECT_EQ(next.finished(), errors::Draining());
  next.Done();
  call.Done();
}

}  // namespace
}  // namespace resident
