// The form of a program of the operator pointwise: what it computes for each element of its output.
//
// A program is a tensor i64[1 + N, 2] with N instructions, 1 to kMaxInstructions of them. Word 0 of
// each row has eight bytes, the first one in the lowest bits:
//
//   row 0       format (1), bits of a register (32 or 64), result register, zeros; word 1 is 0
//   row 1 to N  op, destination register, up to three operands, zeros; word 1 is the immediate
//
// Instructions run one after the other; there are no jumps. Register k begins with the element of
// input k. An operand is the number of a register, or kImmediate, which stands for word 1: a float
// is in its low 32 bits, and a program of 32 bits uses only these. Operands that an instruction
// does not have are 0. A register must be written before it is read.
//
// A register has a float32 (in the low 32 bits) or a signed integer of 32 or 64 bits, and each
// instruction says how it reads it. Inputs of f16 and bf16 are widened; u8, i8, i32 and u32 become
// integers; a program of 32 bits takes no i64 and u32. The result is stored in the dtype of the
// output: a float is rounded to it, of an integer the low bits are kept. Comparisons give 1 or 0.
//
// Integers wrap. A quotient, and the remainder, of a division by 0 is 0. A shift by a number that
// is not 0 to the bits of a register less 1 gives 0.
//
// Thread safety: constants and functions without state.
//
//   const i64 program[] = {HeaderWord(32, 0), 0, InstructionWord(Op::kFloatAdd, 0, 0, 1), 0};
#ifndef RESIDENT_KERNELS_OPS_POINTWISE_PROGRAM_H_
#define RESIDENT_KERNELS_OPS_POINTWISE_PROGRAM_H_

#include "kernels/layout/platform.h"

namespace resident::pointwise {

inline constexpr u32 kMaxInstructions = 64;
inline constexpr u32 kInputs = 6;
inline constexpr u32 kRegisters = 9;
inline constexpr u32 kFormat = 1;
inline constexpr u32 kImmediate = 255;

// Operations, by their number of operands x, y, z. X(name, what it computes).
//
// Of float32, with the functions of kernels/sdk/math.h where it has them.
#define RESIDENT_POINTWISE_UNARY(X) \
  X(kCopy, "x")                     \
  X(kFloatNeg, "-x")                \
  X(kFloatAbs, "|x|")               \
  X(kSqrt, "sqrt(x)")               \
  X(kRsqrt, "1 / sqrt(x)")          \
  X(kReciprocal, "1 / x")           \
  X(kExp, "exp(x)")                 \
  X(kExpm1, "exp(x) - 1")           \
  X(kLog, "log(x)")                 \
  X(kLog1p, "log(1 + x)")           \
  X(kSin, "sin(x)")                 \
  X(kCos, "cos(x)")                 \
  X(kTan, "tan(x)")                 \
  X(kAsin, "asin(x)")               \
  X(kAcos, "acos(x)")               \
  X(kAtan, "atan(x)")               \
  X(kSinh, "sinh(x)")               \
  X(kCosh, "cosh(x)")               \
  X(kTanh, "tanh(x)")               \
  X(kAsinh, "asinh(x)")             \
  X(kAcosh, "acosh(x)")             \
  X(kAtanh, "atanh(x)")             \
  X(kErf, "erf(x)")                 \
  X(kSigmoid, "1 / (1 + exp(-x))")  \
  X(kFloor, "floor(x)")             \
  X(kCeil, "ceil(x)")               \
  X(kRound, "x, rounded to even")   \
  X(kTrunc, "trunc(x)")             \
  X(kSign, "-1, 0, 1 or NaN")       \
  X(kToInt, "trunc(x), an integer") \
  X(kToFloat, "x, a float")         \
  X(kToI8, "low 8 bits, signed")    \
  X(kToU8, "low 8 bits")            \
  X(kToI32, "low 32 bits, signed")  \
  X(kToU32, "low 32 bits")

// Names with Float are those of float32, the others of integers.
#define RESIDENT_POINTWISE_BINARY(X)         \
  X(kFloatAdd, "x + y")                      \
  X(kFloatSub, "x - y")                      \
  X(kFloatMul, "x * y")                      \
  X(kFloatDiv, "x / y")                      \
  X(kFloatMax, "max(x, y), NaN if one is")   \
  X(kFloatMin, "min(x, y), NaN if one is")   \
  X(kFloatPow, "x to the power of y")        \
  X(kFloatRemainder, "fmod(x, y)")           \
  X(kFloatEqual, "x == y")                   \
  X(kFloatLess, "x < y")                     \
  X(kFloatLessOrEqual, "x <= y")             \
  X(kAdd, "x + y")                           \
  X(kSub, "x - y")                           \
  X(kMul, "x * y")                           \
  X(kDiv, "x / y, towards 0")                \
  X(kRemainder, "x - x / y * y")             \
  X(kModulo, "the same, with the sign of y") \
  X(kMax, "max(x, y)")                       \
  X(kMin, "min(x, y)")                       \
  X(kPow, "x to the power of y, towards 0")  \
  X(kEqual, "x == y")                        \
  X(kLess, "x < y")                          \
  X(kLessOrEqual, "x <= y")                  \
  X(kAnd, "x & y")                           \
  X(kOr, "x | y")                            \
  X(kXor, "x ^ y")                           \
  X(kShiftLeft, "x << y")                    \
  X(kShiftRight, "x >> y, zeros move in")

#define RESIDENT_POINTWISE_TERNARY(X) X(kSelect, "y if x is not 0, else z")

#define RESIDENT_POINTWISE_NAME(name, text) name,
// A term of a sum.
#define RESIDENT_POINTWISE_ONE(name, text) +1  // NOLINT(bugprone-macro-parentheses)
inline constexpr u32 kUnary = 0 RESIDENT_POINTWISE_UNARY(RESIDENT_POINTWISE_ONE);
inline constexpr u32 kBinary = 0 RESIDENT_POINTWISE_BINARY(RESIDENT_POINTWISE_ONE);
inline constexpr u32 kTernary = 0 RESIDENT_POINTWISE_TERNARY(RESIDENT_POINTWISE_ONE);
inline constexpr u32 kOps = kUnary + kBinary + kTernary;
enum class Op : u8 {
  RESIDENT_POINTWISE_UNARY(RESIDENT_POINTWISE_NAME)    //
  RESIDENT_POINTWISE_BINARY(RESIDENT_POINTWISE_NAME)   //
  RESIDENT_POINTWISE_TERNARY(RESIDENT_POINTWISE_NAME)  //
};
#undef RESIDENT_POINTWISE_NAME
#undef RESIDENT_POINTWISE_ONE

// The number of operands; 0: there is no such operation.
RESIDENT_HOST_DEVICE constexpr u32 CountOperands(u32 op) {
  return op < kUnary ? 1 : op < kUnary + kBinary ? 2 : op < kOps ? 3 : 0;
}

RESIDENT_HOST_DEVICE constexpr i64 HeaderWord(u32 bits, u32 result) {
  return static_cast<i64>(kFormat | bits << 8 | result << 16);
}
RESIDENT_HOST_DEVICE constexpr i64 InstructionWord(Op op, u32 to, u32 x, u32 y = 0, u32 z = 0) {
  return static_cast<i64>(static_cast<u64>(op) | u64{to} << 8 | u64{x} << 16 | u64{y} << 24 |
                          u64{z} << 32);
}

}  // namespace resident::pointwise

#endif  // RESIDENT_KERNELS_OPS_POINTWISE_PROGRAM_H_
