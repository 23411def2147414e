// Account: the rights of one name, and its use of its quotas.
//
// There is one account for each name, independent of the number of its credentials and
// connections. It is kept when the policy is reloaded: what is in use stays counted, and
// the next check applies the new rights.
//
// If a quota is lowered below what is in use, nothing is taken away; further requests are
// refused.
//
// Thread safety: all members may be called from any thread.
//
// Memory ordering: rights are read under mu_, except for the flag `open_`, which is true
// while all submissions are allowed without a lookup. A batch that is admitted while the
// flag changes counts as admitted before the change.
//
//   RETURN_IF_ERROR(account->MaySubmit("rank.score"));
//   RETURN_IF_ERROR(account->BeginTasks(1024));
//   ...
//   account->EndTasks(1024);
#ifndef RESIDENT_SERVER_AUTH_ACCOUNT_H_
#define RESIDENT_SERVER_AUTH_ACCOUNT_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/auth/role.h"

namespace resident {

// The rights that the policy grants to a name.
struct Rights {
  RoleSet roles;
  // Beginnings of operators' names. Absent: all operators; empty: none.
  std::optional<std::vector<std::string>> submit_prefixes = std::nullopt;
  std::optional<std::vector<std::string>> install_prefixes = std::nullopt;
  // Absent: limited only by the daemon's own limits.
  std::optional<uint64_t> tasks_in_flight = std::nullopt;
  std::optional<uint64_t> buffer_bytes = std::nullopt;
  std::optional<uint32_t> installs_per_minute = std::nullopt;
  // Concurrent ones. Absent: as many as the daemon allows one caller
  // (server/core/shared_slots.h).
  std::optional<uint32_t> sessions = std::nullopt;
  std::optional<uint32_t> watches = std::nullopt;
  std::optional<uint32_t> installs = std::nullopt;

  bool operator==(const Rights&) const = default;
};

class Account : public std::enable_shared_from_this<Account> {
 public:
  // `shared`: the account is shared by all callers, since nothing distinguishes them (no
  // policy, no certificates).
  Account(std::string name, Rights rights, bool shared = false);

  const std::string& name() const { return name_; }
  bool shared() const { return shared_; }
  void SetRights(Rights rights);

  // PERMISSION_DENIED: the account has none of these roles. `call`: the call that needs
  // them, for messages, e.g. "/resident.v1.Executor/Run".
  absl::Status Has(RoleSet any_of, const std::string& call) const;

  // PERMISSION_DENIED: the account may not run, or change, operators of this name. `any_of`: the
  // roles that suffice for a change.
  absl::Status MaySubmit(const std::string& operator_name) const;
  absl::Status MayInstall(const std::string& operator_name, RoleSet any_of = Role::kInstall) const;
  // Whether it may change only operators that it installed itself (role.h).
  bool only_confined() const;

  // Tasks in flight. RESOURCE_EXHAUSTED: over the quota; then EndTasks must not be called.
  absl::Status BeginTasks(uint64_t tasks);
  void EndTasks(uint64_t tasks);

  // Reserves memory of buffers until the returned object is destroyed. RESOURCE_EXHAUSTED.
  absl::StatusOr<std::shared_ptr<const void>> ReserveBufferBytes(uint64_t bytes);

  // Counts the start of an install, with any result. PERMISSION_DENIED: see MayInstall.
  // RESOURCE_EXHAUSTED: too many within the last minute.
  absl::Status BeginInstall(const std::string& operator_name, absl::Time now,
                            RoleSet any_of = Role::kInstall);

  // Quotas of concurrent sessions, watches and installs; absent: no quota.
  std::optional<uint32_t> session_quota() const { return ReadQuota(&Rights::sessions); }
  std::optional<uint32_t> watch_quota() const { return ReadQuota(&Rights::watches); }
  std::optional<uint32_t> install_quota() const { return ReadQuota(&Rights::installs); }

  uint64_t tasks_in_flight() const { return tasks_.load(std::memory_order_relaxed); }
  uint64_t buffer_bytes() const;

 private:
  std::optional<uint32_t> ReadQuota(std::optional<uint32_t> Rights::*quota) const {
    absl::ReaderMutexLock lock(&mu_);
    return rights_.*quota;
  }

  const std::string name_;
  const bool shared_;
  // May submit all operators without a quota.
  std::atomic<bool> open_{false};
  std::atomic<uint64_t> tasks_{0};

  mutable absl::Mutex mu_;
  Rights rights_ ABSL_GUARDED_BY(mu_);
  uint64_t buffer_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  // Begin of the installs of the last minute, oldest first.
  std::deque<absl::Time> installs_ ABSL_GUARDED_BY(mu_);
};

// Identity: the caller, as identified by a token, a certificate, or neither.
//
// Several identities may have one name; they share its account (rights and quotas). An
// identity is revoked when its token is removed from the token file: it is refused from
// then on, also on open streams.
//
// Thread safety: all members may be called from any thread.

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

#endif  // RESIDENT_SERVER_AUTH_ACCOUNT_H_
