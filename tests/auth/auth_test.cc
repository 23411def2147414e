// Access control through a real daemon: TLS, tokens, the policy, and their reload while it
// serves.
#include <arpa/inet.h>
#include <fcntl.h>
#include <grpcpp/create_channel_posix.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/operators.h"
#include "client/residentd_client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "resident/v1/operators.grpc.pb.h"
#include "runtime/base/sha256.h"
#include "server/auth/method_roles.h"
#include "tests/auth/certificates.h"
#include "tests/daemon/daemon.h"
#include "tests/daemon/messages.h"
#include "tests/support/temp_folder.h"

namespace resident::testing {
namespace {

using ::grpc::StatusCode;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kServerNames[] = "DNS:localhost,IP:127.0.0.1";

// Tokens of the tests' identities, by role.
constexpr char kSubmitToken[] = "submit-token";
constexpr char kInstallToken[] = "install-token";
constexpr char kAdminToken[] = "admin-token";
constexpr char kNothingToken[] = "nothing-token";

class Folder {
 public:
  std::string Path(const std::string& name) const { return folder_.path() + "/" + name; }
  // Replaces the file atomically.
  std::string Write(const std::string& name, const std::string& text) const {
    std::ofstream(Path(name + ".new")) << text;
    std::filesystem::rename(Path(name + ".new"), Path(name));
    return Path(name);
  }

 private:
  const TempFolder folder_{"resident-auth"};
};

std::string TokenLine(const std::string& name, const std::string& token) {
  return name + " " + Sha256Hex(token) + "\n";
}

std::string FourTokens() {
  return TokenLine("submitter", kSubmitToken) + TokenLine("installer", kInstallToken) +
         TokenLine("admin", kAdminToken) + TokenLine("nobody", kNothingToken);
}

constexpr char kFourIdentities[] = R"({"identities": {
  "submitter": {"roles": ["submit"]}, "installer": {"roles": ["install"]},
  "admin": {"roles": ["admin"]}, "nobody": {"roles": []}}})";

std::shared_ptr<grpc::Channel> Open(const Daemon& daemon,
                                    const std::shared_ptr<grpc::ChannelCredentials>& credentials =
                                        grpc::InsecureChannelCredentials()) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(daemon.address(), credentials, arguments);
}

std::shared_ptr<grpc::ChannelCredentials> Tls(const std::string& ca,
                                              const IssuedCertificate& client = {}) {
  return grpc::SslCredentials({ca, client.key, client.certificate});
}

// One unary call; an `authorization` metadata entry for each element of `authorizations`.
grpc::Status Call(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                  const std::vector<std::string>& authorizations = {},
                  std::chrono::seconds deadline = std::chrono::seconds(60),
                  const std::string& request = "") {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + deadline);
  for (const std::string& value : authorizations) context.AddMetadata("authorization", value);
  grpc::CompletionQueue queue;
  const grpc::Slice slice(request);
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

std::string Bearer(const std::string& token) { return "Bearer " + token; }

constexpr char kStatus[] = "/resident.v1.Admin/Status";

// Whether the call was refused because of the caller's identity.
bool Denied(const grpc::Status& status) {
  const std::string& message = status.error_message();
  return (status.error_code() == StatusCode::PERMISSION_DENIED &&
          message.find("does not have the role") != std::string::npos) ||
         (status.error_code() == StatusCode::UNAUTHENTICATED &&
          message.find("credential") != std::string::npos);
}

class PolicyTest : public ::testing::Test {
 protected:
  PolicyTest()
      : policy_(folder_.Write("policy", kFourIdentities)),
        tokens_(folder_.Write("tokens", FourTokens())),
        daemon_({"--policy=" + policy_, "--token_file=" + tokens_}),
        channel_(Open(daemon_)) {}

  grpc::Status Call(const std::string& method, const std::string& token) {
    return testing::Call(channel_, method, {Bearer(token)});
  }
  // Rewrites the policy and waits until the daemon logs the reload.
  void SetPolicy(const std::string& text) {
    const size_t before = Count("--policy");
    folder_.Write("policy", text);
    EXPECT_TRUE(Eventually([&] { return Count("--policy") > before; }));
  }
  void SetTokens(const std::string& text) {
    const size_t before = Count("--token_file");
    folder_.Write("tokens", text);
    EXPECT_TRUE(Eventually([&] { return Count("--token_file") > before; }));
  }
  // How many times the daemon's log reports a reload of the flag's file, or a failed one.
  size_t Count(const std::string& flag) const {
    const std::string log = daemon_.Output();
    size_t count = 0;
    for (const char* what : {"residentd: reloaded ", "residentd: error: failed to reload "}) {
      const std::string line = what + flag;
      for (size_t at = log.find(line); at != std::string::npos; at = log.find(line, at + 1))
        ++count;
    }
    return count;
  }

