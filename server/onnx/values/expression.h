// Expression: what is computed for each element of a tensor from one element of each input, and its
// form as a program of the operator pointwise (kernels/ops/pointwise_program.h).
//
// The functions build it from terms, each with the type of an ONNX value. Floating-point types are
// computed in float32; integers wrap as those of their type.
//
//   Expression e;
//   const Term x = e.Input(ElementType::kFloat);
//   e.SetResult(e.Mul(x, e.Function(Op::kSigmoid, x)));
//   const std::optional<std::string> program = e.Assemble();
//
// Thread safety: a plain value.
#ifndef RESIDENT_SERVER_ONNX_VALUES_EXPRESSION_H_
#define RESIDENT_SERVER_ONNX_VALUES_EXPRESSION_H_

#include <array>
#include <cassert>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/ops/pointwise_program.h"
#include "server/onnx/values/constant.h"

namespace resident::onnx {

struct Term {
  int id = -1;
  ElementType type = ElementType::kUndefined;
};

class Expression {
 public:
  using Op = pointwise::Op;

  // Whether values of this type can be computed: one of the daemon's, but not double.
  static bool Takes(ElementType type);

  // The next input. REQUIRES: Takes(type).
  Term Input(ElementType type);
  // A number of any type.
  Term Number(double value, ElementType type);
  Term Whole(int64_t value, ElementType type);

  // REQUIRES: both have one type; Number() is converted to it before.
  Term Add(Term x, Term y) { return Arithmetic(Op::kFloatAdd, Op::kAdd, x, y); }
  Term Sub(Term x, Term y) { return Arithmetic(Op::kFloatSub, Op::kSub, x, y); }
  Term Mul(Term x, Term y) { return Arithmetic(Op::kFloatMul, Op::kMul, x, y); }
  Term Div(Term x, Term y) { return Arithmetic(Op::kFloatDiv, Op::kDiv, x, y); }
  Term Max(Term x, Term y) { return Arithmetic(Op::kFloatMax, Op::kMax, x, y); }
  Term Min(Term x, Term y) { return Arithmetic(Op::kFloatMin, Op::kMin, x, y); }
  Term Pow(Term x, Term y) { return Arithmetic(Op::kFloatPow, Op::kPow, x, y); }
  // The remainder of floats, with the sign of x.
  Term Remainder(Term x, Term y) { return {Append(Op::kFloatRemainder, {x.id, y.id, -1}), x.type}; }
  Term Neg(Term x);
  Term Abs(Term x);
  // Of integers, with the wrap of the type.
  Term Integer(Op op, Term x, Term y) { return Arithmetic(op, op, x, y); }
  // A bool.
  Term Equal(Term x, Term y) { return Compare(Op::kFloatEqual, Op::kEqual, x, y); }
  Term Less(Term x, Term y) { return Compare(Op::kFloatLess, Op::kLess, x, y); }
  Term LessOrEqual(Term x, Term y) {
    return Compare(Op::kFloatLessOrEqual, Op::kLessOrEqual, x, y);
  }
  Term Not(Term x) { return Equal(x, Number(0, x.type)); }
  // x if the condition is not 0, else y.
  Term Select(Term condition, Term x, Term y);
  // A function of one float. REQUIRES: x is of a floating-point type.
  Term Function(Op op, Term x) {
    assert(IsFloatType(x.type));
    return {Append(op, {x.id, -1, -1}), x.type};
  }
  // As the operator copy converts, and to a bool whether it is not 0.
  Term Cast(Term x, ElementType type);

  void SetResult(Term result) { result_ = result; }
  const Term& result() const { return result_; }
  size_t inputs() const { return inputs_.size(); }

  // The same with what `other` computes in place of input `at`. The inputs of `other` follow the
  // remaining ones.
  Expression Substitute(size_t at, const Expression& other) const;
  // Two inputs become one; the inputs behind `second` move up.
  Expression MergeInputs(size_t first, size_t second) const;

  // The bytes of the program, an i64 tensor [rows, 2]. Nullopt: it has too many instructions,
  // inputs or values at one time.
  std::optional<std::string> Assemble() const;

 private:
  static constexpr int kInput = -1;
  static constexpr int kNumber = -2;
  // An instruction, an input or a number.
  struct Item {
    int op;  // pointwise::Op, kInput, kNumber.
    std::array<int, 3> operands = {-1, -1, -1};
    int64_t bits = 0;  // The number's, or which input it is.

    bool operator==(const Item&) const = default;
  };

  // An instruction, its id, and the number that is its immediate.
  struct Step {
    int id;
    Item item;
    int64_t immediate = 0;
  };

  // The instructions that the result needs, in their order, and the id of the result.
  std::vector<Step> ListSteps(int* result) const;
  // Their bytes, behind the header. Nullopt: they need too many registers.
  std::optional<std::string> AssignRegisters(const std::vector<Step>& steps, int result) const;
  int Append(const Item& item);
  int Append(Op op, std::array<int, 3> operands) {
    return Append(Item{static_cast<int>(op), operands});
  }
  Term Arithmetic(Op real, Op integer, Term x, Term y);
  Term Compare(Op real, Op integer, Term x, Term y);
  // Keeps the bits that the type has.
  Term Wrap(Term x);
  // Copies items of another expression; `ids`: what its inputs are here. Returns its result.
  Term Insert(const Expression& other, const std::vector<int>& inputs);

  std::vector<Item> items_;
  std::vector<ElementType> inputs_;
  // Whether a term is i64 or u32, so that 64 bits are needed.
  bool wide_ = false;
  Term result_;
};

}  // namespace resident::onnx

#endif  // RESIDENT_SERVER_ONNX_VALUES_EXPRESSION_H_
