#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "runtime/operators/install/native_forms.h"
#include "tests/support/temp_folder.h"

namespace resident {
namespace {

TEST(FormQuarantine, SurvivesARestart) {
  const testing::TempFolder folder("quarantine");
  const std::string path = folder.path() + "/native_quarantine";
  {
    FormQuarantine quarantine(path);
    EXPECT_EQ(quarantine.Reason("aa"), "");
    quarantine.Add("aa", "a fault\nin two lines");
    quarantine.Add("bb", "differs");
    quarantine.Add("bb", "differs again");
  }
  const FormQuarantine quarantine(path);
  EXPECT_EQ(quarantine.Reason("aa"), "a fault in two lines");
  EXPECT_EQ(quarantine.Reason("bb"), "differs again");
  EXPECT_EQ(quarantine.Reason("cc"), "");
}

TEST(FormQuarantine, DamagedLinesAreIgnored) {
  const testing::TempFolder folder("quarantine");
  const std::string path = folder.path() + "/native_quarantine";
  std::ofstream(path) << "no-space\n\n leading space\naa reason\n";
  EXPECT_EQ(FormQuarantine(path).Reason("aa"), "reason");
}

TEST(FormQuarantine, DropsTheOldest) {
  FormQuarantine quarantine("");
  for (size_t i = 0; i <= FormQuarantine::kMaxEntries; ++i) {
    quarantine.Add(std::to_string(i), "reason");
  }
  EXPECT_EQ(quarantine.Reason("0"), "");
  EXPECT_EQ(quarantine.Reason("1"), "reason");
}

}  // namespace
}  // namespace resident
