// flux: assemble, disassemble and run FLUX programs. (check is flux_check.cc.)
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/cli/common_options.h"
#include "client/cli/format.h"
#include "client/cli/output.h"
#include "client/cli/values.h"
#include "client/commands/command.h"
#include "client/commands/flux_text.h"
#include "runtime/base/status_macros.h"
#include "runtime/flux/assembler.h"
#include "runtime/flux/instruction_table.h"

namespace resident::cli {
namespace {

struct FluxRunOptions {
  std::string op;
  OpVersion op_version;
  std::string initial;
  std::string registers;
  std::optional<uint64_t> max_cycles;
  std::string unknown_opcode = "error";
  std::optional<uint32_t> device;
};

std::string ToHex(const flux::Bytecode& code) {
  return absl::BytesToHexString({reinterpret_cast<const char*>(code.data()), code.size()});
}

int Assemble(const std::string& path, const std::string& out) {
  std::string text;
  if (absl::Status status = ReadFile(path, &text); !status.ok()) return UsageError(status);
  absl::StatusOr<flux::Bytecode> code = AssembleFile(path, text);
  if (!code.ok()) return UsageError(code.status());
  if (!out.empty()) {
    absl::Status status =
        WriteFile(out, {reinterpret_cast<const char*>(code->data()), code->size()});
    if (!status.ok()) return UsageError(status);
  }
  if (Common().json) {
    PrintJson({{"bytecode", ToHex(*code)}, {"bytes", code->size()}});
  } else if (out.empty()) {
    Print(absl::StrCat(ToHex(*code), "\n"));
  }
  return kExitOk;
}

int Disassemble(const std::string& path, const std::string& out) {
  std::string bytes;
  if (absl::Status status = ReadFile(path, &bytes); !status.ok()) return UsageError(status);
  const flux::Bytecode code =
      IsHex(bytes) ? FromHex(bytes) : flux::Bytecode(bytes.begin(), bytes.end());
  const std::string text = flux::Disassemble(code);
  if (!out.empty()) {
    if (absl::Status status = WriteFile(out, text); !status.ok()) return UsageError(status);
  }
  if (Common().json) {
    PrintJson({{"assembly", text}, {"bytes", code.size()}});
  } else if (out.empty()) {
    Print(text);
  }
  return kExitOk;
}

template <typename T>
absl::StatusOr<std::vector<T>> ParseList(std::string_view flag, const std::string& text, T low,
                                         T high) {
  std::vector<T> values;
  ASSIGN_OR_RETURN(
      const std::vector<std::string_view> items,
      SplitList(text, absl::StrCat("--", absl::string_view(flag.data(), flag.size()))));
  for (const std::string_view item : items) {
    const absl::string_view word(item.data(), item.size());
    T value;
    if (!absl::SimpleAtoi(word, &value) || value < low || value > high) {
      return absl::InvalidArgumentError(
          absl::StrCat("--", absl::string_view(flag.data(), flag.size()), ": '", word,
                       "' is not an integer from ", low, " to ", high,
                       ". Fix: give integers separated by commas, for example --",
                       absl::string_view(flag.data(), flag.size()), "=1,2"));
    }
    values.push_back(value);
  }
  return values;
}

// Runs the program once, or (null) the program of --operator.
int Execute(const flux::Bytecode* program, const FluxRunOptions& options) {
  absl::StatusOr<std::vector<int32_t>> initial =
      ParseList<int32_t>("initial", options.initial, INT32_MIN, INT32_MAX);
  if (!initial.ok()) return UsageError(initial.status());
  if (initial->size() > 16) {
    return UsageError("--initial has more than 16 registers. Fix: give at most 16");
  }
  absl::StatusOr<std::vector<uint32_t>> wanted =
      ParseList<uint32_t>("registers", options.registers, 0, 15);
  if (!wanted.ok()) return UsageError(wanted.status());
  if (wanted->empty()) {
    for (uint32_t i = 0; i < 16; ++i) wanted->push_back(i);
  }
  client::FluxBatch batch;
  batch.Wanted(*wanted).Runs(1);
  if (options.max_cycles.has_value()) batch.MaxCycles(*options.max_cycles);
  if (program == nullptr) {
    batch.Operator(options.op, options.op_version.version)
        .ContentHash(options.op_version.content_hash)
        .Label(options.op_version.label);
  } else {
    batch.Program(*program);
  }
  if (!initial->empty()) batch.Inputs(*initial, static_cast<uint32_t>(initial->size()));
  if (options.unknown_opcode == "nop") batch.UnknownOpcodeIsNop();
  if (options.device.has_value()) batch.set_device(*options.device);

  absl::StatusOr<std::unique_ptr<client::Client>> client = Connect();
  if (!client.ok()) return CallError(client.status());
  absl::StatusOr<client::Result> result = (*client)->Run(batch);
  if (!result.ok()) return CallError(result.status());
  if (!result->ok()) return TaskError(result->status());
  if (result->registers().size() != wanted->size() || result->cycles().size() != 1) {
    return CallError(absl::InternalError("the server's result is incomplete"));
  }
  const uint32_t error = result->flux_errors().empty() ? 0 : result->flux_errors()[0];
  const std::string error_name(flux::ErrorName(error));
  const uint32_t cycles = result->cycles()[0];
  if (Common().json) {
    Json registers = Json::object();
    for (size_t i = 0; i < wanted->size(); ++i) {
      registers[absl::StrCat("R", (*wanted)[i])] = result->registers()[i];
    }
    PrintJson({{"registers", registers},
               {"error", error},
               {"error_name", error_name},
               {"cycles", cycles},
               {"version", result->version()},
               {"device", result->device()}});
  } else {
    Table table({}, {Table::kLeft, Table::kRight});
    for (size_t i = 0; i < wanted->size(); ++i) {
      table.Add({absl::StrCat("R", (*wanted)[i]), absl::StrCat(result->registers()[i])});
    }
    Print(table.ToString());
    Print(absl::StrCat(
        program == nullptr ? absl::StrCat(options.op, " version ", result->version(), ", ") : "",
        "error ", error, " (", error_name, "), ", FormatExact(cycles), " cycles, device ",
        result->device(), "\n"));
  }
  return error == 0 ? kExitOk : kExitFailed;
}

int RunProgram(const Words& words, const FluxRunOptions& options) {
  if (words.empty() == options.op.empty()) {
    return UsageError(
        "residentctl flux run takes a FILE, or --operator in place of a FILE. Fix: "
        "give one of them");
  }
  if (words.empty()) return Execute(nullptr, options);
  std::string text;
  if (absl::Status status = ReadFile(words[0], &text); !status.ok()) return UsageError(status);
  const absl::StatusOr<flux::Bytecode> program = ReadFluxProgram(words[0], text);
  return program.ok() ? Execute(&*program, options) : UsageError(program.status());
}

}  // namespace

void AddFlux(Command& program) {
  Command& flux = program.Add(
      "flux", "assemble, disassemble, run and check FLUX programs",
      "FILE may be - for stdin. asm prints bytecode as hex, or writes it raw to --out. disasm\n"
      "accepts hex or raw bytecode. run accepts assembly or hex and prints registers, error and\n"
      "cycles; exit status 1 if the program ended with an error. check runs test vectors (one\n"
      "JSON object per line: name, bytecode in hex, optional initial, max_cycles,\n"
      "unknown_opcode; expected registers, error, cycles) through the daemon, prints each\n"
      "difference and `N passed, N failed`; exit status 1 if any failed.\n");
  auto out = std::make_shared<std::string>();
  Command& assemble = flux.Add("asm", "convert assembly to bytecode");
  AddOutFlag(assemble, out.get());
  assemble.Run("FILE", [out](const Words& words) { return Assemble(words[0], *out); });
  Command& disassemble = flux.Add("disasm", "convert bytecode to assembly");
  AddOutFlag(disassemble, out.get());
  disassemble.Run("FILE", [out](const Words& words) { return Disassemble(words[0], *out); });

  auto options = std::make_shared<FluxRunOptions>();
  Command& run = flux.Add("run", "run a program once");
  run.Flag("operator", &options->op, "an installed program, in place of FILE");
  AddOpVersionFlags(run, &options->op_version);
  run.Flag("initial", &options->initial, "initial registers from R0 on, for example 5,-3");
  run.Flag("registers", &options->registers,
           "registers to print, for example 0,1; default: all 16");
  run.Flag("max_cycles", &options->max_cycles,
           "instructions that may execute; the server's default is 1,000,000");
  run.Flag("unknown_opcode", &options->unknown_opcode,
           "effect of an opcode outside the instruction set: error or nop",
           {.one_of = {"error", "nop"}});
  AddDeviceFlag(run, &options->device);
  run.Run("[FILE]", [options](const Words& words) { return RunProgram(words, *options); });
  AddFluxCheck(flux);
}

}  // namespace resident::cli
