#include "server/auth/identity.h"

#include "server/auth/errors.h"

namespace resident {

absl::Status Identity::Has(RoleSet any_of, const std::string& call) const {
  if (revoked_.load(std::memory_order_relaxed)) return errors::RevokedToken(name());
  return account_->Has(any_of, call);
}

}  // namespace resident
