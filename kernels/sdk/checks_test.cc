// Tests the checked build of the SDK on the host. Compiled with RESIDENT_CHECKED=1.
#include "kernels/sdk/checks.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "kernels/sdk/operator.h"

namespace resident {
namespace {

static_assert(RESIDENT_CHECKED, "this test needs the checked build");

// A task with x: f32[2, 3], y: f32[6] and n: i64, and its context.
class ChecksTest : public ::testing::Test {
 protected:
  struct Context {
    CheckContext context;
    Violation violations[2];
  };

  ChecksTest() : scratch_(kScratchBytes), state_(std::make_unique<BlockState>()) {
    std::memset(static_cast<void*>(state_.get()), 0, sizeof(BlockState));
    context_.context.argument_count = 3;
    const DType dtypes[] = {DType::kF32, DType::kF32, DType::kI64};
    for (u32 i = 0; i < 3; ++i) context_.context.dtypes[i] = dtypes[i];
    context_.context.scalar[2] = 1;
    state_->descriptor.words[0] = 3;
    state_->descriptor.words[3] = reinterpret_cast<u64>(&context_);
    state_->chunk_count = 1;
    state_->scratch = scratch_.data();
    state_->arguments.arguments[0].tensor = {
        reinterpret_cast<u64>(x_), DType::kF32, 2, {}, {2, 3}, {3, 1}};
    state_->arguments.arguments[1].tensor = {
        reinterpret_cast<u64>(y_), DType::kF32, 1, {}, {6}, {1}};
    state_->arguments.arguments[2].scalar_bits = 42;
  }

  Args args() { return Args(state_.get()); }
  const Violation& violation(u32 chunk = 0) { return context_.violations[chunk]; }
  void ExpectViolation(ViolationKind kind, u32 argument, i64 index, i64 limit) {
    EXPECT_EQ(state_->status_and_detail & 0xffff, static_cast<u32>(CompletionStatus::kOutOfBounds));
    EXPECT_EQ(state_->status_and_detail >> 16 & 0xff, static_cast<u32>(kind));
    EXPECT_EQ(violation().kind, kind);
    EXPECT_EQ(violation().argument, argument);
    EXPECT_EQ(violation().index, index);
    EXPECT_EQ(violation().limit, limit);
  }
  void ExpectNone() {
    EXPECT_EQ(state_->status_and_detail, 0u);
    EXPECT_EQ(violation().kind, ViolationKind::kNone);
  }

