// ops install: a version from source, an expression, a FLUX program or an object.
#include <filesystem>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/cli/example_file.h"
#include "client/cli/exit_codes.h"
#include "client/cli/flags.h"
#include "client/cli/output.h"
#include "client/cli/source_notes.h"
#include "client/commands/command.h"
#include "client/commands/flux_text.h"
#include "client/commands/ops.h"
#include "client/commands/ops_text.h"
#include "client/operators.h"
#include "runtime/base/status_macros.h"
#include "runtime/compile/expression/expression.h"
#include "runtime/model/signature.h"

ABSL_FLAG(std::string, expr, "", "install: an element-wise expression, as in 'x * sigmoid(x)'");
ABSL_FLAG(std::string, flux, "", "install: a file with a FLUX program, assembly or hex");
ABSL_FLAG(std::string, object, "", "install: a file with PTX or a relocatable cubin");
ABSL_FLAG(std::string, signature, "",
          "install: the parameters; without it, what the source says after '// signature:'");
ABSL_FLAG(std::string, split, "",
          "install: how a task is split, as in 'out 4096'; without it, '// split:'");
ABSL_FLAG(std::string, summary, "", "install: a line about it; without it, '// summary:'");
ABSL_FLAG(std::string, example, "", "install: files with examples (JSON), separated by commas");
ABSL_FLAG(std::string, wait, "staged",
          "install: validated (nothing is kept), staged, or active (it serves at once)");
ABSL_FLAG(absl::Duration, task_time, absl::ZeroDuration(),
          "install: a task that runs longer is a hang; 0s: the daemon's --task_time_limit");
ABSL_FLAG(uint64_t, scratch, 0, "install: bytes of scratch memory that it uses; 0: all there are");
ABSL_FLAG(bool, allow_spills, false, "install: registers beyond the kernel's go to memory");

namespace resident::cli {
namespace {

constexpr std::string_view kUsage =
    "residentctl ops install NAME FILE... | NAME --expr 'x * sigmoid(x)' | NAME --flux FILE | "
    "NAME --object FILE";

absl::Status Usage(const std::string& message) {
  return absl::InvalidArgumentError(absl::StrCat(message, ". Fix: ", std::string(kUsage)));
}

// Reads source files under the names by which they include one another: relative to the
// folder of the first.
absl::StatusOr<client::Installation> FromFiles(const std::string& name,
                                               const std::vector<std::string>& paths) {
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
          absl::StrCat("two files would be called ", file,
                       ". Fix: keep what a source includes in or below its own folder"));
    }
  }
  const SourceNotes notes = ReadSourceNotes(files[main_file]);
  client::Installation installation =
      client::Installation::Source(name, main_file, std::move(files));
  installation.Signature(notes.signature).Split(notes.split).Summary(notes.summary);
  return installation;
}

absl::StatusOr<client::Installation> ReadInstallation(const std::vector<std::string>& words) {
  const std::string& name = words[0];
  const std::string expression = absl::GetFlag(FLAGS_expr);
  const std::string flux_file = absl::GetFlag(FLAGS_flux);
  const std::string object_file = absl::GetFlag(FLAGS_object);
  const int kinds =
      (words.size() > 1) + !expression.empty() + !flux_file.empty() + !object_file.empty();
  if (kinds != 1) return Usage("ops install takes source files, --expr, --flux or --object");
  if (words.size() > 1) return FromFiles(name, {words.begin() + 1, words.end()});
  if (!expression.empty()) return client::Installation::Expression(name, expression);
  std::string contents;
  const std::string& path = flux_file.empty() ? object_file : flux_file;
  RETURN_IF_ERROR(ReadFile(path, &contents));
  if (flux_file.empty()) {
    return client::Installation::Object(name, std::filesystem::path(path).filename().string(),
                                        std::move(contents));
  }
  ASSIGN_OR_RETURN(flux::Bytecode program, ReadFluxProgram(path, contents));
  return client::Installation::Bytecode(
      name, {reinterpret_cast<const char*>(program.data()), program.size()});
}

