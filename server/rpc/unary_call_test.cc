// UnaryCall over real gRPC, with a service whose handler is the test's.
#include "server/rpc/unary_call.h"

#include <grpcpp/server_builder.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "gtest/gtest.h"
#include "runtime/base/errors/daemon_errors.h"
#include "runtime/base/status_macros.h"

namespace resident {
namespace {

using grpc::health::v1::Health;
using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

absl::Status InOtherWords(const absl::Status& status) {
  return status.ok() ? status : absl::Status(status.code(), "in other words");
}

class UnaryCallTest : public ::testing::Test, private Health::CallbackService {
 protected:
  UnaryCallTest() {
    grpc::ServerBuilder builder;
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    stub_ = Health::NewStub(server_->InProcessChannel({}));
  }
  ~UnaryCallTest() override {
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
  }

  // Makes a call, and checks that it leaves the gate.
  grpc::Status Call(std::function<absl::Status(UnaryCall&)> handler,
                    UnaryCall::Words words = nullptr) {
    handler_ = std::move(handler);
    words_ = words;
    const grpc::Status status = stub_->Check(&context_, HealthCheckRequest(), &response_);
    EXPECT_EQ(gate_.AwaitEmpty(absl::Now() + absl::Seconds(20)), 0u);
    return status;
  }

  DrainGate gate_;
  WorkerPool pool_{1};
  grpc::ClientContext context_;
  HealthCheckResponse response_;
  HealthCheckResponse* served_ = nullptr;  // The response of the call that is being served.

 private:
  grpc::ServerUnaryReactor* Check(grpc::CallbackServerContext* context, const HealthCheckRequest*,
                                  HealthCheckResponse* response) override {
    served_ = response;
    return UnaryCall::Serve(*context, handler_, words_);
  }

  std::function<absl::Status(UnaryCall&)> handler_;
  UnaryCall::Words words_ = nullptr;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Health::Stub> stub_;
};

TEST_F(UnaryCallTest, AnswersWithTheHandlersResponseAndStatus) {
  const grpc::Status status = Call([this](UnaryCall&) {
    served_->set_status(HealthCheckResponse::SERVING);
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response_.status(), HealthCheckResponse::SERVING);
}

TEST_F(UnaryCallTest, AnswersWithTheHandlersErrorInTheWordsOfTheInterface) {
  const grpc::Status status =
      Call([](UnaryCall&) { return absl::NotFoundError("none"); }, InOtherWords);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(status.error_message(), "in other words");
}

TEST_F(UnaryCallTest, PostedWorkAnswersWhileTheGateCountsTheCall) {
  uint64_t counted = 0;
  const grpc::Status status = Call(
      [&](UnaryCall& call) -> absl::Status {
        RETURN_IF_ERROR(call.Enter(gate_));
        return call.Post(pool_, [&] {
          counted = gate_.AwaitEmpty(absl::InfinitePast());
          return absl::AbortedError("posted");
        });
      },
      InOtherWords);
  EXPECT_EQ(counted, 1u);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::ABORTED);
  EXPECT_EQ(status.error_message(), "in other words");
}

TEST_F(UnaryCallTest, ADrainingDaemonRefusesACallThatEnters) {
  gate_.Close();
  const grpc::Status status = Call([&](UnaryCall& call) { return call.Enter(gate_); });
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(status.error_message(), errors::Draining().message());
}

TEST_F(UnaryCallTest, AnErrorAfterDeferEndsTheCall) {
  const grpc::Status status = Call([&](UnaryCall& call) -> absl::Status {
    RETURN_IF_ERROR(call.Enter(gate_));
    call.Defer();
    return absl::ResourceExhaustedError("full");
  });
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

// The other thread may answer before the handler returns: gRPC then has no reactor yet.
TEST_F(UnaryCallTest, ADeferredCallMayBeAnsweredBeforeItsHandlerReturns) {
  const grpc::Status status = Call([&](UnaryCall& call) {
    std::thread([answer = call.Defer()] { answer->Finish(absl::OkStatus()); }).join();
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status.error_message();
}

TEST_F(UnaryCallTest, ACancellationReachesADeferredCall) {
  absl::Notification deferred;
  absl::Notification cancelled;
  std::atomic<bool> noticed = false;
  std::thread caller([&] {
    const grpc::Status status = Call([&](UnaryCall& call) -> absl::Status {
      RETURN_IF_ERROR(call.Enter(gate_));
      call.OnCancel([&, answer = call.Defer()] {
        noticed = answer->cancelled();
        answer->Finish(errors::Cancelled());
        cancelled.Notify();
      });
      deferred.Notify();
      return absl::OkStatus();
    });
    EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED);
  });
  deferred.WaitForNotification();
  EXPECT_EQ(gate_.AwaitEmpty(absl::InfinitePast()), 1u);
  context_.TryCancel();
  EXPECT_TRUE(cancelled.WaitForNotificationWithTimeout(absl::Seconds(20)));
  EXPECT_TRUE(noticed);
  caller.join();
}

}  // namespace
}  // namespace resident
