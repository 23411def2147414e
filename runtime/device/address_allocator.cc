#include "runtime/device/address_allocator.h"

#include <algorithm>
#include <bit>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <iterator>

namespace resident {

AddressAllocator::AddressAllocator(uint64_t base, uint64_t size, uint64_t granule)
    : granule_(granule) {
  if (!std::has_single_bit(granule) || base + size < base) {
    std::fprintf(stderr,
                 "AddressAllocator: bad range %#" PRIx64 "+%#" PRIx64 ", granule %" PRIu64 "\n",
                 base, size, granule);
    std::abort();
  }
  const uint64_t skipped = (granule - base % granule) % granule;
  size_ = size > skipped ? (size - skipped) / granule * granule : 0;
  if (size_ > 0) AddFree(base + skipped, size_);
}

std::optional<uint64_t> AddressAllocator::Allocate(uint64_t bytes) {
  bytes = std::max<uint64_t>(bytes, 1);
  if (bytes > size_) return std::nullopt;  // Also keeps the rounding from overflowing.
  bytes = (bytes + granule_ - 1) / granule_ * granule_;
  const auto fit = free_by_size_.lower_bound({bytes, 0});
  if (fit == free_by_size_.end()) return std::nullopt;
  const auto [available, address] = *fit;
  RemoveFree(free_by_address_.find(address));
  if (available > bytes) AddFree(address + bytes, available - bytes);
  allocated_.emplace(address, bytes);
  used_ += bytes;
  return address;
}

void AddressAllocator::Free(uint64_t address) {
  const auto found = allocated_.find(address);
  if (found == allocated_.end()) {
    std::fprintf(stderr, "AddressAllocator: %#" PRIx64 " was freed and is not allocated\n",
                 address);
    std::abort();
  }
  uint64_t bytes = found->second;
  allocated_.erase(found);
  used_ -= bytes;

  const auto next = free_by_address_.lower_bound(address);
  const auto previous = next == free_by_address_.begin() ? free_by_address_.end() : std::prev(next);
  if (next != free_by_address_.end() && address + bytes == next->first) {
    bytes += next->second;
    RemoveFree(next);
  }
  if (previous != free_by_address_.end() && previous->first + previous->second == address) {
    address = previous->first;
    bytes += previous->second;
    RemoveFree(previous);
  }
  AddFree(address, bytes);
}

uint64_t AddressAllocator::largest_free_bytes() const {
  return free_by_size_.empty() ? 0 : free_by_size_.rbegin()->first;
}

void AddressAllocator::AddFree(uint64_t address, uint64_t bytes) {
  free_by_address_.emplace(address, bytes);
  free_by_size_.emplace(bytes, address);
}

void AddressAllocator::RemoveFree(FreeRanges::iterator range) {
  free_by_size_.erase({range->second, range->first});
  free_by_address_.erase(range);
}

}  // namespace resident
