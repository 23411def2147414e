#include "tests/daemon/health.h"

#include <chrono>

namespace resident::testing {
namespace {

using grpc::health::v1::Health;
using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

HealthCheckRequest RequestFor(const std::string& service) {
  HealthCheckRequest request;
  request.set_service(service);
  return request;
}

std::chrono::system_clock::time_point InAMinute() {
  return std::chrono::system_clock::now() + std::chrono::seconds(60);
}

}  // namespace

HealthStatus CheckHealth(const Daemon& daemon, const std::string& service) {
  grpc::ClientContext context;
  context.set_deadline(InAMinute());
  HealthCheckResponse response;
  const grpc::Status status =
      Health::NewStub(daemon.Connect())->Check(&context, RequestFor(service), &response);
  return status.ok() ? response.status() : kHealthError;
}

HealthWatch::HealthWatch(const Daemon& daemon, const std::string& service)
    : stub_(Health::NewStub(daemon.Connect())) {
  context_.set_deadline(InAMinute());
  call_ = stub_->Watch(&context_, RequestFor(service));
}

HealthWatch::~HealthWatch() {
  context_.TryCancel();
  (void)call_->Finish();
}

HealthStatus HealthWatch::Next() {
  HealthCheckResponse response;
  return call_->Read(&response) ? response.status() : kHealthError;
}

}  // namespace resident::testing