  float x_[6] = {1, 2, 3, 4, 5, 6};
  // With one element on each side that must not be changed.
  float padded_[8] = {7, 0, 0, 0, 0, 0, 0, 7};
  float* const y_ = padded_ + 1;
  Context context_ = {};
  std::vector<unsigned char> scratch_;
  std::unique_ptr<BlockState> state_;
};

TEST_F(ChecksTest, AccessesInBoundsAreAllowed) {
  auto x = args().tensor<const float>(0);
  auto y = args().tensor<float>(1);
  EXPECT_EQ(x.at(1, 2), 6.0f);
  y[5] = x[3];
  EXPECT_EQ(y_[5], 4.0f);
  EXPECT_EQ(args().scalar<i64>(2), 42);
  ExpectNone();
}

TEST_F(ChecksTest, AnElementBeyondTheEndIsNotWritten) {
  args().tensor<float>(1)[6] = 9;
  EXPECT_EQ(padded_[7], 7.0f);
  ExpectViolation(ViolationKind::kElement, 1, 6, 6);
}

TEST_F(ChecksTest, AnElementBeforeTheStartIsNotWritten) {
  args().tensor<float>(1)[-1] = 9;
  EXPECT_EQ(padded_[0], 7.0f);
  ExpectViolation(ViolationKind::kElement, 1, -1, 6);
}

TEST_F(ChecksTest, ARefusedElementReadsAsZero) {
  EXPECT_EQ(args().tensor<const float>(0)[1000000000000], 0.0f);
  ExpectViolation(ViolationKind::kElement, 0, 1000000000000, 6);
}

TEST_F(ChecksTest, AnIndexBeyondItsDimensionIsRefusedEvenIfTheOffsetIsInTheTensor) {
  args().tensor<const float>(0).at(0, 3);
  ExpectViolation(ViolationKind::kIndex, 0, 3, 3);
  EXPECT_EQ(violation().dimension, 1);
}

TEST_F(ChecksTest, TooFewIndicesAreRefused) {
  args().tensor<const float>(0).at(0);
  ExpectViolation(ViolationKind::kRank, 0, 1, 2);
}

TEST_F(ChecksTest, ElementsOfAnotherSizeAreRefused) {
  args().tensor<double>(1)[0] = 1;
  ExpectViolation(ViolationKind::kElementSize, 1, 8, 4);
}

TEST_F(ChecksTest, TheSizeOfElementsIsCheckedBeforeAnIndexAndANumberOfIndices) {
  args().tensor<u8>(0).at(0, 1);
  ExpectViolation(ViolationKind::kElementSize, 0, 1, 4);
  state_->status_and_detail = 0;
  args().tensor<const double>(0).at(5);
  ExpectViolation(ViolationKind::kElementSize, 0, 8, 4);
}

TEST_F(ChecksTest, ATensorOfAnotherTypeIsCheckedForThatType) {
  const auto x = args().tensor<const Any>(0);
  EXPECT_EQ(x.as<const float>()[5], 6.0f);
  EXPECT_EQ(x.as<const double>().as<const u32>()[0], 0x3f800000u);
  ExpectNone();
  EXPECT_EQ(x.as<const double>()[0], 0.0);
  ExpectViolation(ViolationKind::kElementSize, 0, 8, 4);
}

TEST_F(ChecksTest, AnIndexIsReportedWithItsOwnDimensionIfThereAreNoElements) {
  state_->arguments.arguments[0].tensor.shape[1] = 0;
  args().tensor<const float>(0).at(1, 0);
  ExpectViolation(ViolationKind::kIndex, 0, 0, 0);
  EXPECT_EQ(violation().dimension, 1);
}

TEST_F(ChecksTest, ATensorThatTheOperatorCreatedIsNotChecked) {
  const Tensor<float> own(reinterpret_cast<u64>(y_), 2);
  EXPECT_EQ(own[-1], 7.0f);
  EXPECT_EQ(own[6], 7.0f);
  ExpectNone();
}

TEST_F(ChecksTest, ArgumentsInCompactFormAreCheckedForTheirSizeOnly) {
  state_->descriptor.flags = kTaskCompact;
  state_->descriptor.set_elements(6);
  state_->descriptor.words[1] = reinterpret_cast<u64>(x_);
  const float factor = 2.5f;
  state_->descriptor.words[2] = 0;
  std::memcpy(&state_->descriptor.words[2], &factor, sizeof(factor));
  EXPECT_EQ(args().tensor<const float>(0)[5], 6.0f);
  EXPECT_EQ(args().tensor<const float>(0).size(), 6);
  EXPECT_EQ(args().scalar<float>(1), 2.5f);
  EXPECT_EQ(state_->status_and_detail, 0u);
  EXPECT_EQ(args().tensor<const float>(0)[6], 0.0f);
  EXPECT_EQ(state_->status_and_detail, 4u | static_cast<u32>(ViolationKind::kElement) << 16);
}

TEST_F(ChecksTest, AnArgumentThatDoesNotExistIsRefused) {
  args().tensor<float>(3)[0] = 1;
  ExpectViolation(ViolationKind::kArgument, 3, 3, 3);
}

TEST_F(ChecksTest, AScalarIsNotAcceptedAsATensor) {
  args().tensor<float>(2)[0] = 1;
  ExpectViolation(ViolationKind::kArgumentKind, 2, 0, 0);
}

TEST_F(ChecksTest, ATensorIsNotAcceptedAsAScalar) {
  EXPECT_EQ(args().scalar<float>(0), 0.0f);
  ExpectViolation(ViolationKind::kArgumentKind, 0, 1, 0);
}

TEST_F(ChecksTest, AScalarOfAnotherSizeIsRefused) {
  args().scalar<float>(2);
  ExpectViolation(ViolationKind::kScalarSize, 2, 4, 8);
}

TEST_F(ChecksTest, OffsetsIntoMemoryAreChecked) {
  const Block block(state_.get());
  block.memory<float>(kBlockMemoryBytes - 4);
  block.memory<float>(0, kBlockMemoryBytes / 4);
  block.scratch<float>(kScratchBytes - 4);
  block.set_result(1.0f, kResultBytes - 4);
  ExpectNone();
  EXPECT_EQ(block.memory<float>(4, kBlockMemoryBytes / 4), block.memory<float>());
  ExpectViolation(ViolationKind::kBlockMemory, 0, kBlockMemoryBytes + 4, kBlockMemoryBytes);
}

TEST_F(ChecksTest, OffsetsIntoScratchMemoryAreChecked) {
  const Block block(state_.get());
  EXPECT_EQ(block.scratch<float>(kScratchBytes), block.scratch<float>());
  ExpectViolation(ViolationKind::kScratch, 0, kScratchBytes + 4, kScratchBytes);
}

TEST_F(ChecksTest, AResultBeyondTheLimitIsNotWritten) {
  Block(state_.get()).set_result(1.0f, kResultBytes - 2);
  ExpectViolation(ViolationKind::kResult, 0, kResultBytes + 2, kResultBytes);
}

TEST_F(ChecksTest, SharesCoverAllItemsInOrder) {
  for (const i64 n : {i64{0}, i64{1}, i64{7}, i64{1000}, (i64{1} << 33) + 5}) {
    for (const i64 align : {1, 4}) {
      for (const u64 chunks : {1, 3, 8}) {
        state_->chunk_count = chunks;
        i64 end = 0;
        for (state_->chunk = 0; state_->chunk < chunks; ++state_->chunk) {
          const Range share = Block(state_.get()).share(n, align);
          EXPECT_EQ(share.begin, end);
          EXPECT_EQ(share.begin == n ? 0 : share.begin % align, 0);
          end = share.end;
        }
        EXPECT_EQ(end, n);
      }
    }
  }
}

TEST_F(ChecksTest, TheFirstViolationIsKept) {
  args().tensor<float>(1)[6] = 9;
  args().tensor<float>(1)[7] = 9;
  ExpectViolation(ViolationKind::kElement, 1, 6, 6);
}

TEST_F(ChecksTest, AChunkOfAWideTaskHasItsOwnRecord) {
  state_->chunk = 1;
  args().tensor<float>(1)[6] = 9;
  EXPECT_EQ(violation(0).kind, ViolationKind::kNone);
  EXPECT_EQ(violation(1).index, 6);
}

TEST_F(ChecksTest, WithoutAContextTheViolationIsOnlyInTheStatus) {
  state_->descriptor.words[3] = 0;
  args().tensor<float>(1)[6] = 9;
  EXPECT_EQ(padded_[7], 7.0f);
  EXPECT_EQ(state_->status_and_detail,
            4u | static_cast<u32>(ViolationKind::kElement) << 16 | 1u << 24);
}

}  // namespace
}  // namespace resident
