// residentd: one program, several roles.
#include <cstdio>
#include <string>
#include <vector>

#include "runtime/base/command_line.h"
#include "runtime/base/completion.h"
#include "runtime/base/mutex_checks.h"
#include "runtime/compile/compile_main.h"
#include "runtime/engine/control/engine_main.h"
#include "server/core/version.h"
#include "server/flags.h"
#include "server/models/model_import.h"
#include "server/operator_setup.h"
#include "server/serve.h"

namespace {

using resident::Command;

constexpr char kDetails[] =
    "Without a GPU, or with --devices=cpu, it runs the same operators on the CPU. It starts\n"
    "`residentd engine` itself, one for each device, `residentd compile`, one for each\n"
    "compilation, and `residentd import`, one for each ONNX model.\n";

int Fail(const absl::Status& status, int exit_code) {
  std::fprintf(stderr, "residentd: %s\n", std::string(status.message()).c_str());
  return exit_code;
}

int PrintHelp(const Command& command) {
  std::fputs(command.HelpText().c_str(), stdout);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  resident::DisableDeadlockSearch();
  const std::string role = argc > 1 ? argv[1] : "";
  if (role == "engine") return resident::EngineMain(argc, argv);
  if (role == "compile") return resident::CompileMain(argc, argv);
  if (role == "import") return resident::ImportMain(argc, argv);

  Command program("residentd", "keeps one kernel resident on a GPU and feeds it work");
  Command& serve = program.Add("serve", "the daemon", kDetails);
  resident::ServeOptions options;
  resident::OperatorOptions operators;
  resident::AddServeFlags(serve, options);
  resident::AddOperatorFlags(serve, operators);
  serve.Run("", [&](const Command::Words&) {
    const absl::Status status = resident::Serve(options, operators);
    if (status.ok()) return 0;
    // Another start would fail in the same way (deploy/systemd/residentd.service).
    return Fail(status, absl::IsInvalidArgument(status) ? 2 : 1);
  });
  program.Add("version", "version of residentd").Alias("--version").Run("", [](const auto&) {
    std::printf("residentd %s\n", resident::kVersion);
    return 0;
  });
  program.Add("help", "shows this help, or that of one command")
      .Run("[COMMAND]...", [&](const Command::Words& words) {
        const absl::StatusOr<const Command*> command = program.Find(words);
        return command.ok() ? PrintHelp(**command) : Fail(command.status(), 2);
      });
  resident::AddCompletionCommand(program);
  resident::AddManualCommand(program, 8);

  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const absl::StatusOr<Command::Call> call = program.Parse(arguments);
  if (!call.ok()) return Fail(call.status(), 2);
  return call->help ? PrintHelp(*call->command) : call->command->RunWith(call->words);
}
