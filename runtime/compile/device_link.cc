#include "runtime/compile/device_link.h"

#include <map>
#include <memory>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/layout/ring_layout.h"
#include "runtime/compile/inspect_names.h"
#include "runtime/compile/unit.h"
#include "runtime/engine/image/generation_objects.h"
#include "runtime/engine/image/link.h"

namespace resident {
namespace {

constexpr uint32_t kSlotForInspection = kMaxOperatorSlots - 2;

bool IsPtx(const std::string& object) {
  return !absl::StartsWith(object,
                           "\x7f"
                           "ELF");
}

// Names of the functions that PTX makes visible: what stands behind ".visible .func".
std::set<std::string> VisibleFunctions(std::string_view ptx) {
  std::set<std::string> names;
  constexpr std::string_view kVisible = ".visible .func";
  for (size_t at = ptx.find(kVisible); at != std::string_view::npos;
       at = ptx.find(kVisible, at + 1)) {
    size_t begin = at + kVisible.size();
    // Results stand in parentheses before the name.
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

absl::StatusOr<std::string> LinkGeneration(int major, int minor,
                                           const std::vector<GenerationOperator>& operators) {
  const GenerationObjects objects = FirstGenerationObjects(major, minor);
  if (objects.inputs.empty()) {
    return absl::UnavailableError(absl::StrCat("there is no kernel for compute capability ", major,
                                               ".", minor, ". Fix: use --devices=cpu"));
  }
  const std::string table = JumpTablePtx(operators);
  std::vector<LinkInput> inputs = objects.inputs;
  inputs.push_back({"jump table", table, /*is_ptx=*/true});
  std::map<std::string, uint32_t> slots;
  for (const GenerationOperator& op : operators) {
    if (op.object == nullptr) continue;  // Another slot's unit: the table names it.
    const auto [other, fresh] = slots.emplace(op.symbol, op.slot);
    if (!fresh) {
      return absl::InvalidArgumentError(
          absl::StrCat("the units in slots ", other->second, " and ", op.slot, " both export ",
                       op.symbol, ". Fix: compile one of them with other digits in RESIDENT_UNIT"));
    }
    inputs.push_back({op.symbol, *op.object, IsPtx(*op.object)});
  }
  auto image = LinkImage(inputs, objects.architecture);
  if (!image.ok() && image.status().code() == absl::StatusCode::kInternal) {
    return absl::InvalidArgumentError(
        absl::StrCat("the operators cannot be linked into one image: ", image.status().message(),
                     ". Fix: see what the linker says of the names"));
  }
  return image;
}

absl::StatusOr<InspectedUnit> InspectPtx(const InspectRequest& request) {
  if (request.object.find(".target") == std::string_view::npos ||
      request.object.find('\0') != std::string_view::npos) {
    return absl::InvalidArgumentError(
        "the object is neither PTX nor a cubin. Fix: compile with nvcc -rdc=true -ptx or -cubin");
  }
  const std::set<std::string> functions = VisibleFunctions(request.object);
  const auto symbol = FindEntry(request, functions);
  if (!symbol.ok()) return symbol.status();
  for (const std::string& name : functions) {
    if (!IsUnitsOwn(name, *symbol)) return RefuseForeignName(name);
  }
  for (const char* what : {".shared", ".global", ".const", ".entry"}) {
    // Directives that declare; instructions are ld.global and the like.
    for (const char* before : {"\n", "\t", " "}) {
      if (request.object.find(absl::StrCat(before, what, " ")) != std::string_view::npos) {
        return absl::InvalidArgumentError(
            absl::StrCat("the PTX declares something '", what,
                         "'. Fix: use block.memory<T>() for shared memory, tensors for the rest, "
                         "or send a cubin"));
      }
    }
  }
  auto image = LinkGeneration(
      request.architecture / 10, request.architecture % 10,
      {{kSlotForInspection, *symbol, std::make_shared<std::string>(request.object)}});
  if (!image.ok()) return image.status();
  InspectRequest linked = request;
  linked.object = *image;
  linked.symbol = *symbol;
  return InspectCubin(linked, /*linked=*/true);
}

absl::StatusOr<std::string> LinkerVersion() { return JitLinkVersion(); }

}  // namespace resident
