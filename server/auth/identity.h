// Identity: who calls, as a credential says: a token, a certificate, or none.
//
// Several identities may go by one name; they share its account (rights and quotas).
// An identity is revoked when its token leaves the token file: it is refused from then
// on, also on streams that are open.
//
// Thread safety: all members may be called from any thread.
#ifndef RESIDENT_SERVER_AUTH_IDENTITY_H_
#define RESIDENT_SERVER_AUTH_IDENTITY_H_

#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "server/auth/account.h"

namespace resident {

// The name of callers without a credential.
inline constexpr char kAnonymous[] = "anonymous";
// The name under which the daemon itself acts; nobody else's.
inline constexpr char kDaemonActor[] = "residentd";

class Identity {
 public:
  explicit Identity(std::shared_ptr<Account> account) : account_(std::move(account)) {}

  // For the audit log.
  const std::string& name() const { return account_->name(); }
  const std::shared_ptr<Account>& account() const { return account_; }

  void Revoke() { revoked_.store(true, std::memory_order_relaxed); }
  // UNAUTHENTICATED: revoked. PERMISSION_DENIED: as Account::Has.
  absl::Status Has(RoleSet any_of, const std::string& call) const;

 private:
  const std::shared_ptr<Account> account_;
  std::atomic<bool> revoked_{false};
};

}  // namespace resident

#endif  // RESIDENT_SERVER_AUTH_IDENTITY_H_
