// Budget: an amount of one resource that all clients share: staging memory, the daemon's own
// memory, places in a queue. The unit is bytes, or tasks for a queue.
//
// There are two ways to take some of it:
//
//   Acquire  takes an amount before it is used, and may be refused. A client that holds some may
//            have at most its own limit, and at most as much as stays free after it, so that n
//            greedy clients hold 1/(n+1) each and 1/(n+1) stays free for the next one. A client
//            that holds nothing is not bound by its own limit, and may acquire all of an unused
//            budget.
//   Count    records an amount that is used already, such as a request that was read. The caller
//            checks Full() before it uses more. Counted amounts reduce what can be acquired by at
//            most one part in kCountedShare of the limit, so that requests that wait to be admitted
//            cannot all prevent each other from being admitted.
//
// A budget with `ordered` serves waiters (Place) in an order: clients that hold nothing before
// clients that hold something, and a waiter that kMaxPasses others have passed before all others.
// That is right for a resource that is always released soon. It is wrong for memory that a client
// can keep by not reading its answers, because others would wait behind a request that does not
// fit.
//
// A Budget does not wake waiters; see admission.h.
//
// Thread safety: all members may be called from any thread. A Place belongs to one waiter, whose
// calls must not overlap.
//
// Memory ordering: the counters are sequentially consistent, and `released` is called after they
// have been lowered.
//
//   Budget budget({.limit = 256 << 20});
//   auto client = std::make_shared<Budget::Account>();
//   std::optional<Budget::Charge> charge = budget.Acquire(client, bytes);
//   if (!charge.has_value()) ... full ...
#ifndef RESIDENT_SERVER_ADMISSION_BUDGET_H_
#define RESIDENT_SERVER_ADMISSION_BUDGET_H_

#include <array>
#include <atomic>
#include <cassert>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace resident {

class Budget {
 public:
  // How many others may be served before a waiter.
  static constexpr uint32_t kMaxPasses = 256;
  // Counted amounts reduce what can be acquired by at most limit / kCountedShare.
  static constexpr uint64_t kCountedShare = 4;

  struct Options {
    uint64_t limit = 0;         // 0: none.
    uint64_t client_limit = 0;  // 0: none.
    bool ordered = false;
    // Called when an amount was released: from any thread, which may hold locks.
    std::function<void()> released = nullptr;
  };

  // The use of an amount; only for metrics.
  enum class Purpose : uint8_t { kRequests, kBatches, kAnswers, kDownloads };
  static constexpr size_t kPurposes = 4;

  // The amounts that one client holds.
  class Account {
   public:
    uint64_t acquired() const { return acquired_.load(); }
    uint64_t counted() const { return counted_.load(); }

   private:
    friend class Budget;
    std::atomic<uint64_t> acquired_{0};
    std::atomic<uint64_t> counted_{0};
  };

  // An amount that is held until this is cleared or destroyed. REQUIRES: the Budget outlives it.
  class Charge {
   public:
    Charge() = default;
    ~Charge() { Clear(); }
    Charge(Charge&& other) noexcept { *this = std::move(other); }
    Charge& operator=(Charge&& other) noexcept {
      if (this == &other) return *this;
      Clear();
      budget_ = std::exchange(other.budget_, nullptr);
      account_ = std::move(other.account_);
      amount_ = std::exchange(other.amount_, 0);
      counted_ = other.counted_;
      purpose_ = other.purpose_;
      return *this;
    }

    uint64_t amount() const { return amount_; }
    void Clear() { GiveBack(/*notify=*/true); }
    // Same as Clear, but without calling `released`, for an amount that is not used after all.
    void Undo() { GiveBack(/*notify=*/false); }
    // Changes the amount and the purpose. An increase is never refused.
    void Become(Purpose purpose, uint64_t amount);

   private:
    friend class Budget;
    void GiveBack(bool notify);

    Budget* budget_ = nullptr;
    std::shared_ptr<Account> account_;
    uint64_t amount_ = 0;
    bool counted_ = false;
    Purpose purpose_ = Purpose::kBatches;
  };

  // The place of a waiter in a budget with `ordered`.
  class Place {
   public:
    Place() = default;
    ~Place() { Leave(); }
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;
    // Removes the waiter.
    void Leave();

   private:
    friend class Budget;
    Budget* budget_ = nullptr;  // Null: it has no place.
    uint64_t number_ = 0;
  };

  explicit Budget(Options options)
      : limit_(options.limit == 0 ? UINT64_MAX : options.limit),
        client_limit_(options.client_limit == 0 ? UINT64_MAX : options.client_limit),
        ordered_(options.ordered),
        released_(std::move(options.released)) {}
  // REQUIRES: no charge is left.
  ~Budget() { assert(used() == 0); }
  Budget(const Budget&) = delete;
  Budget& operator=(const Budget&) = delete;

  // Returns nullopt if there is no room now, or if others are served first. In that case, if
  // `place` is given, the caller becomes a waiter until it gets the amount or leaves.
  std::optional<Charge> Acquire(const std::shared_ptr<Account>& account, uint64_t amount,
                                Purpose purpose = Purpose::kBatches, Place* place = nullptr);
  // Whether the amount could ever be acquired.
  bool MayFit(uint64_t amount) const { return amount <= limit_; }
  // Whether the amount is refused because of the client's own limit.
  bool OverClientLimit(const Account& account, uint64_t amount) const;

  Charge Count(const std::shared_ptr<Account>& account, uint64_t amount,
               Purpose purpose = Purpose::kRequests);
  // Whether the client may not count more: it has reached its own limit, or it has as much as stays
  // free after it in the share for counted amounts. Half of that share is reserved for clients that
  // have counted nothing.
  bool Full(const Account& account) const;

  uint64_t limit() const { return limit_; }
  uint64_t client_limit() const { return client_limit_; }
  uint64_t used() const { return acquired_.load() + counted_.load(); }
  uint64_t used(Purpose purpose) const { return used_for_[static_cast<size_t>(purpose)].load(); }

 private:
  struct Waiting {
    std::shared_ptr<Account> account;
    uint32_t passed = 0;
  };

  // Adds the amount if it fits. `beyond_share`: a client that holds nothing may exceed its share.
  bool Take(Account& account, uint64_t amount, bool beyond_share);
  bool TakeInOrder(const std::shared_ptr<Account>& account, uint64_t amount, Place* place);
  bool Fits(uint64_t held, uint64_t amount, uint64_t acquired, bool beyond_share) const;
  std::atomic<uint64_t>& UsedFor(Purpose purpose) {
    return used_for_[static_cast<size_t>(purpose)];
  }

  const uint64_t limit_;
  const uint64_t client_limit_;
  const bool ordered_;
  const std::function<void()> released_;
  std::atomic<uint64_t> acquired_{0};
  std::atomic<uint64_t> counted_{0};
  std::array<std::atomic<uint64_t>, kPurposes> used_for_{};

  // For `ordered`.
  std::atomic<uint64_t> waiting_count_{0};  // The size of `waiting_`.
  absl::Mutex mu_;
  uint64_t next_place_ ABSL_GUARDED_BY(mu_) = 1;
  std::map<uint64_t, Waiting> waiting_ ABSL_GUARDED_BY(mu_);  // By place.
};

}  // namespace resident

#endif  // RESIDENT_SERVER_ADMISSION_BUDGET_H_
