#include "runtime/device/durable_copy.h"

#include <cstring>
#include <utility>

#include "runtime/base/errors/daemon_errors.h"
#include "runtime/base/status_macros.h"

namespace resident {

absl::StatusOr<std::shared_ptr<DurableCopy>> DurableCopy::Make(std::shared_ptr<HostMemory> host,
                                                               std::shared_ptr<HostUse> own,
                                                               uint64_t bytes) {
  ASSIGN_OR_RETURN(HostMemory::Charge charge, host->Hold(std::move(own), bytes));
  return MakeCharged(std::move(host), std::move(charge), bytes);
}

absl::StatusOr<std::shared_ptr<DurableCopy>> DurableCopy::Restore(std::shared_ptr<HostMemory> host,
                                                                  uint64_t bytes) {
  HostMemory::Charge charge = host->Count(std::make_shared<HostUse>(), bytes);
  return MakeCharged(std::move(host), std::move(charge), bytes);
}

absl::StatusOr<std::shared_ptr<DurableCopy>> DurableCopy::MakeCharged(
    std::shared_ptr<HostMemory> host, HostMemory::Charge charge, uint64_t bytes) {
  // Of the system's zeros: writing them here would take the memory, and the caller's time.
  Bytes zeros(static_cast<uint8_t*>(calloc(bytes, 1)));
  if (zeros == nullptr) return errors::NoHostMemory(bytes);
  return std::shared_ptr<DurableCopy>(
      new DurableCopy(std::move(host), std::move(charge), std::move(zeros), bytes));
}

void DurableCopy::Write(uint64_t offset, absl::Span<const uint8_t> data) {
  absl::MutexLock lock(&mu_);
  if (offset > size_ || data.size() > size_ - offset) return;
  std::memcpy(bytes_.get() + offset, data.data(), data.size());
}

void DurableCopy::Read(const std::function<void(absl::Span<const uint8_t>)>& use) const {
  absl::ReaderMutexLock lock(&mu_);
  use({bytes_.get(), size_});
}

}  // namespace resident
