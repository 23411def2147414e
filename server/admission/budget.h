// Budget: an amount of one resource that all clients share: staging memory, the daemon's own
// memory, places in a queue. The unit is bytes, or tasks where the resource is a queue.
//
// There are two ways to take some of it:
//
//   Acquire  asks before something is made, and may be refused. A client that holds some may have
//            at most its own limit, and at most as much as stays free after it, so that n greedy
//            clients hold 1/(n+1) each and 1/(n+1) stays free for the next one. A client that
//            holds nothing is not bound by its own limit, and a budget that is unused gives
//            everything.
//   Count    notes what exists already, such as a request that was read. Whoever makes more of it
//            checks Full() first. What is counted reduces what can be acquired by kCountedShare
//            of the limit at most: requests that wait to be admitted never keep all of each other
//            from being admitted.
//
// A budget with `ordered` keeps an order among those who wait (Place): who holds nothing goes
// before those who hold something, and after kMaxPasses others have been served, before everybody.
// That is right for a resource that is always given back soon. It is wrong for memory that a
// client can keep by not reading its answers: others would wait behind a request that does not fit.
//
// Waking those who wait is not done here, see admission.h.
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
  // How many others may be served before one who waits.
  static constexpr uint32_t kMaxPasses = 256;
  // What is counted takes at most this part of the limit from what can be acquired.
  static constexpr uint64_t kCountedShare = 4;

  struct Options {
    uint64_t limit = 0;         // 0: none.
    uint64_t client_limit = 0;  // 0: none.
    bool ordered = false;
    // Called when something was given back: from any thread, with whatever locks it holds.
    std::function<void()> released = nullptr;
  };

  // What an amount is used for; only for metrics.
  enum class Purpose : uint8_t { kRequests, kBatches, kAnswers, kDownloads };
  static constexpr size_t kPurposes = 4;

  // What one client holds.
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
    // As Clear, but nobody is told: what was acquired a moment ago is not used after all.
    void Undo() { GiveBack(/*notify=*/false); }
    // From now on it is `amount`, for another purpose. Growing is never refused.
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

  // The place of one who waits, in a budget with `ordered`.
  class Place {
   public:
    Place() = default;
    ~Place() { Leave(); }
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;
    // Gives the place up.
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
  Budget(const Budget&) = delete;
  Budget& operator=(const Budget&) = delete;

  // None: there is no room now, or others are served first. With `place` the caller has a place
  // among those who wait from then on, until it gets what it asks for or leaves.
  std::optional<Charge> Acquire(const std::shared_ptr<Account>& account, uint64_t amount,
                                Purpose purpose = Purpose::kBatches, Place* place = nullptr);
  // Whether so much could ever be acquired.
  bool MayFit(uint64_t amount) const { return amount <= limit_; }
  // Whether so much is refused because of the client's own limit.
  bool OverClientLimit(const Account& account, uint64_t amount) const;

  Charge Count(const std::shared_ptr<Account>& account, uint64_t amount,
               Purpose purpose = Purpose::kRequests);
  // Whether the client may not have more counted: it has as much as one may have, or as stays
  // free after it of the share for what is counted. Half of that share is kept for clients
  // without any.
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

  // Adds the amount if it fits. `beyond_share`: more than the client's share, if it holds nothing.
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

  // Of `ordered`.
  std::atomic<uint64_t> waiting_count_{0};  // As many as `waiting_`.
  absl::Mutex mu_;
  uint64_t next_place_ ABSL_GUARDED_BY(mu_) = 1;
  std::map<uint64_t, Waiting> waiting_ ABSL_GUARDED_BY(mu_);  // By place.
};

}  // namespace resident

#endif  // RESIDENT_SERVER_ADMISSION_BUDGET_H_
