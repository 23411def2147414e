// Access: who may call what, by policy, tokens and certificates.
//
//            credential                    policy
//   call ───────────────▶ Identity ─────────────────▶ Account (roles, prefixes, quotas)
//
//   * `authorization: Bearer TOKEN`: the name beside the token's hash in the token file.
//     It counts before a certificate; one that is not known is refused, whatever else
//     the call has.
//   * A client certificate that the TLS layer has verified: its first URI among the
//     subject's alternative names, else its common name. A name with ':' is a URI's alone,
//     and a URI has one, so that a common name never stands for a URI or the reverse.
//   * Neither: "anonymous".
//
// Without a policy everybody may do everything, as the name of the certificate or as
// "anonymous". With one, a name that it does not have may do nothing.
//
// Every call goes through Admit before its message is read (services/admitted_service.h); what
// depends on the message (operators, quotas) is asked of the Account where it is known.
//
// Invariants:
//   1. There is one Account for each name that a policy or a token file ever had.
//   2. A token of the same name that stays in the token file keeps its Identity; the
//      others are revoked.
//   3. A token is never kept: only its hash is.
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
#include "server/auth/identity.h"
#include "server/auth/policy.h"
#include "server/auth/token_file.h"

namespace resident {

// What a call came with.
struct Presented {
  // Value of the metadata "authorization", and how many there are.
  std::string_view authorization = {};
  int authorizations = 0;
  // Whether there is a verified client certificate; the name in it, and whether that is its
  // URI or its common name.
  bool certificate = false;
  std::string_view certificate_name = {};
  bool name_is_uri = false;
};

class Access {
 public:
  // Everybody may do everything, until Load.
  Access();

  // From now on: what these say. Calls and streams that are open feel it.
  void Load(const Policy& policy, const TokenFile& tokens);

  // The identity of callers where credentials are not asked for.
  const std::shared_ptr<Identity>& anybody() const { return anybody_; }

  // UNAUTHENTICATED: the credential is not valid; or there is none, and the policy does
  // not have "anonymous".
  absl::StatusOr<std::shared_ptr<Identity>> Identify(const Presented& presented) const;

  // Whether `method` ("/package.Service/Method") may be called. OK for the health
  // service, without any credential. UNAUTHENTICATED, PERMISSION_DENIED.
  absl::Status Admit(std::string_view method, const Presented& presented) const;

  // Calls that Admit has refused with this code.
  uint64_t denied(absl::StatusCode code) const;

 private:
  absl::Status Decide(std::string_view method, const Presented& presented) const;

  // What Load made; replaced as a whole.
  struct State {
    bool everything_allowed = false;
    absl::flat_hash_map<std::string, std::shared_ptr<Identity>> by_name;
    absl::flat_hash_map<TokenHash, std::shared_ptr<Identity>> by_token;
  };
  std::shared_ptr<const State> state() const {
    absl::ReaderMutexLock lock(&mu_);
    return state_;
  }
  std::shared_ptr<Account> AccountOf(const std::string& name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::shared_ptr<Identity> anybody_;
  // Counters: relaxed, they order nothing.
  mutable std::atomic<uint64_t> unauthenticated_{0};
  mutable std::atomic<uint64_t> permission_denied_{0};
  mutable absl::Mutex mu_;
  std::shared_ptr<const State> state_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<std::string, std::shared_ptr<Account>> accounts_ ABSL_GUARDED_BY(mu_);
};

}  // namespace resident

#endif  // RESIDENT_SERVER_AUTH_ACCESS_H_
