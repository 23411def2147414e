#include "server/rpc/open_calls.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/status_macros.h"
#include "server/core/errors.h"
#include "server/core/shared_slots.h"
#include "server/rpc/call.h"

namespace resident {
namespace {

uint64_t CountPlaces(const Limits& limits) {
  if (limits.max_host_mib == 0) return 0;  // No limit.
  return std::max(OpenCalls::kMinPlaces,
                  (limits.max_host_mib << 20) / OpenCalls::kShare / OpenCalls::kCallBytes);
}

}  // namespace

OpenCalls::Open::Open(std::atomic<uint64_t>& open, Budget::Charge charge)
    : open(open), charge(std::move(charge)) {
  open.fetch_add(1, std::memory_order_relaxed);
}
OpenCalls::Open::~Open() { open.fetch_sub(1, std::memory_order_relaxed); }

OpenCalls::OpenCalls(Core& core)
    : core_(core),
      places_({.limit = CountPlaces(core.limits)}),
      open_places_({.limit = CountPlaces(core.limits) / kOpenShare}) {}

absl::StatusOr<OpenCalls::Place> OpenCalls::Enter(const grpc::CallbackServerContext& context,
                                                  bool open_to_all) {
  if (open_.load(std::memory_order_relaxed) < kFreeCalls) {
    return std::make_shared<const Open>(open_, Budget::Charge());
  }
  std::shared_ptr<Identity> caller = core_.access.anonymous();
  if (!open_to_all) {
    ASSIGN_OR_RETURN(caller, IdentifyCaller(context, core_));
  }
  Budget& places = open_to_all ? open_places_ : places_;
  const std::string holder = NameHolder(*caller->account(), context.peer());
  const std::shared_ptr<Budget::Account> account =
      FindAccount(absl::StrCat(open_to_all ? "open to all, " : "", holder));
  std::optional<Budget::Charge> charge = places.Acquire(account, 1);
  if (!charge.has_value()) {
    return errors::TooManyCalls(holder, account->acquired(), places.used(), places.limit());
  }
  return std::make_shared<const Open>(open_, *std::move(charge));
}

std::shared_ptr<Budget::Account> OpenCalls::FindAccount(const std::string& holder) {
  absl::MutexLock lock(&mu_);
  if (accounts_.size() >= prune_at_) {
    absl::erase_if(accounts_, [](const auto& entry) { return entry.second.expired(); });
    prune_at_ = std::max(kMinAccounts, 2 * accounts_.size());
  }
  std::weak_ptr<Budget::Account>& entry = accounts_[holder];
  std::shared_ptr<Budget::Account> account = entry.lock();
  if (account == nullptr) entry = account = std::make_shared<Budget::Account>();
  return account;
}

}  // namespace resident
