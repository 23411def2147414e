// Importers: the processes of a daemon that import a model at the moment.
//
// Thread safety: a pure function.
//
//   for (const pid_t importer : Importers(daemon.pid())) kill(importer, SIGKILL);
#ifndef RESIDENT_TESTS_MODELS_IMPORTERS_H_
#define RESIDENT_TESTS_MODELS_IMPORTERS_H_

#include <sys/types.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"

namespace resident::testing {

inline std::vector<pid_t> Importers(pid_t daemon) {
  std::vector<pid_t> found;
  std::error_code gone;
  const std::filesystem::path tasks = absl::StrCat("/proc/", daemon, "/task");
  for (const auto& task : std::filesystem::directory_iterator(tasks, gone)) {
    std::ifstream children(task.path() / "children");
    for (pid_t child; children >> child;) {
      std::ifstream file(absl::StrCat("/proc/", child, "/cmdline"));
      const std::string line((std::istreambuf_iterator<char>(file)), {});
      if (line.starts_with(std::string("residentd\0import\0", 17))) found.push_back(child);
    }
  }
  return found;
}

}  // namespace resident::testing

#endif  // RESIDENT_TESTS_MODELS_IMPORTERS_H_
