#include "runtime/model/call_arguments.h"

#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/model/dtype.h"

namespace resident {
namespace {

struct Tensor {
  DType dtype;
  Shape shape;
};

class InferOutputTest : public ::testing::Test {
 protected:
  // The type of the last parameter, if `tensors` are sent for the first ones.
  absl::StatusOr<OutputType> Infer(const std::string& signature_text,
                                   const std::vector<Tensor>& tensors) {
    absl::StatusOr<Signature> signature = Signature::Parse(signature_text);
    EXPECT_TRUE(signature.ok()) << signature.status();
    std::vector<std::optional<ArgumentType>> sent;
    for (const Tensor& tensor : tensors) {
      sent.push_back(ArgumentType::Tensor(tensor.dtype, tensor.shape));
    }
    sent.resize(signature->parameters().size());
    return InferOutput(*signature, "op", sent, sent.size() - 1);
  }
  void Expect(const std::string& signature, const std::vector<Tensor>& tensors, DType dtype,
              const Shape& shape) {
    const absl::StatusOr<OutputType> output = Infer(signature, tensors);
    ASSERT_TRUE(output.ok()) << output.status();
    EXPECT_EQ(output->dtype, dtype) << DTypeName(output->dtype);
    EXPECT_EQ(output->shape, shape) << ShapeText(output->shape);
  }
};

constexpr char kAdd[] =
    "x: in strided f32|f16|bf16[*S~], y: in strided f32|f16|bf16[*S~], "
    "out: out strided f32|f16|bf16[*S]";
constexpr char kGemm[] = "a: in f32|bf16[M, K], b: in f32|bf16[K, N], out: out f32|bf16[M, N]";

TEST_F(InferOutputTest, BroadcastInputsBindTheShapeTogether) {
  Expect(kAdd, {{DType::kF32, {3, 1}}, {DType::kF32, {4}}}, DType::kF32, {3, 4});
  Expect(kAdd, {{DType::kF32, {}}, {DType::kF32, {}}}, DType::kF32, {});
  Expect(kAdd, {{DType::kF32, {1, 0}}, {DType::kF32, {5, 1, 1}}}, DType::kF32, {5, 1, 0});
}

TEST_F(InferOutputTest, NamesAndSizesAreTakenFromTheInputs) {
  Expect(kGemm, {{DType::kF32, {2, 3}}, {DType::kF32, {3, 5}}}, DType::kF32, {2, 5});
  Expect("x: in f32[*S, N], out: out f32[*S]", {{DType::kF32, {6, 7, 8}}}, DType::kF32, {6, 7});
  Expect("x: in f32[N], out: out f32[N, 4]", {{DType::kF32, {9}}}, DType::kF32, {9, 4});
}

TEST_F(InferOutputTest, DTypesArePromotedAsInPyTorch) {
  const auto expect = [&](DType x, DType y, DType out) {
    Expect(kAdd, {{x, {2}}, {y, {2}}}, out, {2});
  };
  expect(DType::kF16, DType::kF16, DType::kF16);
  expect(DType::kBF16, DType::kF32, DType::kF32);
  expect(DType::kF16, DType::kBF16, DType::kF32);
  // Dtypes that the output does not accept do not count.
  Expect("x: in f32|f16[N], i: in i32|i64[N], out: out i64|i32[N]",
         {{DType::kF32, {2}}, {DType::kI32, {2}}}, DType::kI32, {2});
  // None of the inputs has a dtype of the output: the first one.
  Expect("x: in f32[N], out: out i64|i32[N]", {{DType::kF32, {2}}}, DType::kI64, {2});
}

TEST_F(InferOutputTest, ADimensionThatNoInputHasIsRefusedWithItsName) {
  const absl::StatusOr<OutputType> output =
      Infer("x: in f32[*S], out: out f32[*R]", {{DType::kF32, {2, 3}}});
  EXPECT_EQ(output.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(output.status().message().find("dimension *R"), std::string::npos) << output.status();
  EXPECT_NE(output.status().message().find("Fix: "), std::string::npos) << output.status();
}

TEST_F(InferOutputTest, InputsThatDoNotBroadcastAreRefused) {
  const absl::StatusOr<OutputType> output =
      Infer(kAdd, {{DType::kF32, {2, 3}}, {DType::kF32, {2}}});
  EXPECT_EQ(output.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(output.status().message().find("'y'"), std::string::npos) << output.status();
}

TEST_F(InferOutputTest, AnInputWithTooFewDimensionsIsRefused) {
  EXPECT_FALSE(Infer(kGemm, {{DType::kF32, {2}}, {DType::kF32, {3, 5}}}).ok());
  EXPECT_FALSE(Infer(kGemm, {{DType::kF32, {}}, {DType::kF32, {3, 5}}}).ok());
}

// What is inferred is what Match accepts, and where nothing can be inferred, Match accepts nothing.
TEST_F(InferOutputTest, RandomBroadcastsAgreeWithMatch) {
  const absl::StatusOr<Signature> signature = Signature::Parse(kAdd);
  ASSERT_TRUE(signature.ok());
  std::mt19937_64 random(std::random_device{}());
  const auto draw = [&](size_t n) { return static_cast<int64_t>(random() % n); };
  int inferred = 0;
  for (int round = 0; round < 20000; ++round) {
    Shape x(draw(4)), y(draw(4));
    for (int64_t& size : x) size = draw(3);
    for (int64_t& size : y) size = draw(3);
    const absl::StatusOr<OutputType> output = Infer(kAdd, {{DType::kF32, x}, {DType::kF32, y}});
    if (output.ok()) {
      ++inferred;
      EXPECT_TRUE(signature
                      ->Match("add", {ArgumentType::Tensor(DType::kF32, x),
                                      ArgumentType::Tensor(DType::kF32, y),
                                      ArgumentType::Tensor(output->dtype, output->shape)})
                      .ok());
      continue;
    }
    for (const Shape& out : {x, y}) {
      EXPECT_FALSE(signature
                       ->Match("add", {ArgumentType::Tensor(DType::kF32, x),
                                       ArgumentType::Tensor(DType::kF32, y),
                                       ArgumentType::Tensor(DType::kF32, out)})
                       .ok());
    }
  }
  EXPECT_GT(inferred, 1000);
}

class MatchArgumentsTest : public ::testing::Test {
 protected:
  MatchedArguments Match(const std::vector<std::string_view>& names) {
    return MatchArguments(*signature_, names);
  }
  // The arguments of the parameters, "-" for none.
  std::string Text(const std::vector<std::string_view>& names) {
    const MatchedArguments matched = Match(names);
    EXPECT_TRUE(matched.refused.empty());
    std::string text;
    for (const std::optional<size_t>& argument : matched.by_parameter) {
      text += argument.has_value() ? std::to_string(*argument) : "-";
    }
    return text;
  }

  const absl::StatusOr<Signature> signature_ = Signature::Parse(
      "x: in f32[*S], y: in f32[*S], out: out f32[*S], alpha: scalar f32 = 1, beta: scalar f32 = "
      "0");
};

TEST_F(MatchArgumentsTest, PositionsComeBeforeNames) {
  EXPECT_EQ(Text({"", "", ""}), "012");
  EXPECT_EQ(Text({"", "", "", "", ""}), "01234");
  EXPECT_EQ(Text({"", "", "", "beta"}), "012-3");
  EXPECT_EQ(Text({"", "out", "y"}), "021");
  EXPECT_EQ(Text({"alpha", "out", "y", "x"}), "3210");
}

TEST_F(MatchArgumentsTest, ParametersWithoutAnArgumentAreMissing) {
  EXPECT_EQ(Match({"", "beta"}).missing, (std::vector<size_t>{1, 2}));
  EXPECT_EQ(Match({}).missing, (std::vector<size_t>{0, 1, 2}));
  EXPECT_TRUE(Match({"", "", ""}).missing.empty());
}

TEST_F(MatchArgumentsTest, ArgumentsOfNoParameterAreRefused) {
  using Problem = MatchedArguments::Problem;
  const MatchedArguments matched = Match({"", "x", "gamma", "y", ""});
  ASSERT_EQ(matched.refused.size(), 3u);
  EXPECT_EQ(matched.refused[0].problem, Problem::kTwice);
  EXPECT_EQ(matched.refused[0].argument, 1u);
  EXPECT_EQ(matched.refused[1].problem, Problem::kUnknownName);
  EXPECT_EQ(matched.refused[1].argument, 2u);
  EXPECT_EQ(matched.refused[2].problem, Problem::kUnnamedAfterNamed);
  EXPECT_EQ(matched.refused[2].argument, 4u);
  EXPECT_TRUE(matched.named);
}

}  // namespace
}  // namespace resident
