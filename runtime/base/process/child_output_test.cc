#include "runtime/base/process/child_output.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/refuse_calls.h"

namespace resident {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Le;
using ::testing::SizeIs;

// Returns the lines that are reported for the printed texts.
std::vector<std::string> ReportedLines(const std::vector<std::string>& printed) {
  std::vector<std::string> lines;
  auto output = ChildOutput::Create("child: ", [&](const std::string& line) {
    lines.push_back(line);  // `lines` is read only after the thread has ended.
  });
  EXPECT_TRUE(output.ok()) << output.status();
  for (const std::string& text : printed) {
    EXPECT_EQ(write((*output)->child_end(), text.data(), text.size()),
              static_cast<ssize_t>(text.size()));
  }
  output->reset();
  return lines;
}

TEST(ChildOutputTest, EachLineIsMarked) {
  EXPECT_THAT(ReportedLines({"one\ntwo", " and more\nresidentd: forged\nno end"}),
              ElementsAre("child: one", "child: two and more", "child: residentd: forged",
                          "child: no end"));
  EXPECT_THAT(ReportedLines({}), ElementsAre());
}

TEST(ChildOutputTest, ControlCharactersAreReplaced) {
  EXPECT_THAT(ReportedLines({"\x1b[2J\rresidentd: forged\xff\n"}),
              ElementsAre("child: ?[2J?residentd: forged\xef\xbf\xbd"));
}

TEST(ChildOutputTest, ALongLineIsCut) {
  const auto lines = ReportedLines({std::string(5000, 'x'), "y\nz\n"});
  EXPECT_THAT(lines,
              ElementsAre("child: " + std::string(ChildOutput::kMaxLineBytes, 'x'), "child: z"));
}

TEST(ChildOutputTest, LinesAboveTheRateAreDropped) {
  std::string flood;
  for (int i = 0; i < 20'000; ++i) flood += "\n";  // Less than the capacity of a pipe.
  const auto lines = ReportedLines({flood});
  // While the flood is read, more lines may be allowed; reading takes less than two seconds.
  EXPECT_THAT(lines, SizeIs(Le(ChildOutput::kBurstLines + 2 * ChildOutput::kLinesPerSecond)));
  EXPECT_THAT(lines.back(), HasSubstr(" lines were dropped)"));
}

TEST(ChildOutputTest, DestructionDoesNotWaitForAnotherHolderOfThePipe) {
  auto output = ChildOutput::Create("child: ", [](const std::string&) {});
  ASSERT_TRUE(output.ok()) << output.status();
  const int held = dup((*output)->child_end());
  output->reset();
  close(held);
}

// The system refuses a thread, a pipe or the descriptor that ends the thread.
TEST(ChildOutputTest, WhatCannotBeCreatedIsAnErrorAndLeavesNoDescriptor) {
  const auto descriptors = [] {
    const std::filesystem::directory_iterator all("/proc/self/fd");
    return std::distance(begin(all), end(all));
  };
  for (const std::vector<int>& calls :
       {std::vector<int>{SYS_clone, SYS_clone3}, {SYS_pipe2}, {SYS_eventfd2}}) {
    SCOPED_TRACE(calls[0]);
    bool refused = false;
    absl::Status status;
    const auto before = descriptors();
    std::thread([&] {
      refused = testing::RefuseCalls(calls);
      if (refused) status = ChildOutput::Create("child: ").status();
    }).join();
    if (!refused) GTEST_SKIP() << "this kernel has no seccomp filters";
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("Fix: "));
    EXPECT_EQ(descriptors(), before);
  }
}

}  // namespace
}  // namespace resident
