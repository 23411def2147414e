#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "runtime/base/status_macros.h"
#include "runtime/compile/call_graph.h"
#include "runtime/compile/inspect.h"
#include "runtime/image/elf_file.h"

namespace resident {
namespace {

// The functions that a unit may call: pure functions of the C library to which compilers
// generate calls or that the SDK's mathematics needs.
const std::set<std::string>& OfferedFunctions() {
  static const auto* const offered = [] {
    auto* const names =
        new std::set<std::string>{"memcpy", "memmove", "memset", "memcmp", "_GLOBAL_OFFSET_TABLE_",
                                  // Of Block::await_arrivals().
                                  "sched_yield"};
    for (const char* function :
         {"acos",  "acosh", "asin",  "asinh",     "atan",      "atan2",  "atanh",     "cbrt",
          "ceil",  "cos",   "cosh",  "copysign",  "erf",       "erfc",   "exp",       "exp2",
          "expm1", "fabs",  "fdim",  "floor",     "fma",       "fmax",   "fmin",      "fmod",
          "frexp", "hypot", "ilogb", "ldexp",     "lgamma",    "llrint", "llround",   "log",
          "log10", "log1p", "log2",  "logb",      "lrint",     "lround", "modf",      "nearbyint",
          "pow",   "rint",  "round", "remainder", "roundeven", "scalbn", "nextafter", "sin",
          "sinh",  "sqrt",  "tan",   "tanh",      "tgamma",    "trunc",  "sincos",    "remquo"}) {
      names->insert(function);
      names->insert(absl::StrCat(function, "f"));
    }
    return names;
  }();
  return *offered;
}

absl::Status CheckHeader(const ElfFile& elf) {
  if (elf.header().e_machine != EM_X86_64 || elf.header().e_type != ET_DYN) {
    return absl::InvalidArgumentError(
        "the object is not a shared object for x86-64. Fix: compile with -shared -fPIC");
  }
  for (const Elf64_Phdr& segment : elf.segments()) {
    if (segment.p_type == PT_TLS) {
      return absl::InvalidArgumentError(
          "the unit has thread_local variables. Fix: use block.memory<T>() or local variables");
    }
    if (segment.p_type == PT_GNU_STACK && (segment.p_flags & PF_X) != 0) {
      return absl::InvalidArgumentError(
          "the unit requires an executable stack. Fix: use no nested functions and no assembly");
    }
  }
  return absl::OkStatus();
}

// Refuses code that would run, and libraries that would be loaded, when the object is loaded.
absl::Status CheckDynamic(const ElfFile& elf) {
  const ElfSection* const dynamic = elf.FindSection(".dynamic");
  if (dynamic == nullptr) return DamagedObject("dynamic section is missing");
  Elf64_Dyn entry;
  for (uint64_t at = 0; ElfFile::Read(dynamic->bytes, at, &entry); at += sizeof(entry)) {
    switch (entry.d_tag) {
      case DT_NULL:
        return absl::OkStatus();
      case DT_INIT:
      case DT_INIT_ARRAY:
      case DT_PREINIT_ARRAY:
      case DT_FINI:
      case DT_FINI_ARRAY:
        return absl::InvalidArgumentError(
            "the unit has code that runs when it is loaded or unloaded: a global object with a "
            "constructor or destructor, or an initializer that is computed. Fix: make it "
            "constexpr, or a local variable");
      case DT_NEEDED:
        return absl::InvalidArgumentError(
            "the unit needs a library. Fix: use the SDK's functions only");
      case DT_TEXTREL:
        return absl::InvalidArgumentError(
            "the unit's code would be patched when it is loaded. Fix: compile with -fPIC");
      default:
        break;
    }
  }
  return absl::OkStatus();
}

absl::Status CheckNames(const ElfFile& elf, const InspectRequest& request, std::string* symbol) {
  std::set<std::string> functions, undefined;
  for (const auto* symbols : {&elf.symbols(), &elf.dynamic_symbols()}) {
    for (const ElfSymbol& found : *symbols) {
      if (found.type == STT_GNU_IFUNC) {
        return absl::InvalidArgumentError(absl::StrCat(
            "'", Demangle(std::string(found.name)),
            "' is chosen by code that runs when the unit is loaded. Fix: use no ifunc attribute "
            "or target_clones"));
      }
    }
  }
  for (const ElfSymbol& found : elf.dynamic_symbols()) {
    if (!found.external()) continue;
    const std::string name(found.name);
    if (!found.defined()) {
      if (OfferedFunctions().count(name) == 0) undefined.insert(name);
    } else if (found.type == STT_FUNC) {
      functions.insert(name);
    }
  }
  if (!undefined.empty()) return RefuseUndefined(undefined);
  ASSIGN_OR_RETURN(const auto entry, FindEntry(request, functions));
  *symbol = entry;
  for (const ElfSymbol& found : elf.dynamic_symbols()) {
    const std::string name(found.name);
    if (found.defined() && found.external() && !IsUnitsOwn(name, *symbol)) {
      return RefuseForeignName(name);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckVariables(const ElfFile& elf) {
  std::set<std::string> variables;
  uint64_t bytes = 0;
  for (const ElfSection& section : elf.sections()) {
    const absl::string_view name(section.name.data(), section.name.size());
    if (absl::StartsWith(name, ".data.rel.ro") || (section.flags & SHF_WRITE) == 0) continue;
    if (absl::StartsWith(name, ".data") || absl::StartsWith(name, ".bss")) bytes += section.size;
  }
  if (bytes == 0) return absl::OkStatus();
  for (const ElfSymbol& symbol : elf.symbols()) {
    if (symbol.type != STT_OBJECT || symbol.section >= elf.sections().size()) continue;
    const std::string_view place = elf.sections()[symbol.section].name;
    if (place == ".data" || place == ".bss") variables.insert(Demangle(std::string(symbol.name)));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "the unit has ", bytes,
      " bytes of variables that outlive a task: ", absl::StrJoin(variables, ", "),
      ". All tasks would share them, at the same time. Fix: for a table of constants write "
      "RESIDENT_CONSTANT(float, kTable, {...}); pass state as a tensor"));
}

// Returns the quoted text after `key` in a line; empty if there is none.
std::string Quoted(absl::string_view line, absl::string_view key) {
  const size_t at = line.find(absl::StrCat(key, ": \""));
  if (at == absl::string_view::npos) return "";
  const absl::string_view rest = line.substr(at + key.size() + 3);
  return std::string(rest.substr(0, rest.find('"')));
}

// Reads GCC's -fcallgraph-info=su: lines
//   node: { title: "symbol" label: "name\nplace\n32 bytes (static)" }
//   edge: { sourcename: "symbol" targetname: "symbol" label: "place" }
absl::StatusOr<uint32_t> FindStackBytes(const std::string& call_graph, const std::string& symbol) {
  CallGraph graph;
  for (const absl::string_view line : absl::StrSplit(call_graph, '\n')) {
    if (absl::StartsWith(line, "node:")) {
      const std::string label = Quoted(line, "label");
      const std::string name = Quoted(line, "title");
      const std::vector<std::string> parts = absl::StrSplit(label, "\\n");
      uint64_t bytes = 0;
      for (const std::string& part : parts) {
        if (!absl::StrContains(part, " bytes (")) continue;
        if (!absl::SimpleAtoi(part.substr(0, part.find(' ')), &bytes)) bytes = UINT32_MAX;
        if (absl::StrContains(part, "dynamic") && !absl::StrContains(part, "bounded")) {
          return absl::InvalidArgumentError(absl::StrCat(
              "'", Demangle(name),
              "' has an array on the stack whose size is known at run time only. Fix: use "
              "block.scratch<T>()"));
        }
      }
      graph.AddFunction(name, bytes);
    } else if (absl::StartsWith(line, "edge:")) {
      const std::string callee = Quoted(line, "targetname");
      const std::string caller = Quoted(line, "sourcename");
      if (callee == "__indirect_call") {
        return absl::InvalidArgumentError(absl::StrCat(
            "'", Demangle(caller),
            "' calls through a pointer: its stack use is unknown. Fix: call functions by name, "
            "or through templates"));
      }
      graph.AddCall(caller, callee);
    }
  }
  ASSIGN_OR_RETURN(const auto stack, graph.ComputeStack(symbol));
  if (stack > kMaxHostStackBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the unit needs ", stack, " bytes of stack; the limit is ", kMaxHostStackBytes,
                     ". Fix: put large arrays into block.scratch<T>()"));
  }
  return static_cast<uint32_t>(stack);
}

}  // namespace

absl::StatusOr<InspectedUnit> InspectSharedObject(const InspectRequest& request) {
  ASSIGN_OR_RETURN(const auto elf, ElfFile::Parse(request.object));
  InspectedUnit unit;
  absl::Status status = CheckHeader(elf);
  if (status.ok()) status = CheckNames(elf, request, &unit.symbol);
  if (status.ok()) status = CheckDynamic(elf);
  if (status.ok()) status = CheckVariables(elf);
  if (!status.ok()) return status;
  uint64_t code = 0;
  for (const ElfSection& section : elf.sections()) {
    if ((section.flags & SHF_EXECINSTR) != 0) code += section.size;
  }
  if (status = CheckCodeBytes(code); !status.ok()) return status;
  unit.resources.code_bytes = static_cast<uint32_t>(code);
  if (!request.call_graph.empty()) {
    ASSIGN_OR_RETURN(const auto stack, FindStackBytes(request.call_graph, unit.symbol));
    unit.resources.stack_bytes = stack;
  }
  return unit;
}

}  // namespace resident
