#include "server/core/shared_slots.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "runtime/base/errors/quote.h"
#include "server/core/errors.h"

namespace resident {
namespace {

constexpr uint32_t kReserveShare = 8;
constexpr uint32_t kMinWithReserve = 4;
constexpr size_t kIpv6PrefixBytes = 8;

uint32_t ReserveFor(uint32_t total) {
  return total < kMinWithReserve ? 0 : (total - 1) / kReserveShare + 1;
}

// The network of an IPv6 address: "2001:db8::/64". An IPv4-mapped address is returned as it is.
std::string Ipv6Network(const std::string& host) {
  in6_addr address{};
  // A link-local address has its interface after '%'.
  if (inet_pton(AF_INET6, host.substr(0, host.find('%')).c_str(), &address) != 1) return host;
  char text[INET6_ADDRSTRLEN];
  if (IN6_IS_ADDR_V4MAPPED(&address)) {
    return inet_ntop(AF_INET, &address.s6_addr[12], text, sizeof(text));
  }
  if (IN6_IS_ADDR_LOOPBACK(&address)) return "::1";
  std::memset(&address.s6_addr[kIpv6PrefixBytes], 0, sizeof(address) - kIpv6PrefixBytes);
  return absl::StrCat(inet_ntop(AF_INET6, &address, text, sizeof(text)), "/64");
}

}  // namespace

SharedSlots::SharedSlots(Kind kind, uint32_t total)
    : kind_(std::move(kind)), total_(total), reserve_(ReserveFor(total)) {}

absl::StatusOr<SharedSlots::Ticket> SharedSlots::Take(const std::string& holder,
                                                      std::optional<uint32_t> quota) {
  absl::MutexLock lock(&state_->mu);
  const auto found = state_->held.find(holder);
  const uint32_t held = found == state_->held.end() ? 0 : found->second;
  if (quota.has_value() && held >= *quota) {
    return errors::SlotQuota(kind_.what, holder, held, *quota, kind_.quota);
  }
  const uint32_t free = total_ - state_->taken;
  if (free == 0 || (held > 0 && free <= reserve_)) {
    return errors::NoSlot(kind_.what, holder, {total_, free, held}, kind_.flag);
  }
  ++state_->taken;
  ++state_->held[holder];
  Ticket ticket;
  ticket.state_ = state_;
  ticket.holder_ = holder;
  return ticket;
}

void SharedSlots::Ticket::Release() {
  const std::shared_ptr<State> state = std::exchange(state_, nullptr);
  if (state == nullptr) return;
  absl::MutexLock lock(&state->mu);
  --state->taken;
  const auto found = state->held.find(holder_);
  if (--found->second == 0) state->held.erase(found);
}

uint32_t SharedSlots::taken() const {
  absl::MutexLock lock(&state_->mu);
  return state_->taken;
}

std::string NameHolder(const Account& account, const std::string& peer) {
  if (!account.shared()) return absl::StrCat("identity ", errors::Quote(account.name()));
  // Only addresses have a port; a Unix socket's path counts as a whole.
  absl::string_view host = peer;
  const bool ipv4 = absl::ConsumePrefix(&host, "ipv4:");
  const bool ipv6 = !ipv4 && absl::ConsumePrefix(&host, "ipv6:");
  if (!ipv4 && !ipv6) return absl::StrCat("address ", peer);
  host = host.substr(0, host.rfind(':'));
  if (ipv4) return absl::StrCat("address ", host);
  const std::string plain =
      absl::StrReplaceAll(host, {{"%5B", ""}, {"%5D", ""}, {"[", ""}, {"]", ""}, {"%25", "%"}});
  return absl::StrCat("address ", Ipv6Network(plain));
}

}  // namespace resident
