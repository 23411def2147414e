// The operators pointwise and gather: every instruction against a reference, all dtypes, layouts
// and broadcasts, and programs of any bytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/ops/pointwise_program.h"
#include "tests/conformance/operator_runner.h"
#include "tests/support/float64.h"

namespace resident::testing {
namespace {

using pointwise::HeaderWord;
using pointwise::InstructionWord;
using pointwise::kImmediate;
using pointwise::Op;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr DType kIntegers[] = {DType::kI32, DType::kI64, DType::kU8, DType::kI8, DType::kU32};

int64_t FloatBits(float value) { return std::bit_cast<uint32_t>(value); }

struct Program {
  std::vector<int64_t> words;

  explicit Program(uint32_t bits, uint32_t result) : words{HeaderWord(bits, result), 0} {}
  Program& Then(Op op, uint32_t to, uint32_t x, uint32_t y = 0, uint32_t z = 0,
                int64_t immediate = 0) {
    words.push_back(InstructionWord(op, to, x, y, z));
    words.push_back(immediate);
    return *this;
  }
  // The words as numbers: all but random ones are exact.
  TestTensor Tensor() const {
    return TestTensor::Input(DType::kI64, {static_cast<int64_t>(words.size()) / 2, 2},
                             std::vector<double>(words.begin(), words.end()));
  }
};

TestTensor Absent() { return TestTensor::Input(DType::kF32, {0}, {}); }

std::vector<TestArgument> Arguments(const TestTensor& program, std::vector<TestTensor> inputs,
                                    const TestTensor& out) {
  inputs.resize(pointwise::kInputs, Absent());
  std::vector<TestArgument> arguments = {program};
  arguments.insert(arguments.end(), inputs.begin(), inputs.end());
  arguments.emplace_back(out);
  return arguments;
}

Outcome RunProgram(const Program& program, const std::vector<TestTensor>& inputs,
                   const TestTensor& out, uint32_t chunks = 1) {
  return RunOperator("pointwise", Arguments(program.Tensor(), inputs, out), chunks);
}

void ExpectRefused(const Outcome& outcome, int detail) {
  EXPECT_EQ(outcome.status, CompletionStatus::kInvalidArgument);
  EXPECT_EQ(outcome.detail, detail);
}

// The value of an integer in a dtype.
int64_t Wrapped(DType dtype, int64_t value) {
  switch (dtype) {
    case DType::kI32:
      return static_cast<int32_t>(value);
    case DType::kU8:
      return static_cast<uint8_t>(value);
    case DType::kI8:
      return static_cast<int8_t>(value);
    case DType::kU32:
      return static_cast<uint32_t>(value);
    default:
      return value;
  }
}

class PointwiseTest : public ::testing::Test {
 protected:
  std::vector<double> Values(int64_t count, double low, double high) {
    std::uniform_real_distribution<double> any(low, high);
    std::vector<double> values(count);
    for (double& value : values) value = any(random_);
    return values;
  }
  // Integers of a dtype: small ones, bounds, and any.
  std::vector<double> Integers(DType dtype, int64_t count) {
    std::vector<double> values(count);
    for (double& value : values) {
      const int64_t small = static_cast<int64_t>(random_() % 9) - 4;
      // A reference needs exact doubles.
      const int64_t any = dtype == DType::kI64 ? static_cast<int64_t>(random_() >> 34) - (1 << 29)
                                               : static_cast<int64_t>(random_());
      const int64_t bounds[] = {0, -1, 1, INT32_MIN, INT32_MAX, INT8_MIN, UINT8_MAX, UINT32_MAX};
      const uint64_t kind = random_() % 3;
      value = static_cast<double>(Wrapped(dtype, kind == 0   ? small
                                                 : kind == 1 ? any
                                                             : bounds[random_() % 8]));
    }
    return values;
  }
  uint32_t AnyChunks() { return 1 + static_cast<uint32_t>(random_() % 4); }

