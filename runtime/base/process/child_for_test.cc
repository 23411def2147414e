// The program that the tests of ChildProcess run. The first argument selects what it does.
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <string>

#include "runtime/base/process/child_process.h"

namespace {

void Write(int fd, const std::string& text) {
  if (write(fd, text.data(), text.size()) != static_cast<ssize_t>(text.size())) _exit(9);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "exit") return atoi(argv[2]);
  if (what == "sleep") {
    while (true) pause();
  }
  if (what == "ready_then_sleep") {  // Writes "ready" to descriptor 3.
    Write(3, "ready\n");
    while (true) pause();
  }
  if (what == "descriptors") {  // Writes the list of its descriptors to descriptor 5.
    std::string list;
    DIR* dir = opendir("/proc/self/fd");
    while (dirent* entry = readdir(dir)) {
      if (entry->d_name[0] == '.' || atoi(entry->d_name) == dirfd(dir)) continue;
      list += std::string(entry->d_name) + " ";
    }
    Write(5, list);
    return 0;
  }
  if (what == "parent") {
    // Starts a grandchild, writes its pid to descriptor 3, and waits to be killed.
    resident::ChildOptions options;
    options.program = argv[0];
    options.arguments = {argv[0], "sleep"};
    auto grandchild = resident::ChildProcess::Spawn(options);
    if (!grandchild.ok()) return 8;
    Write(3, std::to_string((*grandchild)->pid()) + "\n");
    while (true) pause();
  }
  fprintf(stderr, "child_for_test: unknown argument '%s'\n", what.c_str());
  return 2;
}