  const Folder folder_;
  const std::string policy_;
  const std::string tokens_;
  Daemon daemon_;
  const std::shared_ptr<grpc::Channel> channel_;
};

TEST_F(PolicyTest, EveryMethodIsRefusedWithoutItsRole) {
  const struct {
    const char* token;
    RoleSet roles;
  } callers[] = {{kSubmitToken, Role::kSubmit},
                 {kInstallToken, Role::kInstall},
                 {kAdminToken, Role::kAdmin},
                 {kNothingToken, {}}};
  for (const std::string_view listed : ListedMethods()) {
    const std::string method(listed);
    const MethodRule rule = FindMethodRule(listed);
    if (rule.open_to_all) continue;
    const grpc::Status anonymous = testing::Call(channel_, method);
    EXPECT_EQ(anonymous.error_code(), StatusCode::UNAUTHENTICATED) << method;
    EXPECT_TRUE(Denied(anonymous)) << method << ": " << anonymous.error_message();
    for (const auto& caller : callers) {
      const bool allowed = rule.roles.Intersects(caller.roles);
      // After a drain the daemon would refuse all other calls.
      if (allowed && method == "/resident.v1.Admin/Drain") continue;
      // An admitted stream would stay open.
      const grpc::Status status = testing::Call(channel_, method, {Bearer(caller.token)},
                                                std::chrono::seconds(allowed ? 1 : 60));
      EXPECT_EQ(Denied(status), !allowed)
          << method << " " << caller.token << ": " << status.error_message();
    }
  }
  // An unknown method has another error than a refused one, for every role.
  for (const char* token : {kAdminToken, kNothingToken}) {
    EXPECT_EQ(Call("/resident.v1.Executor/NoSuchMethod", token).error_code(),
              StatusCode::UNIMPLEMENTED);
  }
  EXPECT_TRUE(testing::Call(channel_, "/grpc.health.v1.Health/Check").ok());
}

TEST_F(PolicyTest, HostileCredentialsAreRefusedAndTheDaemonKeepsServing) {
  for (const std::vector<std::string>& authorizations :
       std::vector<std::vector<std::string>>{{"Bearer wrong"},
                                             {"Bearer "},
                                             {"Bearer"},
                                             {""},
                                             {"Basic YTpi"},
                                             {std::string(kSubmitToken)},
                                             {Bearer(kSubmitToken) + " "},
                                             {Bearer(kSubmitToken), Bearer(kSubmitToken)},
                                             {Bearer(kSubmitToken), "Bearer wrong"},
                                             {Bearer(std::string(1000, 'x'))}}) {
    const grpc::Status status = testing::Call(channel_, kStatus, authorizations);
    EXPECT_EQ(status.error_code(), StatusCode::UNAUTHENTICATED) << authorizations[0];
    EXPECT_THAT(status.error_message(), HasSubstr("Fix: "));
  }
  // gRPC's own limit on metadata applies first, and may close the connection.
  EXPECT_FALSE(testing::Call(Open(daemon_), kStatus, {Bearer(std::string(1'000'000, 'x'))}).ok());
  EXPECT_TRUE(Call(kStatus, kSubmitToken).ok());
}

TEST_F(PolicyTest, OnlyItsOwnIdentityMayUseASession) {
  folder_.Write("policy", R"({"identities": {
      "submitter": {"roles": ["submit"]}, "admin": {"roles": ["submit", "admin"]}}})");
  daemon_.Kill(SIGHUP);
  EXPECT_TRUE(Eventually([&] { return Count("--policy") == 1; }));
  client::Options options;
  options.credentials.token = kSubmitToken;
  auto owner = client::Client::Connect(daemon_.address(), options);
  ASSERT_TRUE(owner.ok()) << owner.status();
  ASSERT_TRUE((*owner)->Allocate<float>({4}).ok());

  const auto sessions = v1::Sessions::NewStub(channel_);
  grpc::ClientContext open;
  open.AddMetadata("authorization", Bearer(kAdminToken));
  const auto stream = sessions->Open(&open, v1::OpenSessionRequest());
  v1::OpenSessionResponse opened;
  ASSERT_TRUE(stream->Read(&opened));
  const auto list = [&](const char* token) {
    grpc::ClientContext context;
    context.AddMetadata("authorization", Bearer(token));
    context.AddMetadata("resident-session", opened.session_id());
    v1::ListBuffersResponse buffers;
    return v1::Buffers::NewStub(channel_)->List(&context, v1::ListBuffersRequest(), &buffers);
  };
  EXPECT_TRUE(list(kAdminToken).ok());
  ExpectRefused(list(kSubmitToken), StatusCode::PERMISSION_DENIED,
                {"session was not opened by 'submitter'"});
  open.TryCancel();
  stream->Finish();
}