  std::mt19937_64 random_{std::random_device{}()};
};

TEST_F(PointwiseTest, EveryFunctionOfOneFloat) {
  struct Function {
    Op op;
    double low, high;
    double (*reference)(double);
  };
  const Function functions[] = {
      {Op::kCopy, -3, 3, [](double x) { return x; }},
      {Op::kFloatNeg, -3, 3, [](double x) { return -x; }},
      {Op::kFloatAbs, -3, 3, [](double x) { return std::abs(x); }},
      {Op::kSqrt, 0.01, 9, [](double x) { return std::sqrt(x); }},
      {Op::kRsqrt, 0.01, 9, [](double x) { return 1 / std::sqrt(x); }},
      {Op::kReciprocal, 0.5, 9, [](double x) { return 1 / x; }},
      {Op::kExp, -3, 3, [](double x) { return std::exp(x); }},
      {Op::kExpm1, -3, 3, [](double x) { return std::expm1(x); }},
      {Op::kLog, 0.01, 9, [](double x) { return std::log(x); }},
      {Op::kLog1p, -0.5, 9, [](double x) { return std::log1p(x); }},
      {Op::kSin, -9, 9, [](double x) { return std::sin(x); }},
      {Op::kCos, -9, 9, [](double x) { return std::cos(x); }},
      {Op::kTan, -1.4, 1.4, [](double x) { return std::tan(x); }},
      {Op::kAsin, -1, 1, [](double x) { return std::asin(x); }},
      {Op::kAcos, -1, 1, [](double x) { return std::acos(x); }},
      {Op::kAtan, -9, 9, [](double x) { return std::atan(x); }},
      {Op::kSinh, -3, 3, [](double x) { return std::sinh(x); }},
      {Op::kCosh, -3, 3, [](double x) { return std::cosh(x); }},
      {Op::kTanh, -3, 3, [](double x) { return std::tanh(x); }},
      {Op::kAsinh, -9, 9, [](double x) { return std::asinh(x); }},
      {Op::kAcosh, 1.1, 9, [](double x) { return std::acosh(x); }},
      {Op::kAtanh, -0.9, 0.9, [](double x) { return std::atanh(x); }},
      {Op::kErf, -3, 3, [](double x) { return std::erf(x); }},
      {Op::kSigmoid, -9, 9, [](double x) { return Sigmoid(x); }},
      {Op::kFloor, -9, 9, [](double x) { return std::floor(x); }},
      {Op::kCeil, -9, 9, [](double x) { return std::ceil(x); }},
      {Op::kRound, -9, 9, [](double x) { return std::nearbyint(x); }},
      {Op::kTrunc, -9, 9, [](double x) { return std::trunc(x); }},
      {Op::kSign, -9, 9, [](double x) { return x > 0   ? 1.0
                                               : x < 0 ? -1.0
                                                       : 0.0; }},
  };
  for (const Function& function : functions) {
    for (const uint32_t bits : {32u, 64u}) {
      for (const int64_t size : {0, 1, 3, 5, 127, 1025}) {
        const DType from = size == 127 ? DType::kBF16 : DType::kF32;
        const TestTensor x =
            TestTensor::Input(from, {size}, Values(size, function.low, function.high));
        const TestTensor out = TestTensor::Output(DType::kF32, {size});
        const Program program = Program(bits, 3).Then(function.op, 3, 0);
        ASSERT_EQ(RunProgram(program, {x}, out, AnyChunks()).status, CompletionStatus::kOk);
        std::vector<double> reference;
        for (const double value : x.Values()) reference.push_back(function.reference(value));
        SCOPED_TRACE(static_cast<int>(function.op));
        ExpectNear(out, reference);
        if (HasFailure()) return;
      }
    }
  }
}

TEST_F(PointwiseTest, SpecialFloats) {
  const auto expect = [&](Op op, std::vector<double> x, std::vector<double> y,
                          std::vector<double> reference, DType to = DType::kF32) {
    const auto count = static_cast<int64_t>(x.size());
    const TestTensor out = TestTensor::Output(to, {count});
    std::vector<TestTensor> inputs = {TestTensor::Input(DType::kF32, {count}, x)};
    if (!y.empty()) inputs.push_back(TestTensor::Input(DType::kF32, {count}, y));
    ASSERT_EQ(RunProgram(Program(32, 2).Then(op, 2, 0, y.empty() ? 0 : 1), inputs, out).status,
              CompletionStatus::kOk);
    SCOPED_TRACE(static_cast<int>(op));
    ExpectEqual(out, reference);
  };
  expect(Op::kRound, {0.5, 1.5, 2.5, -0.5}, {}, {0, 2, 2, 0});
  expect(Op::kSign, {-kInf, kNan, 0}, {}, {-1, kNan, 0});
  expect(Op::kReciprocal, {0, kInf}, {}, {kInf, 0});
  expect(Op::kFloatMax, {kNan, 1, -kInf}, {1, kNan, kInf}, {kNan, kNan, kInf});
  expect(Op::kFloatMin, {kNan, 1, -kInf}, {1, kNan, kInf}, {kNan, kNan, -kInf});
  expect(Op::kFloatDiv, {1, -1, 0}, {0, 0, 0}, {kInf, -kInf, kNan});
  expect(Op::kFloatRemainder, {5.5, -5.5, 5.5}, {2, 2, -2}, {1.5, -1.5, 1.5});
  expect(Op::kFloatEqual, {1, kNan, 0, kInf}, {1, kNan, -0.0, kInf}, {1, 0, 1, 1}, DType::kU8);
  expect(Op::kFloatLess, {1, kNan, 1}, {1, 1, 2}, {0, 0, 1}, DType::kU8);
  expect(Op::kFloatLessOrEqual, {1, kNan, 3}, {1, 1, 2}, {1, 0, 0}, DType::kU8);
  expect(Op::kToInt, {1.9, -1.9, kNan, kInf, -kInf}, {}, {1, -1, 0, 2147483647, -2147483648.0},
         DType::kI32);
}

TEST_F(PointwiseTest, EveryFunctionOfTwoFloats) {
  struct Function {
    Op op;
    double (*reference)(double, double);
  };
  const Function functions[] = {
      {Op::kFloatAdd, [](double x, double y) { return x + y; }},
      {Op::kFloatSub, [](double x, double y) { return x - y; }},
      {Op::kFloatMul, [](double x, double y) { return x * y; }},
      {Op::kFloatDiv, [](double x, double y) { return x / y; }},
      {Op::kFloatMax, [](double x, double y) { return std::max(x, y); }},
      {Op::kFloatMin, [](double x, double y) { return std::min(x, y); }},
      {Op::kFloatPow, [](double x, double y) { return std::pow(x, y); }},
      {Op::kFloatRemainder, [](double x, double y) { return std::fmod(x, y); }},
      {Op::kFloatEqual, [](double x, double y) { return x == y ? 1.0 : 0.0; }},
      {Op::kFloatLess, [](double x, double y) { return x < y ? 1.0 : 0.0; }},
      {Op::kFloatLessOrEqual, [](double x, double y) { return x <= y ? 1.0 : 0.0; }},
  };
  for (const Function& function : functions) {
    for (const uint32_t bits : {32u, 64u}) {
      const TestTensor x = TestTensor::Input(DType::kF32, {257}, Values(257, 0.5, 3));
      const TestTensor y = TestTensor::Input(DType::kF32, {257}, Values(257, 0.5, 3));
      const bool compares = function.op >= Op::kFloatEqual;
      const TestTensor out = TestTensor::Output(compares ? DType::kU8 : DType::kF32, {257});
      // The immediate, too: out = f(x, y) + 0 or & 255.
      const Program program =
          Program(bits, 1)
              .Then(function.op, 1, 0, 1)
              .Then(compares ? Op::kAnd : Op::kFloatAdd, 1, 1, kImmediate, 0, compares ? 255 : 0);
      ASSERT_EQ(RunProgram(program, {x, y}, out, AnyChunks()).status, CompletionStatus::kOk);
      std::vector<double> reference;
      for (int64_t i = 0; i < 257; ++i) {
        reference.push_back(function.reference(x.Values()[i], y.Values()[i]));
      }
      SCOPED_TRACE(static_cast<int>(function.op));
      compares ? ExpectEqual(out, reference) : ExpectNear(out, reference);
      if (HasFailure()) return;
    }
  }
}

// What an instruction of integers computes, without the wrap of a dtype.
int64_t Reference(Op op, int64_t x, int64_t y) {
  const auto u = [](int64_t value) { return static_cast<uint64_t>(value); };
  const auto s = [](uint64_t value) { return static_cast<int64_t>(value); };
  const auto divide = [&] { return y == 0 ? 0 : y == -1 ? s(0 - u(x)) : x / y; };
  switch (op) {
    case Op::kAdd:
      return s(u(x) + u(y));
    case Op::kSub:
      return s(u(x) - u(y));
    case Op::kMul:
      return s(u(x) * u(y));
    case Op::kDiv:
      return divide();
    case Op::kRemainder:
      return y == 0 ? 0 : s(u(x) - u(divide()) * u(y));
    case Op::kModulo: {
      const int64_t rest = y == 0 ? 0 : s(u(x) - u(divide()) * u(y));
      return rest != 0 && (rest < 0) != (y < 0) ? rest + y : rest;
    }
    case Op::kMax:
      return std::max(x, y);
    case Op::kMin:
      return std::min(x, y);
    case Op::kPow: {
      if (y < 0) return x == 1 ? 1 : x == -1 ? (y % 2 == 0 ? 1 : -1) : 0;
      uint64_t power = 1, base = u(x);
      for (uint64_t n = u(y); n != 0; n >>= 1, base *= base) {
        if (n & 1) power *= base;
      }
      return s(power);
    }
    case Op::kEqual:
      return x == y;
    case Op::kLess:
      return x < y;
    case Op::kLessOrEqual:
      return x <= y;
    case Op::kAnd:
      return x & y;
    case Op::kOr:
      return x | y;
    default:
      return x ^ y;
  }
}

TEST_F(PointwiseTest, EveryFunctionOfIntegersInEveryType) {
  for (uint32_t op = static_cast<uint32_t>(Op::kAdd); op <= static_cast<uint32_t>(Op::kXor); ++op) {
    for (const DType dtype : kIntegers) {
      for (const uint32_t bits : {32u, 64u}) {
        if (bits == 32 && (dtype == DType::kI64 || dtype == DType::kU32)) continue;
        const int64_t size = 509;
        const TestTensor x = TestTensor::Input(dtype, {size}, Integers(dtype, size));
        const TestTensor y = TestTensor::Input(dtype, {size}, Integers(dtype, size));
        const TestTensor out = TestTensor::Output(dtype, {size});
        const Program program = Program(bits, 4).Then(static_cast<Op>(op), 4, 0, 1);
        ASSERT_EQ(RunProgram(program, {x, y}, out, AnyChunks()).status, CompletionStatus::kOk);
        const std::vector<double> of_x = x.Values(), of_y = y.Values(), got = out.Values();
        ASSERT_EQ(out.CheckWritten(), "");
        for (int64_t i = 0; i < size; ++i) {
          const int64_t exact =
              Wrapped(dtype, Reference(static_cast<Op>(op), static_cast<int64_t>(of_x[i]),
                                       static_cast<int64_t>(of_y[i])));
          ASSERT_EQ(got[i], static_cast<double>(exact))
              << "op " << op << ", bits " << bits << ", dtype " << static_cast<int>(dtype) << ": "
              << of_x[i] << ", " << of_y[i];
        }
      }
    }
  }
}

TEST_F(PointwiseTest, ShiftsAndConversions) {
  const TestTensor x = TestTensor::Input(DType::kI64, {5}, {-1, 300, 4294967297.0, 200, 5});
  const auto expect = [&](const Program& program, DType to, std::vector<double> reference) {
    const TestTensor out = TestTensor::Output(to, {5});
    ASSERT_EQ(RunProgram(program, {x}, out).status, CompletionStatus::kOk);
    ExpectEqual(out, reference);
  };
  const auto unary = [](Op op) { return Program(64, 1).Then(op, 1, 0); };
  expect(unary(Op::kToI8), DType::kI64, {-1, 44, 1, -56, 5});
  expect(unary(Op::kToU8), DType::kI64, {255, 44, 1, 200, 5});
  expect(unary(Op::kToI32), DType::kI64, {-1, 300, 1, 200, 5});
  expect(unary(Op::kToU32), DType::kI64, {4294967295.0, 300, 1, 200, 5});
  expect(unary(Op::kToFloat), DType::kF32, {-1, 300, 4294967296.0, 200, 5});
  expect(Program(64, 0).Then(Op::kShiftLeft, 0, 0, kImmediate, 0, 2), DType::kI64,
         {-4, 1200, 17179869188.0, 800, 20});
  expect(Program(64, 0).Then(Op::kShiftRight, 0, 0, kImmediate, 0, 62), DType::kI64,
         {3, 0, 0, 0, 0});
  expect(Program(64, 0).Then(Op::kShiftLeft, 0, 0, kImmediate, 0, 64), DType::kI64,
         {0, 0, 0, 0, 0});
  expect(Program(64, 0).Then(Op::kShiftRight, 0, 0, kImmediate, 0, -1), DType::kI64,
         {0, 0, 0, 0, 0});
}

// A tensor that broadcasts to `shape`: some leading dimensions are missing, some others are 1.
Dims BroadcastShape(const Dims& shape, std::mt19937_64& random) {
  Dims result(shape.begin() + static_cast<int64_t>(random() % (shape.size() + 1)), shape.end());
  for (int64_t& dim : result) {
    if (random() % 4 == 0) dim = 1;
  }
  return result;
}

TestTensor RandomLayout(const TestTensor& tensor, std::mt19937_64& random) {
  std::vector<int> order(tensor.shape().size());
  for (size_t d = 0; d < order.size(); ++d) order[d] = static_cast<int>(d);
  if (random() % 2 == 0) std::shuffle(order.begin(), order.end(), random);
  return tensor.WithLayout(order, 1 + static_cast<int64_t>(random() % 3));
}

int64_t BroadcastIndex(int64_t i, const Dims& shape, const Dims& from) {
  int64_t index = 0;
  int64_t stride = 1;
  for (size_t d = shape.size(); d-- > 0;) {
    const int64_t at = i % shape[d];
    i /= shape[d];
    const size_t missing = shape.size() - from.size();
    if (d < missing) continue;
    index += from[d - missing] == 1 ? 0 : at * stride;
    stride *= from[d - missing];
  }
  return index;
}

// select(a < b, c + d, e * f) of any dtypes, shapes and layouts.
TEST_F(PointwiseTest, SixInputsOfAnyDTypeShapeLayoutAndBroadcast) {
  const DType dtypes[] = {DType::kF32, DType::kF16, DType::kBF16};
  for (int round = 0; round < (Emulated() ? 20 : 100); ++round) {
    Dims shape;
    for (uint64_t d = random_() % 5; d > 0; --d) {
      shape.push_back(static_cast<int64_t>(random_() % 9) + (round == 3 ? 0 : 1));
    }
    if (round == 1) shape = {1, 2, 1, 3, 2, 1, 2, 5};
    if (round == 2) shape = {5, 1100};
    std::vector<TestTensor> inputs;
    for (int k = 0; k < 6; ++k) {
      const Dims from = BroadcastShape(shape, random_);
      const TestTensor input =
          TestTensor::Input(dtypes[random_() % 3], from, Values(CountElements(from), 0.5, 2));
      inputs.push_back(round % 3 == 0 ? input : RandomLayout(input, random_));
    }
    TestTensor out = TestTensor::Output(dtypes[random_() % 3], shape);
    if (round % 2 == 0) out = RandomLayout(out, random_);
    const Program program = Program(round % 4 == 0 ? 64 : 32, 8)
                                .Then(Op::kFloatLess, 6, 0, 1)
                                .Then(Op::kFloatAdd, 7, 2, 3)
                                .Then(Op::kFloatMul, 8, 4, 5)
                                .Then(Op::kSelect, 8, 6, 7, 8);
    ASSERT_EQ(RunProgram(program, inputs, out, AnyChunks()).status, CompletionStatus::kOk);
    std::vector<std::vector<double>> values;
    for (const TestTensor& input : inputs) values.push_back(input.Values());
    std::vector<double> reference(out.size());
    for (int64_t i = 0; i < out.size(); ++i) {
      double v[6];
      for (size_t k = 0; k < 6; ++k) v[k] = values[k][BroadcastIndex(i, shape, inputs[k].shape())];
      reference[i] = v[0] < v[1] ? v[2] + v[3] : v[4] * v[5];
    }
    SCOPED_TRACE(round);
    ExpectNear(out, reference);
    if (HasFailure()) return;
  }
}

TEST_F(PointwiseTest, SizesAroundTheLimitsOfBlocksAndTilesAndUnalignedTensors) {
  const Program program = Program(32, 0)
                              .Then(Op::kFloatMul, 2, 0, kImmediate, 0, FloatBits(3))
                              .Then(Op::kFloatAdd, 0, 2, 1);
  for (const int64_t size : {1, 4, 31, 1023, 1024, 1025, 4096, 4099, 70001}) {
    if (Emulated() && size > 4099) continue;
    for (const int64_t offset : {0, 1}) {
      const TestTensor x = TestTensor::Input(DType::kF32, {size + 1}, Values(size + 1, 1, 2));
      const TestTensor y = TestTensor::Input(DType::kF32, {size}, Values(size, 1, 2));
      const TestTensor view = x.View({size}, {1}, offset);
      const TestTensor out = TestTensor::Output(DType::kF32, {size});
      ASSERT_EQ(RunProgram(program, {view, y}, out, size % 2 == 0 ? 1 : 3).status,
                CompletionStatus::kOk);
      std::vector<double> reference;
      const std::vector<double> of_x = view.Values(), of_y = y.Values();
      for (int64_t i = 0; i < size; ++i) reference.push_back(3 * of_x[i] + of_y[i]);
      SCOPED_TRACE(size);
      ExpectNear(out, reference);
    }
  }
}

TEST_F(PointwiseTest, MalformedProgramsAreRefused) {
  const TestTensor x = TestTensor::Input(DType::kF32, {3}, {1, 2, 3});
  const auto refused = [&](const Program& program, int detail = 1) {
    ExpectRefused(RunProgram(program, {x}, TestTensor::Output(DType::kF32, {3})), detail);
  };
  const auto header = [&](int64_t word, int64_t second = 0) {
    Program program = Program(32, 0).Then(Op::kExp, 0, 0);
    program.words[0] = word;
    program.words[1] = second;
    return program;
  };
  refused(Program(32, 0));  // No instruction.
  refused(header(0));
  refused(header(HeaderWord(32, 0) + 1));  // Another format.
  refused(header(HeaderWord(16, 0)));      // No such width.
  refused(header(HeaderWord(32, 9)));      // No such register.
  refused(header(HeaderWord(32, 5)));      // It has no value.
  refused(header(HeaderWord(32, 0) | int64_t{1} << 40));
  refused(header(HeaderWord(32, 0), 1));
  refused(Program(32, 0).Then(static_cast<Op>(pointwise::kOps), 0, 0));
  refused(Program(32, 0).Then(static_cast<Op>(255), 0, 0));
  refused(Program(32, 0).Then(Op::kExp, 9, 0));
  refused(Program(32, 0).Then(Op::kExp, 0, 9));
  refused(Program(32, 0).Then(Op::kExp, 0, 1));  // Input b is absent.
  refused(Program(32, 0).Then(Op::kExp, 0, 254));
  refused(Program(32, 0).Then(Op::kExp, 0, 0, 1));  // It has one operand.
  refused(Program(32, 0).Then(Op::kFloatAdd, 0, 0, 0, 1));
  refused(Program(32, 0).Then(Op::kFloatAdd, 0, 0, 0, 0, 5));  // An immediate that is not used.
  refused(Program(32, 0).Then(Op::kFloatAdd, 3, 0, 2).Then(Op::kExp, 2, 0));
  Program longest(32, 0);
  for (uint32_t i = 0; i < pointwise::kMaxInstructions; ++i) longest.Then(Op::kFloatNeg, 0, 0);
  const TestTensor out = TestTensor::Output(DType::kF32, {3});
  ASSERT_EQ(RunProgram(longest, {x}, out).status, CompletionStatus::kOk);
  ExpectEqual(out, {1, 2, 3});
  refused(longest.Then(Op::kFloatNeg, 0, 0));
  // Other inputs than the program can have.
  const TestTensor wide = TestTensor::Input(DType::kI64, {3}, {1, 2, 3});
  const Program copy = Program(32, 0).Then(Op::kCopy, 0, 0);
  ExpectRefused(RunProgram(copy, {wide}, TestTensor::Output(DType::kF32, {3})), 3);
  ExpectRefused(RunProgram(copy, {x, TestTensor::Input(DType::kF32, {2}, {1, 2})},
                           TestTensor::Output(DType::kF32, {3})),
                2);
  ExpectRefused(RunProgram(copy, {x, TestTensor::Input(DType::kF32, {1, 1}, {1})},
                           TestTensor::Output(DType::kF32, {3})),
                2);
}

// A program of any bytes ends with OK or INVALID_ARGUMENT, and writes nothing else than the output.
TEST_F(PointwiseTest, ProgramsOfAnyBytes) {
  int accepted = 0;
  for (int round = 0; round < (Emulated() ? 300 : 3000); ++round) {
    const bool valid = round % 2 == 0;
    const uint32_t bits = random_() % 2 == 0 ? 32 : 64;
    const uint32_t inputs = 1 + random_() % 6;
    Program program(bits, 0);
    // Nearly valid instructions: a few bytes are any.
    for (uint64_t n = 1 + random_() % 64; n > 0; --n) {
      const auto op = static_cast<uint32_t>(random_() % pointwise::kOps);
      uint32_t operands[3] = {};
      bool immediate = false;
      for (uint32_t k = 0; k < pointwise::CountOperands(op); ++k) {
        operands[k] = random_() % 5 == 0 ? kImmediate : static_cast<uint32_t>(random_() % inputs);
        immediate |= operands[k] == kImmediate;
      }
      const int64_t value = static_cast<int64_t>(random_() >> (11 + random_() % 50));
      program.Then(static_cast<Op>(op), static_cast<uint32_t>(random_() % pointwise::kRegisters),
                   operands[0], operands[1], operands[2], immediate ? value : 0);
      if (!valid && random_() % 8 == 0) {
        program.words[program.words.size() - 2] ^= int64_t{1} << (random_() % 52);
      }
    }
    std::vector<TestTensor> tensors;
    for (uint32_t k = 0; k < inputs; ++k) {
      const DType dtype = random_() % 2 == 0 ? DType::kF32 : DType::kI32;
      tensors.push_back(TestTensor::Input(dtype, {37}, Integers(DType::kI32, 37)));
    }
    const TestTensor out = TestTensor::Output(random_() % 2 == 0 ? DType::kF32 : DType::kU8, {37});
    const Outcome outcome = RunProgram(program, tensors, out, AnyChunks());
    if (outcome.status == CompletionStatus::kOk) {
      ++accepted;
      out.Values();
    } else {
      ExpectRefused(outcome, 1);
      EXPECT_FALSE(valid);
    }
  }
  EXPECT_GT(accepted, 0);
}

// --- gather -------------------------------------------------------------------------------------

TEST_F(PointwiseTest, GatherAlongEveryAxisOfEveryDType) {
  const DType all[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kF64, DType::kI32,
                       DType::kI64, DType::kU8,  DType::kI8,   DType::kU32};
  for (const DType dtype : all) {
    for (int32_t axis = 0; axis < 3; ++axis) {
      const Dims out_shape = {3, 5, 7};
      Dims shape = out_shape;
      shape[axis] = 4;
      std::vector<double> values(CountElements(shape));
      for (double& value : values) value = static_cast<double>(random_() % 100);
      const TestTensor x = RandomLayout(TestTensor::Input(dtype, shape, values), random_);
      std::vector<double> ids(CountElements(out_shape));
      for (double& id : ids) id = static_cast<double>(random_() % 8) - 4;
      const DType id_dtype = random_() % 2 == 0 ? DType::kI64 : DType::kI32;
      const TestTensor indices = RandomLayout(TestTensor::Input(id_dtype, out_shape, ids), random_);
      const TestTensor out = RandomLayout(TestTensor::Output(dtype, out_shape), random_);
      ASSERT_EQ(RunOperator("gather", {x, indices, out, I32(axis)}, AnyChunks()).status,
                CompletionStatus::kOk);
      std::vector<double> reference;
      for (int64_t i = 0; i < out.size(); ++i) {
        int64_t at[3] = {i / 35, i / 7 % 5, i % 7};
        at[axis] = static_cast<int64_t>(ids[i]) + (ids[i] < 0 ? 4 : 0);
        reference.push_back(values[(at[0] * shape[1] + at[1]) * shape[2] + at[2]]);
      }
      ExpectEqual(out, reference);
    }
  }
}

TEST_F(PointwiseTest, GatherRefusesWhatIsNotThere) {
  const TestTensor x = TestTensor::Input(DType::kF32, {3, 2}, {1, 2, 3, 4, 5, 6});
  const auto refused = [&](const TestTensor& from, std::vector<double> ids, const TestTensor& out,
                           int32_t axis, int detail) {
    const TestTensor indices = TestTensor::Input(DType::kI64, {2, 2}, ids);
    ExpectRefused(RunOperator("gather", {from, indices, out, I32(axis)}), detail);
  };
  const TestTensor out = TestTensor::Output(DType::kF32, {2, 2});
  refused(x, {0, 1, 2, 3}, out, 0, 1);
  refused(x, {0, -4, 2, 0}, out, 0, 1);
  refused(x, {0, 0, 0, 9e18}, out, 0, 1);
  refused(x, {0, 0, 0, -9e18}, out, 0, 1);
  refused(x, {0, 0, 0, 0}, TestTensor::Output(DType::kI32, {2, 2}), 0, 2);
  refused(x, {0, 0, 0, 0}, out, 1, 3);
  refused(x, {0, 0, 0, 0}, out, 2, 3);
  refused(x, {0, 0, 0, 0}, out, -1, 3);
  refused(TestTensor::Input(DType::kF32, {2}, {1, 2}), {0, 0, 0, 0}, out, 0, 3);
}

}  // namespace
}  // namespace resident::testing
