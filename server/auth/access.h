// Access: decides which caller may call what, by policy, tokens and certificates.
//
//            credential                    policy
//   call ───────────────▶ Identity ─────────────────▶ Account (roles, prefixes, quotas)
//
//   * `authorization: Bearer TOKEN`: the name that the token file gives for the token's
//     hash. A token has priority over a certificate; an unknown token is refused, even with
//     a valid certificate.
//   * A client certificate that the TLS layer has verified: its first URI among the subject's
//     alternative names, otherwise its common name. A URI must contain ':' and a common name
//     must not, so that neither can be mistaken for the other.
//   * Neither: "anonymous".
//
// Without a policy every caller has all rights, with the name of its certificate or as
// "anonymous". With a policy, a name that it does not list has no rights.
//
// Every call is checked by Admit before its message is read
// (server/rpc/admitted_service.h). Checks that depend on the message (operators, quotas)
// are made on the Account later.
//
// Invariants:
//   1. There is one Account for each name that was ever in a policy or a token file, or that owns
//      something restored.
//   2. A token that stays in the token file with the same name keeps its Identity; the
//      Identities of other tokens are revoked.
//   3. Tokens are never stored: only their hashes are.
//
// Thread safety: all members may be called from any thread.
#ifndef RESIDENT_SERVER_AUTH_ACCESS_H_
#define RESIDENT_SERVER_AUTH_ACCESS_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/auth/account.h"
#include "server/auth/policy.h"

namespace resident {

// The credentials of a call.
struct Presented {
  // Value of the metadata "authorization", and the number of such entries.
  std::string_view authorization = {};
  int authorizations = 0;
  // Whether there is a verified client certificate; the name in it, and whether this is its
  // URI or its common name.
  bool certificate = false;
  std::string_view certificate_name = {};
  bool name_is_uri = false;
};

class Access {
 public:
  // All callers have all rights until Load is called.
  Access();

  // Applies this policy and these tokens from now on, also to open calls and streams.
  void Load(const Policy& policy, const TokenFile& tokens);

  // The identity of all callers if no credentials are required.
  const std::shared_ptr<Identity>& anonymous() const { return anonymous_; }

  // The account of an identity that owns something that a restart has restored. Without rights
  // until a policy lists the name.
  std::shared_ptr<Account> FindAccount(const std::string& name) ABSL_LOCKS_EXCLUDED(mu_);

  // UNAUTHENTICATED: the credential is not valid; or there is none, and the policy does not
  // list "anonymous".
  absl::StatusOr<std::shared_ptr<Identity>> Identify(const Presented& presented) const;

  // Whether `method` ("/package.Service/Method") may be called. Always OK for the health
  // service, even without a credential. UNAUTHENTICATED, PERMISSION_DENIED.
  absl::Status Admit(std::string_view method, const Presented& presented) const;

  // Number of calls that Admit has refused with this code.
  uint64_t denied(absl::StatusCode code) const;

 private:
  absl::Status Decide(std::string_view method, const Presented& presented) const;

  // The state made by the last Load; replaced as a whole.
  struct State {
    bool everything_allowed = false;
    absl::flat_hash_map<std::string, std::shared_ptr<Identity>> by_name;
    absl::flat_hash_map<TokenHash, std::shared_ptr<Identity>> by_token;
  };
  std::shared_ptr<const State> state() const {
    absl::ReaderMutexLock lock(&mu_);
    return state_;
  }
  std::shared_ptr<Account> FindOrAddAccount(const std::string& name)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::shared_ptr<Identity> anonymous_;
  // Counters: relaxed, no other data depends on them.
  mutable std::atomic<uint64_t> unauthenticated_{0};
  mutable std::atomic<uint64_t> permission_denied_{0};
  mutable absl::Mutex mu_;
  std::shared_ptr<const State> state_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<std::string, std::shared_ptr<Account>> accounts_ ABSL_GUARDED_BY(mu_);
};

}  // namespace resident

#endif  // RESIDENT_SERVER_AUTH_ACCESS_H_
