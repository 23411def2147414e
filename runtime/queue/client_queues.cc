#include "runtime/queue/client_queues.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/queue/errors.h"

namespace resident {
namespace {

uint64_t MeasureBytes(const Batch& batch) {
  if (batch.range) {
    return sizeof(TaskRange) +
           batch.range->arguments.size() * (sizeof(Argument) + sizeof(RangeColumn));
  }
  return batch.tasks.size() * sizeof(TaskDescriptor) + batch.arguments.size() * sizeof(Argument);
}

}  // namespace

void ClientQueues::Add(ClientId client) {
  const auto [added, is_new] = clients_.try_emplace(client);
  if (!is_new) return;
  added->second = std::make_shared<Client>();
  added->second->use = std::make_shared<QueueUse>(all_);
}

bool ClientQueues::Remove(ClientId client) {
  const auto found = clients_.find(client);
  if (found == clients_.end()) return false;
  for (const Queue& queue : found->second->queues) {
    for (const auto& batch : queue) batch->cancelled = true;
  }
  clients_.erase(found);  // `round_` may still have the client: invariant 1.
  return true;
}

absl::Status ClientQueues::Push(ClientId id, std::shared_ptr<Batch> batch,
                                uint64_t max_queued_tasks, uint64_t max_queued_bytes) {
  const auto found = clients_.find(id);
  if (found == clients_.end()) {
    return absl::NotFoundError(
        "the client has no queue: its session has ended. Fix: open a new session");
  }
  Client& client = *found->second;
  const uint64_t count = batch->count();
  const uint64_t queued = client.use->tasks();
  if (queued != 0 && queued + count > max_queued_tasks) {
    return errors::TooManyQueuedTasks(queued, count, max_queued_tasks);
  }
  const uint64_t bytes = MeasureBytes(*batch);
  const uint64_t held = client.use->bytes();
  if (held != 0 && held + bytes > max_queued_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the client has batches queued or running with ", held,
                     " bytes of tasks and arguments; ", bytes, " more would exceed the limit of ",
                     max_queued_bytes, ". Fix: wait for results, or raise --max_client_host_mib"));
  }
  batch->use = client.use;
  batch->use->Add(count, bytes);
  next_deadline_ = std::min(next_deadline_, batch->deadline);
  client.queues[kQueue].push_back(std::move(batch));
  JoinRound(found->second);
  return absl::OkStatus();
}

void ClientQueues::PushFromLane(ClientId id, std::shared_ptr<Batch> batch,
                                FinishedBatches* finished) {
  const auto found = clients_.find(id);
  batch->use = found == clients_.end() ? all_ : found->second->use;
  batch->use->Add(batch->count(), MeasureBytes(*batch));
  if (found == clients_.end()) {
    SkipRest(batch, TaskStatus::kCancelled, "the client was removed", finished);
    return;
  }
  next_deadline_ = std::min(next_deadline_, batch->deadline);
  found->second->queues[kLanes].push_back(std::move(batch));
  JoinRound(found->second);
}

void ClientQueues::JoinRound(const std::shared_ptr<Client>& client) {
  if (client->in_round) return;
  client->in_round = true;
  round_.push_back(client);
}

void ClientQueues::PushReady(std::shared_ptr<Batch> batch, FinishedBatches* finished) {
  if (const auto reason = ReasonToSkip(*batch, time_)) {
    SkipRest(batch, reason->status, reason->cause, finished);
    return;
  }
  const auto found = clients_.find(batch->client);
  if (found == clients_.end()) {
    SkipRest(batch, TaskStatus::kCancelled, "the client was removed", finished);
    return;
  }
  next_deadline_ = std::min(next_deadline_, batch->deadline);
  found->second->queues[kReady].push_back(std::move(batch));
  JoinRound(found->second);
}

bool ClientQueues::ServeAll(uint32_t quantum, RingTasks* ring_tasks, FinishedBatches* finished) {
  bool published = false;
  // Clients that were served without a published task since the last task was published.
  size_t in_vain = 0;
  while (in_vain < round_.size() && ring_tasks->HasRoom()) {
    const size_t clients = round_.size();
    if (ServeNext(quantum, ring_tasks, finished)) {
      published = true;
      in_vain = 0;
    } else if (round_.size() == clients) {
      ++in_vain;
    }
  }
  return published;
}

bool ClientQueues::ServeNext(uint32_t quantum, RingTasks* ring_tasks, FinishedBatches* finished) {
  assert(!round_.empty());
  std::shared_ptr<Client> client = std::move(round_.front());
  round_.pop_front();
  bool published = false;
  while (client->has_work() && quantum > 0) {
    Queue& queue = client->Next();
    const std::shared_ptr<Batch> batch = queue.front();
    if (const auto reason = ReasonToSkip(*batch, time_)) {
      queue.pop_front();
      SkipRest(batch, reason->status, reason->cause, finished);
      continue;
    }
    if (!ring_tasks->HasRoom()) break;  // The client does not keep the rest of its quantum.
    if (batch->submitted == 0) ObserveQueued(*batch);
    const uint32_t submitted = ring_tasks->SubmitFrom(batch, quantum);
    if (submitted == 0) break;  // There is no room for the task.
    client->Advance();
    quantum -= std::min(quantum, submitted);  // A range may be larger.
    published = true;
    if (batch->in_order || batch->submitted == batch->count()) queue.pop_front();
  }
  if (client->has_work()) {
    round_.push_back(std::move(client));
  } else {
    client->in_round = false;
  }
  return published;
}

void ClientQueues::DropExpired(FinishedBatches* finished) {
  next_deadline_ = Clock::time_point::max();
  for (auto& client : round_) {
    for (Queue& queue : client->queues) DropExpired(queue, finished);
    client->in_round = client->has_work();
  }
  std::erase_if(round_, [](const auto& client) { return !client->in_round; });
}

void ClientQueues::DropExpired(Queue& queue, FinishedBatches* finished) {
  const auto expired = [&](const std::shared_ptr<Batch>& batch) {
    if (const auto reason = ReasonToSkip(*batch, time_)) {
      SkipRest(batch, reason->status, reason->cause, finished);
      return true;
    }
    next_deadline_ = std::min(next_deadline_, batch->deadline);
    return false;
  };
  queue.erase(std::remove_if(queue.begin(), queue.end(), expired), queue.end());
}

void ClientQueues::SkipAll(TaskStatus status, const std::string& cause, FinishedBatches* finished) {
  for (auto& client : round_) {
    for (Queue& queue : client->queues) {
      for (const auto& batch : queue) SkipRest(batch, status, cause, finished);
      queue.clear();
    }
    client->in_round = false;
  }
  round_.clear();
  next_deadline_ = Clock::time_point::max();
}

void ClientQueues::Ended(const Batch& batch) {
  batch.use->RemoveBytes(MeasureBytes(batch));
  const auto client = clients_.find(batch.client);
  if (client != clients_.end()) client->second->completed_tasks += batch.count();
}

DeviceQueue::ClientCounters ClientQueues::counters(ClientId id) const {
  const auto found = clients_.find(id);
  if (found == clients_.end()) return {};
  return {found->second->use->tasks(), found->second->completed_tasks};
}

}  // namespace resident
