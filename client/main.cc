// residentctl: the command line of residentd.
#include <csignal>
#include <string>
#include <vector>

#include "client/bench/echo_server.h"
#include "client/commands/command.h"
#include "runtime/base/mutex_checks.h"

int main(int argc, char** argv) {
  resident::DisableDeadlockSearch();
  // `residentctl ... | head` ends without an error message.
  std::signal(SIGPIPE, SIG_DFL);
  if (argc == 2 && std::string(argv[1]) == resident::bench::kEchoServerCommand) {
    return resident::bench::RunEchoServer();
  }
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  return resident::cli::Main(arguments);
}
