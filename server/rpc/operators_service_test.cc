// OperatorsService over real gRPC, with a manager that only records.
#include "server/rpc/operators_service.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/server_builder.h>

#include <atomic>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "client/operators.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/base/errors/daemon_errors.h"
#include "runtime/operators/install/fake_operator_manager.h"
#include "tests/support/eventually.h"

namespace resident {
namespace {

using ::testing::ElementsAre;
using testing::Eventually;
using ::testing::HasSubstr;

constexpr char kSource[] = "#include \"resident/operator.h\"\n";

InstallProgress At(VersionState state) {
  InstallProgress progress;
  progress.state = state;
  progress.duration = std::chrono::milliseconds(3);
  return progress;
}

OperatorEvent Event(const std::string& name, EventKind kind = EventKind::kActivated) {
  OperatorEvent event;
  event.operator_name = name;
  event.kind = kind;
  return event;
}

CoreOptions Options(const Limits& limits, bool credentials = false) {
  CoreOptions options;
  options.limits = limits;
  options.credentials = credentials;
  return options;
}

class OperatorsServiceTest : public ::testing::Test {
 protected:
  explicit OperatorsServiceTest(const CoreOptions& options = Options({.max_installs = 2}))
      : core_(options, {}, *registry_, manager_, access_) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&service_);
    builder.SetMaxReceiveMessageSize(-1);
    server_ = builder.BuildAndStart();
    const std::string address = "127.0.0.1:" + std::to_string(port);
    stub_ =
        v1::Operators::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
    client::Options client_options;
    client_options.session = false;
    client_ = *client::Client::Connect(address, client_options);
    operators_ = std::make_unique<client::Operators>(*client_);
  }
  ~OperatorsServiceTest() override {
    core_.streams.EndAll(errors::Draining());
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
  }

  static client::Installation Source() {
    return client::Installation::Source("swish", "swish.cc", {{"swish.cc", kSource}});
  }

  // Sends the messages, half-closes, and returns the call's status.
  grpc::Status Send(const std::vector<v1::InstallRequest>& messages) {
    grpc::ClientContext context;
    const auto stream = stub_->Install(&context);
    for (const v1::InstallRequest& message : messages) {
      if (!stream->Write(message)) break;
    }
    stream->WritesDone();
    v1::InstallResponse response;
    while (stream->Read(&response)) {
    }
    return stream->Finish();
  }
  static v1::InstallRequest Header() {
    v1::InstallRequest message;
    message.mutable_header()->set_name("swish");
    message.mutable_header()->set_main_file("swish.cc");
    return message;
  }
  static v1::InstallRequest File(const std::string& name, const std::string& data) {
    v1::InstallRequest message;
    message.mutable_file()->set_name(name);
    message.mutable_file()->set_data(data);
    return message;
  }
  static v1::InstallRequest OneExample(const std::vector<uint64_t>& shape,
                                       const std::string& data) {
    v1::InstallRequest message;
    v1::ExampleValue* value = message.mutable_example()->add_values();
    value->set_dtype(v1::DTYPE_F32);
    for (const uint64_t dim : shape) value->add_shape(dim);
    value->set_data(data);
    return message;
  }
  void ExpectRefused(const std::vector<v1::InstallRequest>& messages,
                     const std::vector<std::string>& parts) {
    const size_t before = manager_.installs().size();
    const grpc::Status status = Send(messages);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
    for (const std::string& part : parts) EXPECT_THAT(status.error_message(), HasSubstr(part));
    EXPECT_THAT(status.error_message(), HasSubstr("Fix: "));
    EXPECT_EQ(manager_.installs().size(), before) << "a refused install reached the manager";
  }

  // "swish", whose only version is quarantined.
  void QuarantineSwish() {
    const Registry::Commit commit = [](const RegistryChange&) { return 1; };
    VersionSpec spec;
    spec.signature = "x: in f32[*S], out: out f32[*S]";
    spec.content_hash = "abc";
    spec.installed_by = "deployer";
    auto reserved =
        registry_->Reserve("swish", spec, std::nullopt, absl::Now() + absl::Seconds(60));
    ASSERT_TRUE(reserved.ok()) << reserved.status();
    ASSERT_TRUE(registry_->Load(*std::move(reserved), std::nullopt, commit).ok());
    ASSERT_TRUE(registry_->Quarantine("swish", 1, "hung on x = 42", commit).ok());
  }
  // The details of it that List and Describe show to a caller with these roles.
  std::string SeenBy(RoleSet roles) {
    access_.Load({.identities = {{"anonymous", Rights{.roles = roles}}}}, {});
    const auto text = [](const v1::Operator& op) {
      EXPECT_EQ(op.versions_size(), 1);
      const v1::OperatorVersion& version = op.versions(0);
      EXPECT_EQ(version.state(), "quarantined");
      return version.installed_by() + "|" + version.content_hash() + "|" +
             version.quarantine_reason();
    };
    grpc::ClientContext describe, list;
    v1::DescribeOperatorRequest request;
    request.set_name("swish");
    v1::DescribeOperatorResponse described;
    EXPECT_TRUE(stub_->Describe(&describe, request, &described).ok());
    v1::ListOperatorsResponse listed;
    EXPECT_TRUE(stub_->List(&list, v1::ListOperatorsRequest(), &listed).ok());
    std::string in_list;
    for (const v1::Operator& op : listed.operators()) {
      if (op.name() == "swish") in_list = text(op);
    }
    EXPECT_EQ(in_list, text(described.operator_()));
    return in_list;
  }

