#include "runtime/device/address_allocator.h"

#include <algorithm>
#include <bit>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <utility>

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
  const auto range = free_by_address_.find(address);
  if (available == bytes) {
    RemoveFree(range);
  } else {
    ChangeFree(range, address + bytes, available - bytes);
  }
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
  const bool to_next = next != free_by_address_.end() && address + bytes == next->first;
  const bool to_previous =
      previous != free_by_address_.end() && previous->first + previous->second == address;
  if (to_next) bytes += next->second;
  if (to_previous) {
    if (to_next) RemoveFree(next);
    ChangeFree(previous, previous->first, previous->second + bytes);
  } else if (to_next) {
    ChangeFree(next, address, bytes);
  } else {
    AddFree(address, bytes);
  }
}

uint64_t AddressAllocator::largest_free_bytes() const {
  return free_by_size_.empty() ? 0 : free_by_size_.rbegin()->first;
}

void AddressAllocator::AddFree(uint64_t address, uint64_t bytes) {
  free_by_address_.emplace(address, bytes);
  free_by_size_.emplace(bytes, address);
}

void AddressAllocator::ChangeFree(FreeRanges::iterator range, uint64_t address, uint64_t bytes) {
  auto by_size = free_by_size_.extract({range->second, range->first});
  by_size.value() = {bytes, address};
  free_by_size_.insert(std::move(by_size));
  auto by_address = free_by_address_.extract(range);
  by_address.key() = address;
  by_address.mapped() = bytes;
  free_by_address_.insert(std::move(by_address));
}

void AddressAllocator::RemoveFree(FreeRanges::iterator range) {
  free_by_size_.erase({range->second, range->first});
  free_by_address_.erase(range);
}

}  // namespace resident
