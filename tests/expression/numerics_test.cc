// Compiles every function, and expressions of several functions, for the host and compares
// them with a float64 reference: new random inputs, special values, all mixes of dtypes,
// strided and broadcast operands, chunks, and the checked build.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "runtime/compile/expression/expression.h"
#include "tests/expression/matches.h"
#include "tests/expression/operand.h"
#include "tests/expression/reference.h"
#include "tests/support/host_unit.h"

namespace resident::testing {
namespace {

using Shape = std::vector<int64_t>;

constexpr DType kDTypes[] = {DType::kF32, DType::kF16, DType::kBF16};
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

const std::vector<ExpressionCase>& Cases() {
  static const auto* const cases = new std::vector<ExpressionCase>(ExpressionCases());
  return *cases;
}

class NumericsTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    std::string source;
    const auto& cases = Cases();
    for (size_t i = 0; i < cases.size(); ++i) {
      const auto generated = expression::Generate("op" + std::to_string(i), cases[i].text);
      ASSERT_TRUE(generated.ok()) << generated.status();
      source += generated->source;
    }
    unit_ = HostUnit::Compile(source);
    checked_ = HostUnit::Compile(source, /*checked=*/true);
    ASSERT_NE(unit_, nullptr);
    ASSERT_NE(checked_, nullptr);
  }
  static void TearDownTestSuite() {
    unit_ = nullptr;
    checked_ = nullptr;
  }

  NumericsTest() : seed_(std::random_device()()), random_(seed_) {
    std::cout << "seed " << seed_ << "\n";
  }

  void Randomize(Operand& x) {
    std::normal_distribution<double> normal(0, 3);
    for (int64_t i = 0; i < x.size(); ++i) x.Set(i, normal(random_));
  }
  void Specials(Operand& x, int stride) {
    const float kSpecials[] = {0.0f,  -0.0f, kInf,  -kInf, kNan,   1e-40f, 3e38f,  -3e38f, 1.0f,
                               -1.0f, 0.5f,  -2.5f, 88.0f, -88.0f, 100.0f, -70.0f, 6e4f,   -6e-8f};
    for (int64_t i = 0; i < x.size(); ++i) {
      x.Set(i, kSpecials[i / stride % std::size(kSpecials)]);
    }
  }

  // Runs case `c` on the operands (inputs, then the output) and compares.
  void Check(size_t c, std::vector<Operand>& operands, int64_t chunks = 1, bool compact = false,
             const HostUnit* unit = unit_.get()) {
    const ExpressionCase& test = Cases()[c];
    Operand& out = operands.back();
    HostCall call(static_cast<uint32_t>(operands.size() + test.scalars.size()));
    std::vector<uint64_t> words;
    for (size_t k = 0; k < operands.size(); ++k) {
      words.push_back(reinterpret_cast<uint64_t>(operands[k].data()));
      call.Tensor(static_cast<uint32_t>(k), operands[k].data(), operands[k].dtype(),
                  operands[k].shape(), operands[k].strides());
    }
    for (size_t s = 0; s < test.scalars.size(); ++s) {
      call.Scalar(static_cast<uint32_t>(operands.size() + s), test.scalars[s]);
      words.push_back(bit_cast<u32>(test.scalars[s]));
    }
    if (compact) call.Compact(out.size(), words);
    ASSERT_TRUE(call.Run(unit->Find("op" + std::to_string(c)), chunks));

    ASSERT_TRUE(Matches(test, operands));
  }

  std::vector<Operand> Make(int inputs, const std::vector<DType>& dtypes, const Shape& shape,
                            Layout layout, Layout out_layout) {
    std::vector<Operand> operands;
    for (int k = 0; k < inputs; ++k) {
      operands.emplace_back(dtypes[k], shape, layout);
      Randomize(operands.back());
    }
    operands.emplace_back(dtypes[inputs], shape, out_layout);
    return operands;
  }
  std::vector<Operand> Make(int inputs, DType dtype, const Shape& shape,
                            Layout layout = Layout::kDense, Layout out_layout = Layout::kDense) {
    return Make(inputs, std::vector<DType>(inputs + 1, dtype), shape, layout, out_layout);
  }

  static inline std::unique_ptr<HostUnit> unit_;
  static inline std::unique_ptr<HostUnit> checked_;
  const uint32_t seed_;
  std::mt19937 random_;
};

