#include "server/port_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_folder.h"

namespace resident {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string Read(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

class PortFileTest : public ::testing::Test {
 protected:
  std::string Path(const std::string& name) const { return folder_.path() + "/" + name; }

  const testing::TempFolder folder_{"port-file"};
};

TEST_F(PortFileTest, IsReplacedAsAWholeAndLeavesNothingElse) {
  ASSERT_TRUE(WritePortFile(Path("ports"), "first, and longer").ok());
  ASSERT_TRUE(WritePortFile(Path("ports"), "second").ok());
  EXPECT_EQ(Read(Path("ports")), "second");
  struct stat info {};
  ASSERT_EQ(stat(Path("ports").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0644u);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_.path()), {}), 1);
}

TEST_F(PortFileTest, SymbolicLinksAreNotFollowed) {
  std::ofstream(Path("victim")) << "precious";
  ASSERT_EQ(symlink(Path("victim").c_str(), Path("ports").c_str()), 0);
  // Where the text was once written first.
  ASSERT_EQ(symlink(Path("victim").c_str(), Path("ports.new").c_str()), 0);
  ASSERT_TRUE(WritePortFile(Path("ports"), "text").ok());
  EXPECT_EQ(Read(Path("victim")), "precious");
  EXPECT_EQ(Read(Path("ports")), "text");
  EXPECT_FALSE(std::filesystem::is_symlink(Path("ports")));
}

TEST_F(PortFileTest, AFolderThatIsNotThereIsAnError) {
  const absl::Status status = WritePortFile(Path("none/ports"), "text");
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("--port_file=" + Path("none/ports")),
                    HasSubstr("No such file or directory"), HasSubstr("Fix: ")));
}

}  // namespace
}  // namespace resident
