// TempFolder: an empty folder that is removed with the object.
//
//   const TempFolder folder("journal");
//   Open(folder.path() + "/journal");
#ifndef RESIDENT_TESTS_SUPPORT_TEMP_FOLDER_H_
#define RESIDENT_TESTS_SUPPORT_TEMP_FOLDER_H_

#include <stdlib.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <system_error>

#include "tests/support/eventually.h"

namespace resident::testing {

class TempFolder {
 public:
  // $TEST_TMPDIR, which Bazel removes even if the test is killed, or the system's temporary
  // folder.
  static std::string Root() {
    const char* const bazel = getenv("TEST_TMPDIR");
    return bazel != nullptr ? bazel : std::filesystem::temp_directory_path().string();
  }

  // Creates a folder in `root` whose name begins with `name`.
  explicit TempFolder(const std::string& name, const std::string& root = Root())
      : path_(root + "/" + name + ".XXXXXX") {
    if (mkdtemp(path_.data()) != nullptr) return;
    std::perror(path_.c_str());
    std::abort();
  }
  // Retries, since processes that were just killed may still write.
  ~TempFolder() {
    Eventually([this] {
      std::error_code error;
      std::filesystem::remove_all(path_, error);
      return !error;
    });
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace resident::testing

#endif  // RESIDENT_TESTS_SUPPORT_TEMP_FOLDER_H_
