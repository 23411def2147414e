// Account: what one name may do, and how much of its quotas it uses.
//
// There is one account for each name, however many credentials and connections go by
// it, and it stays when the policy is read anew: what is in use goes on counting, and
// the new rights hold from the next check on.
//
// A quota that is lowered below what is in use takes nothing away; it refuses more.
//
// Thread safety: all members may be called from any thread.
//
// Memory ordering: rights are read under mu_, but for the flag `open_`, which is true
// while nothing has to be looked up; whoever sees it set may run anything, and a batch
// admitted in the moment in which it changes is one that came before.
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
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/auth/role.h"

namespace resident {

// What the policy gives to a name.
struct Rights {
  RoleSet roles;
  // Beginnings of operators' names. Absent: all operators; empty: none.
  std::optional<std::vector<std::string>> submit_prefixes = std::nullopt;
  std::optional<std::vector<std::string>> install_prefixes = std::nullopt;
  // Absent: as much as the daemon's own limits let through.
  std::optional<uint64_t> tasks_in_flight = std::nullopt;
  std::optional<uint64_t> buffer_bytes = std::nullopt;
  std::optional<uint32_t> installs_per_minute = std::nullopt;
  // At a time. Absent: as many as the daemon lets one caller have (server/rpc/shared_slots.h).
  std::optional<uint32_t> sessions = std::nullopt;
  std::optional<uint32_t> watches = std::nullopt;
  std::optional<uint32_t> installs = std::nullopt;

  bool operator==(const Rights&) const = default;
};

class Account : public std::enable_shared_from_this<Account> {
 public:
  // `everybody`: it stands for all callers, since nothing tells them apart (no policy, no
  // certificates).
  Account(std::string name, Rights rights, bool everybody = false);

  const std::string& name() const { return name_; }
  bool everybody() const { return everybody_; }
  void SetRights(Rights rights);

  // PERMISSION_DENIED: the account has none of these roles. `call`: what for, e.g.
  // "/resident.v1.Executor/Run".
  absl::Status Has(RoleSet any_of, const std::string& call) const;

  // PERMISSION_DENIED: operators of this name are not the account's to run, to change.
  absl::Status MaySubmit(const std::string& operator_name) const;
  absl::Status MayInstall(const std::string& operator_name) const;

  // Tasks that are on their way. RESOURCE_EXHAUSTED: over the quota; then EndTasks is
  // not called.
  absl::Status BeginTasks(uint64_t tasks);
  void EndTasks(uint64_t tasks);

  // Memory of buffers: held until what is returned is destroyed. RESOURCE_EXHAUSTED.
  absl::StatusOr<std::shared_ptr<const void>> HoldBuffer(uint64_t bytes);

  // An install begins, whatever becomes of it. PERMISSION_DENIED: as MayInstall.
  // RESOURCE_EXHAUSTED: too many within the last minute.
  absl::Status BeginInstall(const std::string& operator_name, absl::Time now);

  // Quotas of what it may have open at a time; absent: none.
  std::optional<uint32_t> session_quota() const { return QuotaOf(&Rights::sessions); }
  std::optional<uint32_t> watch_quota() const { return QuotaOf(&Rights::watches); }
  std::optional<uint32_t> install_quota() const { return QuotaOf(&Rights::installs); }

  uint64_t tasks_in_flight() const { return tasks_.load(std::memory_order_relaxed); }
  uint64_t buffer_bytes() const;

 private:
  std::optional<uint32_t> QuotaOf(std::optional<uint32_t> Rights::*quota) const {
    absl::ReaderMutexLock lock(&mu_);
    return rights_.*quota;
  }

  const std::string name_;
  const bool everybody_;
  // May submit anything, in any number.
  std::atomic<bool> open_{false};
  std::atomic<uint64_t> tasks_{0};

  mutable absl::Mutex mu_;
  Rights rights_ ABSL_GUARDED_BY(mu_);
  uint64_t buffer_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  // When installs of the last minute began, oldest first.
  std::deque<absl::Time> installs_ ABSL_GUARDED_BY(mu_);
};

}  // namespace resident

#endif  // RESIDENT_SERVER_AUTH_ACCOUNT_H_
