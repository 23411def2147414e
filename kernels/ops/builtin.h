// The built-in operators as a table: the rows of builtin_operators.inc and test_operators.inc.
//
//   for (const BuiltinOperator& op : kBuiltinOperators) Register(op.name, op.signature);
#ifndef RESIDENT_KERNELS_OPS_BUILTIN_H_
#define RESIDENT_KERNELS_OPS_BUILTIN_H_

#include <optional>
#include <string_view>

namespace resident {

// The columns are described in builtin_operators.inc.
struct BuiltinOperator {
  const char* family;  // "elementwise", "reduction", ...: the name of the file.
  const char* symbol;  // The name of its function (kernels/sdk/operator.h).
  const char* name;
  const char* signature;
  const char* split;
  const char* cost;
  const char* formula;
  const char* notes;
  const char* example;
};

#define RESIDENT_OPERATOR_ROW(family, symbol, ...) \
  {#family, "resident_operator_" #symbol, __VA_ARGS__},
inline constexpr BuiltinOperator kBuiltinOperators[] = {
#include "kernels/ops/builtin_operators.inc"
};

#define RESIDENT_OPERATOR_ROW(family, symbol, ...) \
  {#family, "resident_operator_" #symbol, __VA_ARGS__},
inline constexpr BuiltinOperator kTestOperators[] = {
#include "kernels/ops/test_operators.inc"
};

inline constexpr unsigned kBuiltinOperatorCount =
    sizeof(kBuiltinOperators) / sizeof(kBuiltinOperators[0]);
inline constexpr unsigned kTestOperatorCount = sizeof(kTestOperators) / sizeof(kTestOperators[0]);

// A test operator that can be stopped while it runs, as others cannot.
inline constexpr char kStoppableTestOperator[] = "test.until_stopped";

// The first slot of installed operators, after the two slots of each built-in and test operator.
inline constexpr unsigned kFirstInstalledSlot = 2 * (kBuiltinOperatorCount + kTestOperatorCount);

// The slot of the first version of a built-in or a test operator.
inline std::optional<unsigned> FindBuiltinSlot(std::string_view name) {
  unsigned slot = 0;
  for (const BuiltinOperator& op : kBuiltinOperators) {
    if (name == op.name) return slot;
    slot += 2;
  }
  for (const BuiltinOperator& op : kTestOperators) {
    if (name == op.name) return slot;
    slot += 2;
  }
  return std::nullopt;
}

}  // namespace resident

#endif  // RESIDENT_KERNELS_OPS_BUILTIN_H_
