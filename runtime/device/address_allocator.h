// AddressAllocator: allocates ranges of the addresses [base, base + size) of memory that this
// process may not be able to access: a device's buffer memory, or staging memory of the shared
// region. It never accesses that memory and keeps no bookkeeping in it.
//
// Best fit: it uses the smallest free range that is large enough, and the lowest address among
// equal ones. A freed range is merged with free neighbours at once. Sizes are rounded up to the
// granule, so every address is a multiple of it.
//
// Allocate and Free take O(log n) in the number of free ranges.
//
// Thread safety: none; the owner holds a lock.
//
// Invariants:
//   1. Free ranges and allocations are disjoint and together cover the whole range.
//   2. No two free ranges touch.
//
//   AddressAllocator heap(info.memory_address, info.memory_bytes, 256);
//   std::optional<uint64_t> address = heap.Allocate(bytes);   // nullopt: no room.
//   heap.Free(*address);
#ifndef RESIDENT_RUNTIME_DEVICE_ADDRESS_ALLOCATOR_H_
#define RESIDENT_RUNTIME_DEVICE_ADDRESS_ALLOCATOR_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "absl/container/flat_hash_map.h"

namespace resident {

class AddressAllocator {
 public:
  // REQUIRES: granule is a power of two; base + size does not overflow. Incomplete granules at
  // either end are not used.
  AddressAllocator(uint64_t base, uint64_t size, uint64_t granule);
  AddressAllocator(const AddressAllocator&) = delete;
  AddressAllocator& operator=(const AddressAllocator&) = delete;

  // The address of `bytes` bytes (0 counts as 1); nullopt when no free range is large
  // enough.
  std::optional<uint64_t> Allocate(uint64_t bytes);

  // REQUIRES: `address` is allocated. Otherwise the process is aborted.
  void Free(uint64_t address);

  uint64_t size_bytes() const { return size_; }
  uint64_t used_bytes() const { return used_; }
  uint64_t free_bytes() const { return size_ - used_; }
  // The largest size that Allocate can return now.
  uint64_t largest_free_bytes() const;
  size_t allocations() const { return allocated_.size(); }

 private:
  using FreeRanges = std::map<uint64_t, uint64_t>;  // Address to size.

  void AddFree(uint64_t address, uint64_t bytes);
  // Moves or resizes a free range, without passing another one. Unlike RemoveFree and AddFree it
  // allocates nothing: most batches take staging memory.
  void ChangeFree(FreeRanges::iterator range, uint64_t address, uint64_t bytes);
  void RemoveFree(FreeRanges::iterator range);

  const uint64_t granule_;
  uint64_t size_;
  uint64_t used_ = 0;
  FreeRanges free_by_address_;
  std::set<std::pair<uint64_t, uint64_t>> free_by_size_;  // (size, address).
  absl::flat_hash_map<uint64_t, uint64_t> allocated_;     // Address to rounded size.
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_DEVICE_ADDRESS_ALLOCATOR_H_
