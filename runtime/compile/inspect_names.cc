#include <algorithm>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/sdk/operator.h"
#include "runtime/compile/call_graph.h"
#include "runtime/compile/inspect.h"
#include "runtime/compile/unit.h"

namespace resident {
namespace {

constexpr char kPlainPrefix[] = "resident_operator_";
constexpr char kMarkPrefix[] = "resident_sdk_";
constexpr size_t kMaxNamesListed = 5;
// The namespace that RESIDENT_CONSTANT puts a table into, mangled.
constexpr char kConstants[] = "18resident_constants";

absl::Status NoEntry(const InspectRequest& request, const std::set<std::string>& functions) {
  std::vector<std::string> others;
  for (const std::string& name : functions) {
    if (absl::StartsWith(name, kPlainPrefix)) {
      others.push_back(
          absl::StrCat("RESIDENT_OPERATOR(", name.substr(sizeof(kPlainPrefix) - 1), ")"));
    }
  }
  if (request.symbol.empty()) {
    return absl::InvalidArgumentError(
        "the object has no entry: it exports no function resident_op_<16 hex digits>. Fix: "
        "compile with -DRESIDENT_UNIT=<16 hex digits> "
        "-Dresident_operator_NAME=resident_op_<the same digits>");
  }
  if (others.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the unit has no entry: it does not define RESIDENT_OPERATOR(",
                     request.function, "). Fix: define it"));
  }
  return absl::InvalidArgumentError(absl::StrCat("the unit has no entry: it defines ",
                                                 absl::StrJoin(others, ", "),
                                                 " but not RESIDENT_OPERATOR(", request.function,
                                                 "). Fix: give the function the operator's name"));
}

}  // namespace

absl::StatusOr<std::string> FindEntry(const InspectRequest& request,
                                      const std::set<std::string>& functions) {
  std::string symbol = request.symbol;
  if (symbol.empty()) {
    for (const std::string& name : functions) {
      if (ParseUnitId(name).empty()) continue;
      if (!symbol.empty()) {
        return absl::InvalidArgumentError(absl::StrCat("the object exports two operators, ", symbol,
                                                       " and ", name,
                                                       ". Fix: one object for each operator"));
      }
      symbol = name;
    }
  }
  if (symbol.empty() || !functions.contains(symbol)) return NoEntry(request, functions);
  const std::string id = ParseUnitId(symbol);
  if (functions.contains(absl::StrCat(kMarkPrefix, RESIDENT_SDK_VERSION, "_", id))) return symbol;
  for (const std::string& name : functions) {
    if (!absl::StartsWith(name, kMarkPrefix) || !absl::EndsWith(name, absl::StrCat("_", id))) {
      continue;
    }
    const size_t begin = sizeof(kMarkPrefix) - 1;
    return absl::InvalidArgumentError(absl::StrCat(
        "the object was compiled with version ", name.substr(begin, name.find('_', begin) - begin),
        " of the SDK; this daemon has version ", RESIDENT_SDK_VERSION,
        ". Fix: compile it with this daemon's SDK"));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "the object lacks the mark of the SDK that it was compiled with. Fix: compile with "
      "-DRESIDENT_UNIT=",
      id, " and include \"kernels/sdk/operator.h\" of version ", RESIDENT_SDK_VERSION));
}

absl::Status RefuseUndefined(const std::set<std::string>& names) {
  std::vector<std::string> listed;
  bool prints = false;
  for (const std::string& name : names) {
    if (listed.size() < kMaxNamesListed) listed.push_back(absl::StrCat("'", Demangle(name), "'"));
    prints |=
        name == "vprintf" || name == "printf" || name == "__assertfail" || name == "__assert_fail";
  }
  if (names.size() > listed.size()) {
    listed.push_back(absl::StrCat(names.size() - listed.size(), " more"));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "the unit calls functions that neither it nor the SDK defines: ", absl::StrJoin(listed, ", "),
      prints ? ". Fix: report with block.fail() or set_result(); operators cannot print"
             : ". Fix: define them in one of the files, or do not call them"));
}

bool IsUnitsOwn(const std::string& name, const std::string& symbol) {
  const std::string id = ParseUnitId(symbol);
  return name == symbol || absl::StrContains(name, UnitNamespace(id)) ||
         name == absl::StrCat(kMarkPrefix, RESIDENT_SDK_VERSION, "_", id) ||
         // A static variable of a function with C linkage.
         absl::StartsWith(name, absl::StrCat("_ZZ", symbol.size(), symbol));
}

absl::Status RefuseForeignName(const std::string& name) {
  return absl::InvalidArgumentError(absl::StrCat(
      "the unit exports '", Demangle(name),
      "', a name that the kernel or another operator may also export. Fix: make it static, without "
      "extern \"C\", and outside of namespace resident"));
}

bool IsSharedFunction(const std::string& name) {
  return absl::StartsWith(name, "__cuda_") ||
         (absl::StartsWith(name, "_ZN") && absl::StrContains(name, "8resident"));
}

absl::Status CheckVariableNames(const std::set<std::string>& names) {
  std::set<std::string> variables;
  for (const std::string& name : names) {
    // Tables of virtual functions are constant, and so are the tables of CUDA's sinf and cosf.
    const bool constant = absl::StartsWith(name, "_ZTV") || absl::StartsWith(name, "__cudart_") ||
                          absl::StrContains(name, kConstants);
    if (!constant) variables.insert(Demangle(name));
  }
  if (variables.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the unit has variables in device memory: ", absl::StrJoin(variables, ", "),
                   ". They would be shared by all tasks and lost with the next generation. Fix: "
                   "for a table of constants write RESIDENT_CONSTANT(float, kTable, {...}); "
                   "pass state as a tensor"));
}

absl::Status CheckCodeBytes(uint64_t bytes) {
  if (bytes <= kMaxUnitCodeBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the unit has ", bytes,
                                                 " bytes of code; the limit is ", kMaxUnitCodeBytes,
                                                 ". Fix: unroll and inline less"));
}

}  // namespace resident
