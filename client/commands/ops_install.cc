// ops install: installs a version from source, an expression, a FLUX program or an object.
#include <algorithm>
#include <filesystem>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cli/common_options.h"
#include "client/cli/output.h"
#include "client/cli/values.h"
#include "client/commands/command.h"
#include "client/commands/flux_text.h"
#include "client/commands/ops_text.h"
#include "client/operators.h"
#include "runtime/base/status_macros.h"
#include "runtime/compile/expression/expression.h"
#include "runtime/model/signature.h"
#include "runtime/operator_set/example_file.h"
#include "runtime/operator_set/source_notes.h"

namespace resident::cli {
namespace {

struct InstallFlags {
  std::string expr;
  std::string flux;
  std::string object;
  std::string signature;
  std::string split;
  std::string summary;
  std::string label;
  std::string example;
  std::string wait = "loaded";
  absl::Duration task_time = absl::ZeroDuration();
  uint64_t scratch = 0;
  bool allow_spills = false;
  std::string native = "follows";
  std::string isolation = "default";
  std::optional<uint64_t> revision;
  bool force = false;
};

// Reads source files under the names by which they include one another: relative to the
// folder of the first.
absl::StatusOr<client::Installation> FromFiles(const std::string& name,
                                               const std::vector<std::string>& paths,
                                               const InstallFlags& flags) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::path(paths[0]).parent_path();
  std::map<std::string, std::string> files;
  std::string main_file;
  for (const std::string& path : paths) {
    std::string file = fs::path(path).lexically_normal().lexically_relative(
        folder.empty() ? fs::path(".") : folder.lexically_normal());
    if (path == "-") file = absl::StrCat(name, ".cc");
    if (file.empty() || absl::StartsWith(file, "..")) file = fs::path(path).filename();
    if (main_file.empty()) main_file = file;
    std::string text;
    RETURN_IF_ERROR(ReadFile(path, &text));
    if (!files.emplace(file, std::move(text)).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("two files have the name ", file,
                       ". Fix: keep included files in the folder of the source or below it"));
    }
  }
  const std::string& source = files[main_file];
  const SourceNotes notes = ReadSourceNotes(source);
  if (notes.signature.empty() && flags.signature.empty()) {
    const bool kernel = absl::StrContains(source, "__global__");
    std::string function = name;  // '.' and '-' of a name become '_'.
    std::replace_if(
        function.begin(), function.end(), [](char c) { return c == '.' || c == '-'; }, '_');
    return absl::InvalidArgumentError(absl::StrCat(
        main_file, " has no `// signature:` comment, and --signature is not given",
        kernel ? absl::StrCat("; an operator is a function RESIDENT_OPERATOR(", function,
                              "), not a __global__ kernel")
               : "",
        ". Fix: begin the source with '// signature: x: in f32[*S], out: out f32[*S]' for its "
        "parameters; docs/operators.md describes signatures and sources"));
  }
  client::Installation installation =
      client::Installation::Source(name, main_file, std::move(files));
  installation.Signature(notes.signature).Split(notes.split).Summary(notes.summary);
  return installation;
}

absl::StatusOr<client::Installation> ReadInstallation(const Words& words,
                                                      const InstallFlags& flags) {
  const std::string& name = words[0];
  const int kinds =
      (words.size() > 1) + !flags.expr.empty() + !flags.flux.empty() + !flags.object.empty();
  if (kinds != 1) {
    return absl::InvalidArgumentError(
        "ops install takes source files, --expr, --flux or --object. Fix: give one of: residentctl "
        "ops install NAME FILE..., NAME --expr 'x * sigmoid(x)', NAME --flux FILE, NAME --object "
        "FILE");
  }
  if (words.size() > 1) return FromFiles(name, {words.begin() + 1, words.end()}, flags);
  if (!flags.expr.empty()) return client::Installation::Expression(name, flags.expr);
  std::string contents;
  const std::string& path = flags.flux.empty() ? flags.object : flags.flux;
  RETURN_IF_ERROR(ReadFile(path, &contents));
  if (flags.flux.empty()) {
    return client::Installation::Object(name, std::filesystem::path(path).filename().string(),
                                        std::move(contents));
  }
  ASSIGN_OR_RETURN(flux::Bytecode program, ReadFluxProgram(path, contents));
  return client::Installation::Bytecode(
      name, {reinterpret_cast<const char*>(program.data()), program.size()});
}

