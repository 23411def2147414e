// Admin, Operators, health, reflection, channelz: the interfaces for an operator of the
// daemon.
#include <signal.h>

#include <future>
#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "grpcpp/generic/generic_stub.h"
#include "gtest/gtest.h"
#include "resident/v1/operators.grpc.pb.h"
#include "tests/daemon/health.h"
#include "tests/daemon/messages.h"

namespace resident::testing {
namespace {

using grpc::StatusCode;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Calls a unary or streaming method by name; returns the bytes of the first response.
grpc::Status CallByName(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                        const std::string& request, std::string* response) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  grpc::CompletionQueue queue;
  const auto call = stub.PrepareCall(&context, method, &queue);
  void* tag = nullptr;
  bool ok = false;
  call->StartCall(nullptr);
  queue.Next(&tag, &ok);
  grpc::Slice slice(request);
  call->WriteLast(grpc::ByteBuffer(&slice, 1), grpc::WriteOptions(), nullptr);
  queue.Next(&tag, &ok);
  grpc::ByteBuffer bytes;
  call->Read(&bytes, nullptr);
  queue.Next(&tag, &ok);
  if (ok) {
    std::vector<grpc::Slice> slices;
    (void)bytes.Dump(&slices);
    for (const grpc::Slice& part : slices) {
      response->append(reinterpret_cast<const char*>(part.begin()), part.size());
    }
  }
  grpc::Status status;
  call->Finish(&status, nullptr);
  queue.Next(&tag, &ok);
  return status;
}

class AdminTest : public DaemonTest {};

TEST_F(AdminTest, StatusDescribesDaemonDevicesAndClients) {
  ExpectServes();
  const v1::StatusResponse status = daemon_->Status();
  EXPECT_EQ(status.pid(), daemon_->pid());
  EXPECT_FALSE(status.version().empty());
  EXPECT_EQ(status.metrics_address(), daemon_->metrics_address());
  ASSERT_GE(status.devices_size(), 1);
  const v1::DeviceStatus& device = status.devices(0);
  EXPECT_EQ(device.engine(), OnGpu() ? "cuda" : "cpu");
  EXPECT_EQ(device.state(), v1::DeviceStatus::STATE_RESIDENT);
  EXPECT_GT(device.engine_pid(), 0);
  EXPECT_GT(device.memory_total_bytes(), 0u);
  EXPECT_GT(device.completed_tasks(), 0u);
  EXPECT_GT(device.ring().slots(), 0u);
  EXPECT_GT(device.blocks(), 0u);
  bool found = false;
  for (const v1::ClientStatus& client : status.clients()) {
    // Only a part of the session's id is shown: the whole id would give access to the
    // session's buffers.
    if (client.id().empty() || client_.session().rfind(client.id(), 0) != 0) continue;
    EXPECT_LT(client.id().size(), client_.session().size());
    found = true;
    EXPECT_EQ(client.name(), "test");
    EXPECT_GE(client.completed_tasks(), 1u);
  }
  EXPECT_TRUE(found);
}

TEST_F(AdminTest, OperatorsAreListedAndDescribed) {
  const auto stub = v1::Operators::NewStub(daemon_->Connect());
  {
    grpc::ClientContext context;
    v1::ListOperatorsResponse list;
    ASSERT_TRUE(stub->List(&context, v1::ListOperatorsRequest(), &list).ok());
    EXPECT_GE(list.operators_size(), 12);
    for (int i = 1; i < list.operators_size(); ++i) {
      EXPECT_LT(list.operators(i - 1).name(), list.operators(i).name());
    }
  }
  grpc::ClientContext context;
  v1::DescribeOperatorRequest request;
  request.set_name("add");
  v1::DescribeOperatorResponse response;
  ASSERT_TRUE(stub->Describe(&context, request, &response).ok());
  const v1::Operator& add = response.operator_();
  EXPECT_EQ(add.active_version(), 1u);
  EXPECT_TRUE(add.wide());
  ASSERT_EQ(add.parameters_size(), 4);
  EXPECT_EQ(add.parameters(2).kind(), v1::Parameter::KIND_OUTPUT);
  EXPECT_EQ(add.parameters(3).kind(), v1::Parameter::KIND_SCALAR);
  EXPECT_EQ(add.parameters(0).max_rank(), 8u);
  EXPECT_EQ(add.versions(0).state(), "active");
  grpc::ClientContext second;
  request.set_name("addd");
  ExpectRefused(stub->Describe(&second, request, &response), StatusCode::NOT_FOUND,
                {"did you mean 'add'"});
}

TEST_F(AdminTest, ParkedTasksWaitUntilResume) {
  ExpectRefused(Park(*daemon_, 99), StatusCode::NOT_FOUND, {"no device 99"});
  ASSERT_TRUE(Park(*daemon_).ok());
  EXPECT_EQ(daemon_->Device().state(), v1::DeviceStatus::STATE_PARKED);
  auto outcome = std::async(std::launch::async, [&] { return client_.Run(SmallAdd()); });
  EXPECT_TRUE(Eventually([&] { return daemon_->Device().queued_tasks() == 1; }));
  ASSERT_TRUE(Resume(*daemon_).ok());
  EXPECT_TRUE(outcome.get().all_ok());
  EXPECT_EQ(daemon_->Device().state(), v1::DeviceStatus::STATE_RESIDENT);
}

// A batch whose deadline passes while the device is parked, with Run and with Submit. It
// did not run.
TEST_F(AdminTest, DeadlineOfAQueuedTaskAppliesWhileParked) {
  const Counters counters(client_, 20);
  ASSERT_TRUE(Park(*daemon_).ok());
  const auto batch = [&](uint32_t first) {
    v1::Batch late = counters.Batch(first, 10);
    late.mutable_options()->set_timeout_us(20'000);
    return late;
  };
  const auto expect_late = [](const v1::BatchResult& result) {
    ASSERT_EQ(result.status_size(), 10);
    for (const int status : result.status()) {
      EXPECT_EQ(status, v1::TASK_STATUS_DEADLINE_EXCEEDED);
    }
    ASSERT_GE(result.errors_size(), 1);
    EXPECT_THAT(result.errors(0).message(),
                AllOf(HasSubstr("the deadline passed before the task reached the device"),
                      HasSubstr("it did not run"), HasSubstr("Fix: allow more time")));
  };
  const RunOutcome outcome = client_.Run(batch(0));
  ASSERT_TRUE(outcome.call.ok()) << outcome.message();
  expect_late(outcome.result);

  v1::Batch submitted = batch(10);
  submitted.set_id(7);
  const v1::BatchResult result = SubmitSequentially(client_, {submitted})[0];
  EXPECT_EQ(result.id(), 7u);
  expect_late(result);

  EXPECT_EQ(daemon_->Device().queued_tasks(), 0u);
  ASSERT_TRUE(Resume(*daemon_).ok());
  ExpectServes();
  for (uint32_t i = 0; i < 20; ++i) EXPECT_EQ(counters.value(i), 0.0f);
}

// The call's own deadline: gRPC returns the error, and the daemon drops the tasks.
TEST_F(AdminTest, CallWhoseDeadlinePassesWhileParkedLeavesTheQueue) {
  const Counters counters(client_, 10);
  ASSERT_TRUE(Park(*daemon_).ok());
  // The deadline is later each time, until the tasks are seen in the queue before it.
  bool queued = false;
  for (int seconds = 2; !queued && seconds <= 16; seconds *= 2) {
    const auto context = client_.Context();
    context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(seconds));
    v1::RunRequest request;
    *request.mutable_batch() = counters.Batch(0, 10);
    v1::RunResponse response;
    auto status = std::async(std::launch::async, [&] {
      return client_.executor().Run(context.get(), request, &response);
    });
    EXPECT_TRUE(Eventually([&] {
      queued = daemon_->Device().queued_tasks() == 10;
      return queued || status.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
    }));
    EXPECT_EQ(status.get().error_code(), StatusCode::DEADLINE_EXCEEDED);
    EXPECT_TRUE(Eventually([&] { return daemon_->Device().queued_tasks() == 0; }));
  }
  EXPECT_TRUE(queued);
  ASSERT_TRUE(Resume(*daemon_).ok());
  ExpectServes();
  for (uint32_t i = 0; i < 10; ++i) EXPECT_EQ(counters.value(i), 0.0f);
}

TEST_F(AdminTest, CancelledRunLeavesTheQueue) {
  ASSERT_TRUE(Park(*daemon_).ok());
  const auto context = client_.Context();
  v1::RunRequest request;
  *request.mutable_batch() = SmallAdd();
  v1::RunResponse response;
  auto status = std::async(std::launch::async, [&] {
    return client_.executor().Run(context.get(), request, &response);
  });
  EXPECT_TRUE(Eventually([&] { return daemon_->Device().queued_tasks() == 1; }));
  context->TryCancel();
  EXPECT_EQ(status.get().error_code(), StatusCode::CANCELLED);
  EXPECT_TRUE(Eventually([&] { return daemon_->Device().queued_tasks() == 0; }));
  ASSERT_TRUE(Resume(*daemon_).ok());
  ExpectServes();
}

TEST_F(AdminTest, EveryServiceIsHealthyAndReflected) {
  for (const char* service :
       {"", "resident.v1.Executor", "resident.v1.Sessions", "resident.v1.Buffers",
        "resident.v1.Operators", "resident.v1.Graphs", "resident.v1.Admin", "resident.device/0"}) {
    EXPECT_EQ(CheckHealth(*daemon_, service), kServing) << service;
  }
  EXPECT_EQ(CheckHealth(*daemon_, "resident.v1.Nothing"), kHealthError);
  std::string response;
  // ServerReflectionRequest.list_services = "".
  ASSERT_TRUE(CallByName(daemon_->Connect(),
                         "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
                         std::string("\x3a\x00", 2), &response)
                  .ok());
  EXPECT_NE(response.find("resident.v1.Executor"), std::string::npos);
  response.clear();
  ASSERT_TRUE(
      CallByName(daemon_->Connect(), "/grpc.channelz.v1.Channelz/GetServers", "", &response).ok());
  EXPECT_FALSE(response.empty());
}

TEST(DrainTest, DrainFinishesQueuedWorkAndRefusesNewWork) {
  Daemon daemon;
  const Client client(daemon);
  const auto admin = v1::Admin::NewStub(daemon.Connect());
  const auto drain = [&](uint64_t timeout_ms, v1::DrainResponse* response) {
    grpc::ClientContext context;
    v1::DrainRequest request;
    request.set_timeout_ms(timeout_ms);
    return admin->Drain(&context, request, response);
  };
  std::string session;
  {
    const Client ended(daemon);
    session = ended.session();
  }
  const auto allocate_in_ended_session = [&] {
    grpc::ClientContext context;
    context.AddMetadata("resident-session", session);
    v1::AllocateRequest request;
    request.set_dtype(v1::DTYPE_F32);
    v1::AllocateResponse answer;
    return client.buffers().Allocate(&context, request, &answer);
  };
  EXPECT_TRUE(Eventually(
      [&] { return allocate_in_ended_session().error_code() == StatusCode::UNAUTHENTICATED; }));
  // A task that ends when the device is resumed.
  ASSERT_TRUE(Park(daemon).ok());
  auto queued = std::async(std::launch::async, [&] { return client.Run(SmallAdd()); });
  EXPECT_TRUE(Eventually([&] { return daemon.Device().queued_tasks() == 1; }));

  v1::DrainResponse response;
  ExpectRefused(drain(1, &response), StatusCode::DEADLINE_EXCEEDED, {"1 tasks have not finished"});
  for (const char* service : {"", "resident.v1.Executor", "resident.device/0"}) {
    EXPECT_EQ(CheckHealth(daemon, service), kNotServing) << service;
  }
  EXPECT_TRUE(daemon.Status().draining());
  ExpectRefused(client.Run(SmallAdd()).call, StatusCode::UNAVAILABLE, {"draining"});
  EXPECT_EQ(SubmitSequentially(client, {SmallAdd(4)})[0].refused().code(), StatusCode::UNAVAILABLE);
  uint64_t id = 0;
  ExpectRefused(client.Allocate(1, &id), StatusCode::UNAVAILABLE, {"draining"});
  EXPECT_TRUE(Resume(daemon).ok());
  EXPECT_TRUE(drain(60'000, &response).ok());
  EXPECT_EQ(response.remaining_tasks(), 0u);
  // A session that has ended is not unknown while the daemon drains: the drain has ended it.
  ExpectRefused(allocate_in_ended_session(), StatusCode::UNAVAILABLE, {"draining"});
  EXPECT_TRUE(queued.get().all_ok());
}

}  // namespace
}  // namespace resident::testing
