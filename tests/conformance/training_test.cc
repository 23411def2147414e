// The family "training": losses, optimizers and norms, with the cases in which they are refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "tests/conformance/operator_runner.h"
#include "tests/support/float64.h"

namespace resident::testing {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr DType kFloats[] = {DType::kF32, DType::kF16, DType::kBF16};
constexpr char kNothingWritten[] = "element 0 was not written";

class TrainingTest : public ::testing::Test {
 protected:
  DType AnyFloat() { return kFloats[random_() % 3]; }
  int64_t Below(int64_t limit) {
    return static_cast<int64_t>(random_() % static_cast<uint64_t>(limit));
  }
  uint32_t AnyChunks() { return 1 + static_cast<uint32_t>(Below(4)); }
  TestTensor Random(DType dtype, Dims shape, double deviation = 1) {
    return TestTensor::Random(dtype, std::move(shape), random_, deviation);
  }
  // Values of one sign, whose sums are not small differences.
  TestTensor Positive(Dims shape) {
    std::vector<double> values = Random(DType::kF32, shape).Values();
    for (double& value : values) value = std::abs(value);
    return TestTensor::Input(DType::kF32, std::move(shape), values);
  }
  // Integers in [0, limit).
  TestTensor Indices(Dims shape, int64_t limit) {
    std::vector<double> values(CountElements(shape));
    for (double& value : values) value = static_cast<double>(Below(limit));
    return TestTensor::Input(DType::kI64, std::move(shape), values);
  }
  std::string Trace(const std::string& what) {
    return "seed " + std::to_string(seed_) + ", " + what;
  }

  static void ExpectRefused(const Outcome& outcome) {
    EXPECT_EQ(outcome.status, CompletionStatus::kInvalidArgument);
    EXPECT_EQ(outcome.detail, 1);
  }

