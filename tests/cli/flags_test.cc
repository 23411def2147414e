// The command line as residentctl reads it.
#include "client/cli/flags.h"

#include <cstdlib>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace resident::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::StatusOr<CommandLine> Parse(std::vector<std::string> arguments) {
  return ParseCommandLine(arguments);
}

std::string ErrorOf(std::vector<std::string> arguments) {
  return std::string(Parse(std::move(arguments)).status().message());
}

class FlagsTest : public ::testing::Test {
 protected:
  ~FlagsTest() override {
    absl::SetFlag(&FLAGS_server, "");
    absl::SetFlag(&FLAGS_json, false);
    absl::SetFlag(&FLAGS_timeout, absl::Seconds(60));
    unsetenv("RESIDENTD_SERVER");
  }
};

TEST_F(FlagsTest, FlagsAndWordsMayBeMixed) {
  auto line = Parse({"--json", "status", "--server=host:1", "more", "--timeout", "5s"});
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_THAT(line->words, ElementsAre("status", "more"));
  EXPECT_THAT(line->flags, ElementsAre("json", "server", "timeout"));
  EXPECT_TRUE(absl::GetFlag(FLAGS_json));
  EXPECT_EQ(absl::GetFlag(FLAGS_server), "host:1");
  EXPECT_EQ(absl::GetFlag(FLAGS_timeout), absl::Seconds(5));
}

TEST_F(FlagsTest, ABooleanTakesNoWordAndCanBeDenied) {
  ASSERT_TRUE(Parse({"--json", "status"}).ok());
  auto line = Parse({"--nojson", "status"});
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_FALSE(absl::GetFlag(FLAGS_json));
  EXPECT_THAT(line->words, ElementsAre("status"));
}

TEST_F(FlagsTest, NegativeNumbersAndDashAreWords) {
  auto line = Parse({"run", "-5", "-.5", "-"});
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_THAT(line->words, ElementsAre("run", "-5", "-.5", "-"));
}

TEST_F(FlagsTest, TwoDashesEndTheFlags) {
  auto line = Parse({"ops", "--", "--json"});
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_THAT(line->words, ElementsAre("ops", "--json"));
  EXPECT_FALSE(absl::GetFlag(FLAGS_json));
}

TEST_F(FlagsTest, HelpAndVersionInTheUsualForms) {
  EXPECT_TRUE(Parse({"--help"})->help);
  EXPECT_TRUE(Parse({"bench", "-h"})->help);
  EXPECT_THAT(Parse({"--version"})->words, ElementsAre("version"));
}

TEST_F(FlagsTest, AnUnknownFlagNamesTheNearest) {
  EXPECT_THAT(ErrorOf({"--sever=x"}), HasSubstr("did you mean --server?"));
  EXPECT_THAT(ErrorOf({"--zzzzzzzz"}), HasSubstr("unknown flag --zzzzzzzz"));
  EXPECT_THAT(ErrorOf({"-x"}), HasSubstr("unknown flag -x"));
}

TEST_F(FlagsTest, FlagsOfLibrariesAreNotOurs) {
  EXPECT_THAT(ErrorOf({"--flagfile=/etc/passwd"}), HasSubstr("unknown flag --flagfile"));
}

TEST_F(FlagsTest, AMissingOrMalformedValueIsRefused) {
  EXPECT_THAT(ErrorOf({"--server"}), HasSubstr("has no value"));
  EXPECT_THAT(ErrorOf({"--timeout=soon"}), HasSubstr("--timeout cannot be 'soon'"));
}

TEST_F(FlagsTest, AFlagOfAnotherCommandIsRefused) {
  CommandLine line;
  line.flags = {"json", "quick"};
  const std::string_view none[] = {"once"};
  const std::string_view quick[] = {"quick"};
  EXPECT_THAT(std::string(CheckFlags(line, none, "top").message()),
              HasSubstr("residentctl top has no flag --quick"));
  EXPECT_TRUE(CheckFlags(line, quick, "bench").ok());
}

TEST_F(FlagsTest, TheServerIsTheFlagThenTheEnvironmentThenLoopback) {
  EXPECT_EQ(ServerAddress(), "127.0.0.1:50051");
  setenv("RESIDENTD_SERVER", "far:2", 1);
  EXPECT_EQ(ServerAddress(), "far:2");
  absl::SetFlag(&FLAGS_server, "near:3");
  EXPECT_EQ(ServerAddress(), "near:3");
}

}  // namespace
}  // namespace resident::cli