TEST_F(PolicyTest, OperatorPrefixesAndQuotasAreEnforced) {
  SetPolicy(R"({"identities": {"submitter": {"roles": ["submit"],
      "operators": {"submit": ["add", "test.spin"]},
      "quotas": {"tasks_in_flight": 4, "buffer_mib": 1}}}})");
  client::Options options;
  options.credentials.token = kSubmitToken;
  auto client = client::Client::Connect(daemon_.address(), options);
  ASSERT_TRUE(client.ok()) << client.status();
  const std::vector<float> ones(2, 1.0f);
  const auto add = [&](uint32_t count) {
    client::TaskBatch batch("add", count);
    batch.Input(ones, {2}).Input(ones, {2}).Return<float>({2}).Scalar(1.0);
    return (*client)->Run(batch).status();
  };
  EXPECT_TRUE(add(4).ok()) << add(4);
  const absl::Status many = add(5);
  EXPECT_EQ(many.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(many.message()), HasSubstr("tasks_in_flight"));
  EXPECT_TRUE(add(4).ok()) << "refused tasks are counted as in flight";

  client::TaskBatch fill("fill");
  fill.Return<float>({2}).Scalar(1.0);
  EXPECT_EQ((*client)->Run(fill).status().code(), absl::StatusCode::kPermissionDenied);
  client::FluxBatch flux;
  flux.Program({0});
  const absl::Status program = (*client)->Run(flux).status();
  EXPECT_EQ(program.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(program.message()), HasSubstr("'flux.run'"));

  // The quota is the identity's, across sessions.
  auto held = (*client)->Allocate<uint8_t>({600 << 10});
  ASSERT_TRUE(held.ok()) << held.status();
  auto second = client::Client::Connect(daemon_.address(), options);
  ASSERT_TRUE(second.ok());
  const absl::Status refused = (*second)->Allocate<uint8_t>({600 << 10}).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("buffer_mib"));
  ASSERT_TRUE(held->Free().ok());
  EXPECT_TRUE((*second)->Allocate<uint8_t>({600 << 10}).ok());
}

TEST_F(PolicyTest, OnlyAllowedIdentitiesChangeOperators) {
  SetPolicy(R"({"identities": {"installer": {"roles": ["install"],
      "operators": {"install": ["rank."]}}}})");
  const auto operators = v1::Operators::NewStub(channel_);
  // For each call that changes an operator: whether it was refused because of the identity.
  const auto refused = [&](const std::string& name) {
    std::vector<bool> refusals;
    const auto call = [&](auto request, const auto& send) {
      grpc::ClientContext context;
      context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
      context.AddMetadata("authorization", Bearer(kInstallToken));
      request.set_name(name);
      const grpc::Status end = send(&context, request);
      refusals.push_back(end.error_code() == StatusCode::PERMISSION_DENIED &&
                         end.error_message().find("may not change operator") != std::string::npos);
    };
    call(v1::ActivateRequest(), [&](auto* context, const auto& request) {
      v1::ActivateResponse response;
      return operators->Activate(context, request, &response);
    });
    call(v1::RollbackRequest(), [&](auto* context, const auto& request) {
      v1::RollbackResponse response;
      return operators->Rollback(context, request, &response);
    });
    call(v1::PromoteRequest(), [&](auto* context, const auto& request) {
      v1::PromoteResponse response;
      return operators->Promote(context, request, &response);
    });
    call(v1::RemoveRequest(), [&](auto* context, const auto& request) {
      v1::RemoveResponse response;
      return operators->Remove(context, request, &response);
    });
    return refusals;
  };
  EXPECT_EQ(refused("rank.score"), std::vector<bool>(4, false));
  EXPECT_EQ(refused("other"), std::vector<bool>(4, true));
}

TEST_F(PolicyTest, AnInstallerInstallsWithinPrefixAndQuota) {
  SetPolicy(R"({"identities": {"installer": {"roles": ["install"],
      "operators": {"install": ["rank."]}, "quotas": {"installs_per_minute": 2}}}})");
  client::Options options;
  options.session = false;
  options.credentials.token = kInstallToken;
  auto client = client::Client::Connect(daemon_.address(), options);
  ASSERT_TRUE(client.ok()) << client.status();
  client::Operators operators(**client);
  const auto install = [&](const std::string& name) {
    const std::string halt(1, '\0');
    return operators.Install(client::Installation::Bytecode(name, halt)).status();
  };
  EXPECT_TRUE(install("rank.first").ok());
  const absl::Status other = install("other");
  EXPECT_EQ(other.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(other.message()), HasSubstr("may not change operator 'other'"));
  EXPECT_TRUE(install("rank.second").ok()) << "the refused install was counted";
  const absl::Status third = install("rank.third");
  EXPECT_EQ(third.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(third.message()), HasSubstr("installs_per_minute"));
}

