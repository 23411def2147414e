// SharedSlots: slots that all callers share (sessions, watches, installs), divided so that no
// single caller can take all of them.
//
// A holder is the name of a caller: "identity 'ranking'" if callers have identities, otherwise
// "address 10.0.0.1" (NameHolder). The rules:
//
//   1. A holder that has no slot gets any free one.
//   2. A holder that has one already gets another only while more slots are free than the
//      reserve: an eighth of all, rounded up. Below four slots there is no reserve.
//   3. A holder never gets more than its quota in the policy, if it has one.
//
// So a lone client may take seven eighths of all, and a caller that comes afterwards still
// gets its first slot. The reserve does not help against more holders than it has slots.
//
// Thread safety: all members may be called from any thread. Tickets may outlive the
// SharedSlots.
//
//   SharedSlots slots({.what = "sessions", .flag = "--max_sessions"}, 1024);
//   ASSIGN_OR_RETURN(SharedSlots::Ticket ticket, slots.Take(NameHolder(account, peer)));
//   ... the slot is free again when `ticket` is destroyed or released ...
#ifndef RESIDENT_SERVER_CORE_SHARED_SLOTS_H_
#define RESIDENT_SERVER_CORE_SHARED_SLOTS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/auth/account.h"

namespace resident {

class SharedSlots {
 private:
  struct State;

 public:
  // Text for the errors that refuse a slot.
  struct Kind {
    // In the plural: "sessions".
    std::string what;
    // The flag that sets the number of slots: "--max_sessions". Empty: none.
    std::string flag = "";
    // The quota in the policy: "sessions". Empty: none.
    std::string quota = "";
  };

  SharedSlots(Kind kind, uint32_t total);

  // One slot, free again when the ticket is destroyed. An empty ticket holds none.
  class Ticket {
   public:
    Ticket() = default;
    ~Ticket() { Release(); }
    Ticket(Ticket&& other) noexcept { *this = std::move(other); }
    Ticket& operator=(Ticket&& other) noexcept {
      Release();
      state_ = std::move(other.state_);
      holder_ = std::move(other.holder_);
      return *this;
    }
    void Release();

   private:
    friend class SharedSlots;
    std::shared_ptr<State> state_;
    std::string holder_;
  };

  // RESOURCE_EXHAUSTED: the message contains the limit, the holder's slots, and what to do.
  absl::StatusOr<Ticket> Take(const std::string& holder,
                              std::optional<uint32_t> quota = std::nullopt);

  uint32_t taken() const;
  // The number of slots that only holders without a slot can get.
  uint32_t reserve() const { return reserve_; }

 private:
  struct State {
    absl::Mutex mu;
    uint32_t taken ABSL_GUARDED_BY(mu) = 0;
    // Slots of each holder that has any.
    absl::flat_hash_map<std::string, uint32_t> held ABSL_GUARDED_BY(mu);
  };

  const Kind kind_;
  const uint32_t total_;
  const uint32_t reserve_;
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

// The holder of the slots that `account` takes over the connection from `peer` (gRPC's form:
// "ipv4:10.0.0.1:4242"): the identity, or the peer's address if callers have no identities. IPv6
// addresses count by their first 64 bits, since one machine usually has all of the others.
std::string NameHolder(const Account& account, const std::string& peer);

}  // namespace resident

#endif  // RESIDENT_SERVER_CORE_SHARED_SLOTS_H_
