#include "runtime/base/host_memory.h"

#include "runtime/base/errors/daemon_errors.h"

namespace resident {
namespace {

// Adds unless that would go beyond the limit; `*before` is what there was.
bool Add(std::atomic<uint64_t>& to, uint64_t bytes, uint64_t limit, uint64_t* before) {
  *before = to.load();
  do {
    if (bytes > limit || *before > limit - bytes) return false;
  } while (!to.compare_exchange_weak(*before, *before + bytes));
  return true;
}

}  // namespace

HostMemory::Charge HostMemory::Charged(std::shared_ptr<HostUse> own, uint64_t bytes) {
  Charge charge;
  charge.host_ = this;
  charge.own_ = std::move(own);
  charge.bytes_ = bytes;
  return charge;
}

HostMemory::Charge HostMemory::Count(std::shared_ptr<HostUse> own, uint64_t bytes) {
  own->bytes_.fetch_add(bytes);
  all_.fetch_add(bytes);
  return Charged(std::move(own), bytes);
}

absl::StatusOr<HostMemory::Charge> HostMemory::Hold(std::shared_ptr<HostUse> own, uint64_t bytes) {
  if (uint64_t taken; !Add(own->bytes_, bytes, client_limit_, &taken)) {
    return errors::HostMemoryFull(bytes, taken, client_limit_, /*client=*/true);
  }
  if (uint64_t taken; !Add(all_, bytes, limit_, &taken)) {
    own->bytes_.fetch_sub(bytes);
    return errors::HostMemoryFull(bytes, taken, limit_, /*client=*/false);
  }
  return Charged(std::move(own), bytes);
}

void HostMemory::GiveBack(HostUse& own, uint64_t bytes) {
  own.bytes_.fetch_sub(bytes);
  all_.fetch_sub(bytes);
}

}  // namespace resident
