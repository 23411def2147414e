#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/resident/kernel_parameters.h"
#include "runtime/base/status_macros.h"
#include "runtime/compile/call_graph.h"
#include "runtime/compile/inspect.h"
#include "runtime/image/cubin.h"
#include "runtime/image/elf_file.h"

namespace resident {
namespace {

constexpr uint16_t kMachineCuda = 190;
// From this ABI version on, the second byte of the flags is the architecture.
constexpr uint8_t kAbiVersion13 = 8;
// Types of symbols: functions are STT_FUNC; variables have a type of their own.
constexpr uint8_t kSymbolVariable = 13;

// .nv.callgraph is pairs of symbol indices in four parts, each opened by (0, part):
// caller and callee; a function whose address is taken, and its prototype; a caller
// through a pointer, and the prototype; a function, and one whose address it takes.
constexpr int32_t kDirectCalls = -1;
constexpr int32_t kAddressTaken = -2;
constexpr int32_t kIndirectCalls = -3;
constexpr int32_t kTakesAddress = -4;

class CubinInspection {
 public:
  CubinInspection(const ElfFile& elf, const InspectRequest& request, bool linked)
      : elf_(elf), request_(request), linked_(linked) {}

  absl::StatusOr<InspectedUnit> Run();

 private:
  absl::Status CheckHeader() const;
  absl::Status CheckNames();
  absl::Status CheckVariables() const;
  absl::Status ReadFunctions();
  absl::Status CheckRegisters();
  absl::Status CheckStack();
  absl::Status CheckMemory();

  std::string ReadName(uint32_t symbol) const {
    return symbol < elf_.symbols().size() ? std::string(elf_.symbols()[symbol].name) : "";
  }

  const ElfFile& elf_;
  const InspectRequest& request_;
  const bool linked_;
  InspectedUnit unit_;
  std::map<std::string, FunctionResources> functions_;
};

absl::StatusOr<InspectedUnit> CubinInspection::Run() {
  absl::Status status = CheckHeader();
  if (status.ok()) status = CheckNames();
  if (status.ok()) status = ReadFunctions();
  if (status.ok()) status = CheckVariables();
  if (status.ok()) status = CheckMemory();
  if (status.ok()) status = CheckRegisters();
  if (status.ok()) status = CheckStack();
  if (!status.ok()) return status;
  return unit_;
}

absl::Status CubinInspection::CheckHeader() const {
  if (elf_.header().e_machine != kMachineCuda) {
    return absl::InvalidArgumentError(
        absl::StrCat("the object is for ELF machine ", elf_.header().e_machine, ", not for a GPU (",
                     kMachineCuda, "). Fix: send a relocatable cubin"));
  }
  if (!linked_ && elf_.header().e_type != ET_REL) {
    return absl::InvalidArgumentError(
        "the cubin is linked already. Fix: compile with -rdc=true -cubin");
  }
  const uint32_t flags = elf_.header().e_flags;
  const int architecture = static_cast<int>(
      elf_.header().e_ident[EI_ABIVERSION] >= kAbiVersion13 ? flags >> 8 & 0xff : flags & 0xff);
  if (architecture / 10 != request_.architecture / 10 || architecture > request_.architecture) {
    return absl::InvalidArgumentError(
        absl::StrCat("the cubin is for sm_", architecture, "; this daemon's GPU needs sm_",
                     request_.architecture, ". Fix: compile with -arch=sm_", request_.architecture,
                     ", or send PTX"));
  }
  return absl::OkStatus();
}

absl::Status CubinInspection::CheckNames() {
  std::set<std::string> functions, undefined;
  for (size_t i = 1; i < elf_.symbols().size(); ++i) {
    const ElfSymbol& symbol = elf_.symbols()[i];
    const std::string name(symbol.name);
    if (symbol.defined() && symbol.type == STT_FUNC) functions.insert(name);
    // The toolchain's own weak symbols (__UFT, .nv.reservedSmem...) may stay undefined.
    if (!symbol.defined() && symbol.bind == STB_GLOBAL && !name.empty()) undefined.insert(name);
  }
  if (linked_) {
    // The linker has dropped symbols that nothing refers to, including the mark of the SDK.
    unit_.symbol = request_.symbol;
    if (functions.contains(unit_.symbol)) return absl::OkStatus();
    return DamagedObject("entry is missing");
  }
  ASSIGN_OR_RETURN(const auto entry, FindEntry(request_, functions));
  unit_.symbol = entry;
  if (!undefined.empty()) return RefuseUndefined(undefined);
  for (const ElfSymbol& symbol : elf_.symbols()) {
    const std::string name(symbol.name);
    if (!symbol.defined() || !symbol.external() || IsUnitsOwn(name, unit_.symbol)) continue;
    if (symbol.bind == STB_WEAK && IsSharedFunction(name)) continue;
    return RefuseForeignName(name);
  }
  return absl::OkStatus();
}

// Other variables than those that code refers to are constants that the compiler emits although the
// code contains their values.
absl::Status CubinInspection::CheckVariables() const {
  std::set<std::string> referred;
  for (const ElfSection& section : elf_.sections()) {
    if (!absl::StartsWith(absl::string_view(section.name.data(), section.name.size()),
                          ".rela.text") &&
        !absl::StartsWith(absl::string_view(section.name.data(), section.name.size()),
                          ".rela.nv.constant")) {
      continue;
    }
    Elf64_Rela relocation;
    for (uint64_t at = 0; ElfFile::Read(section.bytes, at, &relocation); at += sizeof(relocation)) {
      const uint64_t index = ELF64_R_SYM(relocation.r_info);
      if (index >= elf_.symbols().size()) return DamagedObject("relocations refer to no symbol");
      const ElfSymbol& symbol = elf_.symbols()[index];
      if (symbol.section >= elf_.sections().size() || !symbol.defined()) continue;
      const std::string_view place = elf_.sections()[symbol.section].name;
      if (place != ".nv.global" && place != ".nv.global.init") continue;
      if (symbol.type != kSymbolVariable && symbol.type != STT_SECTION) continue;
      referred.emplace(symbol.name);
    }
  }
  return CheckVariableNames(referred);
}

absl::Status CubinInspection::ReadFunctions() {
  ASSIGN_OR_RETURN(auto functions, ReadNvInfo(elf_));
  functions_ = std::move(functions);
  if (!functions_.contains(unit_.symbol)) return DamagedObject(".nv.info section lacks the entry");
  return absl::OkStatus();
}

absl::Status CubinInspection::CheckRegisters() {
  if (linked_) {
    unit_.resources.registers = functions_[unit_.symbol].registers;
  } else {
    for (const auto& [name, function] : functions_) {
      unit_.resources.registers = std::max(unit_.resources.registers, function.registers);
    }
  }
  if (unit_.resources.registers <= request_.max_registers) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the unit needs ", unit_.resources.registers, " registers a thread; the kernel has ",
      kMaxRegisters, ". Fix: keep fewer values at the same time, or allow spills (allow_spills)"));
}

