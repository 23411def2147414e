// Identity: the caller, as identified by a token, a certificate, or neither.
//
// Several identities may have one name; they share its account (rights and quotas). An
// identity is revoked when its token is removed from the token file: it is refused from
// then on, also on open streams.
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
// The name of the daemon itself in the audit log; callers cannot have it.
inline constexpr char kDaemonActor[] = "residentd";

class Identity {
 public:
  explicit Identity(std::shared_ptr<Account> account) : account_(std::move(account)) {}

  // For the audit log.
  const std::string& name() const { return account_->name(); }
  const std::shared_ptr<Account>& account() const { return account_; }

  void Revoke() { revoked_.store(true, std::memory_order_relaxed); }
  // UNAUTHENTICATED: revoked. PERMISSION_DENIED: see Account::Has.
  absl::Status Has(RoleSet any_of, const std::string& call) const;

 private:
  const std::shared_ptr<Account> account_;
  std::atomic<bool> revoked_{false};
};

}  // namespace resident

#endif  // RESIDENT_SERVER_AUTH_IDENTITY_H_