  const uint64_t seed_ = std::random_device{}();
  std::mt19937_64 random_{seed_};
};

// Sizes around the limits of blocks and tiles.
std::vector<int64_t> Sizes() { return {0, 1, 31, 32, 33, 255, 256, 257, 1023, 1025, 7919, 65537}; }

// --- Cross entropy

TEST_F(TrainingTest, CrossEntropyAndItsGradient) {
  struct Shape {
    int64_t rows;
    int64_t columns;
  };
  std::vector<Shape> shapes = {{1, 1}, {33, 7}, {257, 2}, {0, 5}, {2, 65537}};
  for (const int64_t columns : {31, 32, 33, 255, 256, 257, 1023, 1025})
    shapes.push_back({3, columns});
  if (!Emulated()) shapes.push_back({65537, 3});
  if (!Emulated()) shapes.push_back({1, 262144});
  for (const Shape& shape : shapes) {
    for (const DType dtype : kFloats) {
      SCOPED_TRACE(Trace(std::to_string(shape.rows) + " x " + std::to_string(shape.columns)));
      const TestTensor logits = Random(dtype, {shape.rows, shape.columns}, 3);
      const TestTensor targets = Indices({shape.rows}, shape.columns);
      const TestTensor loss = TestTensor::Output(DType::kF32, {});
      const TestTensor log_probs = TestTensor::Output(DType::kF32, {shape.rows, shape.columns});
      ASSERT_EQ(RunOperator("cross_entropy", {logits, targets, loss, log_probs}).status,
                CompletionStatus::kOk);
      const std::vector<double> reference =
          ByRow(logits.Values(), static_cast<size_t>(shape.columns), LogSoftmax);
      ExpectNear(log_probs, reference, shape.columns > 1024);
      double sum = 0;
      const std::vector<double> chosen = targets.Values();
      for (int64_t r = 0; r < shape.rows; ++r) {
        sum -= reference[r * shape.columns + static_cast<int64_t>(chosen[r])];
      }
      ExpectNear(loss, {sum / static_cast<double>(shape.rows)});

      const TestTensor out = TestTensor::Output(AnyFloat(), {shape.rows, shape.columns});
      ASSERT_EQ(
          RunOperator("cross_entropy_backward", {log_probs, targets, out, F32(0.25)}, AnyChunks())
              .status,
          CompletionStatus::kOk);
      std::vector<double> gradient = log_probs.Values();
      for (int64_t i = 0; i < log_probs.size(); ++i) {
        const bool is_target = chosen[i / shape.columns] == static_cast<double>(i % shape.columns);
        gradient[i] = 0.25 * (is_target ? std::expm1(gradient[i]) : std::exp(gradient[i]));
      }
      ExpectNear(out, gradient);
      if (HasFailure()) return;
    }
  }
}

TEST_F(TrainingTest, CrossEntropyOfSpecialValues) {
  const auto expect = [](std::vector<double> logits, double target, double loss_value,
                         std::vector<double> reference) {
    const int64_t n = static_cast<int64_t>(logits.size());
    const TestTensor loss = TestTensor::Output(DType::kF32, {});
    const TestTensor log_probs = TestTensor::Output(DType::kF32, {1, n});
    ASSERT_EQ(RunOperator("cross_entropy",
                          {TestTensor::Input(DType::kF32, {1, n}, logits),
                           TestTensor::Input(DType::kI64, {1}, {target}), loss, log_probs})
                  .status,
              CompletionStatus::kOk);
    ExpectNear(log_probs, reference);
    ExpectNear(loss, {loss_value});
  };
  expect({-kInf, -kInf}, 0, kNan, {kNan, kNan});
  expect({0, -kInf}, 1, kInf, {0, -kInf});
  expect({0, kInf}, 0, kNan, {kNan, kNan});
  expect({kNan, 1, 2}, 1, kNan, {kNan, kNan, kNan});
  expect({1e30, 0}, 0, 0, {0, -1e30});
  expect({-1e38, -1e38}, 1, std::log(2), {-std::log(2), -std::log(2)});
  // A confident row: the small probability of the others is the loss.
  expect({20, 0}, 0, std::log1p(std::exp(-20)),
         {-std::log1p(std::exp(-20)), -20 - std::log1p(std::exp(-20))});
}

TEST_F(TrainingTest, CrossEntropyIsReproducible) {
  const TestTensor logits = Random(DType::kF32, {100, 77});
  const TestTensor targets = Indices({100}, 77);
  std::vector<double> first;
  for (int round = 0; round < 3; ++round) {
    const TestTensor loss = TestTensor::Output(DType::kF32, {});
    const TestTensor log_probs = TestTensor::Output(DType::kF32, {100, 77});
    ASSERT_EQ(RunOperator("cross_entropy", {logits, targets, loss, log_probs}).status,
              CompletionStatus::kOk);
    if (first.empty()) first = loss.Values();
    ExpectEqual(loss, first);
  }
}

TEST_F(TrainingTest, TargetsOutOfRangeAreRefusedBeforeAnythingIsWritten) {
  for (const double target : {-1.0, 5.0, -100.0, 4294967296.0, 9e18, -9e18}) {
    for (const int64_t at : {0, 1, 299}) {
      std::vector<double> values(300, 4);
      values[at] = target;
      const TestTensor targets = TestTensor::Input(DType::kI64, {300}, values);
      const TestTensor logits = Random(DType::kF32, {300, 5});
      const TestTensor loss = TestTensor::Output(DType::kF32, {});
      const TestTensor log_probs = TestTensor::Output(DType::kF32, {300, 5});
      ExpectRefused(RunOperator("cross_entropy", {logits, targets, loss, log_probs}));
      EXPECT_EQ(loss.CheckWritten(), kNothingWritten);
      EXPECT_EQ(log_probs.CheckWritten(), kNothingWritten);
      const TestTensor out = TestTensor::Output(DType::kF16, {300, 5});
      ExpectRefused(RunOperator("cross_entropy_backward", {logits, targets, out, F32(1)}, 3));
      EXPECT_EQ(out.CheckWritten(), kNothingWritten);
    }
  }
  // Without classes no target is in range.
  const TestTensor none = TestTensor::Output(DType::kF32, {2, 0});
  const TestTensor loss = TestTensor::Output(DType::kF32, {});
  ExpectRefused(RunOperator("cross_entropy", {none, Indices({2}, 1), loss, none}));
  EXPECT_EQ(loss.CheckWritten(), kNothingWritten);
}

// --- The loss that balances experts

TEST_F(TrainingTest, AuxLoss) {
  struct Shape {
    int64_t tokens;
    int64_t experts;
    int64_t choices;
  };
  std::vector<Shape> shapes = {{1, 1, 1},  {33, 8, 2},   {257, 3, 2},   {1023, 64, 6},
                               {7, 31, 0}, {5, 6145, 3}, {2, 20000, 40}};
  if (!Emulated()) shapes.push_back({65537, 8, 2});
  for (const Shape& shape : shapes) {
    SCOPED_TRACE(Trace(std::to_string(shape.tokens) + " tokens, " + std::to_string(shape.experts) +
                       " experts"));
    const TestTensor probs = Positive({shape.tokens, shape.experts});
    // Also repeated experts.
    const TestTensor indices = Indices({shape.tokens, shape.choices}, shape.experts);
    const TestTensor loss = TestTensor::Output(DType::kF32, {});
    ASSERT_EQ(RunOperator("aux_loss", {probs, indices, loss, F32(0.5)}).status,
              CompletionStatus::kOk);
    const std::vector<double> values = probs.Values();
    const std::vector<double> chosen = indices.Values();
    double sum = 0;
    std::vector<double> f(shape.experts);
    std::vector<double> mean(shape.experts);
    for (int64_t n = 0; n < shape.tokens; ++n) {
      const std::set<double> experts(chosen.begin() + n * shape.choices,
                                     chosen.begin() + (n + 1) * shape.choices);
      for (const double e : experts) f[static_cast<int64_t>(e)] += 1;
      for (int64_t e = 0; e < shape.experts; ++e) mean[e] += values[n * shape.experts + e];
    }
    const double count = static_cast<double>(shape.tokens);
    for (int64_t e = 0; e < shape.experts; ++e) sum += f[e] / count * (mean[e] / count);
    ExpectNear(loss, {0.5 * static_cast<double>(shape.experts) * sum});
  }
}

TEST_F(TrainingTest, AuxLossCountsATokenOnceAndRefusesIndices) {
  const TestTensor probs = TestTensor::Input(DType::kF32, {2, 2}, {0.25, 0.75, 0.5, 0.5});
  const TestTensor loss = TestTensor::Output(DType::kF32, {});
  // f = (1, 1/2), P = (0.375, 0.625).
  ASSERT_EQ(RunOperator("aux_loss",
                        {probs, TestTensor::Input(DType::kI64, {2, 2}, {0, 0, 1, 0}), loss, F32(1)})
                .status,
            CompletionStatus::kOk);
  ExpectEqual(loss, {2 * (0.375 + 0.5 * 0.625)});
  const TestTensor empty = TestTensor::Output(DType::kF32, {});
  ASSERT_EQ(RunOperator("aux_loss", {TestTensor::Output(DType::kF32, {0, 4}), Indices({0, 2}, 4),
                                     empty, F32(1)})
                .status,
            CompletionStatus::kOk);
  ExpectEqual(empty, {kNan});
  for (const double index : {-1.0, 2.0, 4294967296.0}) {
    const TestTensor out = TestTensor::Output(DType::kF32, {});
    ExpectRefused(RunOperator(
        "aux_loss",
        {probs, TestTensor::Input(DType::kI64, {2, 2}, {0, 1, 1, index}), out, F32(1)}));
    EXPECT_EQ(out.CheckWritten(), kNothingWritten);
  }
}

// --- AdamW

TEST_F(TrainingTest, AdamWOfAnySizeDTypeAndStep) {
  for (const int64_t size : Sizes()) {
    if (Emulated() && size > 8000) continue;
    for (const DType dtype : kFloats) {
      for (const int64_t step : {int64_t{1}, int64_t{2}, int64_t{1000}, int64_t{1} << 40}) {
        SCOPED_TRACE(Trace(std::to_string(size) + " elements, step " + std::to_string(step)));
        // Every other time not aligned to four elements.
        const int64_t shift = step % 2;
        // Sign 0: both signs. One element must not be the small difference of larger values.
        const auto shifted = [&](DType type, double deviation, double sign) {
          const TestTensor tensor = Random(type, {size + shift}, deviation);
          std::vector<double> values = tensor.Values();
          for (double& value : values) value = sign == 0 ? value : sign * std::abs(value);
          return TestTensor::Input(type, {size + shift}, values);
        };
        const double sign = size == 1 ? 1 : 0;
        const TestTensor memory[] = {shifted(dtype, 1, -sign), shifted(AnyFloat(), 1, sign),
                                     shifted(DType::kF32, 0.1, sign),
                                     shifted(DType::kF32, 0.01, 1)};
        TestTensor views[4] = {memory[0], memory[1], memory[2], memory[3]};
        for (int k = 0; k < 4; ++k) views[k] = memory[k].View({size}, {1}, shift);
        std::vector<double> p = views[0].Values();
        const std::vector<double> g = views[1].Values();
        std::vector<double> m = views[2].Values();
        std::vector<double> v = views[3].Values();
        const float lr = 0.01f;
        const float b1 = 0.9f;
        const float b2 = 0.999f;
        const float eps = 1e-6f;
        const float wd = 0.1f;
        ASSERT_EQ(RunOperator("adamw",
                              {views[0], views[1], views[2], views[3], F32(lr), F32(b1), F32(b2),
                               F32(eps), F32(wd), I64(step)},
                              AnyChunks())
                      .status,
                  CompletionStatus::kOk);
        for (size_t i = 0; i < p.size(); ++i) {
          m[i] = double{b1} * m[i] + (1 - double{b1}) * g[i];
          v[i] = double{b2} * v[i] + (1 - double{b2}) * g[i] * g[i];
          const double t = static_cast<double>(step);
          const double m_hat = m[i] / (1 - std::pow(double{b1}, t));
          const double v_hat = v[i] / (1 - std::pow(double{b2}, t));
          p[i] = p[i] * (1 - double{lr} * double{wd}) -
                 double{lr} * m_hat / (std::sqrt(v_hat) + double{eps});
        }
        const auto near = [](const TestTensor& view, const std::vector<double>& reference) {
          ExpectNear(TestTensor::Input(view.dtype(), view.shape(), view.Values()), reference);
        };
        near(views[0], p);
        near(views[2], m);
        near(views[3], v);
        if (shift == 1) {
          for (int k = 0; k < 4; ++k) {
            ASSERT_EQ(memory[k].CheckWritten(), "");
          }
        }
        if (HasFailure()) return;
      }
    }
  }
}

// The first step of PyTorch's AdamW: lr * sign(g), and the decay without the gradient.
TEST_F(TrainingTest, AdamWsFirstStep) {
  const TestTensor p = TestTensor::Input(DType::kF32, {3}, {1, 2, -4});
  const TestTensor g = TestTensor::Input(DType::kF32, {3}, {0.5, -100, 0});
  const TestTensor m = TestTensor::Input(DType::kF32, {3}, {0, 0, 0});
  const TestTensor v = TestTensor::Input(DType::kF32, {3}, {0, 0, 0});
  ASSERT_EQ(RunOperator("adamw",
                        {p, g, m, v, F32(0.125), F32(0.5), F32(0.75), F32(1e-8f), F32(0.5), I64(1)})
                .status,
            CompletionStatus::kOk);
  ExpectNear(p, {0.9375 - 0.125, 1.875 + 0.125, -3.75});
  ExpectEqual(m, {0.25, -50, 0});
  ExpectEqual(v, {0.0625, 2500, 0});
}

TEST_F(TrainingTest, AdamWRefusesStepsBelow1) {
  for (const int64_t step : {int64_t{0}, int64_t{-1}, std::numeric_limits<int64_t>::min()}) {
    const TestTensor tensors[] = {Random(DType::kF32, {100}), Random(DType::kF32, {100}),
                                  Random(DType::kF32, {100}), Random(DType::kF32, {100})};
    const std::vector<double> before[] = {
        tensors[0].Values(), {}, tensors[2].Values(), tensors[3].Values()};
    ExpectRefused(RunOperator("adamw",
                              {tensors[0], tensors[1], tensors[2], tensors[3], F32(1), F32(0.9f),
                               F32(0.99f), F32(1e-8f), F32(0), I64(step)},
                              2));
    for (const int k : {0, 2, 3}) ExpectEqual(tensors[k], before[k]);
  }
}

// --- Norms

TEST_F(TrainingTest, GradNormOverTensorsOfAnyLength) {
  std::vector<int64_t> sizes = {0,    1,    31,   32,   33,   255,   256,   257,   1023,
                                1025, 7919, 7936, 8192, 8193, 65535, 65536, 65537, 131073};
  if (!Emulated()) sizes.push_back((int64_t{1} << 20) + 1);
  // Each alone, then all together.
  int64_t partials = 0;
  for (const int64_t size : sizes) partials += (size + 65535) / 65536;
  const TestTensor all = TestTensor::Input(DType::kF64, {partials}, std::vector<double>(partials));
  int64_t first = 0;
  double total = 0;
  for (const int64_t size : sizes) {
    SCOPED_TRACE(Trace(std::to_string(size) + " elements"));
    const int64_t own = (size + 65535) / 65536;
    const TestTensor g = Random(AnyFloat(), {size});
    double sum = 0;
    for (const double value : g.Values()) sum += value * value;
    total += sum;
    const TestTensor partial = TestTensor::Output(DType::kF64, {own});
    ASSERT_EQ(RunOperator("grad_norm_partial", {g, partial, I64(0)}, AnyChunks()).status,
              CompletionStatus::kOk);
    const TestTensor norm = TestTensor::Output(DType::kF32, {});
    ASSERT_EQ(RunOperator("grad_norm", {partial, norm}).status, CompletionStatus::kOk);
    ExpectNear(norm, {std::sqrt(sum)});
    ASSERT_EQ(RunOperator("grad_norm_partial", {g, all, I64(first)}, AnyChunks()).status,
              CompletionStatus::kOk);
    first += own;
  }
  const TestTensor norm = TestTensor::Output(DType::kF32, {});
  ASSERT_EQ(RunOperator("grad_norm", {all, norm}).status, CompletionStatus::kOk);
  ExpectNear(norm, {std::sqrt(total)});
}

TEST_F(TrainingTest, GradNormHasTheSameBitsForAnyNumberOfChunks) {
  const TestTensor g = Random(DType::kF32, {300000});
  std::vector<double> partials;
  for (const uint32_t chunks : {1, 2, 5, 9}) {
    const TestTensor partial = TestTensor::Output(DType::kF64, {5});
    ASSERT_EQ(RunOperator("grad_norm_partial", {g, partial, I64(0)}, chunks).status,
              CompletionStatus::kOk);
    if (partials.empty()) partials = partial.Values();
    ExpectEqual(partial, partials);
  }
}

TEST_F(TrainingTest, GradNormOfLargeSmallAndSpecialValues) {
  const auto norm_of = [](std::vector<double> values) {
    const int64_t n = static_cast<int64_t>(values.size());
    const TestTensor partial = TestTensor::Output(DType::kF64, {1});
    const TestTensor norm = TestTensor::Output(DType::kF32, {});
    const TestTensor g = TestTensor::Input(DType::kF32, {n}, values);
    EXPECT_EQ(RunOperator("grad_norm_partial", {g, partial, I64(0)}).status, CompletionStatus::kOk);
    EXPECT_EQ(RunOperator("grad_norm", {partial, norm}).status, CompletionStatus::kOk);
    return norm;
  };
  ExpectNear(norm_of({3e30, 4e30}), {5e30});
  ExpectNear(norm_of({3e-30, 4e-30}), {5e-30});
  ExpectNear(norm_of({3e38, 3e38}), {kInf});
  ExpectEqual(norm_of({0, 0}), {0});
  ExpectEqual(norm_of({1, kInf}), {kInf});
  ExpectEqual(norm_of({1, kNan}), {kNan});
  ExpectEqual(norm_of({std::ldexp(1, -149)}), {std::ldexp(1, -149)});
  const TestTensor norm = TestTensor::Output(DType::kF32, {});
  ASSERT_EQ(RunOperator("grad_norm", {TestTensor::Output(DType::kF64, {0}), norm}).status,
            CompletionStatus::kOk);
  ExpectEqual(norm, {0});
}

TEST_F(TrainingTest, GradNormRefusesPartialSumsOutOfRange) {
  const TestTensor g = Random(DType::kF32, {65537});
  const TestTensor partial = TestTensor::Input(DType::kF64, {4}, {1, 2, 3, 4});
  for (const int64_t first :
       {int64_t{-1}, int64_t{3}, int64_t{4}, std::numeric_limits<int64_t>::max(),
        std::numeric_limits<int64_t>::min()}) {
    ExpectRefused(RunOperator("grad_norm_partial", {g, partial, I64(first)}, 2));
  }
  ExpectRefused(
      RunOperator("grad_norm_partial", {g, TestTensor::Input(DType::kF64, {1}, {1}), I64(0)}));
  ExpectEqual(partial, {1, 2, 3, 4});
  ASSERT_EQ(RunOperator("grad_norm_partial", {g, partial, I64(2)}, 2).status,
            CompletionStatus::kOk);
  EXPECT_EQ(partial.Values()[0], 1);
  EXPECT_EQ(partial.Values()[1], 2);
}

TEST_F(TrainingTest, GradClip) {
  std::vector<int64_t> sizes = Sizes();
  // 31 and 32 elements for each thread of a block of 256.
  sizes.insert(sizes.end(), {7936, 8192});
  for (const int64_t size : sizes) {
    for (const DType dtype : kFloats) {
      for (const double norm : {0.0, 0.5, 1.0, 7.0}) {
        SCOPED_TRACE(Trace(std::to_string(size) + " elements, norm " + std::to_string(norm)));
        std::vector<double> values = Random(dtype, {size}).Values();
        // A single element that is clipped stays normal in float16.
        if (size == 1) values[0] += std::copysign(1.0, values[0]);
        const TestTensor g = TestTensor::Input(dtype, {size}, values);
        std::vector<double> reference = g.Values();
        const double factor = std::min(1.0, 1.5 / (norm + 1e-6));
        for (double& value : reference) value *= factor;
        ASSERT_EQ(
            RunOperator("grad_clip", {g, TestTensor::Input(DType::kF32, {}, {norm}), F32(1.5)},
                        AnyChunks())
                .status,
            CompletionStatus::kOk);
        if (factor == 1) {
          ExpectEqual(g, reference);
        } else {
          ExpectNear(g, reference);
        }
      }
      if (HasFailure()) return;
    }
  }
}

TEST_F(TrainingTest, GradClipWithANormThatIsNotFinite) {
  for (const DType dtype : kFloats) {
    const TestTensor g = TestTensor::Input(dtype, {4}, {1, -2, kInf, kNan});
    ASSERT_EQ(
        RunOperator("grad_clip", {g, TestTensor::Input(DType::kF32, {}, {kInf}), F32(1)}).status,
        CompletionStatus::kOk);
    ExpectEqual(g, {0, 0, kNan, kNan});
    const TestTensor other = TestTensor::Input(dtype, {2}, {1, -2});
    ASSERT_EQ(RunOperator("grad_clip", {other, TestTensor::Input(DType::kF32, {}, {kNan}), F32(1)})
                  .status,
              CompletionStatus::kOk);
    ExpectEqual(other, {kNan, kNan});
  }
}

// --- scatter_add

TEST_F(TrainingTest, ScatterAddOfAnyWidthWithRepeatedIndices) {
  struct Shape {
    int64_t targets;
    int64_t sources;
    int64_t width;
  };
  std::vector<Shape> shapes = {{1, 1, 1},     {1, 1000, 1},  {3, 257, 1025}, {5, 33, 31},
                               {7919, 10, 3}, {2, 1023, 33}, {4, 0, 5},      {4, 6, 0}};
  if (!Emulated()) shapes.push_back({300, 2000, 257});
  for (const Shape& shape : shapes) {
    for (const uint32_t chunks : {1u, 4u}) {
      SCOPED_TRACE(Trace(std::to_string(shape.sources) + " x " + std::to_string(shape.width)));
      const TestTensor dst = Positive({shape.targets, shape.width});
      const TestTensor index = Indices({shape.sources}, shape.targets);
      const TestTensor src = Positive({shape.sources, shape.width});
      std::vector<double> reference = dst.Values();
      const std::vector<double> to = index.Values();
      const std::vector<double> values = src.Values();
      for (int64_t n = 0; n < shape.sources; ++n) {
        for (int64_t c = 0; c < shape.width; ++c) {
          reference[static_cast<int64_t>(to[n]) * shape.width + c] += values[n * shape.width + c];
        }
      }
      ASSERT_EQ(RunOperator("scatter_add", {dst, index, src}, chunks).status,
                CompletionStatus::kOk);
      ExpectNear(dst, reference, /*products=*/true);
    }
  }
}

TEST_F(TrainingTest, ScatterAddCountsExactly) {
  const int64_t n = Emulated() ? 5000 : 70001;
  const TestTensor dst = TestTensor::Input(DType::kF32, {2, 1}, {0, 0});
  const TestTensor ones = TestTensor::Input(DType::kF32, {n, 1}, std::vector<double>(n, 1));
  const TestTensor index = TestTensor::Input(DType::kI64, {n}, std::vector<double>(n, 1));
  ASSERT_EQ(RunOperator("scatter_add", {dst, index, ones}, 7).status, CompletionStatus::kOk);
  ExpectEqual(dst, {0, static_cast<double>(n)});
}

TEST_F(TrainingTest, ScatterAddRefusesIndicesAndKeepsDst) {
  for (const double bad : {-1.0, 3.0, 4294967296.0, -9e18}) {
    for (const int64_t at : {0, 150, 299}) {
      std::vector<double> values(300, 2);
      values[at] = bad;
      const TestTensor dst = Random(DType::kF32, {3, 9});
      const std::vector<double> before = dst.Values();
      ExpectRefused(RunOperator(
          "scatter_add",
          {dst, TestTensor::Input(DType::kI64, {300}, values), Random(DType::kF32, {300, 9})}, 5));
      ExpectEqual(dst, before);
    }
  }
}

}  // namespace
}  // namespace resident::testing
