#include "kernels/ops/jump_table.h"

#include "kernels/ops/builtin.h"

#define RESIDENT_OPERATOR_ROW(family, symbol, ...) RESIDENT_OPERATOR_ENTRY(symbol);
#include "kernels/ops/builtin_operators.inc"
#define RESIDENT_OPERATOR_ROW(family, symbol, ...) RESIDENT_OPERATOR_ENTRY(symbol);
#include "kernels/ops/test_operators.inc"

namespace resident {
namespace {

#define RESIDENT_OPERATOR_ROW(family, symbol, ...) &RESIDENT_OPERATOR_SYMBOL(symbol),
constexpr OperatorFunction kBuiltin[] = {
#include "kernels/ops/builtin_operators.inc"
};
#define RESIDENT_OPERATOR_ROW(family, symbol, ...) &RESIDENT_OPERATOR_SYMBOL(symbol),
constexpr OperatorFunction kTest[] = {
#include "kernels/ops/test_operators.inc"
};

}  // namespace

OperatorFunction FindBuiltinFunction(u32 slot, bool test_operators) {
  if (slot % 2 != 0) return nullptr;
  const u32 index = slot / 2;
  if (index < kBuiltinOperatorCount) return kBuiltin[index];
  const u32 test = index - kBuiltinOperatorCount;
  return test_operators && test < kTestOperatorCount ? kTest[test] : nullptr;
}

}  // namespace resident
