// residentctl: the command line of residentd.
#include <csignal>
#include <string>
#include <vector>

#include "client/commands/command.h"

int main(int argc, char** argv) {
  // `residentctl ... | head` ends quietly.
  std::signal(SIGPIPE, SIG_DFL);
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  return resident::cli::Main(arguments);
}