TEST_F(PolicyTest, ABrokenPolicyChangesNothingAndIsCounted) {
  SetPolicy(R"({"identities": {"submitter": {"roles": ["submit"], "quota": {}}}})");
  EXPECT_THAT(daemon_.Output(), HasSubstr("identities.submitter.quota: no such field"));
  EXPECT_TRUE(Call(kStatus, kAdminToken).ok());
  SetTokens("submitter not-a-hash\n");
  EXPECT_TRUE(Call(kStatus, kSubmitToken).ok());
  std::filesystem::remove(policy_);
  EXPECT_TRUE(Eventually([&] { return Count("--policy, keeping") == 2; }));
  EXPECT_TRUE(Call(kStatus, kAdminToken).ok());
  SetPolicy(R"({"identities": {"submitter": {"roles": ["submit"]}}})");
  EXPECT_EQ(Call(kStatus, kAdminToken).error_code(), StatusCode::PERMISSION_DENIED);
}

TEST_F(PolicyTest, APolicyThatEveryUserMayWriteIsNotLoaded) {
  const auto log_has = [&](const std::string& text) {
    return Eventually([&] { return daemon_.Output().find(text) != std::string::npos; });
  };
  // Loaded with a warning: the members of the group are at least known.
  std::ofstream(folder_.Path("next")) << R"({"identities": {"submitter": {"roles": ["submit"]},
      "admin": {"roles": ["admin"]}}})";
  ASSERT_EQ(chmod(folder_.Path("next").c_str(), 0664), 0);
  std::filesystem::rename(folder_.Path("next"), policy_);
  EXPECT_TRUE(log_has("reloaded --policy"));
  EXPECT_THAT(daemon_.Output(), HasSubstr("warning: " + policy_ + " may be written by its group"));
  EXPECT_THAT(daemon_.Output(), HasSubstr("Fix: chmod g-w " + policy_));
  EXPECT_EQ(Call(kStatus, kInstallToken).error_code(), StatusCode::PERMISSION_DENIED);

  std::ofstream(folder_.Path("next")) << kFourIdentities;
  ASSERT_EQ(chmod(folder_.Path("next").c_str(), 0666), 0);
  std::filesystem::rename(folder_.Path("next"), policy_);
  EXPECT_TRUE(log_has("may be written by every user of this machine (mode 0666)"));
  EXPECT_EQ(Call(kStatus, kInstallToken).error_code(), StatusCode::PERMISSION_DENIED);
  // A change of the mode triggers a reload.
  ASSERT_EQ(chmod(policy_.c_str(), 0600), 0);
  EXPECT_TRUE(Eventually([&] { return Call(kStatus, kInstallToken).ok(); }));
}

