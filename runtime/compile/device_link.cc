#include <algorithm>
#include <cassert>
#include <set>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "runtime/base/status_macros.h"
#include "runtime/compile/cuda_tools.h"
#include "runtime/compile/inspect.h"
#include "runtime/image/link.h"

namespace resident {
namespace {

// Names of the functions that PTX makes visible: those that follow ".visible .func".
std::set<std::string> VisibleFunctions(std::string_view ptx) {
  std::set<std::string> names;
  constexpr std::string_view kVisible = ".visible .func";
  for (size_t at = ptx.find(kVisible); at != std::string_view::npos;
       at = ptx.find(kVisible, at + 1)) {
    size_t begin = at + kVisible.size();
    // Results precede the name in parentheses.
    while (begin < ptx.size() && (ptx[begin] == ' ' || ptx[begin] == '\n')) ++begin;
    if (begin < ptx.size() && ptx[begin] == '(') begin = ptx.find(')', begin);
    begin = ptx.find_first_not_of(") \t\r\n", std::min(begin, ptx.size()));
    if (begin == std::string_view::npos) break;
    const size_t end = ptx.find_first_of("( \t\r\n;{", begin);
    if (end == std::string_view::npos) break;
    names.emplace(ptx.substr(begin, end - begin));
  }
  return names;
}

}  // namespace

absl::StatusOr<std::string> LinkModule(const std::string& symbol, const std::string& unit,
                                       int architecture, uint32_t max_registers) {
  auto module = LinkOperatorModule({symbol}, unit, architecture, max_registers);
  if (module.status().code() != absl::StatusCode::kInternal) return module;
  return absl::InvalidArgumentError(
      absl::StrCat("the unit cannot be linked: ", module.status().message(),
                   ". Fix: define or remove the names that the linker's message lists"));
}

absl::StatusOr<std::string> CheckPtxObject(const InspectRequest& request) {
  if (request.object.find(".target") == std::string_view::npos ||
      request.object.find('\0') != std::string_view::npos) {
    return absl::InvalidArgumentError(
        "the object is neither PTX nor a cubin. Fix: compile with nvcc -rdc=true -ptx or -cubin");
  }
  RETURN_IF_ERROR(CheckPtxFunctions(request.object));
  const std::set<std::string> functions = VisibleFunctions(request.object);
  ASSIGN_OR_RETURN(const auto symbol, FindEntry(request, functions));
  for (const std::string& name : functions) {
    if (!IsUnitsOwn(name, symbol)) return RefuseForeignName(name);
  }
  for (const char* what : {".shared", ".global", ".const", ".entry"}) {
    // Matches directives, which declare; instructions such as ld.global are not matched.
    for (const char* before : {"\n", "\t", " "}) {
      if (request.object.find(absl::StrCat(before, what, " ")) != std::string_view::npos) {
        return absl::InvalidArgumentError(
            absl::StrCat("the PTX has a declaration with '", what,
                         "'. Fix: use block.memory<T>() for shared memory, tensors for the rest, "
                         "or send a cubin"));
      }
    }
  }
  return symbol;
}

absl::StatusOr<InspectedUnit> InspectPtx(const InspectRequest& request, std::string* module) {
  assert(!request.symbol.empty());
  ASSIGN_OR_RETURN(*module, LinkModule(request.symbol, std::string(request.object),
                                       request.architecture, request.max_registers));
  InspectRequest inspect = request;
  inspect.object = *module;
  return InspectCubin(inspect, /*linked=*/true);
}

absl::StatusOr<std::string> LinkerVersion() { return JitLinkVersion(); }

}  // namespace resident
