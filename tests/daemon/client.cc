#include "tests/daemon/client.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace resident::testing {

v1::TaskStatus RunOutcome::status(int i) const {
  if (!call.ok()) return v1::TASK_STATUS_UNAVAILABLE;
  return result.status_size() == 0 ? v1::TASK_STATUS_OK : result.status(i);
}

std::string RunOutcome::message() const {
  if (!call.ok()) return call.error_message();
  return result.errors_size() == 0 ? "" : result.errors(0).message();
}

Client::Client(const Daemon& daemon, const std::string& name)
    : channel_(daemon.Connect()),
      executor_(v1::Executor::NewStub(channel_)),
      buffers_(v1::Buffers::NewStub(channel_)),
      sessions_(v1::Sessions::NewStub(channel_)) {
  v1::OpenSessionRequest request;
  request.set_client_name(name);
  open_ = sessions_->Open(&open_context_, request);
  v1::OpenSessionResponse response;
  EXPECT_TRUE(open_->Read(&response)) << "no session";
  session_ = response.session_id();
}

Client::~Client() {
  open_context_.TryCancel();
  open_->Finish();
}

std::unique_ptr<grpc::ClientContext> Client::Context() const {
  auto context = std::make_unique<grpc::ClientContext>();
  context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  context->AddMetadata("resident-session", session_);
  return context;
}

RunOutcome Client::Run(const v1::Batch& batch) const {
  v1::RunRequest request;
  *request.mutable_batch() = batch;
  v1::RunResponse response;
  RunOutcome outcome;
  outcome.call = executor_->Run(Context().get(), request, &response);
  outcome.result = std::move(*response.mutable_result());
  return outcome;
}

grpc::Status Client::Allocate(uint64_t floats, uint64_t* id, uint32_t device) const {
  v1::AllocateRequest request;
  request.set_dtype(v1::DTYPE_F32);
  request.add_shape(floats);
  request.set_device(device);
  v1::AllocateResponse response;
  const grpc::Status status = buffers_->Allocate(Context().get(), request, &response);
  *id = response.buffer().id();
  return status;
}

v1::Batch FloatTasks(const std::string& operator_name, uint64_t buffer, uint32_t first,
                     uint32_t count, std::optional<int64_t> scalar) {
  v1::Batch batch;
  v1::OperatorTasks* const tasks = batch.mutable_tasks();
  tasks->set_operator_(operator_name);
  tasks->set_count(count);
  v1::BufferColumn* const column = tasks->add_arguments()->mutable_buffer();
  column->add_buffer_ids(buffer);
  for (uint32_t i = 0; i < count; ++i) column->add_offsets(uint64_t{4} * (first + i));
  column->set_dtype(v1::DTYPE_F32);
  column->add_shape(1);
  if (scalar) tasks->add_arguments()->mutable_scalar()->add_i64(*scalar);
  return batch;
}

Counters::Counters(const Client& client, uint32_t count, uint32_t device, grpc::Status* imported)
    : count_(count) {
  static std::atomic<int> number{0};
  name_ = "/resident-faults-" + std::to_string(getpid()) + "-" + std::to_string(number++);
  const int fd = shm_open(name_.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
  const size_t bytes = size_t{count} * sizeof(float);
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
    std::perror("shm_open");
    std::abort();
  }
  values_ = static_cast<float*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
  close(fd);
  v1::ImportSharedRequest request;
  request.set_name(name_);
  request.set_size_bytes(bytes);
  request.set_dtype(v1::DTYPE_F32);
  request.add_shape(count);
  request.set_device(device);
  v1::ImportSharedResponse response;
  const grpc::Status status =
      client.buffers().ImportShared(client.Context().get(), request, &response);
  if (imported != nullptr) {
    *imported = status;
  } else {
    EXPECT_TRUE(status.ok()) << status.error_message();
  }
  buffer_ = response.buffer().id();
}

Counters::~Counters() {
  munmap(const_cast<float*>(values_), size_t{count_} * sizeof(float));
  shm_unlink(name_.c_str());
}

}  // namespace resident::testing
