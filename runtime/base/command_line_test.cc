#include "runtime/base/command_line.h"

#include <chrono>
#include <cstdlib>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/base/completion.h"

namespace resident {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kVariable[] = "COMMAND_LINE_TEST_SERVER";

class CommandLineTest : public ::testing::Test {
 protected:
  CommandLineTest() {
    unsetenv(kVariable);
    program_.Flag("json", &json_, "print JSON");
    program_.Flag("server", &server_, "where", {.environment = kVariable});
    Command& bench = program_.Add("bench", "measures");
    bench.Flag("batch", &batch_, "tasks in a batch", {.low = 1, .high = 100});
    bench.Flag("timeout", &timeout_, "longest wait", {.high = std::chrono::hours(1)});
    bench.Flag("ratio", &ratio_, "a ratio", {.low = 0});
    bench.Flag("device", &device_, "device to use");
    bench.Run("", [](const auto&) { return 7; });
    Command& ops = program_.Add("ops", "operators");
    ops.Run("[NAME]", [](const auto&) { return 0; });
    Command& install = ops.Add("install", "a new version");
    install.Flag("wait", &wait_, "until when", {.one_of = {"loaded", "active"}});
    install.Run("NAME [FILE]...", [](const auto&) { return 0; });
    program_.Add("flux", "programs").Add("run", "runs one").Run("FILE", [](const auto&) {
      return 0;
    });
    program_.Add("version", "versions").Alias("--version").Run("", [](const auto&) { return 0; });
    AddCompletionCommand(program_);
  }
  ~CommandLineTest() override { unsetenv(kVariable); }

  absl::StatusOr<Command::Call> Parse(std::vector<std::string> arguments) {
    return program_.Parse(arguments);
  }
  std::string ParseExpectingError(std::vector<std::string> arguments) {
    const absl::Status status = Parse(std::move(arguments)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(". Fix: "));
    return std::string(status.message());
  }

