#include "runtime/device/host_memory.h"

#include "runtime/device/errors.h"

namespace resident {
namespace {

// Adds unless that would exceed the limit. Sets `*before` to the previous value.
bool AddWithin(std::atomic<uint64_t>& to, uint64_t bytes, uint64_t limit, uint64_t* before) {
  *before = to.load();
  do {
    if (bytes > limit || *before > limit - bytes) return false;
  } while (!to.compare_exchange_weak(*before, *before + bytes));
  return true;
}

}  // namespace

HostMemory::Charge HostMemory::MakeCharge(std::shared_ptr<HostUsage> own, uint64_t bytes) {
  Charge charge;
  charge.host_ = this;
  charge.own_ = std::move(own);
  charge.bytes_ = bytes;
  return charge;
}

HostMemory::Charge HostMemory::Count(std::shared_ptr<HostUsage> own, uint64_t bytes) {
  own->bytes_.fetch_add(bytes);
  all_.fetch_add(bytes);
  return MakeCharge(std::move(own), bytes);
}

absl::StatusOr<HostMemory::Charge> HostMemory::Hold(std::shared_ptr<HostUsage> own,
                                                    uint64_t bytes) {
  if (uint64_t used; !AddWithin(own->bytes_, bytes, client_limit_, &used)) {
    return errors::HostMemoryFull(bytes, used, client_limit_, /*client=*/true);
  }
  if (uint64_t used; !AddWithin(all_, bytes, limit_, &used)) {
    own->bytes_.fetch_sub(bytes);
    return errors::HostMemoryFull(bytes, used, limit_, /*client=*/false);
  }
  return MakeCharge(std::move(own), bytes);
}

void HostMemory::Release(HostUsage& own, uint64_t bytes) {
  own.bytes_.fetch_sub(bytes);
  all_.fetch_sub(bytes);
}

}  // namespace resident
