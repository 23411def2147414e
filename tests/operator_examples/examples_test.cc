// The examples of docs/operators.md: they stand there as they are here, compile in both
// builds, and do what they say.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/host_unit.h"

namespace resident::testing {
namespace {

constexpr const char* kExamples[] = {"hinge", "scaled_gelu", "softmax_rows", "outer",
                                     "reverse_rows"};

std::string ReadFile(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  EXPECT_FALSE(text.str().empty()) << path;
  return text.str();
}

std::string Source(const std::string& name) { return ReadFile("docs/examples/" + name + ".cc"); }

// Both builds of an example.
class ExamplesTest : public ::testing::TestWithParam<bool> {
 protected:
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
  std::mt19937 random_{std::random_device()()};
};

INSTANTIATE_TEST_SUITE_P(Builds, ExamplesTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Checked" : "Plain"; });

TEST(ExamplesInTheDocument, StandThereAsTheyAre) {
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

}  // namespace
}  // namespace resident::testing
