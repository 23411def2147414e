#include "server/auth/account.h"

#include <algorithm>
#include <utility>

#include "runtime/base/status_macros.h"
#include "server/auth/errors.h"

namespace resident {
namespace {

constexpr absl::Duration kInstallWindow = absl::Minutes(1);

bool HasPrefix(const std::optional<std::vector<std::string>>& prefixes, const std::string& name) {
  if (!prefixes.has_value()) return true;
  return std::any_of(prefixes->begin(), prefixes->end(),
                     [&](const std::string& prefix) { return name.starts_with(prefix); });
}

}  // namespace

Account::Account(std::string name, Rights rights, bool shared)
    : name_(std::move(name)), shared_(shared) {
  SetRights(std::move(rights));
}

void Account::SetRights(Rights rights) {
  absl::MutexLock lock(&mu_);
  rights_ = std::move(rights);
  open_.store(rights_.roles.Intersects(Role::kSubmit) && !rights_.submit_prefixes.has_value() &&
                  !rights_.tasks_in_flight.has_value(),
              std::memory_order_release);
}

absl::Status Account::Has(RoleSet any_of, const std::string& call) const {
  absl::ReaderMutexLock lock(&mu_);
  if (rights_.roles.Intersects(any_of)) return absl::OkStatus();
  return errors::LacksRole(name_, RoleNames(any_of), call);
}

absl::Status Account::MaySubmit(const std::string& operator_name) const {
  if (open_.load(std::memory_order_acquire)) return absl::OkStatus();
  absl::ReaderMutexLock lock(&mu_);
  if (!rights_.roles.Intersects(Role::kSubmit)) {
    return errors::LacksRole(name_, RoleNames(Role::kSubmit), "running " + operator_name);
  }
  if (HasPrefix(rights_.submit_prefixes, operator_name)) return absl::OkStatus();
  return errors::LacksOperator(name_, "submit", operator_name);
}

absl::Status Account::MayInstall(const std::string& operator_name, RoleSet any_of) const {
  absl::ReaderMutexLock lock(&mu_);
  if (!rights_.roles.Intersects(any_of)) {
    return errors::LacksRole(name_, RoleNames(any_of), "changing " + operator_name);
  }
  if (HasPrefix(rights_.install_prefixes, operator_name)) return absl::OkStatus();
  return errors::LacksOperator(name_, "install", operator_name);
}

bool Account::only_confined() const {
  absl::ReaderMutexLock lock(&mu_);
  return rights_.roles.Intersects(Role::kInstallConfined) &&
         !rights_.roles.Intersects(Role::kInstall);
}

absl::Status Account::BeginTasks(uint64_t tasks) {
  const uint64_t before = tasks_.fetch_add(tasks, std::memory_order_relaxed);
  if (open_.load(std::memory_order_acquire)) return absl::OkStatus();
  std::optional<uint64_t> max;
  {
    absl::ReaderMutexLock lock(&mu_);
    max = rights_.tasks_in_flight;
  }
  if (!max.has_value() || (tasks <= *max && before <= *max - tasks)) return absl::OkStatus();
  EndTasks(tasks);
  return errors::TaskQuota(name_, tasks, before, *max);
}

void Account::EndTasks(uint64_t tasks) { tasks_.fetch_sub(tasks, std::memory_order_relaxed); }

absl::StatusOr<std::shared_ptr<const void>> Account::ReserveBufferBytes(uint64_t bytes) {
  absl::MutexLock lock(&mu_);
  const std::optional<uint64_t> max = rights_.buffer_bytes;
  if (max.has_value() && (bytes > *max || buffer_bytes_ > *max - bytes)) {
    return errors::BufferQuota(name_, bytes, buffer_bytes_, *max);
  }
  buffer_bytes_ += bytes;
  return std::shared_ptr<const void>(static_cast<const void*>(this),
                                     [self = shared_from_this(), bytes](const void*) {
                                       absl::MutexLock release(&self->mu_);
                                       self->buffer_bytes_ -= bytes;
                                     });
}

absl::Status Account::BeginInstall(const std::string& operator_name, absl::Time now,
                                   RoleSet any_of) {
  RETURN_IF_ERROR(MayInstall(operator_name, any_of));
  absl::MutexLock lock(&mu_);
  while (!installs_.empty() && installs_.front() <= now - kInstallWindow) installs_.pop_front();
  const std::optional<uint32_t> max = rights_.installs_per_minute;
  if (!max.has_value()) {
    installs_.clear();
    return absl::OkStatus();
  }
  if (installs_.size() >= *max) {
    const absl::Duration wait =
        installs_.empty() ? kInstallWindow : installs_.front() + kInstallWindow - now;
    return errors::InstallQuota(name_, *max,
                                absl::ToInt64Seconds(absl::Ceil(wait, absl::Seconds(1))));
  }
  installs_.push_back(now);
  return absl::OkStatus();
}

uint64_t Account::buffer_bytes() const {
  absl::ReaderMutexLock lock(&mu_);
  return buffer_bytes_;
}

absl::Status Identity::Has(RoleSet any_of, const std::string& call) const {
  if (revoked_.load(std::memory_order_relaxed)) return errors::RevokedToken(name());
  return account_->Has(any_of, call);
}

}  // namespace resident
