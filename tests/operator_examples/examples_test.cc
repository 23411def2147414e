// Tests the examples of docs/operators.md: the document contains their current text, and
// they compile in both builds and compute the documented results.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iostream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/host_unit.h"

namespace resident::testing {
namespace {

constexpr const char* kExamples[] = {"hinge",    "scaled_gelu",  "softmax_rows",
                                     "outer",    "reverse_rows", "normalize_rows",
                                     "add_rows", "dot",          "matmul_bf16"};

std::string ReadFile(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  EXPECT_FALSE(text.str().empty()) << path;
  return text.str();
}

std::string Source(const std::string& name) { return ReadFile("docs/examples/" + name + ".cc"); }

// Runs each example in both builds.
class ExamplesTest : public ::testing::TestWithParam<bool> {
 protected:
  ExamplesTest() { std::cout << "seed " << seed_ << "\n"; }

  void Load(const std::string& name) {
    unit_ = HostUnit::Compile(Source(name), /*checked=*/GetParam());
    ASSERT_NE(unit_, nullptr);
    function_ = unit_->Find(name);
    ASSERT_NE(function_, nullptr);
  }
  std::vector<float> Random(size_t n) {
    std::normal_distribution<float> normal(0, 2);
    std::vector<float> values(n);
    for (float& value : values) value = normal(random_);
    return values;
  }