TEST_F(PolicyTest, RevokingATokenEndsItsSessionsAndStreams) {
  client::Options options;
  options.credentials.token = kSubmitToken;
  auto client = client::Client::Connect(daemon_.address(), options);
  ASSERT_TRUE(client.ok());
  auto stream = (*client)->OpenStream();
  ASSERT_TRUE(stream.ok());
  const std::vector<float> one(1, 1.0f);
  client::TaskBatch batch("add");
  batch.Input(one, {1}).Input(one, {1}).Return<float>({1}).Scalar(1.0);
  ASSERT_TRUE((*stream)->Send(batch).get().ok());

  SetTokens(TokenLine("admin", kAdminToken));
  // The daemon ends the stream; a batch that is sent meanwhile is refused.
  absl::Status last;
  EXPECT_TRUE(Eventually([&] {
    auto answer = (*stream)->Send(batch);
    last = answer.get().status();
    return !last.ok();
  }));
  EXPECT_EQ((*stream)->Finish().code(), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ((*client)->Run(batch).status().code(), absl::StatusCode::kUnauthenticated);
  // The session also ends.
  options.credentials.token = kAdminToken;
  options.session = false;
  auto admin = client::Client::Connect(daemon_.address(), options);
  ASSERT_TRUE(admin.ok());
  EXPECT_TRUE(Eventually([&] {
    const auto status = (*admin)->Status();
    if (!status.ok()) return false;
    for (const v1::ClientStatus& c : status->clients()) {
      if (c.name() == "residentd client") return false;
    }
    return true;
  }));
}

TEST_F(PolicyTest, RevokingATokenEndsStalledTransfers) {
  SetPolicy(R"({"identities": {
      "submitter": {"roles": ["submit"]}, "admin": {"roles": ["submit", "admin"]}}})");
  const auto sessions = v1::Sessions::NewStub(channel_);
  const auto buffers = v1::Buffers::NewStub(channel_);
  grpc::ClientContext open;
  open.AddMetadata("authorization", Bearer(kSubmitToken));
  const auto session = sessions->Open(&open, v1::OpenSessionRequest());
  v1::OpenSessionResponse opened;
  ASSERT_TRUE(session->Read(&opened));
  const auto prepare = [&](grpc::ClientContext& context) {
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    context.AddMetadata("authorization", Bearer(kSubmitToken));
    context.AddMetadata("resident-session", opened.session_id());
  };
  constexpr uint64_t kFloats = 16 << 20;  // 64 MiB: more than a connection holds.
  grpc::ClientContext allocate;
  prepare(allocate);
  v1::AllocateRequest request;
  request.set_dtype(v1::DTYPE_F32);
  request.add_shape(kFloats);
  v1::AllocateResponse allocated;
  ASSERT_TRUE(buffers->Allocate(&allocate, request, &allocated).ok());

  // An upload that sends nothing more, and a download that is not read.
  grpc::ClientContext upload_context;
  prepare(upload_context);
  v1::UploadResponse uploaded;
  const auto upload = buffers->Upload(&upload_context, &uploaded);
  v1::UploadRequest piece;
  piece.set_buffer_id(allocated.buffer().id());
  piece.set_data("some");
  ASSERT_TRUE(upload->Write(piece));
  grpc::ClientContext download_context;
  prepare(download_context);
  v1::DownloadRequest download_request;
  download_request.set_buffer_id(allocated.buffer().id());
  const auto download = buffers->Download(&download_context, download_request);
  v1::DownloadResponse got;
  ASSERT_TRUE(download->Read(&got));

  SetTokens(TokenLine("admin", kAdminToken));
  // Drain waits for transfers in progress: there must be none left.
  grpc::ClientContext drain_context;
  drain_context.AddMetadata("authorization", Bearer(kAdminToken));
  v1::DrainRequest drain;
  drain.set_timeout_ms(20'000);
  v1::DrainResponse drained;
  const grpc::Status left = v1::Admin::NewStub(channel_)->Drain(&drain_context, drain, &drained);
  EXPECT_TRUE(left.ok()) << left.error_message();
  EXPECT_EQ(upload->Finish().error_code(), StatusCode::UNAUTHENTICATED);
  while (download->Read(&got)) {
  }
  EXPECT_FALSE(download->Finish().ok());
}

TEST_F(PolicyTest, OnlyAdminsSeeClientsOfOtherIdentitiesInStatus) {
  client::Options options;
  options.client_name = "a name of its own";
  options.credentials.token = kSubmitToken;
  auto submitter = client::Client::Connect(daemon_.address(), options);
  ASSERT_TRUE(submitter.ok()) << submitter.status();
  ASSERT_TRUE((*submitter)->Allocate<float>({4}).ok());  // Opens its session.
  const auto clients_seen_by = [&](const char* token) {
    grpc::ClientContext context;
    context.AddMetadata("authorization", Bearer(token));
    v1::StatusResponse status;
    EXPECT_TRUE(v1::Admin::NewStub(channel_)->Status(&context, v1::StatusRequest(), &status).ok());
    EXPECT_EQ(status.devices_size(), 1);
    std::string names;
    for (const v1::ClientStatus& client : status.clients()) names += client.name() + ";";
    return names;
  };
  EXPECT_EQ(clients_seen_by(kAdminToken), "a name of its own;");
  EXPECT_EQ(clients_seen_by(kSubmitToken), "a name of its own;");
  EXPECT_EQ(clients_seen_by(kInstallToken), "");
}

TEST_F(PolicyTest, OnlyAdminsSeeWhyAnEngineEnded) {
  const auto device_seen_by = [&](const char* token) {
    grpc::ClientContext context;
    context.AddMetadata("authorization", Bearer(token));
    v1::StatusResponse status;
    EXPECT_TRUE(v1::Admin::NewStub(channel_)->Status(&context, v1::StatusRequest(), &status).ok());
    return status.devices_size() == 0 ? v1::DeviceStatus() : status.devices(0);
  };
  // Kill the engine until the device is given up, so that its state does not change any
  // more.
  int64_t killed = 0;
  EXPECT_TRUE(Eventually([&] {
    const v1::DeviceStatus device = device_seen_by(kAdminToken);
    if (device.state() == v1::DeviceStatus::STATE_RESIDENT && device.engine_pid() != killed) {
      killed = device.engine_pid();
      kill(static_cast<pid_t>(killed), SIGKILL);
    }
    return device.state() == v1::DeviceStatus::STATE_UNHEALTHY;
  }));
  EXPECT_THAT(device_seen_by(kAdminToken).detail(), HasSubstr("signal 9"));
  for (const char* token : {kSubmitToken, kInstallToken}) {
    const v1::DeviceStatus device = device_seen_by(token);
    EXPECT_EQ(device.state(), v1::DeviceStatus::STATE_UNHEALTHY);
    EXPECT_EQ(device.detail(), "");
  }
}

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
    return full.code() == absl::StatusCode::kResourceExhausted;
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

