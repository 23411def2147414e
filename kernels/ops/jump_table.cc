#include "kernels/ops/jump_table.h"

#include "kernels/ops/builtin.h"

#define DECLARE(symbol, name, summary, signature, split) \
  RESIDENT_OPERATOR(symbol)(resident::Block&, const resident::Args&);
RESIDENT_BUILTIN_OPERATORS(DECLARE)
RESIDENT_TEST_OPERATORS(DECLARE)
#undef DECLARE

namespace resident {
namespace {

#define FUNCTION(symbol, name, summary, signature, split) &RESIDENT_OPERATOR_SYMBOL(symbol),
constexpr OperatorFunction kBuiltin[] = {RESIDENT_BUILTIN_OPERATORS(FUNCTION)};
constexpr OperatorFunction kTest[] = {RESIDENT_TEST_OPERATORS(FUNCTION)};
#undef FUNCTION

constexpr u32 kBuiltinCount = sizeof(kBuiltin) / sizeof(kBuiltin[0]);
constexpr u32 kTestCount = sizeof(kTest) / sizeof(kTest[0]);

}  // namespace

OperatorFunction BuiltinOperator(u32 slot, bool test_operators) {
  if (slot % 2 != 0) return nullptr;
  const u32 index = slot / 2;
  if (index < kBuiltinCount) return kBuiltin[index];
  if (test_operators && index < kBuiltinCount + kTestCount) return kTest[index - kBuiltinCount];
  return nullptr;
}

}  // namespace resident