// Returns the signature that is needed to parse examples.
absl::StatusOr<Signature> FindSignature(const v1::InstallHeader& header) {
  if (!header.signature().empty()) return Signature::Parse(header.signature());
  if (header.kind_case() == v1::InstallHeader::kExpression) {
    ASSIGN_OR_RETURN(const auto generated,
                     expression::Generate(header.name(), header.expression()));
    return Signature::Parse(generated.signature);
  }
  return absl::InvalidArgumentError(
      "--example needs the signature. Fix: give --signature, or begin the source with "
      "'// signature: x: in f32[*S], out: out f32[*S]'");
}

absl::Status ApplyFlags(const InstallFlags& flags, client::Installation& installation) {
  if (!flags.signature.empty()) installation.Signature(flags.signature);
  if (!flags.split.empty()) installation.Split(flags.split);
  if (!flags.summary.empty()) installation.Summary(flags.summary);
  installation.Label(flags.label);
  installation.WaitFor(flags.wait == "validated" ? v1::VERSION_STATE_VALIDATED
                       : flags.wait == "loaded"  ? v1::VERSION_STATE_LOADED
                                                 : v1::VERSION_STATE_ACTIVE);
  installation.TaskTimeLimit(flags.task_time);
  installation.header().mutable_limits()->set_scratch_bytes(flags.scratch);
  installation.header().set_allow_spills(flags.allow_spills);
  installation.header().set_native(flags.native == "wait"  ? v1::InstallHeader::NATIVE_WAIT
                                   : flags.native == "off" ? v1::InstallHeader::NATIVE_OFF
                                                           : v1::InstallHeader::NATIVE_UNSPECIFIED);
  installation.Isolation(flags.isolation == "trusted"     ? v1::ISOLATION_TRUSTED
                         : flags.isolation == "stoppable" ? v1::ISOLATION_STOPPABLE
                         : flags.isolation == "confined"  ? v1::ISOLATION_CONFINED
                                                          : v1::ISOLATION_UNSPECIFIED);
  if (flags.revision.has_value()) installation.ExpectRevision(*flags.revision);
  if (flags.force) installation.Force();
  if (flags.example.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const Signature signature, FindSignature(installation.header()));
  ASSIGN_OR_RETURN(const std::vector<std::string_view> paths,
                   SplitList(flags.example, "--example"));
  for (const std::string_view word : paths) {
    const std::string path(word);
    std::string text;
    RETURN_IF_ERROR(ReadFile(path, &text));
    auto examples = ParseExamples(text, signature);
    if (!examples.ok()) {
      return absl::Status(examples.status().code(),
                          absl::StrCat(path, ": ", examples.status().message()));
    }
    for (v1::InstallExample& message : *examples) {
      client::Example example;
      example.message() = std::move(message);
      installation.Add(std::move(example));
    }
  }
  return absl::OkStatus();
}

// Returns the result of the install, and the next step.
std::string ConclusionText(const std::string& name, const v1::InstallResponse& last) {
  switch (last.state()) {
    case v1::VERSION_STATE_VALIDATED:
      return absl::StrCat(name, " is valid; nothing was kept\n");
    case v1::VERSION_STATE_ACTIVE:
      return absl::StrCat(name, " version ", last.version(), " serves, revision ", last.revision(),
                          "\nto undo: residentctl ops rollback ", name, "\n");
    default:
      return absl::StrCat(name, " version ", last.version(), " is loaded, revision ",
                          last.revision(), "\nnext: residentctl ops activate ", name, "\n");
  }
}