  bool json_ = false;
  std::string server_ = "near:1";
  uint32_t batch_ = 3;
  std::chrono::milliseconds timeout_{1000};
  double ratio_ = 2;
  std::optional<uint32_t> device_;
  std::string wait_ = "loaded";
  Command program_{"ctl", "a program"};
};

TEST_F(CommandLineTest, FlagsAndWordsMayBeMixed) {
  const auto call =
      Parse({"--wait", "active", "--json", "ops", "install", "--server=host:1", "swish", "x.cc"});
  ASSERT_TRUE(call.ok()) << call.status();
  EXPECT_EQ(call->command->path(), "ctl ops install");
  EXPECT_THAT(call->words, ElementsAre("swish", "x.cc"));
  EXPECT_TRUE(json_);
  EXPECT_EQ(server_, "host:1");
  EXPECT_EQ(wait_, "active");
}

TEST_F(CommandLineTest, TheCommandThatIsNamedRuns) {
  const auto call = Parse({"bench"});
  ASSERT_TRUE(call.ok()) << call.status();
  EXPECT_EQ(call->command->RunWith(call->words), 7);
}

TEST_F(CommandLineTest, ABooleanDoesNotTakeTheNextWordAsItsValue) {
  auto call = Parse({"--json", "ops", "add"});
  ASSERT_TRUE(call.ok()) << call.status();
  EXPECT_TRUE(json_);
  EXPECT_THAT(call->words, ElementsAre("add"));
}

TEST_F(CommandLineTest, TheLastOfSeveralValuesIsUsed) {
  ASSERT_TRUE(Parse({"--json", "bench", "--batch=4", "--nojson", "--batch", "5"}).ok());
  EXPECT_FALSE(json_);
  EXPECT_EQ(batch_, 5);
}

TEST_F(CommandLineTest, ABooleanAcceptsTheUsualTexts) {
  json_ = true;
  ASSERT_TRUE(Parse({"bench", "--json=no"}).ok());
  EXPECT_FALSE(json_);
}

TEST_F(CommandLineTest, AValueMayBeEmptyAndMayBeginWithADash) {
  ASSERT_TRUE(Parse({"--server=", "bench", "--ratio", "-0", "--device="}).ok());
  EXPECT_EQ(server_, "");
  EXPECT_EQ(ratio_, 0);
  EXPECT_FALSE(device_.has_value());
}

TEST_F(CommandLineTest, NegativeNumbersAndDashAreWords) {
  const auto call = Parse({"ops", "install", "-5", "-.5", "-"});
  ASSERT_TRUE(call.ok()) << call.status();
  EXPECT_THAT(call->words, ElementsAre("-5", "-.5", "-"));
}

TEST_F(CommandLineTest, TwoDashesEndTheFlags) {
  const auto call = Parse({"ops", "install", "--", "--json", "[a,b]"});
  ASSERT_TRUE(call.ok()) << call.status();
  EXPECT_THAT(call->words, ElementsAre("--json", "[a,b]"));
  EXPECT_FALSE(json_);
}

TEST_F(CommandLineTest, NamesOfCommandsAreWordsAfterTheCommand) {
  const auto call = Parse({"ops", "install", "install", "bench"});
  ASSERT_TRUE(call.ok()) << call.status();
  EXPECT_THAT(call->words, ElementsAre("install", "bench"));
}

TEST_F(CommandLineTest, TheShortFlagOfHelpIsRead) {
  const auto call = Parse({"ops", "install", "-h"});
  ASSERT_TRUE(call.ok()) << call.status();
  EXPECT_TRUE(call->help);
  EXPECT_EQ(call->command->name(), "install");
}

TEST_F(CommandLineTest, AnAliasNamesTheCommand) {
  const auto call = Parse({"--version"});
  ASSERT_TRUE(call.ok()) << call.status();
  EXPECT_EQ(call->command->name(), "version");
}

TEST_F(CommandLineTest, TheFlagOverridesTheEnvironment) {
  setenv(kVariable, "far:2", 1);
  ASSERT_TRUE(Parse({"bench", "--server=flag:3"}).ok());
  EXPECT_EQ(server_, "flag:3");
}

TEST_F(CommandLineTest, TheEnvironmentOverridesTheDefault) {
  setenv(kVariable, "far:2", 1);
  ASSERT_TRUE(Parse({"bench"}).ok());
  EXPECT_EQ(server_, "far:2");
}

TEST_F(CommandLineTest, DurationsAreRoundedUp) {
  ASSERT_TRUE(Parse({"bench", "--timeout=1500us"}).ok());
  EXPECT_EQ(timeout_, std::chrono::milliseconds(2));
}

// Each command line is parsed once, by a separate program.
class InvalidCommandLineTest
    : public CommandLineTest,
      public ::testing::WithParamInterface<std::pair<std::vector<std::string>, const char*>> {};

TEST_P(InvalidCommandLineTest, IsRefusedWithTheReason) {
  const auto& [arguments, expected] = GetParam();
  EXPECT_THAT(ParseExpectingError(arguments), HasSubstr(expected));
}

INSTANTIATE_TEST_SUITE_P(
    CommandLine, InvalidCommandLineTest,
    ::testing::ValuesIn(std::vector<std::pair<std::vector<std::string>, const char*>>{
        {{}, "ctl needs a command. Fix: one of bench ops flux"},
        {{"--json"}, "ctl needs a command"},
        {{"bnch"}, "ctl: unknown command 'bnch'. Fix: did you mean bench?"},
        {{"x", "bench"}, "ctl: unknown command 'x'"},
        {{"flux"}, "ctl flux needs a command"},
        {{"flux", "fly", "x"}, "ctl flux: unknown command 'fly'"},
        {{"ops", "add", "install", "x"}, "ctl ops: unknown command 'add'"},
        {{"ops", "instal", "x"}, "did you mean install?"},
        {{"bench", "now"}, "ctl bench takes no arguments, but got 'now'"},
        {{"ops", "install"}, "ctl ops install takes NAME [FILE]..., but got 0 arguments"},
        {{"flux", "run", "a", "b"}, "ctl flux run takes FILE, but got 2 arguments"},
        {{"--sever=x", "bench"}, "ctl bench: unknown flag --sever. Fix: did you mean --server?"},
        {{"bench", "--zzzzzzzz"}, "unknown flag --zzzzzzzz. Fix: ctl bench --help"},
        {{"bench", "-x"}, "ctl bench: unknown flag -x"},
        {{"bench", "--wait=active"}, "Fix: it is a flag of ctl ops install"},
        {{"bench", "--flagfile=/etc/passwd"}, "unknown flag --flagfile"},
        {{"bench", "--version"}, "ctl bench: unknown flag --version"},
        {{"bench", "--server"}, "flag --server has no value. Fix: --server=VALUE"},
        {{"bench", "--batch=many"}, "invalid value for --batch: 'many'"},
        {{"bench", "--batch=0"}, "invalid value for --batch: '0'. Fix: give 1 to 100"},
        {{"bench", "--batch", "-1"}, "invalid value for --batch: '-1'"},
        {{"bench", "--batch=4294967297"}, "invalid value for --batch: "},
        {{"bench", "--timeout=soon"}, "invalid value for --timeout: 'soon'. Fix: give at most 1h"},
        {{"bench", "--timeout=inf"}, "invalid value for --timeout: 'inf'"},
        {{"bench", "--ratio=nan"}, "invalid value for --ratio: 'nan'. Fix: give at least 0"},
        {{"bench", "--device=x"}, "invalid value for --device: 'x'"},
        {{"bench", "--json=maybe"}, "invalid value for --json: 'maybe'"},
        {{"ops", "install", "x", "--wait=never"},
         "invalid value for --wait: 'never'. Fix: give loaded or active"},
    }));

TEST_F(CommandLineTest, HelpNamesEveryFlagWithItsDefault) {
  const std::string text = (*program_.Find({"ops"}))->HelpText();
  EXPECT_THAT(text, HasSubstr("Usage: ctl ops [COMMAND] [NAME] [--FLAG=VALUE]..."));
  EXPECT_THAT(text, HasSubstr("install NAME [FILE]...  a new version"));
  EXPECT_THAT(text, HasSubstr("--wait  until when (default loaded)"));
  EXPECT_THAT(text, HasSubstr(std::string("where; overrides $") + kVariable));
  EXPECT_FALSE(program_.Find({"ops", "list"}).ok());
}

}  // namespace
}  // namespace resident
