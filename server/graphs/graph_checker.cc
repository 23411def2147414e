#include "server/graphs/graph_checker.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "runtime/base/errors/daemon_errors.h"
#include "runtime/base/status_macros.h"
#include "server/admission/errors.h"

namespace resident {

class GraphChecker::Check {
 public:
  enum class End : uint8_t { kNone, kCancelled, kDraining };

  Caller caller;
  Work work;
  Answer answer;
  SharedSlots::Ticket place;
  SharedSlots::Ticket thread;
  std::shared_ptr<Budget::Account> account;
  // Set by others while it runs.
  std::atomic<End> end{End::kNone};
};

absl::StatusOr<std::shared_ptr<GraphChecker::Check>> GraphChecker::Post(Caller caller, Work work,
                                                                        Answer answer) {
  const auto check = std::make_shared<Check>();
  if (!caller.runs) {
    ASSIGN_OR_RETURN(check->place, places_.Take(caller.holder));
  }
  check->caller = std::move(caller);
  check->work = std::move(work);
  check->answer = std::move(answer);
  {
    absl::MutexLock lock(&mu_);
    if (ended_) return errors::Draining();
    check->account = FindAccount(check->caller.holder);
    Line& line = waiting_[check->caller.holder];
    if (line.empty()) turns_.push_back(check->caller.holder);
    line.push_back(check);
  }
  threads_.Post([this] { RunWaiting(); });
  return check;
}

absl::Status GraphChecker::PostFor(UnaryCall& call, Caller caller, Work work, Answer answer) {
  ASSIGN_OR_RETURN(auto check, Post(std::move(caller), std::move(work), std::move(answer)));
  call.OnCancel([this, check = std::move(check)] { Cancel(check); });
  return absl::OkStatus();
}

std::shared_ptr<Budget::Account> GraphChecker::FindAccount(const std::string& holder) {
  absl::erase_if(accounts_, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<Budget::Account>& known = accounts_[holder];
  std::shared_ptr<Budget::Account> account = known.lock();
  if (account == nullptr) known = account = std::make_shared<Budget::Account>();
  return account;
}

void GraphChecker::Cancel(const std::shared_ptr<Check>& check) {
  {
    absl::MutexLock lock(&mu_);
    check->end.store(Check::End::kCancelled, std::memory_order_relaxed);
    const auto line = waiting_.find(check->caller.holder);
    if (line == waiting_.end()) return;
    const auto found = std::find(line->second.begin(), line->second.end(), check);
    if (found == line->second.end()) return;
    line->second.erase(found);
    if (line->second.empty()) {
      turns_.erase(std::find(turns_.begin(), turns_.end(), check->caller.holder));
      waiting_.erase(line);
    }
  }
  AnswerLater(check, errors::Cancelled());
}

void GraphChecker::EndAll() {
  absl::flat_hash_map<std::string, Line> waiting;
  {
    absl::MutexLock lock(&mu_);
    ended_ = true;
    waiting.swap(waiting_);
    turns_.clear();
    for (const auto& check : running_) {
      check->end.store(Check::End::kDraining, std::memory_order_relaxed);
    }
  }
  for (auto& [holder, line] : waiting) {
    for (auto& check : line) AnswerLater(std::move(check), errors::Draining());
  }
}

void GraphChecker::AnswerLater(std::shared_ptr<Check> check, absl::Status status) {
  // Its caller may hold locks that the answer needs.
  core_.runner.Post([check = std::move(check), status = std::move(status)] {
    check->work = nullptr;
    check->place.Release();
    std::exchange(check->answer, nullptr)(status);
  });
}

void GraphChecker::RunWaiting() {
  while (const std::shared_ptr<Check> check = TakeNext()) Run(check);
}

std::shared_ptr<GraphChecker::Check> GraphChecker::TakeNext() {
  absl::MutexLock lock(&mu_);
  for (auto turn = turns_.begin(); turn != turns_.end(); ++turn) {
    // One that is refused waits until a thread ends a check, and looks for the next one.
    auto thread = thread_slots_.Take(*turn);
    if (!thread.ok()) continue;
    std::string holder = std::move(*turn);
    turns_.erase(turn);
    const auto line = waiting_.find(holder);
    std::shared_ptr<Check> check = std::move(line->second.front());
    line->second.pop_front();
    if (line->second.empty()) {
      waiting_.erase(line);
    } else {
      turns_.push_back(std::move(holder));
    }
    check->thread = *std::move(thread);
    running_.push_back(check);
    return check;
  }
  return nullptr;
}

void GraphChecker::Run(const std::shared_ptr<Check>& check) {
  const absl::Status status = RunWork(*check);
  check->place.Release();
  check->thread.Release();
  {
    absl::MutexLock lock(&mu_);
    running_.erase(std::find(running_.begin(), running_.end(), check));
    check->account = nullptr;
  }
  std::exchange(check->answer, nullptr)(status);
}

absl::Status GraphChecker::RunWork(Check& check) {
  Budget& host = core_.admission.host();
  // Released at the end, after what the work has used.
  std::vector<Budget::Charge> charges;
  uint64_t refused = 0;
  graph::CheckBudget budget(
      {.cancelled =
           [&] {
             return check.end.load(std::memory_order_relaxed) != Check::End::kNone ||
                    core_.time.Now() >= check.caller.deadline;
           },
       .reserve =
           [&](uint64_t bytes) {
             std::optional<Budget::Charge> charge = host.Acquire(check.account, bytes);
             if (!charge.has_value()) refused = bytes;
             if (charge.has_value()) charges.push_back(*std::move(charge));
             return refused == 0;
           }});
  const absl::Status status = std::exchange(check.work, nullptr)(budget);
  if (budget.end() == graph::CheckBudget::End::kMemory) {
    const bool own = host.OverClientLimit(*check.account, refused);
    return errors::GraphHostMemoryFull(refused, own ? check.account->acquired() : host.used(),
                                       own ? host.client_limit() : host.limit(), own);
  }
  if (budget.end() != graph::CheckBudget::End::kCancelled) return status;
  switch (check.end.load(std::memory_order_relaxed)) {
    case Check::End::kDraining:
      return errors::Draining();
    case Check::End::kCancelled:
      return errors::Cancelled();
    case Check::End::kNone:
      break;
  }
  return errors::DeadlineExceeded();
}

}  // namespace resident
