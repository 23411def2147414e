#include "server/auth/access.h"

#include <openssl/crypto.h>

#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "runtime/base/status_macros.h"
#include "server/auth/errors.h"
#include "server/auth/method_roles.h"

namespace resident {
namespace {

constexpr std::string_view kScheme = "Bearer ";

Rights AllRights() {
  Rights rights;
  rights.roles = RoleSet::All();
  return rights;
}

std::shared_ptr<Identity> MakeIdentity(const std::string& name, Rights rights) {
  return std::make_shared<Identity>(std::make_shared<Account>(name, std::move(rights)));
}

// The token in "Bearer TOKEN"; the scheme is not case-sensitive.
std::optional<std::string_view> TokenIn(std::string_view authorization) {
  if (authorization.size() <= kScheme.size()) return std::nullopt;
  if (!absl::EqualsIgnoreCase(absl::string_view(authorization.data(), kScheme.size()),
                              absl::string_view(kScheme.data(), kScheme.size()))) {
    return std::nullopt;
  }
  return authorization.substr(kScheme.size());
}

// A certificate authority may verify URIs and let applicants choose their common names, or
// verify common names and let them choose URIs. So neither kind of name may look like the
// other.
absl::Status CheckCertificateName(const std::string& name, bool is_uri) {
  if (!CheckIdentityName(name).ok()) return errors::BadCertificateName(name);
  const bool has_colon = absl::StrContains(name, ':');
  if (is_uri && !has_colon) return errors::UriWithoutScheme(name);
  if (!is_uri && has_colon) return errors::CommonNameLikeUri(name);
  return absl::OkStatus();
}

}  // namespace

Access::Access()
    : anonymous_(std::make_shared<Identity>(
          std::make_shared<Account>(kAnonymous, AllRights(), /*shared=*/true))) {
  auto state = std::make_shared<State>();
  state->everything_allowed = true;
  absl::MutexLock lock(&mu_);
  state_ = std::move(state);
}

std::shared_ptr<Account> Access::FindOrAddAccount(const std::string& name) {
  std::shared_ptr<Account>& account = accounts_[name];
  if (account == nullptr) account = std::make_shared<Account>(name, Rights());
  return account;
}

std::shared_ptr<Account> Access::FindAccount(const std::string& name) {
  if (name == anonymous_->name()) return anonymous_->account();
  absl::MutexLock lock(&mu_);
  return FindOrAddAccount(name);
}

void Access::Load(const Policy& policy, const TokenFile& tokens) {
  absl::MutexLock lock(&mu_);
  auto next = std::make_shared<State>();
  for (const auto& [name, rights] : policy.identities) {
    FindOrAddAccount(name);
    const auto same = state_->by_name.find(name);
    next->by_name[name] = same != state_->by_name.end()
                              ? same->second
                              : std::make_shared<Identity>(FindOrAddAccount(name));
  }
  for (const auto& [name, account] : accounts_) {
    const auto listed = policy.identities.find(name);
    account->SetRights(listed == policy.identities.end() ? Rights() : listed->second);
  }
  for (const auto& [hash, name] : tokens.names) {
    const auto same = state_->by_token.find(hash);
    next->by_token[hash] = same != state_->by_token.end() && same->second->name() == name
                               ? same->second
                               : std::make_shared<Identity>(FindOrAddAccount(name));
  }
  for (const auto& [hash, identity] : state_->by_token) {
    const auto kept = next->by_token.find(hash);
    if (kept == next->by_token.end() || kept->second != identity) identity->Revoke();
  }
  state_ = std::move(next);
}

absl::StatusOr<std::shared_ptr<Identity>> Access::Identify(const Presented& presented) const {
  const std::shared_ptr<const State> current = state();
  if (presented.authorizations > 0 && !current->everything_allowed) {
    if (presented.authorizations > 1) return errors::ManyTokens();
    const std::optional<std::string_view> token = TokenIn(presented.authorization);
    if (!token.has_value()) return errors::NoBearer();
    if (token->size() > kMaxTokenBytes) return errors::TokenTooLong(token->size(), kMaxTokenBytes);
    // The table is searched by the token's hash, whose value a caller cannot choose. The
    // hash found is compared in constant time.
    const TokenHash hash = HashToken(*token);
    const auto found = current->by_token.find(hash);
    if (found == current->by_token.end() ||
        CRYPTO_memcmp(found->first.data(), hash.data(), hash.size()) != 0) {
      return errors::UnknownToken();
    }
    return found->second;
  }
  if (presented.certificate) {
    const std::string name(presented.certificate_name);
    RETURN_IF_ERROR(CheckCertificateName(name, presented.name_is_uri));
    if (current->everything_allowed) return MakeIdentity(name, AllRights());
    const auto found = current->by_name.find(name);
    if (found != current->by_name.end()) return found->second;
    return MakeIdentity(name, Rights());
  }
  if (current->everything_allowed) return anonymous_;
  const auto found = current->by_name.find(kAnonymous);
  if (found == current->by_name.end()) return errors::NoCredential();
  return found->second;
}

absl::Status Access::Admit(std::string_view method, const Presented& presented) const {
  absl::Status status = Decide(method, presented);
  if (status.code() == absl::StatusCode::kUnauthenticated) {
    unauthenticated_.fetch_add(1, std::memory_order_relaxed);
  } else if (!status.ok()) {
    permission_denied_.fetch_add(1, std::memory_order_relaxed);
  }
  return status;
}

uint64_t Access::denied(absl::StatusCode code) const {
  return (code == absl::StatusCode::kUnauthenticated ? unauthenticated_ : permission_denied_)
      .load(std::memory_order_relaxed);
}

absl::Status Access::Decide(std::string_view method, const Presented& presented) const {
  const MethodRule rule = FindMethodRule(method);
  if (rule.open_to_all) return absl::OkStatus();
  ASSIGN_OR_RETURN(const auto identity, Identify(presented));
  if (rule.roles.empty()) return errors::UnlistedMethod(identity->name(), std::string(method));
  return identity->Has(rule.roles, std::string(method));
}

}  // namespace resident