TEST_F(PolicyTest, ATokenFromTheCommandIsAccepted) {
  const std::string program = std::string(std::getenv("TEST_SRCDIR")) + "/" +
                              std::getenv("TEST_WORKSPACE") + "/client/residentctl";
  const auto run = [&](const std::string& arguments) {
    std::string output;
    FILE* const pipe = popen((program + " " + arguments + " 2>&1").c_str(), "r");
    char piece[512];
    while (fgets(piece, sizeof(piece), pipe) != nullptr) output += piece;
    return std::pair<int, std::string>(WEXITSTATUS(pclose(pipe)), output);
  };
  const std::string token = folder_.Path("token");
  const auto [made, output] = run("token new admin --out " + token);
  ASSERT_EQ(made, 0) << output;
  struct stat info {};
  ASSERT_EQ(stat(token.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  const std::string status = "status --server=" + daemon_.address() + " --token_file=" + token;
  EXPECT_EQ(run(status).first, 4);
  SetTokens(output.substr(output.find("admin ")));
  EXPECT_EQ(run(status).first, 0) << run(status).second;
  // The client refuses to send a token unencrypted to another machine.
  const auto [far, why] = run("status --server=192.0.2.1:1 --token_file=" + token);
  EXPECT_EQ(far, 4);
  EXPECT_THAT(why, HasSubstr("in the clear"));
}

class TlsTest : public ::testing::Test {
 protected:
  std::vector<std::string> TlsFlags(const IssuedCertificate& server) {
    return {"--tls_cert=" + folder_.Write("cert", server.certificate),
            "--tls_key=" + folder_.Write("key", server.key)};
  }

  const Folder folder_;
  Authority ca_{"test CA"};
  Authority other_ca_{"another CA"};
};

TEST_F(TlsTest, TheServerIsVerifiedAndPlaintextIsRefused) {
  Daemon daemon(TlsFlags(ca_.Issue("server", kServerNames)));
  EXPECT_TRUE(Call(Open(daemon, Tls(ca_.certificate())), kStatus).ok());
  EXPECT_EQ(Call(Open(daemon, Tls(other_ca_.certificate())), kStatus).error_code(),
            StatusCode::UNAVAILABLE);
  EXPECT_EQ(Call(Open(daemon), kStatus).error_code(), StatusCode::UNAVAILABLE);

  client::Options options;
  options.credentials.tls = true;
  options.credentials.tls_ca = ca_.certificate();
  auto client = client::Client::Connect(daemon.address(), options);
  ASSERT_TRUE(client.ok()) << client.status();
  EXPECT_TRUE((*client)->Upload(std::vector<float>{1, 2, 3}).ok());
  options.credentials.tls_ca = other_ca_.certificate();
  EXPECT_TRUE(client::IsUnreachable(client::Client::Connect(daemon.address(), options).status()));
}

TEST_F(TlsTest, ClientCertificatesIdentifyTheCaller) {
  auto flags = TlsFlags(ca_.Issue("server", kServerNames));
  flags.push_back("--tls_client_ca=" + folder_.Write("ca", ca_.certificate()));
  flags.push_back("--policy=" + folder_.Write("policy", R"({"identities": {
      "spiffe://test/alice": {"roles": ["submit"]}, "bob": {"roles": ["admin"]},
      "alice": {"roles": ["admin"]}}})"));
  Daemon daemon(flags);
  const auto call = [&](const IssuedCertificate& client, const char* method) {
    return Call(Open(daemon, Tls(ca_.certificate(), client)), method);
  };
  constexpr char kPark[] = "/resident.v1.Admin/Park";
  // The URI has priority over the common name.
  const IssuedCertificate alice = ca_.Issue("alice", "URI:spiffe://test/alice,DNS:bob");
  EXPECT_TRUE(call(alice, kStatus).ok());
  ExpectRefused(call(alice, kPark), StatusCode::PERMISSION_DENIED, {"'spiffe://test/alice'"});
  EXPECT_TRUE(call(ca_.Issue("bob", ""), kPark).ok());
  ExpectRefused(call(ca_.Issue("mallory", ""), kStatus), StatusCode::PERMISSION_DENIED,
                {"'mallory'"});
  ExpectRefused(call(ca_.Issue("", "DNS:bob"), kStatus), StatusCode::UNAUTHENTICATED,
                {"is not an identity"});
  ExpectRefused(call(ca_.Issue("residentd", ""), kStatus), StatusCode::UNAUTHENTICATED,
                {"is not an identity"});
  EXPECT_EQ(call({}, kStatus).error_code(), StatusCode::UNAVAILABLE);
  EXPECT_EQ(call(other_ca_.Issue("bob", ""), kStatus).error_code(), StatusCode::UNAVAILABLE);
}

TEST_F(TlsTest, ACommonNameIsNeverMistakenForAUri) {
  auto flags = TlsFlags(ca_.Issue("server", kServerNames));
  flags.push_back("--tls_client_ca=" + folder_.Write("ca", ca_.certificate()));
  flags.push_back("--policy=" + folder_.Write("policy", R"({"identities": {
      "spiffe://test/admin": {"roles": ["admin"]}, "urn:admin": {"roles": ["admin"]},
      "bob": {"roles": ["admin"]}}})"));
  Daemon daemon(flags);
  const auto call = [&](const std::string& common_name, const std::string& alternative_names) {
    return Call(Open(daemon, Tls(ca_.certificate(), ca_.Issue(common_name, alternative_names))),
                kStatus);
  };
  EXPECT_TRUE(call("anyone", "URI:spiffe://test/admin").ok());
  EXPECT_TRUE(call("bob", "").ok());
  for (const char* name : {"spiffe://test/admin", "urn:admin"}) {
    ExpectRefused(call(name, ""), StatusCode::UNAUTHENTICATED, {"common name", name, "a URI"});
    ExpectRefused(call(name, "DNS:test"), StatusCode::UNAUTHENTICATED, {"common name", name});
  }
  ExpectRefused(call("anyone", "URI:bob"), StatusCode::UNAUTHENTICATED, {"'bob'", "no scheme"});
  // Only the URI counts, even if it has no rights and the common name has.
  ExpectRefused(call("bob", "URI:spiffe://test/mallory"), StatusCode::PERMISSION_DENIED,
                {"'spiffe://test/mallory'"});
}

