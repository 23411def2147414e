#include "server/admission/admission.h"

#include <sys/prctl.h>

#include <algorithm>
#include <cassert>

#include "runtime/base/errors/daemon_errors.h"
#include "runtime/base/status_macros.h"
#include "runtime/queue/errors.h"
#include "server/admission/errors.h"

namespace resident {
namespace {

// The number of pieces of transfers that fit into staging memory, and the size of the smallest
// piece that is worth a task.
constexpr uint64_t kPiecesInStaging = 16;
constexpr uint64_t kMinPieceBytes = 64u << 10;

}  // namespace

ClientAccounts::ClientAccounts(std::shared_ptr<Account> identity, size_t devices)
    : identity_(std::move(identity)), devices_(devices) {}

Ticket& Ticket::operator=(Ticket&& other) noexcept {
  if (this == &other) return *this;
  Release();
  admission_ = std::exchange(other.admission_, nullptr);
  client_ = std::move(other.client_);
  quota_tasks_ = std::exchange(other.quota_tasks_, 0);
  entry_ = std::move(other.entry_);
  begun_ = std::exchange(other.begun_, false);
  trial_ = other.trial_;
  queue_charge_ = std::move(other.queue_charge_);
  staging_ = std::move(other.staging_);
  staging_charge_ = std::move(other.staging_charge_);
  host_charge_ = std::move(other.host_charge_);
  loan_ = std::move(other.loan_);
  return *this;
}

void Ticket::EndTasks() {
  queue_charge_.Undo();
  if (quota_tasks_ != 0) client_->identity().EndTasks(std::exchange(quota_tasks_, 0));
}

Budget::Charge Ticket::TakeAnswer(uint64_t bytes) {
  host_charge_.Become(Budget::Purpose::kAnswers, bytes);
  return std::move(host_charge_);
}

void Ticket::ReleaseTasks() {
  EndTasks();
  if (std::exchange(begun_, false)) client_->tickets_.fetch_sub(1);
  // Last, because a drain of the daemon waits for this.
  entry_.Clear();
}

void Ticket::Release() {
  if (admission_ == nullptr) return;
  Admission* const admission = admission_;
  Undo();
  admission->Wake();
}

void Ticket::Undo() {
  loan_ = nullptr;
  staging_ = nullptr;  // First: waiters that are tried next allocate it at once.
  staging_charge_.Undo();
  host_charge_.Undo();
  queue_charge_.Undo();
  ReleaseTasks();
  admission_ = nullptr;
}

Admission::Admission(const Limits& limits, DrainGate* gate, TimeSource& time)
    : max_queued_tasks_(limits.max_queued_tasks),
      gate_(gate),
      time_(time),
      host_({.limit = limits.max_host_mib << 20,
             .client_limit = limits.max_client_host_mib << 20,
             .released = [this] { Wake(); }}) {}

void Admission::AddDevice(uint64_t staging_bytes) {
  assert(post_ == nullptr);
  devices_.emplace_back(
      Budget::Options{.client_limit = max_queued_tasks_, .released = [this] { Wake(); }},
      Budget::Options{.limit = staging_bytes, .ordered = true, .released = [this] { Wake(); }});
}

void Admission::Start(Post post) {
  post_ = std::move(post);
  thread_ = std::thread([this] { Loop(); });
}

void Admission::Stop() {
  {
    absl::MutexLock lock(&wake_mu_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
  Line refused;
  {
    absl::MutexLock lock(&mu_);
    stopped_ = true;
    while (!line_.empty()) Remove(line_.begin(), &refused);
  }
  for (Waiting& waiting : refused) waiting.done(errors::Draining());
}

absl::Status Admission::TakeTasks(const Needs& needs, Ticket& ticket, Resource* lacking) {
  ASSIGN_OR_RETURN(ticket.entry_, gate_->Enter(needs.tasks));
  if (needs.standing) ticket.entry_.Clear();
  const absl::Status within = ticket.client_->identity().BeginTasks(needs.tasks);
  if (!within.ok()) {
    // Waiting helps if the client's own tasks release quota soon; the tasks of others may run for
    // long.
    if (ticket.client_->tickets_.load() != 0) *lacking = Resource::kQuota;
    return within;
  }
  ticket.quota_tasks_ = needs.tasks;
  const auto& queue = ticket.client_->devices_[needs.device].queue;
  auto charge = devices_[needs.device].queue.Acquire(queue, needs.tasks);
  if (!charge.has_value()) {
    *lacking = Resource::kQueue;
    return errors::TooManyQueuedTasks(queue->acquired(), needs.tasks, max_queued_tasks_);
  }
  ticket.queue_charge_ = *std::move(charge);
  if (needs.standing) return absl::OkStatus();
  ticket.client_->tickets_.fetch_add(1);
  ticket.begun_ = true;
  return absl::OkStatus();
}

absl::Status Admission::TakeStaging(const Needs& needs, Budget::Place* place, Ticket& ticket,
                                    Resource* lacking) {
  if (needs.staging_bytes == 0) return absl::OkStatus();
  Budget& staging = devices_[needs.device].staging;
  if (!staging.MayFit(needs.staging_bytes)) {
    return errors::StagingFull(needs.staging_bytes, staging.limit(), false);
  }
  auto charge = staging.Acquire(ticket.client_->devices_[needs.device].staging, needs.staging_bytes,
                                needs.purpose, place);
  if (!charge.has_value()) {
    *lacking = Resource::kStaging;
    return errors::StagingFull(needs.staging_bytes, staging.limit(), true);
  }
  auto memory = needs.session->AllocateStaging(needs.staging_bytes);
  if (!memory.ok()) {
    charge->Undo();
    // The budget has room, but the memory is fragmented, or not released yet.
    if (staging.used() != 0) *lacking = Resource::kStaging;
    return memory.status();
  }
  ticket.staging_ = *std::move(memory);
  ticket.staging_charge_ = *std::move(charge);
  return absl::OkStatus();
}

absl::Status Admission::TakeHost(const Needs& needs, Ticket& ticket, Resource* lacking) {
  if (needs.host_bytes == 0) return absl::OkStatus();
  const std::shared_ptr<Budget::Account>& own = ticket.client_->host_;
  if (needs.trial_bytes != 0) {
    auto both = host_.Acquire(own, needs.host_bytes + needs.trial_bytes, needs.purpose);
    if (both.has_value()) {
      ticket.host_charge_ = *std::move(both);
      ticket.trial_ = true;
      return absl::OkStatus();
    }
  }
  auto charge = host_.Acquire(own, needs.host_bytes, needs.purpose);
  if (!charge.has_value()) {
    if (host_.MayFit(needs.host_bytes)) *lacking = Resource::kHost;
    const bool client = host_.OverClientLimit(*own, needs.host_bytes);
    return errors::BatchMemoryFull({needs.host_bytes, own->acquired(), host_.used(),
                                    client ? host_.client_limit() : host_.limit()},
                                   client);
  }
  ticket.host_charge_ = *std::move(charge);
  return absl::OkStatus();
}

absl::Status Admission::TakeLoan(const Needs& needs, bool shared, Ticket& ticket,
                                 Resource* lacking) {
  ASSIGN_OR_RETURN(ticket.loan_, needs.lender->TryBorrow(shared));
  if (ticket.loan_ != nullptr) return absl::OkStatus();
  *lacking = Resource::kLoan;
  return errors::NothingToLend();
}

absl::StatusOr<Ticket> Admission::Try(const std::shared_ptr<ClientAccounts>& client,
                                      const Needs& needs, Waiting* waiting, Resource* lacking) {
  Ticket ticket;
  ticket.admission_ = this;
  ticket.client_ = client;
  // Take the resource that was lacking last time first, so that the others are not taken and
  // released again.
  const bool host_first = waiting != nullptr && waiting->lacking == Resource::kHost;
  Budget::Place* const place = waiting == nullptr ? nullptr : &waiting->place;
  absl::Status status;
  if (needs.tasks != 0) status = TakeTasks(needs, ticket, lacking);
  if (status.ok() && host_first) status = TakeHost(needs, ticket, lacking);
  if (status.ok()) status = TakeStaging(needs, place, ticket, lacking);
  if (status.ok() && !host_first) status = TakeHost(needs, ticket, lacking);
  if (status.ok() && needs.lender != nullptr) {
    status = TakeLoan(needs, /*shared=*/waiting != nullptr, ticket, lacking);
  }
  if (status.ok()) return ticket;
  ticket.Undo();
  return status;
}

absl::StatusOr<Ticket> Admission::TryAcquire(const std::shared_ptr<ClientAccounts>& client,
                                             const Needs& needs) {
  Resource lacking = Resource::kNone;
  return Try(client, needs, nullptr, &lacking);
}

void Admission::Acquire(Wait& wait, std::shared_ptr<ClientAccounts> client, Needs needs,
                        Clock::time_point deadline, Done done) {
  if (wait.cancelled_.load()) return done(errors::Cancelled());
  Resource lacking = Resource::kNone;
  absl::StatusOr<Ticket> ticket = Try(client, needs, nullptr, &lacking);
  if (ticket.ok() || lacking == Resource::kNone) {
    done(std::move(ticket));
    return;
  }
  Line one;
  Waiting& waiting = one.emplace_back();
  waiting.wait = &wait;
  waiting.client = std::move(client);
  waiting.needs = std::move(needs);
  waiting.deadline = deadline;
  waiting.done = std::move(done);
  waiting.lacking = lacking;
  absl::Status refused;
  {
    absl::MutexLock lock(&mu_);
    assert(!wait.waiting_.load());
    refused = Insert(one);
  }
  if (!refused.ok()) return one.front().done(refused);
  // Resources that were released since the try found no waiter.
  Wake();
}

absl::Status Admission::Insert(Line& one) {
  if (stopped_) return errors::Draining();
  Wait& wait = *one.front().wait;
  if (wait.cancelled_.load()) return errors::Cancelled();
  wait.position_ = one.begin();
  wait.waiting_.store(true);
  line_.splice(line_.end(), one);
  waiting_count_.fetch_add(1);
  return absl::OkStatus();
}

absl::StatusOr<Budget::Charge> Admission::AcquireForGraph(const ClientAccounts& client,
                                                          uint64_t bytes, Budget::Purpose purpose) {
  const std::shared_ptr<Budget::Account>& own = client.host_;
  std::optional<Budget::Charge> charge = host_.Acquire(own, bytes, purpose);
  if (charge.has_value()) return *std::move(charge);
  const bool over_own = host_.OverClientLimit(*own, bytes);
  return errors::GraphHostMemoryFull(
      {bytes, own->acquired(), host_.used(), over_own ? host_.client_limit() : host_.limit()},
      over_own);
}

bool Admission::WaitToRead(Wait& wait, std::shared_ptr<ClientAccounts> client,
                           std::function<void()> done) {
  if (!host_.Full(*client->host_)) return false;
  Line one, replaced;
  Waiting& waiting = one.emplace_back();
  waiting.wait = &wait;
  waiting.client = std::move(client);
  waiting.to_read = true;
  waiting.done = [done = std::move(done)](const absl::StatusOr<Ticket>&) { done(); };
  {
    absl::MutexLock lock(&mu_);
    if (wait.waiting_.load()) Remove(wait.position_, &replaced);
    if (!Insert(one).ok()) return true;  // Nothing is read any more.
  }
  Wake();
  return true;
}

void Admission::Remove(Line::iterator position, Line* removed) {
  removed->splice(removed->end(), line_, position);
  waiting_count_.fetch_sub(1);
  // Last: the Wait may be destroyed from now on.
  position->wait->waiting_.store(false, std::memory_order_release);
}

bool Admission::Wait::Cancel() {
  Line removed;  // Destroyed without the lock.
  absl::MutexLock lock(&admission_.mu_);
  cancelled_.store(true);
  if (!waiting_.load()) return false;
  admission_.Remove(position_, &removed);
  return true;
}

void Admission::Wake() {
  if (waiting_count_.load() == 0) return;
  absl::MutexLock lock(&wake_mu_);
  wake_ = true;
}

void Admission::Loop() {
  prctl(PR_SET_NAME, "resident-admit");
  const auto woken = [this]() ABSL_SHARED_LOCKS_REQUIRED(wake_mu_) { return wake_ || stopping_; };
  while (true) {
    {
      absl::MutexLock lock(&wake_mu_);
      time_.Await(
          wake_mu_, absl::Condition(&woken),
          waiting_count_.load() == 0 ? Clock::time_point::max() : time_.Now() + kPollInterval);
      if (stopping_) return;
      wake_ = false;
    }
    Serve();
  }
}

bool Admission::TryWaiting(Waiting& waiting, Clock::time_point now,
                           absl::StatusOr<Ticket>* result) {
  if (waiting.to_read) {
    if (host_.Full(*waiting.client->host_)) return false;
    *result = Ticket();
    return true;
  }
  if (now >= waiting.deadline) {
    *result = errors::DeadlineExceeded();
    return true;
  }
  auto& lacked = waiting.client->devices_[waiting.needs.device].lacked;
  if (lacked[static_cast<size_t>(waiting.lacking)] == scan_ && !gate_->draining()) return false;
  if (waiting.lacking == Resource::kLoan && !waiting.needs.lender->MayLend() &&
      !gate_->draining()) {
    return false;
  }
  Resource lacking = Resource::kNone;
  *result = Try(waiting.client, waiting.needs, &waiting, &lacking);
  if (result->ok() || lacking == Resource::kNone) return true;
  if (lacking != Resource::kStaging) waiting.place.Leave();
  waiting.lacking = lacking;
  // Requests that wait for loans wait for different lenders.
  if (lacking != Resource::kLoan) lacked[static_cast<size_t>(lacking)] = scan_;
  return false;
}

void Admission::Serve() {
  Line served;
  std::vector<absl::StatusOr<Ticket>> results;
  {
    absl::MutexLock lock(&mu_);
    ++scan_;
    const Clock::time_point now = time_.Now();
    for (auto it = line_.begin(); it != line_.end();) {
      const auto current = it++;
      absl::StatusOr<Ticket> result = Ticket();
      if (!TryWaiting(*current, now, &result)) continue;
      Remove(current, &served);
      results.push_back(std::move(result));
    }
    for (const Waiting& waiting : served) {
      if (waiting.needs.lender != nullptr) waiting.needs.lender->Settle();
    }
  }
  auto result = results.begin();
  for (Waiting& waiting : served) {
    auto ticket = std::make_shared<absl::StatusOr<Ticket>>(std::move(*result++));
    post_([done = std::move(waiting.done), ticket] { done(std::move(*ticket)); });
  }
}

uint64_t Admission::PieceBytes(uint32_t device, uint64_t max_bytes) const {
  return std::min(max_bytes,
                  std::max(kMinPieceBytes, devices_[device].staging.limit() / kPiecesInStaging));
}

uint64_t Admission::staging_waiting(uint32_t device) const {
  absl::MutexLock lock(&mu_);
  return std::count_if(line_.begin(), line_.end(), [&](const Waiting& waiting) {
    return waiting.needs.device == device && waiting.lacking == Resource::kStaging;
  });
}

}  // namespace resident
