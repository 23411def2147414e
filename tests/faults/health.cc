#include "tests/faults/health.h"

#include <chrono>
#include <vector>

namespace resident::testing {

namespace {

// HealthCheckRequest.service, as it travels.
std::string RequestBytes(const std::string& service) {
  if (service.empty()) return "";
  return std::string("\x0a") + static_cast<char>(service.size()) + service;
}

// HealthCheckResponse.status. 0 is not sent.
int StatusOf(const grpc::ByteBuffer& message) {
  std::vector<grpc::Slice> slices;
  (void)message.Dump(&slices);
  std::string bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes.size() == 2 ? bytes[1] : kHealthError;
}

}  // namespace

int HealthOf(const Daemon& daemon, const std::string& service) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  grpc::CompletionQueue queue;
  grpc::GenericStub stub(daemon.Connect());
  const grpc::Slice slice(RequestBytes(service));
  const auto call = stub.PrepareUnaryCall(&context, "/grpc.health.v1.Health/Check",
                                          grpc::ByteBuffer(&slice, 1), &queue);
  call->StartCall();
  grpc::ByteBuffer response;
  grpc::Status status;
  call->Finish(&response, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  return status.ok() ? StatusOf(response) : kHealthError;
}

HealthWatch::HealthWatch(const Daemon& daemon, const std::string& service)
    : stub_(daemon.Connect()) {
  context_.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  call_ = stub_.PrepareCall(&context_, "/grpc.health.v1.Health/Watch", &queue_);
  call_->StartCall(nullptr);
  Await();
  const grpc::Slice slice(RequestBytes(service));
  call_->WriteLast(grpc::ByteBuffer(&slice, 1), grpc::WriteOptions(), nullptr);
  Await();
}

HealthWatch::~HealthWatch() {
  context_.TryCancel();
  grpc::Status status;
  call_->Finish(&status, nullptr);
  Await();
}

int HealthWatch::Next() {
  grpc::ByteBuffer message;
  call_->Read(&message, nullptr);
  Await();
  return ok_ ? StatusOf(message) : kHealthError;
}

void HealthWatch::Await() {
  void* tag = nullptr;
  queue_.Next(&tag, &ok_);
}

}  // namespace resident::testing