template <typename F>
void ForEachCase(F f) {
  const auto& cases = Cases();
  for (size_t c = 0; c < cases.size(); ++c) {
    SCOPED_TRACE(cases[c].text);
    f(c, cases[c].inputs);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

TEST_F(NumericsTest, RandomInputsInEveryMixOfTypes) {
  ForEachCase([&](size_t c, int inputs) {
    const int mixes = static_cast<int>(std::pow(3, std::min(inputs + 1, 4)));
    for (int mix = 0; mix < mixes; ++mix) {
      std::vector<DType> dtypes;
      for (int k = 0, rest = mix; k <= inputs; ++k) {
        dtypes.push_back(inputs > 3 ? kDTypes[random_() % 3] : kDTypes[rest % 3]);
        rest /= 3;
      }
      SCOPED_TRACE("mix " + std::to_string(mix));
      auto operands = Make(inputs, dtypes, {2053}, Layout::kDense, Layout::kDense);
      ASSERT_NO_FATAL_FAILURE(Check(c, operands));
    }
  });
}

TEST_F(NumericsTest, SpecialValuesInEveryType) {
  ForEachCase([&](size_t c, int inputs) {
    for (const DType in : kDTypes) {
      for (const DType out : kDTypes) {
        std::vector<DType> dtypes(inputs + 1, in);
        dtypes.back() = out;
        auto operands = Make(inputs, dtypes, {18 * 18}, Layout::kDense, Layout::kDense);
        for (int k = 0; k < inputs; ++k) Specials(operands[k], k % 2 == 0 ? 1 : 18);
        ASSERT_NO_FATAL_FAILURE(Check(c, operands));
      }
    }
  });
}

TEST_F(NumericsTest, CompactFormAndAlignmentAndChunks) {
  ForEachCase([&](size_t c, int inputs) {
    for (const int64_t n : {1, 3, 4, 255, 1025, 5000}) {
      for (const Layout layout : {Layout::kDense, Layout::kShifted}) {
        auto operands = Make(inputs, DType::kF32, {n}, layout, layout);
        if (inputs + 1 + Cases()[c].scalars.size() <= kCompactArguments) {
          ASSERT_NO_FATAL_FAILURE(Check(c, operands, 1, /*compact=*/true));
        }
        for (const int64_t chunks : {1, 3}) {
          operands.back().Poison();
          ASSERT_NO_FATAL_FAILURE(Check(c, operands, chunks));
        }
      }
    }
  });
}

TEST_F(NumericsTest, StridedInputsAndOutputs) {
  ForEachCase([&](size_t c, int inputs) {
    for (const Layout in : {Layout::kTransposed, Layout::kApart, Layout::kReversed}) {
      for (const Layout out : {Layout::kDense, Layout::kTransposed, Layout::kApart}) {
        for (const Shape& shape : {Shape{7, 5, 11}, Shape{64}, Shape{2, 1, 2, 3, 1, 2, 2, 3}}) {
          auto operands = Make(inputs, kDTypes[random_() % 3], shape, in, out);
          ASSERT_NO_FATAL_FAILURE(Check(c, operands, 1 + random_() % 3));
        }
      }
    }
  });
}

TEST_F(NumericsTest, BroadcastAsPyTorch) {
  const Shape out = {3, 4, 5};
  const std::vector<Shape> shapes = {{3, 4, 5}, {1, 4, 5}, {3, 1, 5}, {3, 4, 1}, {4, 5},
                                     {4, 1},    {5},       {1},       {},        {1, 1, 1}};
  ForEachCase([&](size_t c, int inputs) {
    for (int round = 0; round < 20; ++round) {
      std::vector<Operand> operands;
      for (int k = 0; k < inputs; ++k) {
        operands.emplace_back(kDTypes[random_() % 3], shapes[random_() % shapes.size()],
                              random_() % 2 == 0 ? Layout::kDense : Layout::kApart);
        Randomize(operands.back());
      }
      operands.emplace_back(kDTypes[random_() % 3], out, Layout::kDense);
      ASSERT_NO_FATAL_FAILURE(Check(c, operands));
    }
  });
}

TEST_F(NumericsTest, AColumnTimesARow) {
  const auto product = std::find_if(Cases().begin(), Cases().end(), [](const ExpressionCase& test) {
    return test.text == "x * y";
  });
  ASSERT_NE(product, Cases().end());
  Operand column(DType::kF32, {3, 1}, Layout::kDense);
  Operand matrix(DType::kF32, {3, 4}, Layout::kDense);
  for (int64_t i = 0; i < 3; ++i) column.Set(i, i + 1);
  for (int64_t i = 0; i < 12; ++i) matrix.Set(i, i);
  std::vector<Operand> operands = {column, matrix, Operand(DType::kF32, {3, 4}, Layout::kDense)};
  Check(static_cast<size_t>(product - Cases().begin()), operands);
  for (int64_t i = 0; i < 12; ++i) EXPECT_EQ(operands[2].At(i), (i / 4 + 1) * i);
}

TEST_F(NumericsTest, EmptyTensorsDoNothing) {
  ForEachCase([&](size_t c, int inputs) {
    for (const Shape& shape : {Shape{0}, Shape{3, 0, 2}, Shape{0, 5}}) {
      auto operands = Make(inputs, DType::kF32, shape);
      ASSERT_NO_FATAL_FAILURE(Check(c, operands));
      operands = Make(inputs, DType::kF16, shape, Layout::kApart, Layout::kTransposed);
      ASSERT_NO_FATAL_FAILURE(Check(c, operands));
    }
  });
}

TEST_F(NumericsTest, TheCheckedBuildGivesTheSameResults) {
  ForEachCase([&](size_t c, int inputs) {
    for (const DType dtype : kDTypes) {
      auto operands = Make(inputs, dtype, {6, 50}, Layout::kTransposed, Layout::kDense);
      ASSERT_NO_FATAL_FAILURE(Check(c, operands, 1, false, checked_.get()));
      operands = Make(inputs, dtype, {300}, Layout::kDense, Layout::kDense);
      ASSERT_NO_FATAL_FAILURE(Check(c, operands, 2, false, checked_.get()));
    }
  });
}

}  // namespace
}  // namespace resident::testing
