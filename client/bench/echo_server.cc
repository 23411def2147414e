#include "client/bench/echo_server.h"

#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <deque>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "resident/v1/executor.grpc.pb.h"
#include "runtime/base/limits.h"

namespace resident::bench {
namespace {

// Answers the batches of each message of a stream. Reads while it writes, as the daemon does.
class EchoStream final : public grpc::ServerBidiReactor<v1::SubmitRequest, v1::SubmitResponse> {
 public:
  EchoStream() { StartRead(&request_); }

 private:
  void OnReadDone(bool ok) override {
    absl::MutexLock lock(&mu_);
    if (ok) {
      // The results of one message in one, as the daemon joins them.
      v1::SubmitResponse& response = queue_.emplace_back();
      for (const v1::Batch& batch : request_.batches()) Answer(batch, *response.add_results());
      StartRead(&request_);
    } else {
      read_ = true;
    }
    Advance();
  }
  void OnWriteDone(bool ok) override {
    absl::MutexLock lock(&mu_);
    writing_ = false;
    queue_.pop_front();
    if (!ok) queue_.clear();
    Advance();
  }
  void OnDone() override { delete this; }

  static void Answer(const v1::Batch& batch, v1::BatchResult& result) {
    result.set_id(batch.id());
    result.set_version(1);
    // As the daemon: a time for each task, or one for the tasks of a range.
    const uint32_t tasks = batch.tasks().count();
    for (uint32_t i = 0; i < (tasks < kMinRangeTasks ? tasks : 1); ++i) result.add_device_ns(1000);
  }

  void Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (writing_) return;
    if (!queue_.empty()) {
      writing_ = true;
      StartWrite(&queue_.front());
    } else if (read_) {
      Finish(grpc::Status::OK);
    }
  }

  v1::SubmitRequest request_;
  absl::Mutex mu_;
  std::deque<v1::SubmitResponse> queue_ ABSL_GUARDED_BY(mu_);
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool read_ ABSL_GUARDED_BY(mu_) = false;  // The client sends no more.
};

class Echo final : public v1::Executor::WithCallbackMethod_Submit<v1::Executor::Service> {
  grpc::ServerBidiReactor<v1::SubmitRequest, v1::SubmitResponse>* Submit(
      grpc::CallbackServerContext* /*context*/) override {
    return new EchoStream();
  }
  grpc::Status Run(grpc::ServerContext* context, const v1::RunRequest* request,
                   v1::RunResponse* response) override {
    v1::BatchResult& result = *response->mutable_result();
    result.set_id(request->batch().id());
    result.set_version(1);
    result.add_device_ns(1000);
    // A returned output has the size of the inline input before it.
    const std::string* input = nullptr;
    for (const v1::Column& column : request->batch().tasks().arguments()) {
      if (column.has_inline_()) input = &column.inline_().data();
      if (column.has_returned() && input != nullptr) result.add_outputs(*input);
    }
    return grpc::Status::OK;
  }
};

}  // namespace

int RunEchoServer() {
  Echo service;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr || port == 0) return 1;
  std::printf("%d\n", port);
  std::fflush(stdout);
  char ignored;
  while (read(STDIN_FILENO, &ignored, 1) > 0) {
  }
  server->Shutdown();
  return 0;
}

absl::StatusOr<std::unique_ptr<EchoServer>> EchoServer::Start() {
  int to_child[2], from_child[2];
  if (pipe2(to_child, O_CLOEXEC) != 0) return absl::ErrnoToStatus(errno, "pipe");
  if (pipe2(from_child, O_CLOEXEC) != 0) return absl::ErrnoToStatus(errno, "pipe");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, to_child[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, from_child[1], STDOUT_FILENO);
  std::string command = kEchoServerCommand;
  char name[] = "residentctl";
  char* arguments[] = {name, command.data(), nullptr};
  pid_t pid = 0;
  const int failed = posix_spawn(&pid, "/proc/self/exe", &actions, nullptr, arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  close(to_child[0]);
  close(from_child[1]);
  std::FILE* output = fdopen(from_child[0], "r");
  int port = 0;
  const bool serves = failed == 0 && std::fscanf(output, "%d", &port) == 1;
  std::fclose(output);
  if (!serves) {
    close(to_child[1]);
    if (failed == 0) waitpid(pid, nullptr, 0);
    return absl::UnavailableError("the echo server cannot listen on the loopback interface");
  }
  return std::unique_ptr<EchoServer>(
      new EchoServer(pid, to_child[1], absl::StrCat("127.0.0.1:", port)));
}

EchoServer::~EchoServer() {
  close(stdin_fd_);  // The server ends at the end of its standard input.
  waitpid(pid_, nullptr, 0);
}

}  // namespace resident::bench
