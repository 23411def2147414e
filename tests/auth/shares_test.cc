// Resources that callers of a real daemon share: one caller leaves a reserve to the others.
#include <arpa/inet.h>
#include <fcntl.h>
#include <grpcpp/create_channel_posix.h>
#include <grpcpp/grpcpp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <memory>
#include <string>
#include <vector>

#include "client/operators.h"
#include "client/residentd_client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "resident/v1/executor.grpc.pb.h"
#include "resident/v1/operators.grpc.pb.h"
#include "tests/auth/auth_support.h"
#include "tests/daemon/daemon.h"
#include "tests/daemon/messages.h"

namespace resident::testing {
namespace {

using ::grpc::StatusCode;
using ::testing::HasSubstr;

TEST(SharesTest, OneIdentityCannotUseUpSessionsConnectionsWatchesAndInstalls) {
  const Folder folder;
  const Daemon daemon(
      {"--policy=" + folder.Write("policy", R"({"identities": {
           "greedy": {"roles": ["submit", "install"]},
           "modest": {"roles": ["submit", "install"]},
           "limited": {"roles": ["submit"], "quotas": {"sessions": 2}}}})"),
       "--token_file=" +
           folder.Write("tokens", TokenLine("greedy", "greedy") + TokenLine("modest", "modest") +
                                      TokenLine("limited", "limited")),
       "--max_sessions=16", "--max_install_header_ms=600000", "--max_install_upload_ms=600000"});
  const auto channel = Open(daemon);
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  const auto context = [&](const char* token) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    contexts.back()->AddMetadata("authorization", Bearer(token));
    return contexts.back().get();
  };

  // Sessions.
  std::vector<std::unique_ptr<grpc::ClientReader<v1::OpenSessionResponse>>> sessions;
  const auto open_session = [&](const char* token) {
    auto stream = v1::Sessions::NewStub(channel)->Open(context(token), v1::OpenSessionRequest());
    v1::OpenSessionResponse opened;
    if (!stream->Read(&opened)) return stream->Finish();
    sessions.push_back(std::move(stream));
    return grpc::Status::OK;
  };
  EXPECT_TRUE(open_session("limited").ok());
  EXPECT_TRUE(open_session("limited").ok());
  ExpectRefused(open_session("limited"), StatusCode::RESOURCE_EXHAUSTED,
                {"'limited'", "quota of 2", "quotas.sessions"});
  grpc::Status refused;
  while ((refused = open_session("greedy")).ok()) ASSERT_LE(sessions.size(), 16u);
  ExpectRefused(refused, StatusCode::RESOURCE_EXHAUSTED,
                {"identity 'greedy' has 12 of 16 sessions", "--max_sessions"});
  EXPECT_TRUE(open_session("modest").ok());

  // Connections that have work but no session.
  std::vector<std::unique_ptr<grpc::ClientReaderWriter<v1::SubmitRequest, v1::SubmitResponse>>>
      streams;
  const auto open_connection = [&](const char* token) {
    auto stream = v1::Executor::NewStub(Open(daemon))->Submit(context(token));
    v1::SubmitRequest request;
    *request.mutable_batch() = SmallAdd();
    v1::SubmitResponse response;
    stream->Write(request);
    if (!stream->Read(&response)) return stream->Finish();
    streams.push_back(std::move(stream));
    return grpc::Status::OK;
  };
  while ((refused = open_connection("greedy")).ok()) ASSERT_LE(streams.size(), 16u);
  EXPECT_EQ(streams.size(), 14u);
  ExpectRefused(refused, StatusCode::RESOURCE_EXHAUSTED, {"identity 'greedy' has 14 of 16"});
  EXPECT_TRUE(open_connection("modest").ok());

  // Installs that send nothing.
  const auto operators = v1::Operators::NewStub(channel);
  const auto install = [&](const char* token, const std::string& name) {
    client::Options options;
    options.session = false;
    options.credentials.token = token;
    auto client = client::Client::Connect(daemon.address(), options);
    if (!client.ok()) return client.status();
    return client::Operators(**client)
        .Install(client::Installation::Bytecode(name, std::string(1, '\0')))
        .status();
  };
  EXPECT_TRUE(install("greedy", "first").ok());
  std::vector<std::unique_ptr<grpc::ClientReaderWriter<v1::InstallRequest, v1::InstallResponse>>>
      installs;
  for (int i = 0; i < 12; ++i) installs.push_back(operators->Install(context("greedy")));
  absl::Status full;
  ASSERT_TRUE(Eventually([&] {
    full = install("greedy", "another");
    if (full.code() == absl::StatusCode::kResourceExhausted) return true;
    // While it had a slot, one of the others may have been refused: another one takes its place.
    installs.push_back(operators->Install(context("greedy")));
    return false;
  }));
  EXPECT_THAT(std::string(full.message()), HasSubstr("identity 'greedy' has 7 of 8 installs"));
  const absl::Status installed = install("modest", "second");
  EXPECT_TRUE(installed.ok()) << installed;

  // Watches. Each receives the installs above as events.
  std::vector<std::unique_ptr<grpc::ClientReader<v1::WatchResponse>>> watches;
  const auto open_watch = [&](const char* token) {
    v1::WatchRequest request;
    request.set_after_revision(1);
    auto watch = operators->Watch(context(token), request);
    v1::WatchResponse event;
    if (!watch->Read(&event)) return watch->Finish();
    watches.push_back(std::move(watch));
    return grpc::Status::OK;
  };
  while ((refused = open_watch("greedy")).ok()) ASSERT_LE(watches.size(), 256u);
  EXPECT_EQ(watches.size(), 224u);
  ExpectRefused(refused, StatusCode::RESOURCE_EXHAUSTED, {"224 of 256 Operators.Watch streams"});
  EXPECT_TRUE(open_watch("modest").ok());

  for (const auto& open : contexts) open->TryCancel();
  const auto finish = [](const auto& all) {
    for (const auto& stream : all) (void)stream->Finish();
  };
  finish(sessions);
  finish(streams);
  finish(installs);
  finish(watches);
}

