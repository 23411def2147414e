#include "tests/auth/auth_support.h"

#include <grpcpp/generic/generic_stub.h>

#include <filesystem>
#include <fstream>

#include "runtime/base/sha256.h"

namespace resident::testing {

std::string Folder::Write(const std::string& name, const std::string& text) const {
  std::ofstream(Path(name + ".new")) << text;
  std::filesystem::rename(Path(name + ".new"), Path(name));
  return Path(name);
}

std::string TokenLine(const std::string& name, const std::string& token) {
  return name + " " + Sha256Hex(token) + "\n";
}

std::string FourTokens() {
  return TokenLine("submitter", kSubmitToken) + TokenLine("installer", kInstallToken) +
         TokenLine("admin", kAdminToken) + TokenLine("nobody", kNothingToken);
}

std::shared_ptr<grpc::Channel> Open(const Daemon& daemon,
                                    const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(daemon.address(), credentials, arguments);
}

grpc::Status Call(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                  const std::vector<std::string>& authorizations, std::chrono::seconds deadline) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + deadline);
  for (const std::string& value : authorizations) context.AddMetadata("authorization", value);
  grpc::CompletionQueue queue;
  const grpc::Slice slice;
  const auto call = stub.PrepareUnaryCall(&context, method, grpc::ByteBuffer(&slice, 1), &queue);
  call->StartCall();
  grpc::ByteBuffer response;
  grpc::Status status;
  call->Finish(&response, &status, &status);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  return status;
}

}  // namespace resident::testing
