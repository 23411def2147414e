#include "runtime/operators/validation/guarded_tensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "runtime/base/limits.h"

namespace resident {
namespace {

class GuardedTensorsTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kAddress = 0x10000;

  GuardedTensorsTest()
      : signature_(
            *Signature::Parse("x: in f32[N], y: inout f32[N], n: scalar i64, out: out f32[N]")),
        memory_(1 << 20) {
    const float x[] = {1, 2, 3}, y[] = {4, 5, 6, /*expected:*/ 7, 8, 9};
    const int64_t n = 42;
    example_.values = {{DType::kF32, {3}, Text(x)},
                       {DType::kF32, {3}, Text(y)},
                       {DType::kI64, {}, Text(n)},
                       {DType::kF32, {3}, ""}};
  }

  template <typename T>
  static std::string Text(const T& value) {
    return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
  }

  GuardedTensors Place(bool shifted = false) {
    auto tensors = GuardedTensors::Place(signature_, example_,
                                         {memory_.data(), kAddress, memory_.size()}, shifted);
    EXPECT_TRUE(tensors.ok()) << tensors.status();
    tensors->Fill(0xff);
    return *std::move(tensors);
  }
  uint8_t* Data(const GuardedTensors& tensors, size_t tensor) {
    return memory_.data() + tensors.tensors()[tensor].offset;
  }

