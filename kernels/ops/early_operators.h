// Built-in operators that a graph may start before their inputs are ready, because they call
// Block::await_inputs(), and what they read before that: the elements of these arguments only, if
// any. Everything may be read of all arguments but their elements. Before it they write nothing but
// the block's memory, and its status.
//
// Elements of an argument that the operator itself writes are only those that a step before has
// written: a graph starts the operator early only if no other node writes them.
#ifndef RESIDENT_KERNELS_OPS_EARLY_OPERATORS_H_
#define RESIDENT_KERNELS_OPS_EARLY_OPERATORS_H_

#include <optional>
#include <string_view>

namespace resident {

struct EarlyOperator {
  const char* name;
  // Bit i: the elements of argument i.
  unsigned reads;
};

inline constexpr EarlyOperator kEarlyOperators[] = {
    {"attention", 0},
    {"attention_combine", 0},
    {"attention_decode", 1u << 4 | 1u << 5},
    {"attention_partial", 0},
    {"choose_token", 0},
    {"gemv", 1u << 1},
    {"gemv_quant", 1u << 1 | 1u << 2 | 1u << 3},
    {"gemv_quant_bias", 1u << 1 | 1u << 2 | 1u << 3},
    {"gemv_silu_mul", 1u << 1 | 1u << 2},
    {"kv_append", 0},
    {"linear", 1u << 1},
    {"rmsnorm", 1u << 1},
    {"rmsnorm_gemv", 1u << 1 | 1u << 2},
    {"rmsnorm_gemv_qkv", 1u << 1 | 1u << 2 | 1u << 3 | 1u << 4},
    {"rmsnorm_gemv_quant", 1u << 1 | 1u << 2 | 1u << 3 | 1u << 4},
    {"rmsnorm_gemv_quant_silu_mul",
     1u << 1 | 1u << 2 | 1u << 3 | 1u << 4 | 1u << 5 | 1u << 6 | 1u << 7},
    {"rmsnorm_gemv_silu_mul", 1u << 1 | 1u << 2 | 1u << 3},
    {"rmsnorm_residual", 1u << 2},
    {"rope", 0},
};

// EarlyOperator::reads of an operator; nullopt: it is not one of them.
inline std::optional<unsigned> FindEarlyReads(std::string_view name) {
  for (const EarlyOperator& op : kEarlyOperators) {
    if (name == op.name) return op.reads;
  }
  return std::nullopt;
}

}  // namespace resident

#endif  // RESIDENT_KERNELS_OPS_EARLY_OPERATORS_H_
