#include "client/bench/echo_server.h"

#include <grpcpp/grpcpp.h>

#include "absl/strings/str_cat.h"
#include "resident/v1/executor.grpc.pb.h"

namespace resident::bench {
namespace {

class Echo final : public v1::Executor::Service {
  grpc::Status Run(grpc::ServerContext* context, const v1::RunRequest* request,
                   v1::RunResponse* response) override {
    v1::BatchResult& result = *response->mutable_result();
    result.set_id(request->batch().id());
    result.set_version(1);
    result.add_device_ns(1000);
    // A returned output is as large as the input that it stands for.
    const std::string* input = nullptr;
    for (const v1::Column& column : request->batch().tasks().arguments()) {
      if (column.has_inline_()) input = &column.inline_().data();
      if (column.has_returned() && input != nullptr) result.add_outputs(*input);
    }
    return grpc::Status::OK;
  }
};

}  // namespace

struct EchoServer::Impl {
  Echo service;
  std::unique_ptr<grpc::Server> server;
};

absl::StatusOr<std::unique_ptr<EchoServer>> EchoServer::Start() {
  auto impl = std::make_unique<Impl>();
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&impl->service);
  impl->server = builder.BuildAndStart();
  if (impl->server == nullptr || port == 0) {
    return absl::UnavailableError("the echo server cannot listen on the loopback interface");
  }
  return std::unique_ptr<EchoServer>(
      new EchoServer(std::move(impl), absl::StrCat("127.0.0.1:", port)));
}

EchoServer::EchoServer(std::unique_ptr<Impl> impl, std::string address)
    : impl_(std::move(impl)), address_(std::move(address)) {}

EchoServer::~EchoServer() { impl_->server->Shutdown(); }

}  // namespace resident::bench