// The signature by which examples are read.
absl::StatusOr<Signature> SignatureOf(const v1::InstallHeader& header) {
  if (!header.signature().empty()) return Signature::Parse(header.signature());
  if (header.kind_case() == v1::InstallHeader::kExpression) {
    ASSIGN_OR_RETURN(const auto generated,
                     expression::Generate(header.name(), header.expression()));
    return Signature::Parse(generated.signature);
  }
  return absl::InvalidArgumentError(
      "--example needs to know the parameters. Fix: give --signature, or begin the source with "
      "'// signature: x: in f32[*S], out: out f32[*S]'");
}

absl::Status ApplyFlags(client::Installation& installation) {
  if (const std::string text = absl::GetFlag(FLAGS_signature); !text.empty()) {
    installation.Signature(text);
  }
  if (const std::string text = absl::GetFlag(FLAGS_split); !text.empty()) installation.Split(text);
  if (const std::string text = absl::GetFlag(FLAGS_summary); !text.empty()) {
    installation.Summary(text);
  }
  const std::string wait = absl::GetFlag(FLAGS_wait);
  if (wait == "validated") {
    installation.WaitFor(v1::VERSION_STATE_VALIDATED);
  } else if (wait == "staged") {
    installation.WaitFor(v1::VERSION_STATE_STAGED);
  } else if (wait == "active") {
    installation.WaitFor(v1::VERSION_STATE_ACTIVE);
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("--wait cannot be '", wait, "'. Fix: validated, staged or active"));
  }
  const absl::Duration task_time = absl::GetFlag(FLAGS_task_time);
  if (task_time < absl::ZeroDuration() || task_time > absl::Hours(24)) {
    return absl::InvalidArgumentError("--task_time is 0s to 24h. Fix: as in --task_time=100ms");
  }
  installation.TaskTimeLimit(task_time);
  installation.header().mutable_limits()->set_scratch_bytes(absl::GetFlag(FLAGS_scratch));
  installation.header().set_allow_spills(absl::GetFlag(FLAGS_allow_spills));
  if (const auto revision = absl::GetFlag(FLAGS_revision)) installation.ExpectRevision(*revision);
  const std::string paths = absl::GetFlag(FLAGS_example);
  if (paths.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const Signature signature, SignatureOf(installation.header()));
  for (const absl::string_view path : absl::StrSplit(paths, ',', absl::SkipEmpty())) {
    std::string text;
    RETURN_IF_ERROR(ReadFile(std::string(path), &text));
    auto examples = ParseExamples(text, signature);
    if (!examples.ok()) {
      return absl::Status(examples.status().code(),
                          absl::StrCat(path, ": ", examples.status().message()));
    }
    for (client::Example& example : *examples) installation.Add(std::move(example));
  }
  return absl::OkStatus();
}

// What became of it, and what comes next.
std::string ConclusionText(const std::string& name, const v1::InstallResponse& last) {
  switch (last.state()) {
    case v1::VERSION_STATE_VALIDATED:
      return absl::StrCat(name, " would do; nothing was kept\n");
    case v1::VERSION_STATE_ACTIVE:
      return absl::StrCat(name, " version ", last.version(), " serves, revision ", last.revision(),
                          "\nback: residentctl ops rollback ", name, "\n");
    default:
      return absl::StrCat(name, " version ", last.version(), " is staged, revision ",
                          last.revision(), "\nnext: residentctl ops activate ", name, "\n");
  }
}

}  // namespace

int InstallOperator(const std::vector<std::string>& words) {
  if (words.empty()) return UsageError("ops install needs a NAME", kUsage);
  absl::StatusOr<client::Installation> installation = ReadInstallation(words);
  if (!installation.ok()) return UsageError(installation.status());
  if (absl::Status status = ApplyFlags(*installation); !status.ok()) return UsageError(status);
  absl::StatusOr<std::unique_ptr<client::Client>> client = Connect(/*session=*/false);
  if (!client.ok()) return CallError(client.status());
  client::Operators operators(**client);
  const bool json = absl::GetFlag(FLAGS_json);
  const auto done = operators.Install(*installation, [json](const v1::InstallResponse& progress) {
    if (json) {
      PrintJsonLine(ToJson(progress));
      return true;
    }
    Print(ProgressText(progress));
    std::fflush(stdout);
    // What the compilers said, with the lines of the files sent.
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

}  // namespace resident::cli