int Install(const Words& words, const InstallFlags& flags) {
  absl::StatusOr<client::Installation> installation = ReadInstallation(words, flags);
  if (!installation.ok()) return UsageError(installation.status());
  if (absl::Status status = ApplyFlags(flags, *installation); !status.ok()) {
    return UsageError(status);
  }
  Common().timeout = Common().install_timeout();
  absl::StatusOr<std::unique_ptr<client::Client>> client = Connect(/*session=*/false);
  if (!client.ok()) return CallError(client.status());
  client::Operators operators(**client);
  const bool json = Common().json;
  const auto done = operators.Install(*installation, [json](const v1::InstallResponse& progress) {
    if (json) {
      PrintJsonLine(ToJson(progress));
      return true;
    }
    Print(ProgressText(progress));
    std::fflush(stdout);
    // The compilers' output, with line numbers of the files.
    if (progress.state() == v1::VERSION_STATE_REJECTED && !progress.log().empty()) {
      std::fprintf(stderr, "%s%s", progress.log().c_str(),
                   absl::EndsWith(progress.log(), "\n") ? "" : "\n");
    }
    return true;
  });
  if (!done.ok()) return CallError(done.status());
  if (!json) Print(ConclusionText(words[0], *done));
  return kExitOk;
}

}  // namespace

void AddOpsInstall(Command& ops) {
  Command& install = ops.Add("install", "compile a version, validate it on examples and load it");
  auto flags = std::make_shared<InstallFlags>();
  install.Flag("expr", &flags->expr, "an elementwise expression, for example 'x * sigmoid(x)'");
  install.Flag("flux", &flags->flux, "a file with a FLUX program, assembly or hex");
  install.Flag("object", &flags->object, "a file with PTX or a relocatable cubin");
  install.Flag("signature", &flags->signature,
               "the parameters; default: the text after '// signature:' in the source");
  install.Flag("split", &flags->split,
               "how a task is split, for example 'out 4096'; default: the text after '// split:'");
  install.Flag("summary", &flags->summary,
               "a one-line description; default: the text after '// summary:'");
  install.Flag("label", &flags->label,
               "a name under which tasks can run the version; the version that has it loses it");
  install.Flag("example", &flags->example, "files with examples (JSON), separated by commas");
  install.Flag("wait", &flags->wait,
               "state to wait for: validated (nothing is kept), loaded, or active (it serves)",
               {.one_of = {"validated", "loaded", "active"}});
  install.Flag(
      "task_time", &flags->task_time, "time limit of a task; 0s: the daemon's --task_time_limit",
      {.low = absl::ZeroDuration(), .high = absl::Hours(24), .fix = "give 0s to 24h, e.g. 100ms"});
  install.Flag("scratch", &flags->scratch, "bytes of scratch memory that it uses; 0: the maximum");
  install.Flag("allow_spills", &flags->allow_spills,
               "move registers to memory if it needs more than the kernel has");
  install.Flag(
      "native", &flags->native,
      "native code of a FLUX program: follows (in the background), wait (until it serves), "
      "or off (the interpreter runs it)",
      {.one_of = {"follows", "wait", "off"}});
  install.Flag("isolation", &flags->isolation,
               "stoppable (a task that hangs ends alone; refused if the operator does not pass), "
               "trusted (as the compiler makes it), or default (the daemon's --isolation)",
               {.one_of = {"default", "trusted", "stoppable", "confined"}});
  install.Flag("force", &flags->force, "also an operator that the set of --operators_dir lists");
  AddRevisionFlag(install, &flags->revision);
  install.Run("NAME [FILE]...", [flags](const Words& words) { return Install(words, *flags); });
}

}  // namespace resident::cli