  FakeOperatorManager manager_;
  const std::unique_ptr<Registry> registry_ = *Registry::Create({});
  Access access_;
  Core core_;
  OperatorsService service_{core_};
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::Operators::Stub> stub_;
  std::unique_ptr<client::Client> client_;
  std::unique_ptr<client::Operators> operators_;
};

class ManyInstallsTest : public OperatorsServiceTest {
 protected:
  // Calls may begin while others of the test end.
  ManyInstallsTest() : OperatorsServiceTest(Options({.max_installs = 100})) {}
};

class ShortUploadTest : public OperatorsServiceTest {
 protected:
  ShortUploadTest()
      : OperatorsServiceTest(Options({.max_installs = 2, .max_install_upload_ms = 50})) {}
};

class ShortHeaderTest : public OperatorsServiceTest {
 protected:
  ShortHeaderTest()
      : OperatorsServiceTest(Options({.max_installs = 2,
                                      .max_install_header_ms = 1'000,
                                      .max_install_upload_ms = 600'000})) {}
};

class CredentialsTest : public OperatorsServiceTest {
 protected:
  CredentialsTest() : OperatorsServiceTest(Options({}, /*credentials=*/true)) {}
};

TEST_F(OperatorsServiceTest, AnInstallArrivesComplete) {
  manager_.set_script({{At(VersionState::kCompiled), At(VersionState::kLoaded)}, {}});
  auto installation = client::Installation::Source(
      "swish", "swish.cc", {{"swish.cc", kSource}, {"util/math.h", std::string(3 << 18, 'x')}});
  installation.Signature("x: in f32[*S], out: out f32[*S]")
      .Split("out 4096")
      .Summary("x * sigmoid(x)")
      .TaskTimeLimit(absl::Milliseconds(250))
      .ExpectRevision(7)
      .WaitFor(v1::VERSION_STATE_ACTIVE)
      .Add(client::Example()
               .Value(std::vector<float>{1, 2}, {1, 2})
               .Output(v1::DTYPE_F16, {2})
               .Tolerance(1e-3, 1e-6));
  std::vector<v1::VersionState> states;
  const auto done = operators_->Install(installation, [&](const v1::InstallResponse& progress) {
    states.push_back(progress.state());
    return true;
  });
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_THAT(states, ElementsAre(v1::VERSION_STATE_SUBMITTED, v1::VERSION_STATE_COMPILED,
                                  v1::VERSION_STATE_LOADED));
  EXPECT_EQ(done->duration_us(), 3000u);
  ASSERT_EQ(manager_.installs().size(), 1u);
  const InstallRequest request = manager_.installs()[0];
  EXPECT_EQ(request.name, "swish");
  EXPECT_EQ(request.kind, OperatorKind::kSource);
  EXPECT_EQ(request.body, "swish.cc");
  EXPECT_EQ(request.files.at("util/math.h").size(), size_t{3} << 18);
  EXPECT_EQ(request.files.at("swish.cc"), kSource);
  EXPECT_EQ(request.signature, "x: in f32[*S], out: out f32[*S]");
  EXPECT_EQ(request.split, "out 4096");
  EXPECT_EQ(request.summary, "x * sigmoid(x)");
  EXPECT_EQ(request.task_time_limit, std::chrono::milliseconds(250));
  EXPECT_EQ(request.expected_revision, 7u);
  EXPECT_EQ(request.wait_for, VersionState::kActive);
  EXPECT_FALSE(request.actor.empty());
  ASSERT_EQ(request.examples.size(), 1u);
  const Example& example = request.examples[0];
  EXPECT_EQ(example.relative_tolerance, 1e-3);
  EXPECT_EQ(example.absolute_tolerance, 1e-6);
  ASSERT_EQ(example.values.size(), 2u);
  EXPECT_EQ(example.values[0].dtype, DType::kF32);
  EXPECT_EQ(example.values[0].shape, (Shape{1, 2}));
  EXPECT_EQ(example.values[0].data.size(), 8u);
  EXPECT_EQ(example.values[1].dtype, DType::kF16);
  EXPECT_EQ(example.values[1].data, "");
}

TEST_F(OperatorsServiceTest, AFileMayBeSentInPieces) {
  EXPECT_TRUE(
      Send({Header(), File("swish.cc", "ab"), File("other.h", "x"), File("swish.cc", "cd")}).ok());
  EXPECT_EQ(manager_.installs()[0].files.at("swish.cc"), "abcd");
}

TEST_F(OperatorsServiceTest, OtherKindsHaveNoFiles) {
  ASSERT_TRUE(operators_->Install(client::Installation::Expression("twice", "2 * x")).ok());
  ASSERT_TRUE(operators_->Install(client::Installation::Bytecode("stop", {"\0", 1})).ok());
  ASSERT_TRUE(operators_->Install(client::Installation::Object("fast", "a.ptx", "ptx")).ok());
  const auto installs = manager_.installs();
  EXPECT_EQ(installs[0].kind, OperatorKind::kExpression);
  EXPECT_EQ(installs[0].body, "2 * x");
  EXPECT_FALSE(installs[0].expected_revision.has_value());
  EXPECT_EQ(installs[0].wait_for, VersionState::kLoaded);
  EXPECT_EQ(installs[1].kind, OperatorKind::kBytecode);
  EXPECT_EQ(installs[1].body, std::string("\0", 1));
  EXPECT_EQ(installs[2].kind, OperatorKind::kObject);
  EXPECT_EQ(installs[2].files.at("a.ptx"), "ptx");
}

TEST_F(OperatorsServiceTest, ARejectionIsAnAnswerAndAnError) {
  InstallProgress rejected = At(VersionState::kRejected);
  rejected.message = "swish.cc:2: no such thing";
  rejected.log = "swish.cc:2: \xFF\xC3\xA9\xED\xA0\x80";  // Not all of it is UTF-8.
  manager_.set_script({{rejected}, absl::InvalidArgumentError("swish.cc:2: no such thing")});
  std::string log;
  const auto done = operators_->Install(Source(), [&](const v1::InstallResponse& progress) {
    if (progress.state() == v1::VERSION_STATE_REJECTED) log = progress.log();
    return true;
  });
  EXPECT_EQ(done.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(done.status().message(), "swish.cc:2: no such thing");
  EXPECT_EQ(log, "swish.cc:2: \xEF\xBF\xBD\xC3\xA9\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
}

TEST_F(OperatorsServiceTest, AnErrorOfManyLinesFitsTheHeadersOfAnAnswer) {
  std::string message = "it begins";
  for (int i = 0; i < 10'000; ++i) message += "\xC3\xA9\n";
  message += "Fix: and ends";
  manager_.set_script({{}, absl::InvalidArgumentError(message)});
  const auto done = operators_->Install(Source());
  EXPECT_EQ(done.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(done.status().message()), ::testing::StartsWith("it begins"));
  EXPECT_THAT(std::string(done.status().message()), ::testing::EndsWith("Fix: and ends"));
}

TEST_F(OperatorsServiceTest, RefusesMessagesOutOfOrder) {
  ExpectRefused({}, {"does not begin with a header"});
  ExpectRefused({File("swish.cc", kSource)}, {"does not begin with a header"});
  ExpectRefused({OneExample({1}, "1234")}, {"does not begin with a header"});
  ExpectRefused({Header(), Header()}, {"second header"});
  ExpectRefused({Header(), v1::InstallRequest()}, {"no field that this daemon supports"});
}

TEST_F(OperatorsServiceTest, RefusesBadHeaders) {
  v1::InstallRequest header = Header();
  header.mutable_header()->clear_main_file();
  ExpectRefused({header}, {"has nothing to install"});
  header = Header();
  header.mutable_header()->clear_name();
  ExpectRefused({header}, {"name is empty"});
  header = Header();
  header.mutable_header()->set_wait_for(v1::VERSION_STATE_RETIRED);
  ExpectRefused({header}, {"wait_for", "VERSION_STATE_VALIDATED"});
  header = Header();
  header.mutable_header()->set_summary(std::string(257, 's'));
  ExpectRefused({header}, {"257 bytes", "256"});
  header = Header();
  header.mutable_header()->set_name(std::string(65, 'n'));
  ExpectRefused({header}, {"InstallHeader.name", "65 bytes", "64"});
  header = Header();
  header.mutable_header()->set_signature(std::string(4097, 's'));
  ExpectRefused({header}, {"InstallHeader.signature", "4097 bytes", "4096"});
  header = Header();
  header.mutable_header()->set_split(std::string(257, 's'));
  ExpectRefused({header}, {"InstallHeader.split", "257 bytes", "256"});
  header = Header();
  header.mutable_header()->set_bytecode(std::string((1 << 20) + 1, '\0'));
  ExpectRefused({header}, {"InstallHeader.bytecode", "1048577 bytes", "1048576"});
  header = Header();
  header.mutable_header()->set_main_file("../x.cc");
  ExpectRefused({header}, {"file name '../x.cc'"});
}

TEST_F(OperatorsServiceTest, RefusesBadFiles) {
  for (const char* name : {"", "/etc/passwd", "../x.h", "a/../../x.h", "a//b", "./a", "a b", "a\\b",
                           "a\nb", "caf\xC3\xA9.h", "kernels/sdk/block.h", "resident/operator.h"}) {
    SCOPED_TRACE(name);
    ExpectRefused({Header(), File(name, "x")}, {"file name "});
  }
  ExpectRefused({Header(), File(std::string(129, 'x'), "x")}, {"129 bytes", "128"});
  ExpectRefused({Header(), File("other.cc", "x")}, {"'swish.cc'", "not among the 1"});
  ExpectRefused({Header()}, {"'swish.cc'", "not among the 0"});
  ExpectRefused({Header(), File("swish.cc", std::string(10 << 20, ' '))},
                {"source of 10485760 bytes", "the limit is 1048576"});
  ExpectRefused({Header(), File("swish.cc", std::string(1 << 19, ' ')),
                 File("b.h", std::string((1 << 19) + 1, ' '))},
                {"1048577", "1048576"});
  std::vector<v1::InstallRequest> many = {Header()};
  for (int i = 0; i < 65; ++i) many.push_back(File("f" + std::to_string(i), ""));
  ExpectRefused(many, {"more than 64 files"});
  v1::InstallRequest expression;
  expression.mutable_header()->set_name("twice");
  expression.mutable_header()->set_expression("2 * x");
  ExpectRefused({expression, File("a.h", "")}, {"'a.h'", "expression"});
}

TEST_F(OperatorsServiceTest, RefusesBadExamples) {
  const auto file = File("swish.cc", kSource);
  ExpectRefused({Header(), file, OneExample({2}, "1234")},
                {"example 1, value 1", "data has 4 bytes", "8"});
  ExpectRefused({Header(), file, OneExample({2}, std::string(24, 'x'))}, {"data has 24 bytes"});
  ExpectRefused({Header(), file, OneExample({UINT64_MAX, 2}, "")}, {"exceeds the limit"});
  ExpectRefused({Header(), file, OneExample({1ull << 33, 1ull << 33}, "")}, {"exceeds the limit"});
  ExpectRefused({Header(), file, OneExample({9u << 20}, ""), OneExample({9u << 20}, "")},
                {"example 2, value 1", "67108864"});
  ExpectRefused({Header(), file, OneExample({1, 1, 1, 1, 1, 1, 1, 1, 1}, "1234")},
                {"9 dimensions"});
  auto bad = OneExample({1}, "1234");
  bad.mutable_example()->mutable_values(0)->clear_dtype();
  ExpectRefused({Header(), file, bad}, {"dtype 0"});
  bad = OneExample({1}, "1234");
  bad.mutable_example()->set_relative_tolerance(-1);
  ExpectRefused({Header(), file, bad}, {"example 1", "tolerance"});
  bad.mutable_example()->set_relative_tolerance(NAN);
  ExpectRefused({Header(), file, bad}, {"example 1", "tolerance"});
  bad = OneExample({1}, "1234");
  for (int i = 0; i < 14; ++i) *bad.mutable_example()->add_values() = bad.example().values(0);
  ExpectRefused({Header(), file, bad}, {"15 values", "14"});
  std::vector<v1::InstallRequest> many = {Header(), file};
  for (int i = 0; i < 65; ++i) many.push_back(OneExample({1}, "1234"));
  ExpectRefused(many, {"more than 64 examples"});
}

TEST_F(OperatorsServiceTest, AnInoutHasInitialAndExpectedContents) {
  ASSERT_TRUE(
      Send({Header(), File("swish.cc", kSource), OneExample({2}, "firsttwothenfour")}).ok());
  EXPECT_EQ(manager_.installs()[0].examples[0].values[0].data, "firsttwothenfour");
}

TEST_F(OperatorsServiceTest, AClientThatCancelsWithdrawsItsInstall) {
  manager_.set_script({{At(VersionState::kCompiled)}, {}, /*until_withdrawn=*/true});
  const auto done = operators_->Install(Source(), [](const v1::InstallResponse& progress) {
    return progress.state() != v1::VERSION_STATE_COMPILED;
  });
  EXPECT_EQ(done.status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(core_.gate.AwaitEmpty(absl::Now() + absl::Minutes(1)), 0u)
      << "the manager still installs";
}

TEST_F(ManyInstallsTest, AClientThatCancelsWhileSendingInstallsNothing) {
  // If the cancellation was read as a half-close, the install is withdrawn.
  manager_.set_script({{}, {}, /*until_withdrawn=*/true});
  for (int i = 0; i < 50; ++i) {
    grpc::ClientContext context;
    const auto stream = stub_->Install(&context);
    ASSERT_TRUE(stream->Write(Header()));
    ASSERT_TRUE(stream->Write(File("swish.cc", kSource)));
    context.TryCancel();
    EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  EXPECT_EQ(core_.gate.AwaitEmpty(absl::Now() + absl::Minutes(1)), 0u);
}

TEST_F(OperatorsServiceTest, MoreInstallsThanTheLimitAreRefused) {
  manager_.set_script({{}, {}, /*until_withdrawn=*/true});
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReaderWriter<v1::InstallRequest, v1::InstallResponse>>>
      streams;
  for (int i = 0; i < 2; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    streams.push_back(stub_->Install(contexts.back().get()));
    ASSERT_TRUE(streams.back()->Write(Header()));
    ASSERT_TRUE(streams.back()->Write(File("swish.cc", kSource)));
    ASSERT_TRUE(streams.back()->WritesDone());
    v1::InstallResponse submitted;
    ASSERT_TRUE(streams.back()->Read(&submitted));
  }
  const auto third = operators_->Install(Source());
  EXPECT_EQ(third.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(third.status().message()), HasSubstr("--max_installs"));
  for (const auto& context : contexts) context->TryCancel();
  for (const auto& stream : streams) stream->Finish();
  manager_.set_script({});
  EXPECT_TRUE(Eventually([&] { return operators_->Install(Source()).ok(); }));
}

TEST_F(ShortUploadTest, InstallsThatAreNotSentReleaseTheirSlots) {
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReaderWriter<v1::InstallRequest, v1::InstallResponse>>>
      streams;
  for (int i = 0; i < 2; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    streams.push_back(stub_->Install(contexts.back().get()));
  }
  ASSERT_TRUE(streams[1]->Write(Header()));  // The other stream sends nothing.
  for (const auto& stream : streams) {
    v1::InstallResponse none;
    EXPECT_FALSE(stream->Read(&none));
    const grpc::Status status = stream->Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
    EXPECT_THAT(status.error_message(), HasSubstr("50 ms. Fix: "));
    EXPECT_THAT(status.error_message(), HasSubstr("--max_install_upload_ms"));
  }
  EXPECT_TRUE(manager_.installs().empty());
  EXPECT_TRUE(Eventually([&] { return operators_->Install(Source()).ok(); }));
}

TEST_F(ShortHeaderTest, AnInstallWithoutAHeaderReleasesItsSlotSooner) {
  grpc::ClientContext silent_context;
  const auto silent = stub_->Install(&silent_context);
  grpc::ClientContext header_context;
  const auto with_header = stub_->Install(&header_context);
  ASSERT_TRUE(with_header->Write(Header()));
  v1::InstallResponse response;
  EXPECT_FALSE(silent->Read(&response));
  const grpc::Status status = silent->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_THAT(status.error_message(), HasSubstr("header was not sent within 1000 ms"));
  EXPECT_THAT(status.error_message(), HasSubstr("--max_install_header_ms"));
  EXPECT_EQ(core_.install_slots.taken(), 1u);
  // The other install has the longer time limit.
  ASSERT_TRUE(with_header->Write(File("swish.cc", kSource)));
  ASSERT_TRUE(with_header->WritesDone());
  while (with_header->Read(&response)) {
  }
  EXPECT_TRUE(with_header->Finish().ok());
}

TEST_F(OperatorsServiceTest, ADaemonThatStopsWithdrawsInstallsAndReportsTheReason) {
  manager_.set_script({{At(VersionState::kCompiled)}, {}, /*until_withdrawn=*/true});
  const auto done = operators_->Install(Source(), [&](const v1::InstallResponse& progress) {
    if (progress.state() == v1::VERSION_STATE_COMPILED) {
      core_.gate.Close();
      core_.streams.EndAll(errors::Draining());
    }
    return true;
  });
  EXPECT_EQ(done.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(done.status().message()), HasSubstr("draining"));
  for (const absl::Status& status :
       {operators_->Install(Source()).status(), operators_->Activate("swish").status(),
        operators_->Rollback("swish").status(), operators_->Remove("swish").status(),
        operators_->Promote("swish", 1, 1).status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  }
}

TEST_F(OperatorsServiceTest, ChangesPassOnAllFields) {
  client::ChangeOptions options;
  options.version = 4;
  options.expected_revision = 9;
  options.force = true;
  options.bake.set_action(v1::BakeOptions::ACTION_ROLL_BACK);
  options.bake.set_time_ms(60'000);
  options.bake.set_max_error_rate(0.01);
  options.bake.set_max_latency_ratio(1.5);
  options.bake.set_min_tasks(50);
  const auto activated = operators_->Activate("swish", options);
  ASSERT_TRUE(activated.ok()) << activated.status();
  EXPECT_EQ(activated->version(), 2u);
  EXPECT_EQ(activated->previous_version(), 1u);
  EXPECT_EQ(activated->switch_ns(), 40u);
  const auto back = operators_->Rollback("swish", 10);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->version(), 2u);
  EXPECT_EQ(back->from_version(), 1u);
  const auto switches = manager_.switches();
  EXPECT_EQ(switches[0].name, "swish");
  EXPECT_EQ(switches[0].version, 4u);
  EXPECT_EQ(switches[0].expected_revision, 9u);
  EXPECT_TRUE(switches[0].force);
  EXPECT_EQ(switches[0].bake.action, BakeAction::kRollBack);
  EXPECT_EQ(switches[0].bake.time, std::chrono::minutes(1));
  EXPECT_EQ(switches[0].bake.max_error_rate, 0.01);
  EXPECT_EQ(switches[0].bake.max_latency_ratio, 1.5);
  EXPECT_EQ(switches[0].bake.min_tasks, 50u);
  EXPECT_EQ(switches[1].expected_revision, 10u);
  ASSERT_TRUE(operators_->Promote("swish", 5, 10, options).ok());
  EXPECT_EQ(manager_.promotions()[0].shadow_percent, 5);
  EXPECT_EQ(manager_.promotions()[0].traffic_percent, 10);
  EXPECT_TRUE(operators_->Remove("swish").ok());
}

TEST_F(OperatorsServiceTest, ARollbackDoesNotWaitBehindForcedActivations) {
  const auto round = std::make_shared<absl::Notification>();
  manager_.set_round(round);
  std::vector<std::thread> forced;
  for (int i = 0; i < 3; ++i) {
    forced.emplace_back([&] {
      client::ChangeOptions options;
      options.force = true;
      EXPECT_TRUE(operators_->Activate("swish", options).ok());
    });
  }
  EXPECT_TRUE(Eventually([&] { return manager_.forced() > 0; }));
  EXPECT_TRUE(operators_->Rollback("swish").ok());
  EXPECT_TRUE(operators_->Promote("swish", 1, 1).ok());
  EXPECT_FALSE(round->HasBeenNotified());
  round->Notify();
  for (std::thread& thread : forced) thread.join();
}

TEST_F(OperatorsServiceTest, RemovalsThatWaitForTasksDelayNoOtherCalls) {
  const auto first = std::make_shared<absl::Notification>();
  const auto second = std::make_shared<absl::Notification>();
  manager_.set_drained({first, second});
  constexpr size_t kRemovals = 8;  // More than there are threads in any pool.
  std::atomic<size_t> ended = 0;
  std::vector<std::thread> threads;
  for (size_t i = 0; i < kRemovals; ++i) {
    threads.emplace_back([&] {
      EXPECT_TRUE(operators_->Remove("swish").ok());
      ++ended;
    });
  }
  EXPECT_TRUE(Eventually([&] { return manager_.removals() == kRemovals; }));
  EXPECT_TRUE(operators_->Audit("", 10).ok());  // Runs on a thread of `blocking`, like Resume.
  EXPECT_TRUE(operators_->Rollback("swish").ok());
  first->Notify();
  EXPECT_TRUE(operators_->Audit("", 10).ok());
  EXPECT_EQ(ended, 0u);
  second->Notify();
  for (std::thread& thread : threads) thread.join();
}

TEST_F(OperatorsServiceTest, ARemovalWhoseCallerHasGoneEnds) {
  manager_.set_drained({std::make_shared<absl::Notification>()});
  grpc::ClientContext context;
  std::thread caller([&] {
    v1::RemoveRequest request;
    request.set_name("swish");
    v1::RemoveResponse response;
    EXPECT_EQ(stub_->Remove(&context, request, &response).error_code(),
              grpc::StatusCode::CANCELLED);
  });
  EXPECT_TRUE(Eventually([&] { return manager_.removals() == 1; }));
  EXPECT_EQ(core_.gate.AwaitEmpty(absl::Now()), 1u);
  context.TryCancel();
  EXPECT_EQ(core_.gate.AwaitEmpty(absl::InfiniteFuture()), 0u);
  caller.join();
}

TEST_F(OperatorsServiceTest, ARemovalReportsAtItsDeadlineThatTasksStillRun) {
  manager_.set_drained({std::make_shared<absl::Notification>()});
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(50));
  v1::RemoveRequest request;
  request.set_name("swish");
  v1::RemoveResponse response;
  EXPECT_EQ(stub_->Remove(&context, request, &response).error_code(),
            grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_EQ(core_.gate.AwaitEmpty(absl::InfiniteFuture()), 0u);
}

TEST_F(OperatorsServiceTest, AnInstallEndsWhenTheDaemonDrains) {
  manager_.set_script({.states = {}, .result = absl::OkStatus(), .until_withdrawn = true});
  absl::Status installed;
  std::thread installer([&] { installed = operators_->Install(Source()).status(); });
  EXPECT_TRUE(Eventually([&] { return manager_.installs().size() == 1; }));
  core_.streams.EndAtDrain(errors::Draining());
  installer.join();
  EXPECT_EQ(installed, errors::Draining());
}

TEST_F(OperatorsServiceTest, ManagersErrorsArriveUnchanged) {
  manager_.set_status(absl::AbortedError("revision 4 is stale. Fix: read it again"));
  for (const absl::Status& status :
       {operators_->Activate("swish").status(), operators_->Rollback("swish").status(),
        operators_->Remove("swish").status(), operators_->Promote("swish", 1, 1).status()}) {
    EXPECT_EQ(status, absl::AbortedError("revision 4 is stale. Fix: read it again"));
  }
}

TEST_F(OperatorsServiceTest, RefusesInvalidChanges) {
  const auto refused = [](const absl::Status& status, const std::string& part) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(part));
    EXPECT_THAT(std::string(status.message()), HasSubstr("Fix: "));
  };
  refused(operators_->Promote("swish", 101, 0).status(), "shadow_percent of 101");
  refused(operators_->Promote("swish", 0, -1).status(), "traffic_percent of -1");
  refused(operators_->Promote("swish", 0, NAN).status(), "traffic_percent of nan");
  client::ChangeOptions options;
  options.bake.set_max_error_rate(2);
  refused(operators_->Activate("swish", options).status(), "max_error_rate of 2");
  options.bake = {};
  options.bake.set_max_mismatch_rate(-0.1);
  refused(operators_->Promote("swish", 1, 1, options).status(), "max_mismatch_rate");
  options.bake = {};
  options.bake.set_max_latency_ratio(INFINITY);
  refused(operators_->Activate("swish", options).status(), "max_latency_ratio of inf");
  options.bake = {};
  options.bake.set_time_ms(UINT64_MAX);
  refused(operators_->Activate("swish", options).status(), "time_ms");
  options.bake = {};
  options.bake.set_action(static_cast<v1::BakeOptions::Action>(9));
  refused(operators_->Activate("swish", options).status(), "BakeOptions.action");
  refused(operators_->Audit("", 1001).status(), "count of 1001");
  EXPECT_TRUE(manager_.switches().empty());
  EXPECT_TRUE(manager_.promotions().empty());
}

TEST_F(OperatorsServiceTest, WatchResumesAndFollows) {
  for (int i = 0; i < 40; ++i) manager_.AddEvent(Event(i % 2 == 0 ? "swish" : "other"));
  auto watcher = *operators_->Watch(/*after_revision=*/3);
  v1::OperatorEvent event;
  for (uint64_t revision = 4; revision <= 40; ++revision) {
    ASSERT_TRUE(watcher->Next(&event));
    EXPECT_EQ(event.revision(), revision);
  }
  manager_.AddEvent(Event("swish", EventKind::kQuarantined));
  ASSERT_TRUE(watcher->Next(&event));
  EXPECT_EQ(event.revision(), 41u);
  EXPECT_EQ(event.kind(), v1::OperatorEvent::KIND_QUARANTINED);
  EXPECT_EQ(event.operator_(), "swish");
  auto one = *operators_->Watch(/*after_revision=*/1, "other");
  ASSERT_TRUE(one->Next(&event));
  EXPECT_EQ(event.revision(), 2u);
  ASSERT_TRUE(one->Next(&event));
  EXPECT_EQ(event.revision(), 4u);
  watcher->Cancel();
  one->Cancel();
  while (watcher->Next(&event)) {
  }
  EXPECT_EQ(watcher->Finish().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(Eventually([&] { return manager_.subscribers() == 0; }));
}

TEST_F(CredentialsTest, WatchShowsActorAndHashOnlyToAdmins) {
  manager_.AddEvent(Event("old"));
  OperatorEvent quarantined = Event("swish", EventKind::kQuarantined);
  quarantined.actor = "deployer";
  quarantined.content_hash = "abc";
  quarantined.message = "hung on x = 42";
  quarantined.version = 3;
  manager_.AddEvent(quarantined);
  const auto watched_by = [&](RoleSet roles) {
    access_.Load({.identities = {{"anonymous", Rights{.roles = roles}}}}, {});
    auto watcher = *operators_->Watch(/*after_revision=*/1);
    v1::OperatorEvent event;
    EXPECT_TRUE(watcher->Next(&event));
    EXPECT_EQ(event.operator_(), "swish");
    EXPECT_EQ(event.version(), 3u);
    EXPECT_EQ(event.kind(), v1::OperatorEvent::KIND_QUARANTINED);
    return event.actor() + "|" + event.content_hash() + "|" + event.message();
  };
  EXPECT_EQ(watched_by(Role::kAdmin), "deployer|abc|hung on x = 42");
  EXPECT_EQ(watched_by(RoleSet(Role::kSubmit) | Role::kInstall), "||");
}

TEST_F(CredentialsTest, ListAndDescribeHideFromOthersWhatWatchHides) {
  QuarantineSwish();
  EXPECT_EQ(SeenBy(Role::kAdmin), "deployer|abc|hung on x = 42");
  EXPECT_EQ(SeenBy(RoleSet(Role::kSubmit) | Role::kInstall), "||");
}

TEST_F(OperatorsServiceTest, WithoutCredentialsEveryCallerSeesEverything) {
  QuarantineSwish();
  EXPECT_EQ(SeenBy({}), "deployer|abc|hung on x = 42");
}

TEST_F(OperatorsServiceTest, WatchFromNowOnSendsNoOldEvents) {
  manager_.AddEvent(Event("old"));
  auto watcher = *operators_->Watch();
  ASSERT_TRUE(Eventually([&] { return manager_.subscribers() == 1; }));
  manager_.AddEvent(Event("new"));
  v1::OperatorEvent event;
  ASSERT_TRUE(watcher->Next(&event));
  EXPECT_EQ(event.operator_(), "new");
}

TEST_F(OperatorsServiceTest, AWatcherThatFellBehindGetsAnError) {
  for (int i = 0; i < 20; ++i) manager_.AddEvent(Event("swish"), /*keep=*/5);
  auto watcher = *operators_->Watch(/*after_revision=*/3);
  v1::OperatorEvent event;
  EXPECT_FALSE(watcher->Next(&event));
  EXPECT_EQ(watcher->Finish().code(), absl::StatusCode::kOutOfRange);
}

TEST_F(OperatorsServiceTest, WatchersAreLimitedAndAnEndedOneReleasesItsSlot) {
  std::vector<std::unique_ptr<client::Watcher>> watchers;
  // One caller's share; the rest is reserved for others.
  const uint32_t most = kMaxWatchers - core_.watch_slots.reserve();
  for (uint32_t i = 0; i < most; ++i) watchers.push_back(*operators_->Watch());
  ASSERT_TRUE(Eventually([&] { return core_.watch_slots.taken() == most; }));
  auto refused = *operators_->Watch();
  v1::OperatorEvent event;
  EXPECT_FALSE(refused->Next(&event));
  const absl::Status status = refused->Finish();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("Fix: "));
  watchers.front()->Cancel();
  ASSERT_TRUE(Eventually([&] { return core_.watch_slots.taken() == most - 1; }));
  auto next = *operators_->Watch();
  ASSERT_TRUE(Eventually([&] { return manager_.subscribers() == most; }));
  manager_.AddEvent(Event("swish"));
  EXPECT_TRUE(next->Next(&event));
}

TEST_F(OperatorsServiceTest, WatchEndsWithTheDaemon) {
  auto watcher = *operators_->Watch();
  ASSERT_TRUE(Eventually([&] { return manager_.subscribers() == 1; }));
  core_.streams.EndAll(errors::Draining());
  v1::OperatorEvent event;
  EXPECT_FALSE(watcher->Next(&event));
  EXPECT_EQ(watcher->Finish().code(), absl::StatusCode::kUnavailable);
}

TEST_F(OperatorsServiceTest, AuditIsNewestFirst) {
  for (int i = 0; i < 5; ++i) manager_.AddEvent(Event(i % 2 == 0 ? "swish" : "other"));
  const auto all = operators_->Audit();
  ASSERT_TRUE(all.ok()) << all.status();
  ASSERT_EQ(all->size(), 5u);
  EXPECT_EQ(all->front().revision(), 5u);
  const auto some = operators_->Audit("swish", 1, /*before_revision=*/5);
  ASSERT_EQ(some->size(), 1u);
  EXPECT_EQ(some->front().revision(), 3u);
}

}  // namespace
}  // namespace resident