absl::Status CubinInspection::CheckStack() {
  CallGraph graph;
  for (const auto& [name, function] : functions_) graph.AddFunction(name, function.stack_bytes);
  std::map<int32_t, std::set<std::string>> taken;  // By prototype.
  std::vector<std::pair<std::string, int32_t>> indirect;
  if (const ElfSection* const calls = elf_.FindSection(".nv.callgraph"); calls != nullptr) {
    int32_t part = 0;
    int32_t pair[2];
    for (uint64_t at = 0; ElfFile::Read(calls->bytes, at, &pair); at += sizeof(pair)) {
      if (pair[0] == 0 && pair[1] < 0) {
        part = pair[1];
        continue;
      }
      if (pair[0] < 0 || pair[1] < 0) return DamagedObject("call graph has an invalid part");
      const std::string caller = ReadName(static_cast<uint32_t>(pair[0]));
      if (part == kDirectCalls || part == kTakesAddress) {
        graph.AddCall(caller, ReadName(static_cast<uint32_t>(pair[1])));
      } else if (part == kAddressTaken) {
        taken[pair[1]].insert(caller);
      } else if (part == kIndirectCalls) {
        indirect.emplace_back(caller, pair[1]);
      }
    }
  }
  for (const auto& [caller, prototype] : indirect) {
    if (taken[prototype].empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "'", Demangle(caller),
          "' calls through a pointer to a function that is not in the unit: its stack use is "
          "unknown. Fix: call functions of the unit"));
    }
    for (const std::string& callee : taken[prototype]) graph.AddCall(caller, callee);
  }
  ASSIGN_OR_RETURN(const auto stack, graph.ComputeStack(unit_.symbol));
  unit_.resources.stack_bytes = static_cast<uint32_t>(std::min<uint64_t>(stack, UINT32_MAX));
  if (stack <= kOperatorStackBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the unit needs ", stack, " bytes of stack a thread; there are ", kOperatorStackBytes,
      ". Fix: put large arrays into block.memory() or block.scratch()"));
}

absl::Status CubinInspection::CheckMemory() {
  uint64_t code = 0;
  uint64_t shared = 0;
  uint64_t constant = 0;
  for (const ElfSection& section : elf_.sections()) {
    const absl::string_view name(section.name.data(), section.name.size());
    // The kernel of a linked module is never launched.
    const bool of_unit = !linked_ || name != ".text.resident_reaches";
    if (absl::StartsWith(name, ".text.") && of_unit) code += section.size;
    if (name == ".nv_debug.shared" || name == ".nv.shared" ||
        (absl::StartsWith(name, ".nv.shared.") && !absl::StartsWith(name, ".nv.shared.reserved"))) {
      shared += section.size;
    }
    // Bank 0 of a module belongs to its kernel, which is not used.
    if (absl::StartsWith(name, ".nv.constant") && !absl::StartsWith(name, ".nv.constant0.")) {
      constant += section.size;
    }
  }
  if (constant != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the unit has ", constant,
        " bytes of constant memory; none is available in a running kernel. Fix: for a "
        "table write RESIDENT_CONSTANT(float, kTable, {...}); compile objects with -Xptxas "
        "--disable-optimizer-constants"));
  }
  unit_.resources.code_bytes = static_cast<uint32_t>(std::min<uint64_t>(code, UINT32_MAX));
  if (shared != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the unit has ", shared,
                     " bytes of static shared memory; none is available in a running kernel. Fix: "
                     "use block.memory<T>(), which has ",
                     kBlockMemoryBytes, " bytes"));
  }
  return CheckCodeBytes(code);
}

}  // namespace

absl::StatusOr<InspectedUnit> InspectCubin(const InspectRequest& request, bool linked) {
  ASSIGN_OR_RETURN(const auto elf, ElfFile::Parse(request.object));
  return CubinInspection(elf, request, linked).Run();
}

}  // namespace resident
