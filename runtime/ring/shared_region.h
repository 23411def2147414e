// SharedRegion: this process's mapping of the region that front end, engine and
// device share (kernels/layout/ring_layout.h).
//
// The front end creates it (an anonymous memfd) and passes the descriptor to the
// engine, which attaches to it. The mapping exists as long as the object; the memory
// as long as any process has it mapped or open.
//
// Thread safety: the object is immutable after creation. For the mapped memory, see
// ring_layout.h.
#ifndef RESIDENT_RUNTIME_RING_SHARED_REGION_H_
#define RESIDENT_RUNTIME_RING_SHARED_REGION_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/layout/ring_layout.h"

namespace resident {

class SharedRegion {
 public:
  // Creates and initialises a region. INVALID_ARGUMENT: `slots` is not a power of two
  // from 64 to 65536, or `staging_bytes` is not a multiple of the page size.
  static absl::StatusOr<std::unique_ptr<SharedRegion>> Create(uint32_t slots,
                                                              uint64_t staging_bytes);
  // Maps a region that another process created; takes ownership of the descriptor.
  // FAILED_PRECONDITION: its layout differs from this build's.
  static absl::StatusOr<std::unique_ptr<SharedRegion>> Attach(int fd);

  ~SharedRegion();
  SharedRegion(const SharedRegion&) = delete;
  SharedRegion& operator=(const SharedRegion&) = delete;

  int fd() const { return fd_; }
  uint8_t* base() const { return base_; }
  const RegionLayout& layout() const { return layout_; }

  ControlBlock* control() const { return At<ControlBlock>(layout_.control); }
  Breadcrumb* breadcrumbs() const { return At<Breadcrumb>(layout_.breadcrumbs); }
  RingSlot* submissions() const { return At<RingSlot>(layout_.submissions); }
  RingSlot* completions() const { return At<RingSlot>(layout_.completions); }
  ArgumentBlock* argument_blocks() const { return At<ArgumentBlock>(layout_.argument_blocks); }
  u64* stop_words() const { return At<u64>(layout_.stop_words); }
  uint8_t* staging() const { return base_ + layout_.staging; }

 private:
  SharedRegion(int fd, uint8_t* base, const RegionLayout& layout)
      : fd_(fd), base_(base), layout_(layout) {}

  template <typename T>
  T* At(uint64_t offset) const {
    return reinterpret_cast<T*>(base_ + offset);
  }

  const int fd_;
  uint8_t* const base_;
  const RegionLayout layout_;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_RING_SHARED_REGION_H_
