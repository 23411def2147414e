// residentd: one program, several roles.
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "runtime/compile/compile_main.h"
#include "runtime/engine/control/engine_main.h"
#include "server/flags.h"
#include "server/operator_flags.h"
#include "server/rpc/version.h"
#include "server/serve.h"

namespace {

constexpr char kUsage[] =
    "residentd keeps one kernel resident on a GPU and feeds it work.\n\n"
    "  residentd serve [flags]   the daemon; `residentd serve --help` lists the flags\n"
    "  residentd version\n"
    "  residentd help\n\n"
    "(residentd starts `residentd engine` itself, one for each device, and `residentd compile`,\n"
    "one for each compilation.)\n";

int RunServe(int argc, char** argv) {
  absl::SetProgramUsageMessage("the daemon\n\n  residentd serve [flags]");
  const std::vector<char*> rest = absl::ParseCommandLine(argc, argv);
  absl::Status status =
      rest.size() > 1 ? absl::InvalidArgumentError(std::string("'") + rest[1] +
                                                   "' is no flag. Fix: residentd serve --help")
                      : absl::OkStatus();
  absl::StatusOr<resident::ServeOptions> options = resident::ReadServeFlags();
  if (status.ok()) status = options.status();
  absl::StatusOr<resident::OperatorOptions> operators = resident::ReadOperatorFlags();
  if (status.ok()) status = operators.status();
  if (status.ok()) status = resident::Serve(*options, *operators);
  if (status.ok()) return 0;
  std::fprintf(stderr, "residentd: %s\n", std::string(status.message()).c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string role = argc > 1 ? argv[1] : "help";
  if (role == "serve") return RunServe(argc - 1, argv + 1);
  if (role == "engine") return resident::EngineMain(argc, argv);
  if (role == "compile") return resident::CompileMain(argc, argv);
  if (role == "version" || role == "--version") {
    std::printf("residentd %s\n", resident::kVersion);
    return 0;
  }
  const bool asked = role == "help" || role == "--help";
  std::fputs(kUsage, asked ? stdout : stderr);
  return asked ? 0 : 2;
}
