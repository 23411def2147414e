// The family "elementwise" in its general forms: dtypes and their mixtures, strides, broadcasting,
// shapes, chunks and special values. operators_test.cc has dense float32 tensors of all alignments.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "tests/conformance/operator_runner.h"
#include "tests/support/float64.h"

namespace resident::testing {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr DType kFloats[] = {DType::kF32, DType::kF16, DType::kBF16};

using Function = std::function<double(double, double)>;

struct Case {
  const char* name;
  int inputs;
  std::vector<TestArgument> scalars;
  Function reference;
  // Makes inputs valid: log needs positive values.
  double (*domain)(double) = [](double x) { return x; };
};

double Clamp(double x, double lo, double hi) { return std::min(std::max(x, lo), hi); }

std::vector<Case> FloatCases() {
  const auto positive = [](double x) { return std::abs(x) + 0.01; };
  return {
      {"add", 2, {F64(0.5)}, [](double x, double y) { return x + 0.5 * y; }},
      {"sub", 2, {F64(-2)}, [](double x, double y) { return x + 2 * y; }},
      {"mul", 2, {}, [](double x, double y) { return x * y; }},
      {"div", 2, {}, [](double x, double y) { return x / y; }},
      {"maximum", 2, {}, [](double x, double y) { return std::max(x, y); }},
      {"minimum", 2, {}, [](double x, double y) { return std::min(x, y); }},
      {"pow", 2, {}, [](double x, double y) { return std::pow(x, y); }, positive},
      {"copy", 1, {}, [](double x, double) { return x; }},
      {"neg", 1, {}, [](double x, double) { return -x; }},
      {"abs", 1, {}, [](double x, double) { return std::abs(x); }},
      {"exp", 1, {}, [](double x, double) { return std::exp(x); }},
      {"log", 1, {}, [](double x, double) { return std::log(x); }, positive},
      {"sqrt", 1, {}, [](double x, double) { return std::sqrt(x); }, positive},
      {"rsqrt", 1, {}, [](double x, double) { return 1 / std::sqrt(x); }, positive},
      {"sin", 1, {}, [](double x, double) { return std::sin(x); }},
      {"cos", 1, {}, [](double x, double) { return std::cos(x); }},
      {"tanh", 1, {}, [](double x, double) { return std::tanh(x); }},
      {"sigmoid", 1, {}, [](double x, double) { return Sigmoid(x); }},
      {"relu", 1, {}, [](double x, double) { return std::max(x, 0.0); }},
      {"silu", 1, {}, [](double x, double) { return Silu(x); }},
      {"gelu", 1, {I32(0)}, [](double x, double) { return 0.5 * x * std::erfc(-x * M_SQRT1_2); }},
      {"gelu", 1, {I32(1)}, [](double x, double) { return GeluTanh(x); }},
      {"hardsigmoid", 1, {}, [](double x, double) { return Clamp(x / 6 + 0.5, 0, 1); }},
      {"hardswish", 1, {}, [](double x, double) { return x * Clamp(x + 3, 0, 6) / 6; }},
      {"scale", 1, {F32(-1.5f)}, [](double x, double) { return -1.5 * x; }},
      {"leaky_relu", 1, {F32(0.25f)}, [](double x, double) { return x > 0 ? x : 0.25 * x; }},
      {"hardtanh",
       1,
       {F32(-0.5f), F32(0.75f)},
       [](double x, double) { return Clamp(x, -0.5, 0.75); }},
      {"elu",
       1,
       {F32(1.5f), F32(0.5f), F32(2)},
       [](double x, double) { return x > 0 ? 0.5 * x : 0.5 * 1.5 * std::expm1(2 * x); }},
      {"softplus",
       1,
       {F32(0.5f), F32(20)},
       [](double x, double) { return std::log1p(std::exp(0.5 * x)) / 0.5; }},
      {"clamp", 1, {F64(-0.25), F64(1)}, [](double x, double) { return Clamp(x, -0.25, 1); }},
      {"silu_mul", 2, {}, [](double x, double y) { return Silu(x) * y; }},
      {"fill", 0, {F64(2.5)}, [](double, double) { return 2.5; }},
  };
}

// A tensor that broadcasts to `shape`: some leading dimensions are missing, some others are 1.
Dims BroadcastShape(const Dims& shape, std::mt19937_64& random) {
  Dims result(shape.begin() + static_cast<int64_t>(random() % (shape.size() + 1)), shape.end());
  for (int64_t& dim : result) {
    if (random() % 4 == 0) dim = 1;
  }
  return result;
}

// A random layout: any order of the dimensions, and a distance between elements.
TestTensor RandomLayout(const TestTensor& tensor, std::mt19937_64& random) {
  std::vector<int> order(tensor.shape().size());
  for (size_t d = 0; d < order.size(); ++d) order[d] = static_cast<int>(d);
  if (random() % 2 == 0) std::shuffle(order.begin(), order.end(), random);
  return tensor.WithLayout(order, 1 + static_cast<int64_t>(random() % 3));
}

// Index of element i of `shape` in a dense tensor of `from`, which broadcasts to it.
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

class ElementwiseTest : public ::testing::Test {
 protected:
  // Values of an input of the operator. All results of few values could be close to 0, or subnormal
  // in float16, where no relative error is bounded. So their magnitudes are in [0.1, 0.9), and
  // those of add and sub, whose cases add multiples with the same sign, are positive.
  std::vector<double> RandomValues(const Case& test, const Dims& shape) {
    std::vector<double> values = TestTensor::Random(DType::kF32, shape, random_).Values();
    if (values.size() <= 4) {
      const std::string name = test.name;
      for (double& value : values) {
        const double magnitude = 0.1 + 0.8 * std::abs(value) / (1 + std::abs(value));
        value = name == "add" || name == "sub" ? magnitude : std::copysign(magnitude, value);
      }
    }
    for (double& value : values) value = test.domain(value);
    return values;
  }

