// Access control through a real daemon: what the policy and the tokens allow, and their reload
// while it serves.
#include <grpcpp/grpcpp.h>
#include <sys/stat.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/operators.h"
#include "client/residentd_client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "resident/v1/buffers.grpc.pb.h"
#include "resident/v1/operators.grpc.pb.h"
#include "server/auth/method_roles.h"
#include "tests/auth/auth_support.h"
#include "tests/daemon/daemon.h"
#include "tests/daemon/messages.h"

namespace resident::testing {
namespace {

using ::grpc::StatusCode;
using ::testing::HasSubstr;
using ::testing::Not;

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
      for (size_t at = log.find(line); at != std::string::npos; at = log.find(line, at + 1)) {
        ++count;
      }
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
                                             {Bearer("of-nobody")},
                                             {Bearer(std::string(1000, 'x'))}}) {
    const grpc::Status status = testing::Call(channel_, kStatus, authorizations);
    EXPECT_EQ(status.error_code(), StatusCode::UNAUTHENTICATED) << authorizations[0];
    EXPECT_THAT(status.error_message(), HasSubstr("Fix: "));
    EXPECT_THAT(status.error_message(), Not(HasSubstr(kSubmitToken)));
    EXPECT_THAT(status.error_message(), Not(HasSubstr("of-nobody")));
  }
  // gRPC's own limit on metadata applies first, and may close the connection.
  EXPECT_FALSE(testing::Call(Open(daemon_), kStatus, {Bearer(std::string(1'000'000, 'x'))}).ok());
  EXPECT_TRUE(Call(kStatus, kSubmitToken).ok());
  EXPECT_THAT(daemon_.Output(), Not(HasSubstr(kSubmitToken)));
  EXPECT_THAT(daemon_.Output(), Not(HasSubstr("of-nobody")));
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

  // The nodes of a graph are tasks as any others.
  v1::RunGraphRequest request;
  v1::Graph& graph = *request.mutable_graph();
  graph.set_format(1);
  for (const auto& [name, kind] : {std::pair("x", v1::GraphTensor::KIND_INPUT),
                                   std::pair("y", v1::GraphTensor::KIND_OUTPUT)}) {
    v1::GraphTensor& tensor = *graph.add_tensors();
    tensor.set_name(name);
    tensor.set_kind(kind);
    tensor.set_dtype(v1::DTYPE_F32);
  }
  v1::GraphBinding& binding = *request.add_bindings();
  binding.set_tensor("x");
  binding.set_data(std::string("\0\0\x80\x3f", 4));
  v1::GraphNode& node = *graph.add_nodes();
  node.set_operator_("add");
  for (const char* name : {"x", "x", "y"}) {
    node.add_arguments()->mutable_tensor()->set_name(name);
  }
  EXPECT_TRUE((*client)->RunGraph(request).ok()) << (*client)->RunGraph(request).status();
  node.set_operator_("mul");
  const absl::Status forbidden = (*client)->RunGraph(request).status();
  EXPECT_EQ(forbidden.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(forbidden.message()), HasSubstr("'mul'"));

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

