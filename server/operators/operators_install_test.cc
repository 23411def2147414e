// Operators.Install over real gRPC, with a manager that only records.
#include <atomic>
#include <cmath>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "client/operators.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/base/errors/daemon_errors.h"
#include "server/operators/operators_service_harness.h"
#include "tests/support/eventually.h"

namespace resident {
namespace {

using ::testing::ElementsAre;
using testing::Eventually;
using ::testing::HasSubstr;

InstallProgress At(VersionState state) {
  InstallProgress progress;
  progress.state = state;
  progress.duration = std::chrono::milliseconds(3);
  return progress;
}

// Messages of an install.
v1::InstallRequest Header() {
  v1::InstallRequest message;
  message.mutable_header()->set_name("swish");
  message.mutable_header()->set_main_file("swish.cc");
  return message;
}

v1::InstallRequest File(const std::string& name, const std::string& data) {
  v1::InstallRequest message;
  message.mutable_file()->set_name(name);
  message.mutable_file()->set_data(data);
  return message;
}

v1::InstallRequest OneExample(const std::vector<uint64_t>& shape, const std::string& data) {
  v1::InstallRequest message;
  v1::ExampleValue* value = message.mutable_example()->add_values();
  value->set_dtype(v1::DTYPE_F32);
  for (const uint64_t dim : shape) value->add_shape(dim);
  value->set_data(data);
  return message;
}

class OperatorsServiceTest : public OperatorsServiceHarness {
 protected:
  using OperatorsServiceHarness::OperatorsServiceHarness;

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
  void ExpectRefused(const std::vector<v1::InstallRequest>& messages,
                     const std::vector<std::string>& parts) {
    const size_t before = manager_.installs().size();
    const grpc::Status status = Send(messages);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
    for (const std::string& part : parts) EXPECT_THAT(status.error_message(), HasSubstr(part));
    EXPECT_THAT(status.error_message(), HasSubstr("Fix: "));
    EXPECT_EQ(manager_.installs().size(), before) << "a refused install reached the manager";
  }
};

class ManyInstallsTest : public OperatorsServiceTest {
 protected:
  // Calls may begin while others of the test end.
  ManyInstallsTest() : OperatorsServiceTest(MakeOptions({.max_installs = 100})) {}
};

class ShortUploadTest : public OperatorsServiceTest {
 protected:
  ShortUploadTest()
      : OperatorsServiceTest(MakeOptions({.max_installs = 2, .max_install_upload_ms = 50})) {}
};

class ShortHeaderTest : public OperatorsServiceTest {
 protected:
  ShortHeaderTest()
      : OperatorsServiceTest(MakeOptions({.max_installs = 2,
                                          .max_install_header_ms = 1'000,
                                          .max_install_upload_ms = 600'000})) {}
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
  for (const std::string& label : {std::string(65, 'a'), std::string("-a"), std::string("a b")}) {
    v1::InstallRequest labelled = Header();
    labelled.mutable_header()->set_label(label);
    ExpectRefused({labelled}, {"label", label.substr(0, 2), "Fix: use at most 64 bytes"});
  }
  header = Header();
  header.mutable_header()->set_bytecode(std::string((1 << 20) + 1, '\0'));
  ExpectRefused({header}, {"InstallHeader.bytecode", "1048577 bytes", "1048576"});
  header = Header();
  header.mutable_header()->set_main_file("../x.cc");
  ExpectRefused({header}, {"file name '../x.cc'"});
}

TEST_F(OperatorsServiceTest, TheIsolationArrivesOrIsRefused) {
  v1::InstallRequest header = Header();
  header.mutable_header()->set_isolation(v1::ISOLATION_STOPPABLE);
  EXPECT_TRUE(Send({header, File("swish.cc", "x")}).ok());
  ASSERT_EQ(manager_.installs().size(), 1u);
  EXPECT_EQ(manager_.installs()[0].isolation, Isolation::kStoppable);

  header.mutable_header()->set_isolation(static_cast<v1::Isolation>(4));
  ExpectRefused({header}, {"InstallHeader.isolation", "4", "ISOLATION_STOPPABLE"});
  header.mutable_header()->set_isolation(v1::ISOLATION_CONFINED);
  const grpc::Status confined = Send({header});
  EXPECT_EQ(confined.error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_THAT(confined.error_message(), HasSubstr("cannot confine"));
  header.mutable_header()->set_isolation(v1::ISOLATION_TRUSTED);
  header.mutable_header()->set_bytecode("program");
  ExpectRefused({header}, {"a program has no isolation"});
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
  EXPECT_EQ(installs_.install_slots.taken(), 1u);
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

TEST_F(OperatorsServiceTest, AnInstallEndsWhenTheDaemonDrains) {
  manager_.set_script({.states = {}, .result = absl::OkStatus(), .until_withdrawn = true});
  absl::Status installed;
  std::thread installer([&] { installed = operators_->Install(Source()).status(); });
  EXPECT_TRUE(Eventually([&] { return manager_.installs().size() == 1; }));
  core_.streams.EndAtDrain(errors::Draining());
  installer.join();
  EXPECT_EQ(installed.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(installed.message(), errors::Draining().message());
}

}  // namespace
}  // namespace resident