  // Runs the operator on the tensors and compares with the reference.
  void Check(const Case& test, const std::vector<TestTensor>& inputs, const TestTensor& out,
             uint32_t chunks, const std::function<double(double)>& rounded = nullptr) {
    std::vector<TestArgument> arguments(inputs.begin(), inputs.end());
    arguments.emplace_back(out);
    arguments.insert(arguments.end(), test.scalars.begin(), test.scalars.end());
    ASSERT_EQ(RunOperator(test.name, arguments, chunks).status, CompletionStatus::kOk);
    std::vector<std::vector<double>> values;
    for (const TestTensor& input : inputs) values.push_back(input.Values());
    std::vector<double> reference(out.size());
    for (int64_t i = 0; i < out.size(); ++i) {
      double v[2] = {};
      for (size_t k = 0; k < inputs.size(); ++k) {
        v[k] = values[k][BroadcastIndex(i, out.shape(), inputs[k].shape())];
      }
      reference[i] = test.reference(v[0], v[1]);
      if (rounded) reference[i] = rounded(reference[i]);
    }
    if (Tolerance(out.dtype()) == 0) {
      ExpectEqual(out, reference);
    } else {
      ExpectNear(out, reference);
    }
  }

  std::mt19937_64 random_{std::random_device{}()};
};

TEST_F(ElementwiseTest, EveryOperatorOnAnyDTypeShapeLayoutAndBroadcast) {
  for (const Case& test : FloatCases()) {
    for (int round = 0; round < (Emulated() ? 4 : 12); ++round) {
      Dims shape;
      for (uint64_t d = random_() % 5; d > 0; --d) {
        shape.push_back(static_cast<int64_t>(random_() % 9) + (round == 3 ? 0 : 1));
      }
      if (round == 1) shape = {1, 2, 1, 3, 2, 1, 2, 5};
      std::vector<TestTensor> inputs;
      for (int k = 0; k < test.inputs; ++k) {
        const Dims from = BroadcastShape(shape, random_);
        const std::vector<double> values = RandomValues(test, from);
        inputs.push_back(
            RandomLayout(TestTensor::Input(kFloats[random_() % 3], from, values), random_));
      }
      const TestTensor out =
          RandomLayout(TestTensor::Output(kFloats[random_() % 3], shape), random_);
      SCOPED_TRACE(std::string(test.name) + ", round " + std::to_string(round));
      Check(test, inputs, out, 1 + static_cast<uint32_t>(random_() % 4));
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(ElementwiseTest, AViewHasTheBitsOfItsContiguousCopy) {
  for (const Case& test : FloatCases()) {
    for (const Dims& shape : std::vector<Dims>{{5, 7, 33}, {2, 1025}, {300, 4}}) {
      for (const DType dtype : kFloats) {
        std::vector<TestTensor> dense, views;
        for (int k = 0; k < test.inputs; ++k) {
          dense.push_back(TestTensor::Input(dtype, shape, RandomValues(test, shape)));
          views.push_back(RandomLayout(dense.back(), random_));
        }
        const auto run = [&](const std::vector<TestTensor>& inputs, const TestTensor& out) {
          std::vector<TestArgument> arguments(inputs.begin(), inputs.end());
          arguments.emplace_back(out);
          arguments.insert(arguments.end(), test.scalars.begin(), test.scalars.end());
          ASSERT_EQ(RunOperator(test.name, arguments, 2).status, CompletionStatus::kOk);
        };
        SCOPED_TRACE(test.name);
        const TestTensor expected = TestTensor::Output(dtype, shape);
        run(dense, expected);
        const TestTensor out = TestTensor::Output(dtype, shape);
        run(views, out);
        ExpectEqual(out, expected.Values());
        const TestTensor strided = RandomLayout(TestTensor::Output(dtype, shape), random_);
        run(views, strided);
        ExpectEqual(strided, expected.Values());
        if (HasFailure()) return;
      }
    }
  }
}

TEST_F(ElementwiseTest, SizesAroundTheLimitsOfBlocksAndTiles) {
  for (const Case& test : FloatCases()) {
    for (const int64_t size : {0, 1, 31, 32, 33, 255, 256, 257, 1023, 1025, 4099, 65537}) {
      if (Emulated() && size > 1025 && std::string(test.name) != "add") continue;
      for (const DType dtype : {DType::kF32, DType::kF16}) {
        std::vector<TestTensor> inputs;
        for (int k = 0; k < test.inputs; ++k) {
          inputs.push_back(TestTensor::Input(dtype, {size}, RandomValues(test, {size})));
        }
        SCOPED_TRACE(std::string(test.name) + " of " + std::to_string(size));
        Check(test, inputs, TestTensor::Output(dtype, {size}), size % 2 == 0 ? 1 : 3);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(ElementwiseTest, IntegersWrap) {
  const std::vector<double> values = {2147483647, -2147483648.0, 1, -1, 65536, 46341};
  const TestTensor x = TestTensor::Input(DType::kI32, {6}, values);
  const TestTensor y = TestTensor::Input(DType::kI32, {6}, {1, -1, 5, 7, 65536, 46341});
  const auto wrap = [](int64_t value) { return static_cast<double>(static_cast<int32_t>(value)); };
  const std::vector<double> others = y.Values();
  const auto expect = [&](const char* name, std::vector<TestArgument> scalars, auto function) {
    const TestTensor out = TestTensor::Output(DType::kI32, {6});
    std::vector<TestArgument> arguments = {x, y, out};
    arguments.insert(arguments.end(), scalars.begin(), scalars.end());
    ASSERT_EQ(RunOperator(name, arguments).status, CompletionStatus::kOk);
    std::vector<double> reference;
    for (size_t i = 0; i < values.size(); ++i) {
      reference.push_back(
          wrap(function(static_cast<int64_t>(values[i]), static_cast<int64_t>(others[i]))));
    }
    SCOPED_TRACE(name);
    ExpectEqual(out, reference);
  };
  expect("add", {F64(3)}, [](int64_t a, int64_t b) { return a + 3 * b; });
  expect("sub", {F64(1)}, [](int64_t a, int64_t b) { return a - b; });
  expect("mul", {}, [](int64_t a, int64_t b) { return a * b; });
  expect("maximum", {}, [](int64_t a, int64_t b) { return std::max(a, b); });
  expect("minimum", {}, [](int64_t a, int64_t b) { return std::min(a, b); });
}

TEST_F(ElementwiseTest, Float64KeepsItsPrecision) {
  for (const char* const name : {"add", "sub", "mul", "maximum", "minimum", "clamp", "copy"}) {
    for (const Case& test : FloatCases()) {
      if (test.name != std::string(name)) continue;
      for (const bool dense : {true, false}) {
        std::vector<TestTensor> inputs;
        for (int k = 0; k < test.inputs; ++k) {
          const TestTensor input = TestTensor::Random(DType::kF64, {7, 45}, random_);
          inputs.push_back(dense ? input : input.WithLayout({1, 0}, 2));
        }
        SCOPED_TRACE(name);
        Check(test, inputs, TestTensor::Output(DType::kF64, {7, 45}), 2);
      }
    }
  }
}

TEST_F(ElementwiseTest, MixturesWithInt32AreComputedInFloat64) {
  const TestTensor x = TestTensor::Input(DType::kI32, {3}, {16777217, -5, 1000000007});
  const TestTensor y = TestTensor::Input(DType::kF32, {3}, {0.5, 0.25, 1});
  TestTensor out = TestTensor::Output(DType::kF64, {3});
  ASSERT_EQ(RunOperator("add", {x, y, out, F64(1)}).status, CompletionStatus::kOk);
  ExpectEqual(out, {16777217.5, -4.75, 1000000008});
  out = TestTensor::Output(DType::kI32, {3});
  ASSERT_EQ(RunOperator("add", {x, y, out, F64(1)}).status, CompletionStatus::kOk);
  ExpectEqual(out, {16777217, -4, 1000000008});
}

TEST_F(ElementwiseTest, ZeroWritesEveryElementOfEveryDType) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kF64, DType::kI32,
                            DType::kI64, DType::kU8, DType::kI8, DType::kU32}) {
    for (const int64_t size : {0, 1, 31, 257, 1025, 65537}) {
      if (Emulated() && size > 1025) continue;
      for (const uint32_t chunks : {0u, 1u, 3u}) {
        const TestTensor out = TestTensor::Output(dtype, {size});
        ASSERT_EQ(RunOperator("zero", {out}, chunks).status, CompletionStatus::kOk);
        ExpectEqual(out, std::vector<double>(size, 0));
      }
    }
    const TestTensor strided = RandomLayout(TestTensor::Output(dtype, {3, 1, 5, 7}), random_);
    ASSERT_EQ(RunOperator("zero", {strided}, 2).status, CompletionStatus::kOk);
    ExpectEqual(strided, std::vector<double>(105, 0));
    const TestTensor scalar = TestTensor::Output(dtype, {});
    ASSERT_EQ(RunOperator("zero", {scalar}).status, CompletionStatus::kOk);
    ExpectEqual(scalar, {0});
  }
}

TEST_F(ElementwiseTest, CopyConvertsBetweenAllDTypes) {
  struct Range {
    DType dtype;
    double lowest;
    double highest;
  };
  const Range kIntegers[] = {{DType::kI32, -2147483648.0, 2147483647},
                             {DType::kI64, -9223372036854775808.0, 9223372036854775807.0},
                             {DType::kU8, 0, 255},
                             {DType::kI8, -128, 127},
                             {DType::kU32, 0, 4294967295}};
  const std::vector<double> values = {0,     -0.75, 0.75, 1.5,  -1.5,  126.9, 127.5, 128,
                                      255.5, 256,   -128, -129, 65504, kInf,  -kInf, kNan};
  const int64_t n = static_cast<int64_t>(values.size());
  for (const DType from : {DType::kF32, DType::kF16, DType::kBF16, DType::kF64}) {
    const TestTensor x = TestTensor::Input(from, {n}, values);
    const std::vector<double> stored = x.Values();
    for (const Range& to : kIntegers) {
      const TestTensor out = TestTensor::Output(to.dtype, {n});
      ASSERT_EQ(RunOperator("copy", {x, out}).status, CompletionStatus::kOk);
      std::vector<double> reference;
      for (const double value : stored) {
        reference.push_back(std::isnan(value) ? 0
                                              : Clamp(std::trunc(value), to.lowest, to.highest));
      }
      ExpectEqual(out, reference);
    }
    const TestTensor out = TestTensor::Output(DType::kF64, {n});
    ASSERT_EQ(RunOperator("copy", {x, out}).status, CompletionStatus::kOk);
    ExpectEqual(out, stored);
  }
  // Between integers the low bits are kept.
  const TestTensor x = TestTensor::Input(DType::kI64, {4}, {-1, 256, 4294967297.0, 200});
  TestTensor out = TestTensor::Output(DType::kU8, {4});
  ASSERT_EQ(RunOperator("copy", {x, out}).status, CompletionStatus::kOk);
  ExpectEqual(out, {255, 0, 1, 200});
  out = TestTensor::Output(DType::kI8, {4});
  ASSERT_EQ(RunOperator("copy", {x, out}).status, CompletionStatus::kOk);
  ExpectEqual(out, {-1, 0, 1, -56});
  out = TestTensor::Output(DType::kF32, {4});
  ASSERT_EQ(RunOperator("copy", {x, out}).status, CompletionStatus::kOk);
  ExpectEqual(out, {-1, 256, 4294967296.0, 200});
}

TEST_F(ElementwiseTest, NanAndInfinityArePyTorchs) {
  const auto expect = [](const char* name, std::vector<double> x, std::vector<double> y,
                         std::vector<TestArgument> scalars, std::vector<double> reference) {
    const int64_t n = static_cast<int64_t>(x.size());
    for (const DType dtype : kFloats) {
      const TestTensor out = TestTensor::Output(dtype, {n});
      std::vector<TestArgument> arguments = {TestTensor::Input(dtype, {n}, x)};
      if (!y.empty()) arguments.emplace_back(TestTensor::Input(dtype, {n}, y));
      arguments.emplace_back(out);
      arguments.insert(arguments.end(), scalars.begin(), scalars.end());
      ASSERT_EQ(RunOperator(name, arguments).status, CompletionStatus::kOk);
      SCOPED_TRACE(name);
      ExpectEqual(out, reference);
    }
  };
  expect("div", {1, -1, 0, kInf}, {0, 0, 0, kInf}, {}, {kInf, -kInf, kNan, kNan});
  expect("maximum", {kNan, 1, kNan, -kInf}, {1, kNan, kNan, kInf}, {}, {kNan, kNan, kNan, kInf});
  expect("minimum", {kNan, 1, kNan, -kInf}, {1, kNan, kNan, kInf}, {}, {kNan, kNan, kNan, -kInf});
  expect("relu", {kNan, -kInf, kInf}, {}, {}, {kNan, 0, kInf});
  expect("silu", {-kInf, kInf, kNan}, {}, {}, {0, kInf, kNan});
  expect("silu", {-60000, -1000}, {}, {}, {0, 0});
  expect("clamp", {kNan, -kInf, kInf}, {}, {F64(-1), F64(1)}, {kNan, -1, 1});
  expect("clamp", {0, 5, -5}, {}, {F64(2), F64(1)}, {1, 1, 1});
  expect("clamp", {0, 5, kInf}, {}, {F64(-1.7976931348623157e308), F64(1.7976931348623157e308)},
         {0, 5, kInf});
  expect("clamp", {0, 5}, {}, {F64(kNan), F64(1)}, {kNan, kNan});
  expect("hardsigmoid", {-kInf, kInf, kNan}, {}, {}, {0, 1, kNan});
  expect("pow", {kNan, 2, -1, 0}, {0, kNan, 0.5, -1}, {}, {1, kNan, kNan, kInf});
  expect("log", {0, -1, kInf}, {}, {}, {-kInf, kNan, kInf});
  expect("rsqrt", {0, -1, kInf}, {}, {}, {kInf, kNan, 0});
  expect("hardtanh", {kNan, 5}, {}, {F32(-1), F32(1)}, {kNan, 1});
}

TEST_F(ElementwiseTest, RepeatedAndReversedViews) {
  const TestTensor x = TestTensor::Input(DType::kF32, {6}, {1, 2, 3, 4, 5, 6});
  const TestTensor out = TestTensor::Output(DType::kF32, {2, 3});
  // Row 0 is 6 5 4, row 1 is 3 2 1; y repeats 1 2 3.
  const TestTensor reversed = x.View({2, 3}, {-3, -1}, 5);
  const TestTensor repeated = x.View({2, 3}, {0, 1});
  ASSERT_EQ(RunOperator("mul", {reversed, repeated, out}).status, CompletionStatus::kOk);
  ExpectEqual(out, {6, 10, 12, 3, 4, 3});
}

TEST_F(ElementwiseTest, ScalarsThatInt32CannotUseAreRefused) {
  const TestTensor x = TestTensor::Input(DType::kI32, {2}, {1, 2});
  const auto refused = [&](const char* name, std::vector<TestArgument> arguments) {
    const Outcome outcome = RunOperator(name, arguments);
    EXPECT_EQ(outcome.status, CompletionStatus::kInvalidArgument) << name;
    EXPECT_EQ(outcome.detail, 1) << name;
  };
  const TestTensor out = TestTensor::Output(DType::kI32, {2});
  refused("add", {x, x, out, F64(0.5)});
  refused("sub", {x, x, out, F64(kNan)});
  refused("clamp", {x, out, F64(0.5), F64(2)});
  refused("fill", {out, F64(1.5)});
  refused("fill", {out, F64(2147483648.0)});
  refused("fill", {out, F64(kInf)});
  const TestTensor single = TestTensor::Input(DType::kF32, {2}, {1, 2});
  refused("gelu", {single, TestTensor::Output(DType::kF32, {2}), I32(2)});
  ASSERT_EQ(RunOperator("clamp", {x, out, F64(-kInf), F64(1e300)}).status, CompletionStatus::kOk);
  ExpectEqual(out, {1, 2});
}

}  // namespace
}  // namespace resident::testing
