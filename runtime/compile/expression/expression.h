// Expressions: element-wise operators written as a formula.
//
//   x * sigmoid(x)
//   a * x + y where a: scalar f32 = 1
//   x > limit ? limit : x where limit: scalar
//   gelu(gate) * up where gate: in f16|bf16, out: out f16|bf16
//
//   x, y -> t * t + y where t = x + y
//
// Generate turns one into the source of an operator (kernels/sdk), its signature and its
// split rule. The names before `->` are the inputs, in this order. Without `->`, names that are not
// declared are inputs, in the order in which they appear: first in the values that `where` defines,
// then in the formula. The output is `out`; scalars follow it in the order in which they are
// declared, and are read from each task's arguments. A value that `where` defines is computed once;
// it may use the values before it. Arithmetic is float32. Inputs and the output are f32,
// f16 or bf16, mixed in one call, strided, and inputs may be of any shape that broadcasts
// to the output's.
//
//   formula     := [[NAME ("," NAME)*] "->"] choice ["where" declaration ("," declaration)*]
//   declaration := NAME ":" ("in" | "out") [dtype ("|" dtype)*]
//                | NAME ":" "scalar" ["f32"] ["=" ["-"] number]
//                | NAME "=" choice
//   choice      := either ["?" choice ":" choice]
//   either      := both ("||" both)*
//   both        := comparison ("&&" comparison)*
//   comparison  := sum [("<" | "<=" | ">" | ">=" | "==" | "!=") sum]
//   sum         := product (("+" | "-") product)*
//   product     := unary (("*" | "/") unary)*
//   unary       := ("-" | "+" | "!") unary | primary
//   primary     := number | NAME | NAME "(" choice ("," choice)* ")" | "(" choice ")"
//
// Both sides of a choice are computed; each element uses one. A comparison is not a
// number; write `x > 0 ? 1 : 0`. The functions are those of kernels/sdk/math.h; see
// FunctionList(). `inf`, `nan` and `pi` are constants.
//
// No part of the text reaches a compiler: the source is generated from the parsed formula, with
// generated names and formatted numbers.
//
// Thread safety: pure functions.
//
//   ASSIGN_OR_RETURN(GeneratedOperator swish, expression::Generate("swish", "x * sigmoid(x)"));
//   // swish.source:    RESIDENT_OPERATOR(swish)(resident::Block& block, ...
//   // swish.signature: x: in strided f32|f16|bf16[*S~], out: out strided f32|f16|bf16[*S]
#ifndef RESIDENT_RUNTIME_COMPILE_EXPRESSION_EXPRESSION_H_
#define RESIDENT_RUNTIME_COMPILE_EXPRESSION_EXPRESSION_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace resident {

struct GeneratedOperator {
  // One file; it includes kernels/sdk/operator.h and defines RESIDENT_OPERATOR(name).
  std::string source;
  // See runtime/model/signature.h.
  std::string signature;
  // See kernels/ops/builtin.h.
  std::string split;
  // "out = x * sigmoid(x)".
  std::string summary;
};

namespace expression {

// Limits of one expression: bytes of its text, levels of nesting, and number of operations.
inline constexpr size_t kMaxBytes = 4096;
inline constexpr size_t kMaxDepth = 64;
inline constexpr size_t kMaxOperations = 512;

// `name`: the operator's name, already checked ('.' and '-' become '_' in the source).
// INVALID_ARGUMENT: the text is wrong; the message has the error and its column, and marks it.
absl::StatusOr<GeneratedOperator> Generate(std::string_view name, std::string_view text);

// Returns every function with its parameters: "abs(x), ceil(x), ...".
std::string FunctionList();

}  // namespace expression
}  // namespace resident

#endif  // RESIDENT_RUNTIME_COMPILE_EXPRESSION_EXPRESSION_H_