TEST_F(TlsTest, WithoutARequiredCertificateATokenIsEnough) {
  auto flags = TlsFlags(ca_.Issue("server", kServerNames));
  flags.push_back("--tls_client_ca=" + folder_.Write("ca", ca_.certificate()));
  flags.push_back("--tls_require_client_cert=false");
  flags.push_back("--policy=" + folder_.Write("policy", kFourIdentities));
  flags.push_back("--token_file=" + folder_.Write("tokens", FourTokens()));
  Daemon daemon(flags);
  const auto plain = Open(daemon, Tls(ca_.certificate()));
  EXPECT_TRUE(Call(plain, kStatus, {Bearer(kAdminToken)}).ok());
  EXPECT_EQ(Call(plain, kStatus).error_code(), StatusCode::UNAUTHENTICATED);
  const auto certified = Open(daemon, Tls(ca_.certificate(), ca_.Issue("admin", "")));
  EXPECT_TRUE(Call(certified, kStatus).ok());
  EXPECT_EQ(Call(certified, kStatus, {"Bearer wrong"}).error_code(), StatusCode::UNAUTHENTICATED);
}

TEST_F(TlsTest, CertificatesAreReplacedWhileItServes) {
  Daemon daemon(TlsFlags(ca_.Issue("server", kServerNames)));
  const auto before = Open(daemon, Tls(ca_.certificate()));
  EXPECT_TRUE(Call(before, kStatus).ok());

  // Half of the replacement: the new certificate with the old key.
  const IssuedCertificate next = other_ca_.Issue("server", kServerNames);
  folder_.Write("cert", next.certificate);
  EXPECT_TRUE(
      Eventually([&] { return daemon.Output().find("is not the key of") != std::string::npos; }));
  EXPECT_TRUE(Call(Open(daemon, Tls(ca_.certificate())), kStatus).ok());

  folder_.Write("key", next.key);
  EXPECT_TRUE(
      Eventually([&] { return Call(Open(daemon, Tls(other_ca_.certificate())), kStatus).ok(); }));
  EXPECT_FALSE(Call(Open(daemon, Tls(ca_.certificate())), kStatus).ok());
  EXPECT_TRUE(Call(before, kStatus).ok()) << "an open connection was closed";
}

