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
    install.Flag("wait", &wait_, "until when", {.one_of = {"staged", "active"}});
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
  std::string ErrorOf(std::vector<std::string> arguments) {
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
  std::string wait_ = "staged";
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

TEST_F(CommandLineTest, ABooleanTakesNoWordAndCanBeDenied) {
  auto call = Parse({"--json", "ops", "add"});
  ASSERT_TRUE(call.ok()) << call.status();
  EXPECT_TRUE(json_);
  EXPECT_THAT(call->words, ElementsAre("add"));
}

TEST_F(CommandLineTest, TheLastOfSeveralValuesCounts) {
  ASSERT_TRUE(Parse({"--json", "bench", "--batch=4", "--nojson", "--batch", "5"}).ok());
  EXPECT_FALSE(json_);
  EXPECT_EQ(batch_, 5);
}

TEST_F(CommandLineTest, ABooleanTakesTheUsualTexts) {
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

TEST_F(CommandLineTest, NamesOfCommandsAreWordsBehindTheCommand) {
  const auto call = Parse({"ops", "install", "install", "bench"});
  ASSERT_TRUE(call.ok()) << call.status();
  EXPECT_THAT(call->words, ElementsAre("install", "bench"));
}

TEST_F(CommandLineTest, HelpAndVersionInTheUsualForms) {
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

TEST_F(CommandLineTest, TheFlagCountsForMoreThanTheEnvironment) {
  setenv(kVariable, "far:2", 1);
  ASSERT_TRUE(Parse({"bench", "--server=flag:3"}).ok());
  EXPECT_EQ(server_, "flag:3");
}

TEST_F(CommandLineTest, TheEnvironmentCountsForMoreThanTheDefault) {
  setenv(kVariable, "far:2", 1);
  ASSERT_TRUE(Parse({"bench"}).ok());
  EXPECT_EQ(server_, "far:2");
}

TEST_F(CommandLineTest, TimesAreRoundedUp) {
  ASSERT_TRUE(Parse({"bench", "--timeout=1500us"}).ok());
  EXPECT_EQ(timeout_, std::chrono::milliseconds(2));
}

// Each line is parsed once by a program of its own.
class WrongLineTest
    : public CommandLineTest,
      public ::testing::WithParamInterface<std::pair<std::vector<std::string>, const char*>> {};

TEST_P(WrongLineTest, IsRefusedWithWhatIsWrong) {
  const auto& [arguments, expected] = GetParam();
  EXPECT_THAT(ErrorOf(arguments), HasSubstr(expected));
}

INSTANTIATE_TEST_SUITE_P(
    CommandLine, WrongLineTest,
    ::testing::ValuesIn(std::vector<std::pair<std::vector<std::string>, const char*>>{
        {{}, "ctl needs a command. Fix: one of bench ops flux"},
        {{"--json"}, "ctl needs a command"},
        {{"bnch"}, "ctl has no command 'bnch'. Fix: did you mean bench?"},
        {{"x", "bench"}, "ctl has no command 'x'"},
        {{"flux"}, "ctl flux needs a command"},
        {{"flux", "fly", "x"}, "ctl flux has no command 'fly'"},
        {{"ops", "add", "install", "x"}, "ctl ops has no command 'add'"},
        {{"ops", "instal", "x"}, "did you mean install?"},
        {{"bench", "now"}, "ctl bench takes no words, and was given 'now'"},
        {{"ops", "install"}, "ctl ops install takes NAME [FILE]..., and was given 0 words"},
        {{"flux", "run", "a", "b"}, "ctl flux run takes FILE, and was given 2 words"},
        {{"--sever=x", "bench"}, "ctl bench has no flag --sever. Fix: did you mean --server?"},
        {{"bench", "--zzzzzzzz"}, "has no flag --zzzzzzzz. Fix: ctl bench --help"},
        {{"bench", "-x"}, "ctl bench has no flag -x"},
        {{"bench", "--wait=active"}, "Fix: it is a flag of ctl ops install"},
        {{"bench", "--flagfile=/etc/passwd"}, "has no flag --flagfile"},
        {{"bench", "--version"}, "ctl bench has no flag --version"},
        {{"bench", "--server"}, "flag --server has no value. Fix: --server=VALUE"},
        {{"bench", "--batch=many"}, "--batch cannot be 'many'"},
        {{"bench", "--batch=0"}, "--batch cannot be '0'. Fix: give 1 to 100"},
        {{"bench", "--batch", "-1"}, "--batch cannot be '-1'"},
        {{"bench", "--batch=4294967297"}, "--batch cannot be"},
        {{"bench", "--timeout=soon"}, "--timeout cannot be 'soon'. Fix: give at most 1h"},
        {{"bench", "--timeout=inf"}, "--timeout cannot be 'inf'"},
        {{"bench", "--ratio=nan"}, "--ratio cannot be 'nan'. Fix: give at least 0"},
        {{"bench", "--device=x"}, "--device cannot be 'x'"},
        {{"bench", "--json=maybe"}, "--json cannot be 'maybe'"},
        {{"ops", "install", "x", "--wait=never"},
         "--wait cannot be 'never'. Fix: give staged or active"},
    }));

TEST_F(CommandLineTest, HelpNamesEveryFlagWithItsDefault) {
  const std::string text = (*program_.Find({"ops"}))->HelpText();
  EXPECT_THAT(text, HasSubstr("Usage: ctl ops [COMMAND] [NAME] [--FLAG=VALUE]..."));
  EXPECT_THAT(text, HasSubstr("install NAME [FILE]...  a new version"));
  EXPECT_THAT(text, HasSubstr("--wait  until when (default staged)"));
  EXPECT_THAT(text, HasSubstr(std::string("where; without it $") + kVariable));
  EXPECT_FALSE(program_.Find({"ops", "list"}).ok());
}

}  // namespace
}  // namespace resident
