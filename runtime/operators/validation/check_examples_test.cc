#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "runtime/base/limits.h"
#include "runtime/operators/validation/example.h"

namespace resident {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kSignature[] =
    "x: in f32[N], y: inout f32[N], out: out f32[N], sum: out f64[], a: scalar f32 = 1";

ExampleValue Value(DType dtype, const Shape& shape, size_t bytes) {
  return {dtype, shape, std::string(bytes, '\0')};
}

// Two elements; all outputs have expected data.
Example Good() {
  Example example;
  example.values = {Value(DType::kF32, {2}, 8), Value(DType::kF32, {2}, 16),
                    Value(DType::kF32, {2}, 8), Value(DType::kF64, {}, 8),
                    Value(DType::kF32, {}, 4)};
  return example;
}

absl::Status Check(const std::vector<Example>& examples) {
  return CheckExamples("op", *Signature::Parse(kSignature), examples);
}

void ExpectRefused(const Example& example, const std::string& message) {
  const absl::Status status = Check({Good(), example});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("example 2: "), HasSubstr(message), HasSubstr(". Fix: ")));
}

TEST(CheckExamplesTest, AcceptsValidExamples) {
  Example inputs_alone = Good();
  inputs_alone.values[1].data.resize(8);
  inputs_alone.values[2].data.clear();
  inputs_alone.values[3].data.clear();
  Example without_default = Good();
  without_default.values.pop_back();
  Example empty = Good();
  for (int i : {0, 1, 2}) empty.values[i] = Value(DType::kF32, {0}, 0);
  EXPECT_EQ(Check({Good(), inputs_alone, without_default, empty}), absl::OkStatus());
  EXPECT_EQ(Check({}), absl::OkStatus());
}

TEST(CheckExamplesTest, RefusesExamplesThatDoNotMatchTheSignature) {
  Example example = Good();
  example.values.resize(3);
  ExpectRefused(example, "op");
  example = Good();
  example.values[1] = Value(DType::kF32, {3}, 24);
  ExpectRefused(example, "'y'");
  example = Good();
  example.values[0].dtype = DType::kI32;
  ExpectRefused(example, "i32");
}

TEST(CheckExamplesTest, RefusesDataOfAnotherSize) {
  Example example = Good();
  example.values[0].data.resize(7);
  ExpectRefused(example,
                "argument 1 'x' of op: the example has 7 bytes of data for it, but it "
                "takes 8 bytes");
  example = Good();
  example.values[1].data.resize(12);
  ExpectRefused(example, "takes 8 bytes (the initial data) or 16 (followed");
  example = Good();
  example.values[2].data.resize(4);
  ExpectRefused(example, "takes 0 or 8 bytes (the expected data)");
  example = Good();
  example.values[4].data.clear();
  ExpectRefused(example, "'a'");
}

TEST(CheckExamplesTest, RefusesExpectedDataForOnlySomeOutputs) {
  Example example = Good();
  example.values[2].data.clear();
  ExpectRefused(example, "output 'sum' has expected data and output 'out' has none");
  example = Good();
  example.values[1].data.resize(8);
  ExpectRefused(example, "output 'y' has none");
}

TEST(CheckExamplesTest, RefusesAScalarWithAShape) {
  Example example = Good();
  example.values[4].shape = {1};
  ExpectRefused(example, "a scalar has no shape, but [1] was sent");
}

TEST(CheckExamplesTest, RefusesInvalidTolerances) {
  for (const double bad :
       {-1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    Example example = Good();
    example.relative_tolerance = bad;
    ExpectRefused(example, "tolerances");
    example = Good();
    example.absolute_tolerance = bad;
    ExpectRefused(example, "tolerances");
  }
}

TEST(CheckExamplesTest, RefusesTooMuchData) {
  Example example = Good();
  const auto n = static_cast<int64_t>(kMaxExampleBytes / 8);
  for (int i : {0, 1, 2}) example.values[i] = Value(DType::kF32, {n}, 4 * n);
  example.values[1].data.resize(8 * n);
  ExpectRefused(example, "its tensors have");
  example = Good();
  example.values[0] = Value(DType::kF32, {std::numeric_limits<int64_t>::max()}, 0);
  example.values[1] = example.values[2] = example.values[0];
  ExpectRefused(example, "'x'");
  // The number of bytes is 2^62, or 2^64, which wraps to 0.
  for (const int64_t elements : {int64_t{1} << 60, int64_t{1} << 62}) {
    example = Good();
    example.values[0] = Value(DType::kF32, {elements}, 0);
    example.values[1] = example.values[2] = example.values[0];
    ExpectRefused(example, elements == int64_t{1} << 62 ? "'x'" : "its tensors have");
  }
  const absl::Status status = Check(std::vector<Example>(kMaxInstallExamples + 1, Good()));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("65 examples are more than the limit of 64"));
}

}  // namespace
}  // namespace resident