TEST(SharesTest, WithoutAPolicyOneAddressCannotUseUpSessions) {
  const Daemon daemon({"--max_sessions=8"});
  const std::string port = daemon.address().substr(daemon.address().rfind(':') + 1);
  // Opens a connection from this address of the loopback network.
  const auto connect = [&](const char* from) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    EXPECT_EQ(inet_pton(AF_INET, from, &address.sin_addr), 1);
    EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    address.sin_port = htons(static_cast<uint16_t>(std::stoi(port)));
    EXPECT_EQ(inet_pton(AF_INET, "127.0.0.1", &address.sin_addr), 1);
    EXPECT_EQ(::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
    return grpc::CreateInsecureChannelFromFd("daemon", fd);
  };
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::OpenSessionResponse>>> sessions;
  const auto open = [&](const std::shared_ptr<grpc::Channel>& channel) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    auto stream =
        v1::Sessions::NewStub(channel)->Open(contexts.back().get(), v1::OpenSessionRequest());
    v1::OpenSessionResponse opened;
    if (!stream->Read(&opened)) return stream->Finish();
    sessions.push_back(std::move(stream));
    return grpc::Status::OK;
  };
  const auto greedy = connect("127.0.0.2");
  grpc::Status refused;
  while ((refused = open(greedy)).ok()) ASSERT_LE(sessions.size(), 8u);
  ExpectRefused(refused, StatusCode::RESOURCE_EXHAUSTED, {"address 127.0.0.2 has 7 of 8 sessions"});
  ExpectRefused(open(connect("127.0.0.2")), StatusCode::RESOURCE_EXHAUSTED, {"127.0.0.2"});
  EXPECT_TRUE(open(connect("127.0.0.3")).ok());
  for (const auto& context : contexts) context->TryCancel();
  for (const auto& session : sessions) (void)session->Finish();
}

}  // namespace
}  // namespace resident::testing
