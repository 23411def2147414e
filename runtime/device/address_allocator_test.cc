#include "runtime/device/address_allocator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <random>
#include <vector>

namespace resident {
namespace {

TEST(AddressAllocatorTest, ReturnsTheSmallestRangeThatFits) {
  AddressAllocator heap(0, 1024, 64);
  const uint64_t a = *heap.Allocate(256);
  const uint64_t b = *heap.Allocate(64);
  const uint64_t c = *heap.Allocate(64);
  heap.Allocate(64);
  heap.Free(a);  // A hole of 256.
  heap.Free(c);  // A hole of 64, and 576 at the end.
  EXPECT_EQ(heap.Allocate(64), c);
  EXPECT_EQ(heap.Allocate(200), a);
  EXPECT_EQ(b, 256u);
}

TEST(AddressAllocatorTest, NeighboursMergeFromBothSides) {
  AddressAllocator heap(0, 192, 64);
  const uint64_t a = *heap.Allocate(64);
  const uint64_t b = *heap.Allocate(64);
  const uint64_t c = *heap.Allocate(64);
  EXPECT_EQ(heap.largest_free_bytes(), 0u);
  heap.Free(a);
  heap.Free(c);
  EXPECT_EQ(heap.largest_free_bytes(), 64u);
  EXPECT_EQ(heap.free_bytes(), 128u);
  EXPECT_EQ(heap.Allocate(128), std::nullopt);
  heap.Free(b);
  EXPECT_EQ(heap.largest_free_bytes(), 192u);
  EXPECT_EQ(heap.Allocate(192), 0u);
}

TEST(AddressAllocatorTest, SizesAreRoundedUpAndZeroCountsAsOne) {
  AddressAllocator heap(4096, 512, 256);
  EXPECT_EQ(heap.Allocate(0), 4096u);
  EXPECT_EQ(heap.used_bytes(), 256u);
  EXPECT_EQ(heap.Allocate(1), 4096u + 256);
  EXPECT_EQ(heap.Allocate(0), std::nullopt);
}

TEST(AddressAllocatorTest, IncompleteGranulesAtTheEndsAreNotUsed) {
  AddressAllocator heap(100, 500, 64);  // [128, 576) of [100, 600).
  EXPECT_EQ(heap.size_bytes(), 448u);
  EXPECT_EQ(heap.Allocate(448), 128u);
  EXPECT_EQ(AddressAllocator(1, 62, 64).Allocate(1), std::nullopt);
  EXPECT_EQ(AddressAllocator(0, 0, 64).Allocate(1), std::nullopt);
}

TEST(AddressAllocatorTest, SizesNearTheEndOfTheAddressSpaceDoNotWrapAround) {
  AddressAllocator heap(0, uint64_t{1} << 20, 256);
  EXPECT_EQ(heap.Allocate(UINT64_MAX), std::nullopt);
  EXPECT_EQ(heap.Allocate(UINT64_MAX - 254), std::nullopt);
  EXPECT_EQ(heap.Allocate((uint64_t{1} << 20) + 1), std::nullopt);
  EXPECT_EQ(heap.used_bytes(), 0u);
}

TEST(AddressAllocatorDeathTest, FreeOfAnAddressThatIsNotAllocatedAborts) {
  AddressAllocator heap(0, 1024, 64);
  const uint64_t a = *heap.Allocate(128);
  EXPECT_DEATH(heap.Free(a + 64), "not allocated");
  heap.Free(a);
  EXPECT_DEATH(heap.Free(a), "not allocated");
}

// A simple model of the allocator: a map of allocations.
class Model {
 public:
  Model(uint64_t base, uint64_t size, uint64_t granule)
      : base_(base), size_(size), granule_(granule) {}

  std::optional<uint64_t> Allocate(uint64_t bytes) {
    bytes = (std::max<uint64_t>(bytes, 1) + granule_ - 1) / granule_ * granule_;
    std::optional<std::pair<uint64_t, uint64_t>> best;  // (size, address).
    for (const auto& hole : Holes()) {
      if (hole.first >= bytes && (!best || hole < *best)) best = hole;
    }
    if (!best) return std::nullopt;
    allocated_[best->second] = bytes;
    return best->second;
  }
  void Free(uint64_t address) { allocated_.erase(address); }

  uint64_t used() const {
    uint64_t used = 0;
    for (const auto& [address, bytes] : allocated_) used += bytes;
    return used;
  }
  uint64_t largest() const {
    uint64_t largest = 0;
    for (const auto& hole : Holes()) largest = std::max(largest, hole.first);
    return largest;
  }
  const std::map<uint64_t, uint64_t>& allocated() const { return allocated_; }

 private:
  std::vector<std::pair<uint64_t, uint64_t>> Holes() const {
    std::vector<std::pair<uint64_t, uint64_t>> holes;
    uint64_t end = base_;
    for (const auto& [address, bytes] : allocated_) {
      if (address > end) holes.emplace_back(address - end, end);
      end = address + bytes;
    }
    if (base_ + size_ > end) holes.emplace_back(base_ + size_ - end, end);
    return holes;
  }

  const uint64_t base_, size_, granule_;
  std::map<uint64_t, uint64_t> allocated_;
};

TEST(AddressAllocatorTest, AgreesWithTheModelOverRandomOperations) {
  for (uint32_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const uint64_t granule = uint64_t{1} << (random() % 10);
    const uint64_t base = (random() % 1000) * granule;
    const uint64_t size = (1 + random() % 400) * granule;
    AddressAllocator heap(base, size, granule);
    Model model(base, size, granule);
    for (int step = 0; step < 2000; ++step) {
      if (random() % 100 < 55) {
        const uint64_t bytes = random() % (random() % 8 == 0 ? size + 1 : 16 * granule);
        const auto got = heap.Allocate(bytes);
        ASSERT_EQ(got, model.Allocate(bytes)) << "step " << step << ", " << bytes << " bytes";
        if (got) {
          ASSERT_EQ(*got % granule, 0u);
        }
      } else if (!model.allocated().empty()) {
        const auto victim =
            std::next(model.allocated().begin(),
                      static_cast<std::ptrdiff_t>(random() % model.allocated().size()));
        const uint64_t address = victim->first;
        heap.Free(address);
        model.Free(address);
      }
      ASSERT_EQ(heap.used_bytes(), model.used());
      ASSERT_EQ(heap.largest_free_bytes(), model.largest());
      ASSERT_EQ(heap.allocations(), model.allocated().size());
    }
    const std::map<uint64_t, uint64_t> rest = model.allocated();
    for (const auto& [address, bytes] : rest) heap.Free(address);
    EXPECT_EQ(heap.used_bytes(), 0u);
    EXPECT_EQ(heap.largest_free_bytes(), size);
  }
}

}  // namespace
}  // namespace resident
