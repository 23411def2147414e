#include "runtime/base/host_memory.h"

#include <vector>

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

bool HostMemory::Full(const HostUse& own) const {
  const uint64_t bytes = own.bytes();
  if (bytes >= client_limit_) return true;
  if (limit_ == UINT64_MAX) return false;
  const uint64_t all = all_.load();
  // Half is kept for those who hold nothing: what others had under way goes over their share.
  return bytes == 0 ? all >= limit_ : bytes + all >= limit_ / 2;
}

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

uint64_t HostMemory::SharedLimit(uint64_t own) const {
  if (own == 0 || limit_ == UINT64_MAX) return limit_;
  return limit_ / 2 > own ? limit_ / 2 - own : 0;
}

bool HostMemory::HasRoom(const HostUse& own, uint64_t bytes) const {
  const uint64_t held = own.bytes();
  if (held != 0 && (bytes > client_limit_ || held > client_limit_ - bytes)) return false;
  const uint64_t most = SharedLimit(held);
  return bytes <= most && all_.load() <= most - bytes;
}

absl::StatusOr<HostMemory::Charge> HostMemory::Share(std::shared_ptr<HostUse> own, uint64_t bytes) {
  // The client's first has no limit of its own: it could be sent at no other time.
  uint64_t held = own->bytes_.load();
  do {
    if (held != 0 && (bytes > client_limit_ || held > client_limit_ - bytes)) {
      return errors::BatchMemoryFull({bytes, held, all_.load(), client_limit_}, /*client=*/true);
    }
  } while (!own->bytes_.compare_exchange_weak(held, held + bytes));
  if (uint64_t taken; !Add(all_, bytes, SharedLimit(held), &taken)) {
    own->bytes_.fetch_sub(bytes);
    // Who waits for room of this client's saw the bytes that are gone again.
    if (waiting_count_.load() != 0) WakeThoseWithRoom();
    return errors::BatchMemoryFull({bytes, held, taken, limit_}, /*client=*/false);
  }
  return Charged(std::move(own), bytes);
}

void HostMemory::GiveBack(HostUse& own, uint64_t bytes) {
  own.bytes_.fetch_sub(bytes);
  all_.fetch_sub(bytes);
  if (waiting_count_.load() != 0) WakeThoseWithRoom();
}

void HostMemory::WakeThoseWithRoom() {
  std::vector<std::function<void()>> woken;
  {
    absl::MutexLock lock(&mu_);
    for (auto it = waiting_.begin(); it != waiting_.end();) {
      const auto current = it++;
      if (StillWaits(*current->second.own, current->second.bytes)) continue;
      woken.push_back(std::move(current->second.wake));
      waiting_.erase(current);
      waiting_count_.fetch_sub(1);
    }
  }
  for (const std::function<void()>& wake : woken) wake();
}

bool HostMemory::WaitIfFull(const std::shared_ptr<HostUse>& own, const void* key,
                            std::function<void()> wake) {
  return Wait(key, {own, std::nullopt, std::move(wake)});
}

bool HostMemory::WaitForRoom(const std::shared_ptr<HostUse>& own, uint64_t bytes, const void* key,
                             std::function<void()> wake) {
  return MayFit(bytes) && Wait(key, {own, bytes, std::move(wake)});
}

bool HostMemory::Wait(const void* key, Waiting waiting) {
  const std::shared_ptr<HostUse> own = waiting.own;
  const std::optional<uint64_t> bytes = waiting.bytes;
  if (!StillWaits(*own, bytes)) return false;
  absl::MutexLock lock(&mu_);
  waiting_count_.fetch_add(1);
  if (!StillWaits(*own, bytes)) {
    waiting_count_.fetch_sub(1);
    return false;
  }
  if (!waiting_.insert_or_assign(key, std::move(waiting)).second) {
    waiting_count_.fetch_sub(1);  // It waited already.
  }
  return true;
}

void HostMemory::Withdraw(const void* key) {
  std::function<void()> wake;  // Destroyed without the lock.
  absl::MutexLock lock(&mu_);
  const auto found = waiting_.find(key);
  if (found == waiting_.end()) return;
  wake = std::move(found->second.wake);
  waiting_.erase(found);
  waiting_count_.fetch_sub(1);
}

}  // namespace resident
