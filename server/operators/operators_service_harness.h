// OperatorsServiceHarness: a fixture that serves OperatorsService over real gRPC, with a manager
// that only records.
#ifndef RESIDENT_SERVER_OPERATORS_OPERATORS_SERVICE_HARNESS_H_
#define RESIDENT_SERVER_OPERATORS_OPERATORS_SERVICE_HARNESS_H_

#include <grpcpp/create_channel.h>
#include <grpcpp/server_builder.h>

#include <chrono>
#include <memory>
#include <string>

#include "client/operators.h"
#include "client/residentd_client.h"
#include "gtest/gtest.h"
#include "resident/v1/operators.grpc.pb.h"
#include "runtime/base/errors/daemon_errors.h"
#include "runtime/operators/install/fake_operator_manager.h"
#include "runtime/operators/registry/registry.h"
#include "server/auth/access.h"
#include "server/core/core.h"
#include "server/operators/operators_service.h"

namespace resident {

inline constexpr char kSource[] = "#include \"resident/operator.h\"\n";

inline CoreOptions MakeOptions(const Limits& limits, bool credentials = false) {
  CoreOptions options;
  options.limits = limits;
  options.credentials = credentials;
  options.node = {.id = "node-id", .name = "node-name"};
  return options;
}

class OperatorsServiceHarness : public ::testing::Test {
 protected:
  explicit OperatorsServiceHarness(const CoreOptions& options = MakeOptions({.max_installs = 2}))
      : core_(options, {}, *registry_, manager_, access_) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(service_.get());
    builder.SetMaxReceiveMessageSize(-1);
    server_ = builder.BuildAndStart();
    const std::string address = "127.0.0.1:" + std::to_string(port);
    stub_ =
        v1::Operators::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
    client::Options client_options;
    client_options.session = false;
    client_ = *client::Client::Connect(address, client_options);
    operators_ = std::make_unique<client::Operators>(*client_);
  }
  ~OperatorsServiceHarness() override {
    core_.streams.EndAll(errors::Draining());
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
  }

  static client::Installation Source() {
    return client::Installation::Source("swish", "swish.cc", {{"swish.cc", kSource}});
  }

  FakeOperatorManager manager_;
  const std::unique_ptr<Registry> registry_ = *Registry::Create({});
  Access access_;
  Core core_;
  Installs installs_{core_};
  const std::unique_ptr<grpc::Service> service_ = MakeOperatorsService(installs_);
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::Operators::Stub> stub_;
  std::unique_ptr<client::Client> client_;
  std::unique_ptr<client::Operators> operators_;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_OPERATORS_OPERATORS_SERVICE_HARNESS_H_
