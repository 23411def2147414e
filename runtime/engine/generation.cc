#include "runtime/engine/generation.h"

#include <algorithm>
#include <cctype>

#include "absl/strings/str_cat.h"
#include "kernels/layout/ring_layout.h"
#include "kernels/ops/builtin.h"

namespace resident {
namespace {

bool IsIdentifier(const std::string& symbol) {
  return !symbol.empty() && !std::isdigit(static_cast<unsigned char>(symbol.front())) &&
         std::all_of(symbol.begin(), symbol.end(),
                     [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; });
}

}  // namespace

absl::Status CheckGeneration(const Generation& generation) {
  std::vector<bool> taken(kMaxOperatorSlots, false);
  for (const GenerationOperator& added : generation.operators) {
    if (added.slot < kFirstInstalledSlot || added.slot >= kMaxOperatorSlots || taken[added.slot]) {
      return absl::InvalidArgumentError(absl::StrCat(
          "generation ", generation.number, ": slot ", added.slot, " of ", added.symbol,
          added.slot < kMaxOperatorSlots && taken[added.slot]
              ? " is taken by another operator"
              : absl::StrCat(" is not from ", kFirstInstalledSlot, " to ", kMaxOperatorSlots - 1),
          ". Fix: give each operator a free slot of its own"));
    }
    taken[added.slot] = true;
    if (!IsIdentifier(added.symbol)) {
      return absl::InvalidArgumentError(
          absl::StrCat("generation ", generation.number, ": '", added.symbol,
                       "' is not a function name. Fix: use the symbol that the unit exports"));
    }
  }
  return absl::OkStatus();
}

}  // namespace resident
