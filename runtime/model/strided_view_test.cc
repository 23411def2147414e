#include "runtime/model/strided_view.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

namespace resident {
namespace {

using Dims = std::vector<int64_t>;

TensorArgument Tensor(uint64_t address, const Dims& shape, const Dims& strides,
                      DType dtype = DType::kF32) {
  TensorArgument tensor{};
  tensor.address = address;
  tensor.dtype = dtype;
  tensor.rank = static_cast<uint8_t>(shape.size());
  std::copy(shape.begin(), shape.end(), tensor.shape);
  std::copy(strides.begin(), strides.end(), tensor.strides);
  return tensor;
}

std::set<uint64_t> Bytes(const TensorArgument& tensor) {
  std::set<uint64_t> bytes;
  int64_t count = 1;
  for (uint32_t d = 0; d < tensor.rank; ++d) count *= tensor.shape[d];
  for (int64_t i = 0; i < count; ++i) {
    int64_t rest = i;
    int64_t offset = 0;
    for (uint32_t d = tensor.rank; d-- > 0;) {
      offset += rest % tensor.shape[d] * tensor.strides[d];
      rest /= tensor.shape[d];
    }
    for (uint32_t b = 0; b < SizeOf(tensor.dtype); ++b) {
      bytes.insert(tensor.address + offset * static_cast<int64_t>(SizeOf(tensor.dtype)) + b);
    }
  }
  return bytes;
}

bool ShareBytes(const TensorArgument& a, const TensorArgument& b) {
  const std::set<uint64_t> of_b = Bytes(b);
  for (const uint64_t byte : Bytes(a)) {
    if (of_b.contains(byte)) return true;
  }
  return false;
}

TEST(StridedView, DenseIgnoresStridesOfDimensionsOfSizeOne) {
  EXPECT_TRUE(IsDense({2, 3}, {3, 1}));
  EXPECT_TRUE(IsDense({2, 1, 3}, {3, 77, 1}));
  EXPECT_TRUE(IsDense({}, {}));
  EXPECT_FALSE(IsDense({2, 3}, {1, 2}));
  EXPECT_FALSE(IsDense({2, 3}, {4, 1}));
}

TEST(StridedView, ElementsOfOneTensorMayOverlap) {
  EXPECT_TRUE(IsInjective({2, 3}, {1, 2}));
  EXPECT_FALSE(IsInjective({2, 3}, {0, 1}));
  EXPECT_FALSE(IsInjective({4, 4}, {3, 1}));
}

TEST(StridedView, ExtentCountsNegativeStridesBackwards) {
  const ByteExtent extent = FindExtent(DType::kF32, {3, 2}, {-4, 1});
  EXPECT_EQ(extent.before, 2u * 4 * 4);
  EXPECT_EQ(extent.from, 2u * 4);
  EXPECT_EQ(FindExtent(DType::kF64, {int64_t{1} << 60}, {int64_t{1} << 60}).from,
            uint64_t{1} << 61);
}

TEST(StridedView, ViewsSideBySideDoNotOverlap) {
  const uint64_t at = 4096;
  // Columns 0 to 3 and 4 to 7 of a matrix with 8 columns.
  EXPECT_FALSE(MayOverlap(Tensor(at, {5, 4}, {8, 1}), Tensor(at + 16, {5, 4}, {8, 1})));
  EXPECT_TRUE(MayOverlap(Tensor(at, {5, 5}, {8, 1}), Tensor(at + 16, {5, 4}, {8, 1})));
  // Queries and keys in one tensor [B, S, 3, H, D].
  const Dims shape = {2, 3, 4, 5};
  const Dims strides = {3 * 60, 60, 5, 1};
  EXPECT_FALSE(MayOverlap(Tensor(at, shape, strides), Tensor(at + 20 * 4, shape, strides)));
  EXPECT_TRUE(MayOverlap(Tensor(at, shape, strides), Tensor(at + 16 * 4, shape, strides)));
  // Even and odd elements.
  EXPECT_FALSE(MayOverlap(Tensor(at, {9}, {2}), Tensor(at + 4, {9}, {2})));
  // Adjacent tensors, and a tensor and itself.
  EXPECT_FALSE(MayOverlap(Tensor(at, {4}, {1}), Tensor(at + 16, {4}, {1})));
  EXPECT_TRUE(MayOverlap(Tensor(at, {4}, {1}), Tensor(at, {4}, {1})));
}

TEST(StridedView, TensorsThatShareBytesAlwaysMayOverlap) {
  std::mt19937 random(11);
  const auto draw = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  constexpr DType kDTypes[] = {DType::kU8, DType::kF16, DType::kF32};
  int apart = 0;
  for (int round = 0; round < 20000; ++round) {
    TensorArgument tensors[2];
    for (TensorArgument& tensor : tensors) {
      Dims shape;
      Dims strides;
      for (int64_t d = draw(0, 3); d > 0; --d) {
        shape.push_back(draw(1, 4));
        strides.push_back(draw(-9, 9));
      }
      tensor = Tensor(4096 + draw(0, 60), shape, strides, kDTypes[draw(0, 2)]);
    }
    const bool may = MayOverlap(tensors[0], tensors[1]);
    EXPECT_EQ(may, MayOverlap(tensors[1], tensors[0])) << round;
    if (!may) {
      ++apart;
      EXPECT_FALSE(ShareBytes(tensors[0], tensors[1])) << round;
    }
  }
  EXPECT_GT(apart, 1000);
}

}  // namespace
}  // namespace resident
