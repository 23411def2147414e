// Handlers of streaming calls without a network: how their calls end.
#include <memory>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "resident/v1/executor.pb.h"
#include "resident/v1/operators.pb.h"
#include "runtime/base/errors/daemon_errors.h"
#include "runtime/device/fake_device.h"
#include "runtime/operators/install/fake_operator_manager.h"
#include "runtime/operators/registry/registry.h"
#include "server/rpc/core.h"
#include "server/rpc/fake_call.h"
#include "server/rpc/install_stream.h"
#include "server/rpc/message_bytes.h"
#include "server/rpc/submit_stream.h"
#include "server/rpc/watch_stream.h"
#include "tests/support/eventually.h"

namespace resident {
namespace {

using ::resident::testing::Eventually;
using ::testing::HasSubstr;

constexpr uint64_t kMemory = 64u << 20;
constexpr uint64_t kMaxQueuedTasks = 10;

class StreamsTest : public ::testing::Test {
 protected:
  static Limits SmallQueue() {
    Limits limits;
    limits.max_queued_tasks = kMaxQueuedTasks;
    limits.max_installs = 1;
    return limits;
  }
  // A batch of one program that halts at once.
  static grpc::ByteBuffer Halt(uint64_t id) {
    v1::SubmitRequest request;
    request.mutable_batch()->set_id(id);
    request.mutable_batch()->mutable_programs()->set_bytecode(std::string(1, '\0'));
    request.mutable_batch()->mutable_programs()->set_count(1);
    request.mutable_batch()->mutable_programs()->set_max_cycles(10);
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
    EXPECT_TRUE(ParseMessage(bytes, &response).ok());
    return response.result();
  }
  static OperatorEvent Event(const std::string& name) {
    OperatorEvent event;
    event.operator_name = name;
    event.kind = EventKind::kActivated;
    return event;
  }

  const grpc::CallbackServerContext context_;
  FakeDevice device_{0, kMemory, kMemory};  // Its queue has no engine.
  const std::unique_ptr<Registry> registry_ = *Registry::Create({});
  FakeOperatorManager manager_;
  Access access_;
  Core core_{{.limits = SmallQueue(), .staging_bytes = kMemory},
             {&device_},
             *registry_,
             manager_,
             access_};
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

TEST_F(StreamsTest, WatchReadsAnEventOnceThePreviousOneIsWritten) {
  FakeCall<WatchStream> call(core_);
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
  FakeCall<InstallStream> call(core_);
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
  FakeCall<InstallStream> next(core_);
  next->Open(context_);
  EXPECT_TRUE(next.reading());
  next->End(errors::Draining());
  EXPECT_EQ(next.finished(), errors::Draining());
  next.Done();
  call.Done();
}

}  // namespace
}  // namespace resident
