#include "server/admission/budget.h"

#include <algorithm>

namespace resident {

void Budget::Charge::GiveBack(bool notify) {
  Budget* const budget = std::exchange(budget_, nullptr);
  if (budget == nullptr) return;
  const uint64_t amount = std::exchange(amount_, 0);
  (counted_ ? account_->counted_ : account_->acquired_).fetch_sub(amount);
  (counted_ ? budget->counted_ : budget->acquired_).fetch_sub(amount);
  budget->UsedFor(purpose_).fetch_sub(amount);
  account_ = nullptr;
  if (notify && budget->released_) budget->released_();
}

void Budget::Charge::Become(Purpose purpose, uint64_t amount) {
  if (budget_ == nullptr) return;
  const uint64_t before = std::exchange(amount_, amount);
  // The difference may be negative; unsigned sums wrap around to the right value.
  (counted_ ? account_->counted_ : account_->acquired_).fetch_add(amount - before);
  (counted_ ? budget_->counted_ : budget_->acquired_).fetch_add(amount - before);
  budget_->UsedFor(std::exchange(purpose_, purpose)).fetch_sub(before);
  budget_->UsedFor(purpose).fetch_add(amount);
  if (amount < before && budget_->released_) budget_->released_();
}

void Budget::Place::Leave() {
  Budget* const budget = std::exchange(budget_, nullptr);
  if (budget == nullptr) return;
  {
    absl::MutexLock lock(&budget->mu_);
    budget->waiting_.erase(number_);
    budget->waiting_count_.fetch_sub(1);
  }
  // Others may have waited behind this one.
  if (budget->released_) budget->released_();
}

bool Budget::OverClientLimit(const Account& account, uint64_t amount) const {
  const uint64_t held = account.acquired();
  return held != 0 && (amount > client_limit_ || held > client_limit_ - amount);
}

bool Budget::Fits(uint64_t held, uint64_t amount, uint64_t acquired, bool beyond_share) const {
  if (amount > limit_) return false;
  if (acquired == 0) return true;
  const uint64_t taken = acquired + std::min(counted_.load(), limit_ / kCountedShare);
  if (taken > limit_ || amount > limit_ - taken) return false;
  const uint64_t left = limit_ - taken - amount;
  return (held <= left && amount <= left - held) || (held == 0 && beyond_share);
}

bool Budget::Take(Account& account, uint64_t amount, bool beyond_share) {
  uint64_t held = account.acquired_.load();
  do {
    if (held != 0 && (amount > client_limit_ || held > client_limit_ - amount)) return false;
  } while (!account.acquired_.compare_exchange_weak(held, held + amount));
  uint64_t acquired = acquired_.load();
  do {
    if (!Fits(held, amount, acquired, beyond_share)) {
      account.acquired_.fetch_sub(amount);
      return false;
    }
  } while (!acquired_.compare_exchange_weak(acquired, acquired + amount));
  return true;
}

bool Budget::TakeInOrder(const std::shared_ptr<Account>& account, uint64_t amount, Place* place) {
  absl::MutexLock lock(&mu_);
  if (place != nullptr && place->budget_ == nullptr) {
    place->budget_ = this;
    place->number_ = next_place_++;
    waiting_[place->number_] = {account};
    waiting_count_.fetch_add(1);
  }
  // Waiters that have precedence: the first one of another client that holds nothing, and the first
  // one of the same client.
  Waiting* first_idle_waiter = nullptr;
  Waiting* older_waiter_of_client = nullptr;
  for (auto& [number, waiting] : waiting_) {
    if (place != nullptr && number >= place->number_) break;
    if (first_idle_waiter != nullptr && older_waiter_of_client != nullptr) break;
    if (waiting.account == account) {
      if (older_waiter_of_client == nullptr) older_waiter_of_client = &waiting;
    } else if (first_idle_waiter == nullptr && waiting.account->acquired() == 0) {
      first_idle_waiter = &waiting;
    }
  }
  if (older_waiter_of_client != nullptr && older_waiter_of_client->passed >= kMaxPasses) {
    return false;
  }
  if (first_idle_waiter != nullptr &&
      (account->acquired() > 0 || first_idle_waiter->passed >= kMaxPasses)) {
    return false;
  }
  // An amount over half of the limit fits into no share. A waiter gets it nevertheless if its
  // amount is that large, or if it was passed kMaxPasses times.
  const bool beyond_share = place != nullptr && first_idle_waiter == nullptr &&
                            (amount > limit_ / 2 || waiting_[place->number_].passed >= kMaxPasses);
  if (!Take(*account, amount, beyond_share)) return false;
  if (first_idle_waiter != nullptr) ++first_idle_waiter->passed;
  if (older_waiter_of_client != nullptr) ++older_waiter_of_client->passed;
  if (place != nullptr) {
    waiting_.erase(place->number_);
    waiting_count_.fetch_sub(1);
    place->budget_ = nullptr;
  }
  return true;
}

std::optional<Budget::Charge> Budget::Acquire(const std::shared_ptr<Account>& account,
                                              uint64_t amount, Purpose purpose, Place* place) {
  const bool in_order = ordered_ && (place != nullptr || waiting_count_.load() != 0);
  const bool taken = in_order ? TakeInOrder(account, amount, place)
                              : Take(*account, amount, !ordered_ && amount > limit_ / 2);
  if (!taken) return std::nullopt;
  UsedFor(purpose).fetch_add(amount);
  Charge charge;
  charge.budget_ = this;
  charge.account_ = account;
  charge.amount_ = amount;
  charge.purpose_ = purpose;
  return charge;
}

Budget::Charge Budget::Count(const std::shared_ptr<Account>& account, uint64_t amount,
                             Purpose purpose) {
  account->counted_.fetch_add(amount);
  counted_.fetch_add(amount);
  UsedFor(purpose).fetch_add(amount);
  Charge charge;
  charge.budget_ = this;
  charge.account_ = account;
  charge.amount_ = amount;
  charge.counted_ = true;
  charge.purpose_ = purpose;
  return charge;
}

bool Budget::Full(const Account& account) const {
  const uint64_t own = account.counted();
  if (own >= client_limit_) return true;
  if (limit_ == UINT64_MAX) return false;
  const uint64_t share = limit_ / kCountedShare;
  const uint64_t all = counted_.load();
  return own == 0 ? all >= share : own + all >= share / 2;
}

}  // namespace resident
