#include "client/bench/echo_server.h"

#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "absl/status/status.h"
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