// The role install_confined: expressions and bytecode, and only operators of its own.
TEST_F(PolicyTest, AConfinedInstallerChangesOnlyItsOwnGeneratedOperators) {
  SetPolicy(R"({"identities": {
      "installer": {"roles": ["install_confined"], "operators": {"install": ["rank."]}},
      "admin": {"roles": ["install", "admin"]}}})");
  const auto connect = [&](const char* token) {
    client::Options options;
    options.session = false;
    options.credentials.token = token;
    auto client = client::Client::Connect(daemon_.address(), options);
    EXPECT_TRUE(client.ok()) << client.status();
    return *std::move(client);
  };
  const auto confined_client = connect(kInstallToken);
  const auto other_client = connect(kAdminToken);
  client::Operators confined(*confined_client), other(*other_client);
  const std::string halt(1, '\0');
  const auto bytecode = [&](const std::string& name) {
    return client::Installation::Bytecode(name, halt);
  };
  const auto refusal = [](const absl::Status& status) {
    EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied) << status;
    return std::string(status.message());
  };

  EXPECT_TRUE(confined.Install(bytecode("rank.own")).ok());
  EXPECT_TRUE(confined.Activate("rank.own").ok());
  EXPECT_THAT(refusal(confined.Install(bytecode("other")).status()),
              HasSubstr("may not change operator 'other'"));
  client::Installation source = client::Installation::Source(
      "rank.source", "rank.cc", {{"rank.cc", "not compiled, because it is refused"}});
  EXPECT_THAT(refusal(confined.Install(source).status()),
              HasSubstr("does not have the role 'install'"));

  ASSERT_TRUE(other.Install(bytecode("rank.others")).ok());
  EXPECT_THAT(refusal(confined.Install(bytecode("rank.others")).status()),
              HasSubstr("version 1 was installed by another identity"));
  for (const absl::Status& change : std::vector<absl::Status>{
           confined.Activate("rank.others").status(), confined.Remove("rank.others").status()}) {
    EXPECT_THAT(refusal(change), HasSubstr("version 1 was installed by another identity"));
  }
  // Nor one of which it installed only the first version.
  ASSERT_TRUE(other.Install(client::Installation::Bytecode("rank.own", halt + halt)).ok());
  EXPECT_THAT(refusal(confined.Rollback("rank.own").status()),
              HasSubstr("version 2 was installed by another identity"));
}

TEST_F(PolicyTest, AClaimNeedsThePermissionsOfAnInstall) {
  SetPolicy(R"({"identities": {"installer": {"roles": ["install"],
      "operators": {"install": ["rank."]}}, "admin": {"roles": ["install", "admin"]}}})");
  const auto claim = [&](const char* token, const std::string& plan,
                         const std::vector<std::string>& names, bool steal = false) {
    client::Options options;
    options.session = false;
    options.credentials.token = token;
    auto client = client::Client::Connect(daemon_.address(), options);
    EXPECT_TRUE(client.ok()) << client.status();
    v1::ClaimRequest request;
    request.set_plan(std::string(64, plan[0]));
    request.set_set("ranking");
    request.mutable_names()->Add(names.begin(), names.end());
    request.set_steal(steal);
    return client::Operators(**client).Claim(request).status().code();
  };
  constexpr auto kDenied = absl::StatusCode::kPermissionDenied;
  EXPECT_EQ(claim(kInstallToken, "a", {"rank.a", "other"}), kDenied);
  EXPECT_EQ(claim(kAdminToken, "b", {"other"}), absl::StatusCode::kOk);
  // Neither by its names, nor by its plan.
  EXPECT_EQ(claim(kInstallToken, "b", {}), kDenied);
  EXPECT_EQ(claim(kInstallToken, "a", {"rank.a"}), absl::StatusCode::kAborted);
  EXPECT_EQ(claim(kInstallToken, "a", {"rank.a"}, /*steal=*/true), kDenied);
  EXPECT_EQ(claim(kAdminToken, "a", {"rank.a"}, /*steal=*/true), absl::StatusCode::kOk);
  EXPECT_EQ(claim(kInstallToken, "a", {"rank.a"}), absl::StatusCode::kOk);
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
    for (const v1::ClientStatus& client : status.clients()) {
      names += client.name() + ";";
      // Of the session's id, with which its buffers can be used, only the beginning.
      EXPECT_EQ(client.id().size(), 8u);
    }
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
  // Kill the engine until the device is unhealthy, so that its state does not change any
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
  // Other users can see command lines: no program takes the token itself.
  const auto [shown, unknown] = run("status --server=" + daemon_.address() + " --token=of-nobody");
  EXPECT_EQ(shown, 2) << unknown;
}

}  // namespace
}  // namespace resident::testing