TEST_F(TlsTest, FilesThatEveryUserMayWriteAreRefusedAndOthersCauseWarnings) {
  const auto flags = TlsFlags(ca_.Issue("server", kServerNames));
  const auto refused = [&](std::vector<std::string> all, const std::string& path) {
    const mode_t mode = std::filesystem::is_directory(path) ? 0777 : 0646;
    ASSERT_EQ(chmod(path.c_str(), mode), 0);
    const Daemon::Failure failure = Daemon::StartExpectingFailure(all);
    EXPECT_EQ(failure.exit.status, 1);
    EXPECT_THAT(failure.output, HasSubstr(path + " may be written by every user"));
    EXPECT_THAT(failure.output, HasSubstr("Fix: chmod o-w " + path));
    ASSERT_EQ(chmod(path.c_str(), mode & 0755), 0);
  };
  refused(flags, folder_.Path("key"));
  refused(flags, folder_.Path("cert"));
  const std::string policy = folder_.Write("policy", kFourIdentities);
  const std::string tokens = folder_.Write("tokens", FourTokens());
  refused({"--policy=" + policy}, policy);
  refused({"--policy=" + policy, "--token_file=" + tokens}, tokens);
  const std::string state = folder_.Path("state");
  std::filesystem::create_directory(state);
  refused({"--state_dir=" + state}, state);

  auto all = flags;
  all.push_back("--state_dir=" + state);
  ASSERT_EQ(chmod(state.c_str(), 0770), 0);
  ASSERT_EQ(chmod(folder_.Path("key").c_str(), 0644), 0);
  const Daemon daemon(all);
  EXPECT_THAT(daemon.Output(), HasSubstr("warning: " + state + " may be written by its group"));
  EXPECT_THAT(daemon.Output(), HasSubstr("key may be read by every user of this machine"));
  EXPECT_TRUE(Call(Open(daemon, Tls(ca_.certificate())), kStatus).ok());
}

TEST(StartTest, AnUnencryptedNetworkIsServedOnlyOnRequest) {
  const auto refused = [](const std::vector<std::string>& flags, const std::string& part) {
    const Daemon::Failure failure = Daemon::StartExpectingFailure(flags);
    EXPECT_EQ(failure.exit.status, 1);
    EXPECT_THAT(failure.output, HasSubstr(part));
    EXPECT_THAT(failure.output, HasSubstr("Fix: "));
  };
  const Folder folder;
  const std::string policy = "--policy=" + folder.Write("policy", kFourIdentities);
  refused({"--address=0.0.0.0:0"}, "can be reached from other machines");
  refused({"--address=[::]:0"}, "can be reached from other machines");
  refused({"--address=0.0.0.0:0", "--insecure_non_loopback", policy}, "sent unencrypted");
  refused({"--tls_cert=" + folder.Path("none")}, "--tls_cert without --tls_key");
  refused({"--tls_client_ca=" + folder.Path("none")}, "--tls_client_ca without --tls_cert");
  refused({"--token_file=" + folder.Path("none")}, "--token_file without --policy");
  refused({"--policy=" + folder.Path("none")}, "cannot read");
  refused({"--policy=" + folder.Write("bad", "{")}, "at line 1");
  Daemon trusted({"--insecure_non_loopback"}, "0.0.0.0:0");
  EXPECT_THAT(trusted.Output(), HasSubstr("every caller has all roles"));
  EXPECT_THAT(trusted.Output(),
              HasSubstr("warning: --insecure_non_loopback: anyone who can reach"));
}

TEST_F(TlsTest, OtherMachinesNeedCertificatesUnlessAFlagAllowsIt) {
  auto tls = TlsFlags(ca_.Issue("server", kServerNames));
  const std::string client_ca = "--tls_client_ca=" + folder_.Write("ca", ca_.certificate());
  const std::string allow = "--allow_clients_without_certificates";
  constexpr char kEverywhere[] = "0.0.0.0:0";
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), tls.begin(), tls.end());
    return more;
  };
  const std::string address = std::string("--address=") + kEverywhere;
  for (const auto& flags : {with({address}), with({address, "--insecure_non_loopback"}),
                            with({address, client_ca, "--tls_require_client_cert=false"})}) {
    const Daemon::Failure failure = Daemon::StartExpectingFailure(flags);
    EXPECT_EQ(failure.exit.status, 1);
    EXPECT_THAT(failure.output, HasSubstr("clients need no certificate"));
    EXPECT_THAT(failure.output, HasSubstr("Fix: "));
    EXPECT_THAT(failure.output, HasSubstr(allow));
  }
  {
    const Daemon daemon(with({client_ca}), kEverywhere);
    EXPECT_THAT(daemon.Output(), Not(HasSubstr(allow)));
  }
  const Daemon open(with({allow}), kEverywhere);
  EXPECT_THAT(open.Output(), HasSubstr("warning: " + allow + ": anyone who can reach 0.0.0.0:0"));
  // On the loopback interface the flag is not needed, and there is no warning.
  const Daemon local(tls);
  EXPECT_THAT(local.Output(), Not(HasSubstr(allow)));
}

}  // namespace
}  // namespace resident::testing