  const Signature signature_;
  Example example_;
  std::vector<uint8_t> memory_;
};

TEST_F(GuardedTensorsTest, ArgumentsMatchTheExample) {
  const GuardedTensors tensors = Place();
  ASSERT_EQ(tensors.arguments().size(), 4u);
  EXPECT_EQ(tensors.arguments()[2].scalar_bits, 42u);
  const TensorArgument& y = tensors.arguments()[1].tensor;
  EXPECT_EQ(y.address - kAddress, tensors.tensors()[1].offset);
  EXPECT_EQ(y.address % 256, 0u);
  EXPECT_EQ(y.rank, 1);
  EXPECT_EQ(y.shape[0], 3);
  float held[3];
  std::memcpy(held, Data(tensors, 1), sizeof(held));
  EXPECT_EQ(held[2], 6.0f);
  EXPECT_EQ(Data(tensors, 2)[11], 0xff);
  EXPECT_EQ(tensors.compact_elements(), 3u);
  EXPECT_EQ(tensors.shapes(), "x [3], y [3], out [3]");
  EXPECT_FALSE(tensors.FindStrayWrite());
  EXPECT_FALSE(tensors.FindInputWrite());
}

TEST_F(GuardedTensorsTest, ShiftedTensorsBeginOneElementLater) {
  EXPECT_EQ(Place(/*shifted=*/true).arguments()[0].tensor.address % 256, 4u);
}

TEST_F(GuardedTensorsTest, WriteBehindATensorIsFound) {
  const GuardedTensors tensors = Place();
  ++Data(tensors, 1)[12];
  const auto stray = tensors.FindStrayWrite();
  ASSERT_TRUE(stray);
  EXPECT_EQ(stray->parameter, 1u);
  EXPECT_EQ(stray->where, GuardedTensors::StrayWrite::kPast);
  EXPECT_EQ(stray->distance, 1u);
}

TEST_F(GuardedTensorsTest, WriteBeforeATensorIsFound) {
  const GuardedTensors tensors = Place(/*shifted=*/true);
  --Data(tensors, 2)[-4];
  const auto stray = tensors.FindStrayWrite();
  ASSERT_TRUE(stray);
  EXPECT_EQ(stray->parameter, 3u);  // 'out': the scalar before it is not a tensor.
  EXPECT_EQ(stray->where, GuardedTensors::StrayWrite::kBefore);
  EXPECT_EQ(stray->distance, 4u);
}

TEST_F(GuardedTensorsTest, WriteBehindTheLastTensorIsFound) {
  const GuardedTensors tensors = Place();
  ++Data(tensors, 2)[12 + GuardedTensors::kRedZoneBytes - 1];
  const auto stray = tensors.FindStrayWrite();
  ASSERT_TRUE(stray);
  EXPECT_EQ(stray->distance, GuardedTensors::kRedZoneBytes);
  EXPECT_EQ(stray->parameter, 3u);
}

// x and out are strided: if shifted, they have gaps between their elements.
TEST(StridedGuardedTensorsTest, WriteBetweenElementsIsFound) {
  const Signature signature = *Signature::Parse("x: in strided f32[*S], out: out strided f32[*S]");
  const float x[] = {1, 2, 3, 4};
  Example example;
  example.values = {{DType::kF32, {2, 2}, std::string(reinterpret_cast<const char*>(x), 16)},
                    {DType::kF32, {2, 2}, ""}};
  std::vector<uint8_t> memory(1 << 20);
  auto tensors = GuardedTensors::Place(signature, example, {memory.data(), 0, memory.size()}, true);
  ASSERT_TRUE(tensors.ok());
  tensors->Fill(0xa5);
  EXPECT_EQ(tensors->arguments()[0].tensor.strides[0], 4);
  EXPECT_EQ(tensors->arguments()[0].tensor.strides[1], 2);
  EXPECT_EQ(tensors->Contents(tensors->tensors()[0]), example.values[0].data);
  EXPECT_EQ(tensors->Contents(tensors->tensors()[1]), std::string(16, '\xa5'));
  EXPECT_FALSE(tensors->compact_elements());
  EXPECT_FALSE(tensors->FindStrayWrite());
  EXPECT_FALSE(tensors->FindInputWrite());
  ++memory[tensors->tensors()[1].offset + 13];
  const auto stray = tensors->FindStrayWrite();
  ASSERT_TRUE(stray);
  EXPECT_EQ(stray->parameter, 1u);
  EXPECT_EQ(stray->where, GuardedTensors::StrayWrite::kBetween);
  EXPECT_EQ(stray->distance, 13u);
  --memory[tensors->tensors()[1].offset + 13];
  ++memory[tensors->tensors()[0].offset + 16];  // The third of four elements.
  ASSERT_TRUE(tensors->FindInputWrite());
  EXPECT_EQ(tensors->FindInputWrite()->element, 2u);
}

TEST_F(GuardedTensorsTest, WriteToAnInputIsFoundAndToAnInOutIsAllowed) {
  const GuardedTensors tensors = Place();
  ++Data(tensors, 1)[0];
  EXPECT_FALSE(tensors.FindInputWrite());
  ++Data(tensors, 0)[9];
  const auto write = tensors.FindInputWrite();
  ASSERT_TRUE(write);
  EXPECT_EQ(write->parameter, 0u);
  EXPECT_EQ(write->element, 2u);
}

TEST_F(GuardedTensorsTest, ContextDescribesTheArguments) {
  GuardedTensors tensors = Place();
  tensors.PrepareContext(1000);
  EXPECT_FALSE(tensors.FindStrayWrite());
  auto* context = reinterpret_cast<CheckContext*>(memory_.data());
  EXPECT_EQ(context->argument_count, 4u);
  EXPECT_EQ(context->scalar[2], 1);
  EXPECT_EQ(context->dtypes[2], DType::kI64);
  EXPECT_EQ(context->scalar[3], 0);
  EXPECT_FALSE(tensors.FindViolation());
  context->violations()[5].kind = ViolationKind::kElement;
  context->violations()[5].index = 17;
  ASSERT_TRUE(tensors.FindViolation());
  EXPECT_EQ(tensors.FindViolation()->index, 17);
  tensors.PrepareContext(1000);
  EXPECT_FALSE(tensors.FindViolation());
}

// Gaps double the size of strided tensors.
TEST(StridedGuardedTensorsTest, TensorsOfTheGreatestExampleFitIntoStagingMemory) {
  const Signature signature = *Signature::Parse(
      "x: in strided f32[*S], out: out strided f32[*S], a: in f64[], b: in f64[], c: in f64[], "
      "d: in f64[], e: in f64[], f: in f64[], g: in f64[], h: in f64[], i: in f64[], j: in f64[], "
      "k: in f64[], l: in f64[]");
  ASSERT_EQ(signature.parameters().size(), kMaxArguments);
  const auto n = static_cast<int64_t>(kMaxExampleBytes / 8 - 12);
  Example example;
  for (int i = 0; i < 2; ++i) example.values.push_back({DType::kF32, {n}, ""});
  for (int i = 0; i < 12; ++i) example.values.push_back({DType::kF64, {}, ""});
  for (const bool shifted : {false, true}) {
    const auto tensors = GuardedTensors::Place(
        signature, example, {nullptr, 0, GuardedTensors::kStagingBytes}, shifted);
    EXPECT_TRUE(tensors.ok()) << tensors.status();
  }
}

TEST_F(GuardedTensorsTest, StagingMemoryThatIsTooSmallIsRefused) {
  EXPECT_EQ(GuardedTensors::Place(signature_, example_, {memory_.data(), kAddress, 4096}, false)
                .status()
                .code(),
            absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace resident