  std::unique_ptr<HostUnit> unit_;
  OperatorFunction function_ = nullptr;
  const uint32_t seed_ = std::random_device()();
  std::mt19937 random_{seed_};
};

INSTANTIATE_TEST_SUITE_P(Builds, ExamplesTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Checked" : "Plain"; });

TEST(ExamplesInTheDocument, MatchTheFiles) {
  const std::string document = ReadFile("docs/operators.md");
  for (const std::string name : kExamples) {
    EXPECT_NE(document.find("```cpp\n" + Source(name) + "```"), std::string::npos) << name;
  }
}

TEST_P(ExamplesTest, Hinge) {
  ASSERT_NO_FATAL_FAILURE(Load("hinge"));
  const std::vector<float> x = Random(1000), y = Random(1000);
  std::vector<float> out(1000, NAN);
  HostCall call(4);
  call.Tensor(0, x.data(), DType::kF32, {1000});
  call.Tensor(1, y.data(), DType::kF32, {1000});
  call.Tensor(2, out.data(), DType::kF32, {1000});
  call.Scalar(3, 1.5f);
  ASSERT_TRUE(call.Run(function_, /*chunks=*/3));
  for (size_t i = 0; i < x.size(); ++i) {
    EXPECT_NEAR(out[i], std::max(0.0, 1.5 - double{x[i]} * y[i]), 1e-5);
  }
}

TEST_P(ExamplesTest, ScaledGelu) {
  ASSERT_NO_FATAL_FAILURE(Load("scaled_gelu"));
  const std::vector<float> x = Random(12), y = Random(3);
  std::vector<u16> out(12, 0x7fff);
  HostCall call(4);
  call.Tensor(0, x.data(), DType::kF32, {3, 4}, {1, 3});
  call.Tensor(1, y.data(), DType::kF32, {3, 1});
  call.Tensor(2, out.data(), DType::kF16, {3, 4});
  call.Scalar(3, 2.0f);
  ASSERT_TRUE(call.Run(function_));
  for (int r = 0; r < 3; ++r) {
    for (int c = 0; c < 4; ++c) {
      const double v = x[r + 3 * c];
      const double want = 2 * 0.5 * v * std::erfc(-v / std::sqrt(2.0)) + y[r];
      EXPECT_NEAR(Half::Widen(out[4 * r + c]), want, 2e-3 * (1 + std::fabs(want)));
    }
  }
}

TEST_P(ExamplesTest, SoftmaxRows) {
  ASSERT_NO_FATAL_FAILURE(Load("softmax_rows"));
  const std::vector<float> x = Random(7 * 300);
  std::vector<float> out(7 * 300, NAN);
  HostCall call(2);
  call.Tensor(0, x.data(), DType::kF32, {7, 300});
  call.Tensor(1, out.data(), DType::kF32, {7, 300});
  ASSERT_TRUE(call.Run(function_, /*chunks=*/7));
  for (int r = 0; r < 7; ++r) {
    double sum = 0;
    for (int c = 0; c < 300; ++c) sum += std::exp(double{x[r * 300 + c]});
    for (int c = 0; c < 300; ++c) {
      EXPECT_NEAR(out[r * 300 + c], std::exp(double{x[r * 300 + c]}) / sum, 1e-6);
    }
  }
}

TEST_P(ExamplesTest, Outer) {
  ASSERT_NO_FATAL_FAILURE(Load("outer"));
  const std::vector<float> x = Random(37), y = Random(11);
  std::vector<float> out(37 * 11, NAN);
  HostCall call(3);
  call.Tensor(0, x.data(), DType::kF32, {37});
  call.Tensor(1, y.data(), DType::kF32, {11});
  call.Tensor(2, out.data(), DType::kF32, {37, 11});
  ASSERT_TRUE(call.Run(function_, /*chunks=*/3));
  for (int r = 0; r < 37; ++r) {
    for (int c = 0; c < 11; ++c) EXPECT_EQ(out[r * 11 + c], x[r] * y[c]);
  }
}

TEST_P(ExamplesTest, ReverseRows) {
  ASSERT_NO_FATAL_FAILURE(Load("reverse_rows"));
  const std::vector<float> before = Random(5 * 33);
  std::vector<float> x = before;
  HostCall call(1);
  call.Tensor(0, x.data(), DType::kF32, {5, 33});
  ASSERT_TRUE(call.Run(function_, /*chunks=*/2));
  for (int r = 0; r < 5; ++r) {
    for (int c = 0; c < 33; ++c) EXPECT_EQ(x[r * 33 + c], before[r * 33 + 32 - c]);
  }
  HostCall too_long(1);
  std::vector<float> row(kScratchBytes / sizeof(float) + 1, 1);
  too_long.Tensor(0, row.data(), DType::kF32, {1, static_cast<int64_t>(row.size())});
  EXPECT_FALSE(too_long.Run(function_));
}

TEST_P(ExamplesTest, Layernorm) {
  ASSERT_NO_FATAL_FAILURE(Load("normalize_rows"));
  constexpr int kRows = 5, kColumns = 70;
  const std::vector<float> x = Random(kRows * kColumns), w = Random(kColumns), b = Random(kColumns);
  for (const bool with_b : {true, false}) {
    std::vector<float> out(x.size(), NAN);
    HostCall call(5);
    call.Tensor(0, x.data(), DType::kF32, {kRows, kColumns});
    call.Tensor(1, w.data(), DType::kF32, {kColumns});
    call.Tensor(2, b.data(), DType::kF32, {with_b ? kColumns : 0});
    call.Tensor(3, out.data(), DType::kF32, {kRows, kColumns});
    call.Scalar(4, 1e-5f);
    ASSERT_TRUE(call.Run(function_, /*chunks=*/2));
    for (int r = 0; r < kRows; ++r) {
      double mean = 0, variance = 0;
      for (int c = 0; c < kColumns; ++c) mean += x[r * kColumns + c] / double{kColumns};
      for (int c = 0; c < kColumns; ++c) {
        variance += std::pow(x[r * kColumns + c] - mean, 2) / kColumns;
      }
      for (int c = 0; c < kColumns; ++c) {
        const double want =
            (x[r * kColumns + c] - mean) / std::sqrt(variance + 1e-5) * w[c] + (with_b ? b[c] : 0);
        EXPECT_NEAR(out[r * kColumns + c], want, 1e-5 * (1 + std::fabs(want)));
      }
    }
  }
  HostCall wrong(5);
  std::vector<float> out(4, 0);
  wrong.Tensor(0, x.data(), DType::kF32, {1, 4});
  wrong.Tensor(1, w.data(), DType::kF32, {4});
  wrong.Tensor(2, b.data(), DType::kF32, {3});
  wrong.Tensor(3, out.data(), DType::kF32, {1, 4});
  wrong.Scalar(4, 1e-5f);
  EXPECT_FALSE(wrong.Run(function_));
}

TEST_P(ExamplesTest, ScatterAdd) {
  ASSERT_NO_FATAL_FAILURE(Load("add_rows"));
  constexpr int kRows = 6, kColumns = 9, kUpdates = 200;
  std::vector<float> dst = Random(kRows * kColumns);
  const std::vector<float> src = Random(kUpdates * kColumns);
  std::vector<double> want(dst.begin(), dst.end());
  std::vector<i64> index;
  for (int n = 0; n < kUpdates; ++n) {
    index.push_back(n * 7 % (kRows - 1));  // Every row except the last, many times.
    for (int c = 0; c < kColumns; ++c) want[index[n] * kColumns + c] += src[n * kColumns + c];
  }
  HostCall call(3);
  call.Tensor(0, dst.data(), DType::kF32, {kRows, kColumns});
  call.Tensor(1, index.data(), DType::kI64, {kUpdates});
  call.Tensor(2, src.data(), DType::kF32, {kUpdates, kColumns});
  ASSERT_TRUE(call.Run(function_, /*chunks=*/4));
  for (size_t i = 0; i < dst.size(); ++i) EXPECT_NEAR(dst[i], want[i], 1e-3) << i;
  for (const i64 outside : {i64{-1}, i64{kRows}}) {
    index[0] = outside;
    HostCall refused(3);
    refused.Tensor(0, dst.data(), DType::kF32, {kRows, kColumns});
    refused.Tensor(1, index.data(), DType::kI64, {1});
    refused.Tensor(2, src.data(), DType::kF32, {1, kColumns});
    EXPECT_FALSE(refused.Run(function_));
  }
}

TEST_P(ExamplesTest, Dot) {
  ASSERT_NO_FATAL_FAILURE(Load("dot"));
  const std::vector<float> x = Random(1000), y = Random(1000);
  double want = 0;
  for (size_t i = 0; i < x.size(); ++i) want += double{x[i]} * y[i];
  for (const bool share_memory : {true, false}) {
    for (const int64_t chunks : {1, 4, 256}) {
      float out = NAN;
      HostCall call(3);
      call.Tensor(0, x.data(), DType::kF32, {1000});
      call.Tensor(1, y.data(), DType::kF32, {1000});
      call.Tensor(2, &out, DType::kF32, {1});
      ASSERT_TRUE(call.Run(function_, chunks, share_memory));
      EXPECT_NEAR(out, want, 1e-4) << chunks << " chunks";
    }
  }
}

TEST_P(ExamplesTest, MatmulBf16) {
  ASSERT_NO_FATAL_FAILURE(Load("matmul_bf16"));
  constexpr int kM = 37, kK = 50, kN = 21;
  std::vector<u16> a, b;
  for (const float v : Random(kM * kK)) a.push_back(BFloat16::Narrow(v));
  for (const float v : Random(kK * kN)) b.push_back(BFloat16::Narrow(v));
  std::vector<float> out(kM * kN, NAN);
  HostCall call(3);
  call.Tensor(0, a.data(), DType::kBF16, {kM, kK});
  call.Tensor(1, b.data(), DType::kBF16, {kK, kN});
  call.Tensor(2, out.data(), DType::kF32, {kM, kN});
  ASSERT_TRUE(call.Run(function_, /*chunks=*/3));
  for (int m = 0; m < kM; ++m) {
    for (int n = 0; n < kN; ++n) {
      double want = 0;
      for (int k = 0; k < kK; ++k) {
        want += double{BFloat16::Widen(a[m * kK + k])} * BFloat16::Widen(b[k * kN + n]);
      }
      EXPECT_NEAR(out[m * kN + n], want, 1e-3);
    }
  }
}

}  // namespace
}  // namespace resident::testing
