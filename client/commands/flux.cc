// flux: assemble, disassemble and run FLUX programs. (check is flux_check.cc.)
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/cli/exit_codes.h"
#include "client/cli/flags.h"
#include "client/cli/format.h"
#include "client/cli/output.h"
#include "client/cli/table.h"
#include "client/commands/command.h"
#include "client/commands/flux_check.h"
#include "client/commands/flux_text.h"
#include "client/commands/shared_flags.h"
#include "runtime/flux/assembler.h"
#include "runtime/flux/disassembler.h"
#include "runtime/flux/instruction_table.h"

ABSL_FLAG(std::string, operator, "", "run: an installed program, in place of FILE");
ABSL_FLAG(std::string, initial, "", "run: initial registers from R0 on, as in 5,-3");
ABSL_FLAG(std::string, registers, "", "run: registers to print, as in 0,1; without it all 16");
ABSL_FLAG(std::optional<uint64_t>, max_cycles, std::nullopt,
          "run: instructions that may execute; the server's default is 1,000,000");
ABSL_FLAG(std::string, unknown_opcode, "error",
          "run: what an opcode outside the instruction set does: error or nop");

namespace resident::cli {
namespace {

constexpr std::string_view kUsage =
    "residentctl flux asm FILE | disasm FILE | run FILE | run --operator NAME | check FILE";

std::string ToHex(const flux::Bytecode& code) {
  return absl::BytesToHexString({reinterpret_cast<const char*>(code.data()), code.size()});
}

int Assemble(const std::string& path, const std::string& text) {
  absl::StatusOr<flux::Bytecode> code = AssembleFile(path, text);
  if (!code.ok()) return UsageError(code.status());
  const std::string out = absl::GetFlag(FLAGS_out);
  if (!out.empty()) {
    absl::Status status =
        WriteFile(out, {reinterpret_cast<const char*>(code->data()), code->size()});
    if (!status.ok()) return UsageError(status);
  }
  if (absl::GetFlag(FLAGS_json)) {
    PrintJson({{"bytecode", ToHex(*code)}, {"bytes", code->size()}});
  } else if (out.empty()) {
    Print(absl::StrCat(ToHex(*code), "\n"));
  }
  return kExitOk;
}

int Disassemble(const std::string& bytes) {
  const flux::Bytecode code =
      IsHex(bytes) ? FromHex(bytes) : flux::Bytecode(bytes.begin(), bytes.end());
  const std::string text = flux::Disassemble(code);
  const std::string out = absl::GetFlag(FLAGS_out);
  if (!out.empty()) {
    if (absl::Status status = WriteFile(out, text); !status.ok()) return UsageError(status);
  }
  if (absl::GetFlag(FLAGS_json)) {
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
  for (absl::string_view word : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    T value;
    if (!absl::SimpleAtoi(absl::StripAsciiWhitespace(word), &value) || value < low ||
        value > high) {
      return absl::InvalidArgumentError(
          absl::StrCat("--", absl::string_view(flag.data(), flag.size()), ": '", word,
                       "' is no integer from ", low, " to ", high, ". Fix: as in --",
                       absl::string_view(flag.data(), flag.size()), "=1,2"));
    }
    values.push_back(value);
  }
  return values;
}

// One run of the program, or (null) of --operator.
int Execute(const flux::Bytecode* program) {
  absl::StatusOr<std::vector<int32_t>> initial =
      ParseList<int32_t>("initial", absl::GetFlag(FLAGS_initial), INT32_MIN, INT32_MAX);
  if (!initial.ok()) return UsageError(initial.status());
  if (initial->size() > 16) return UsageError("--initial has more than 16 registers");
  absl::StatusOr<std::vector<uint32_t>> wanted =
      ParseList<uint32_t>("registers", absl::GetFlag(FLAGS_registers), 0, 15);
  if (!wanted.ok()) return UsageError(wanted.status());
  if (wanted->empty()) {
    for (uint32_t i = 0; i < 16; ++i) wanted->push_back(i);
  }
  const std::string unknown = absl::GetFlag(FLAGS_unknown_opcode);
  if (unknown != "error" && unknown != "nop") {
    return UsageError(absl::StrCat("--unknown_opcode cannot be '", unknown, "'"), "error or nop");
  }
  client::FluxBatch batch;
  batch.Wanted(*wanted).Runs(1);
  if (const auto cycles = absl::GetFlag(FLAGS_max_cycles)) batch.MaxCycles(*cycles);
  if (program == nullptr) {
    batch.Operator(absl::GetFlag(FLAGS_operator), absl::GetFlag(FLAGS_op_version));
  } else {
    batch.Program(*program);
  }
  if (!initial->empty()) batch.Inputs(*initial, static_cast<uint32_t>(initial->size()));
  if (unknown == "nop") batch.UnknownOpcodeIsNop();
  if (const auto device = absl::GetFlag(FLAGS_device).index) batch.set_device(*device);

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
  if (absl::GetFlag(FLAGS_json)) {
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
    const std::string installed = absl::GetFlag(FLAGS_operator);
    Print(absl::StrCat(
        program == nullptr ? absl::StrCat(installed, " version ", result->version(), ", ") : "",
        "error ", error, " (", error_name, "), ", FormatExact(cycles), " cycles, device ",
        result->device(), "\n"));
  }
  return error == 0 ? kExitOk : kExitFailed;
}

}  // namespace

int RunFlux(const std::vector<std::string>& words) {
  const std::string action = words.empty() ? "" : words[0];
  if (action != "asm" && action != "disasm" && action != "run" && action != "check") {
    return UsageError(
        action.empty() ? "flux needs an action" : absl::StrCat("flux cannot '", action, "'"),
        kUsage);
  }
  if (action == "run" && !absl::GetFlag(FLAGS_operator).empty()) {
    if (words.size() != 1) return UsageError("--operator is run in place of a FILE", kUsage);
    return Execute(nullptr);
  }
  if (words.size() != 2)
    return UsageError(absl::StrCat("flux ", action, " takes one FILE"), kUsage);
  std::string text;
  if (absl::Status status = ReadFile(words[1], &text); !status.ok()) return UsageError(status);
  if (action == "asm") return Assemble(words[1], text);
  if (action == "disasm") return Disassemble(text);
  if (action == "run") {
    const absl::StatusOr<flux::Bytecode> program = ReadFluxProgram(words[1], text);
    return program.ok() ? Execute(&*program) : UsageError(program.status());
  }
  return CheckVectors(words[1], text);
}

}  // namespace resident::cli
