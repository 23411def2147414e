#include "runtime/queue/client_queues.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace resident {
namespace {

uint64_t BytesOf(const Batch& batch) {
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
  for (const auto& batch : found->second->queue) batch->cancelled = true;
  clients_.erase(found);  // Stays in its turn until its queue is empty.
  return true;
}

absl::Status ClientQueues::Push(ClientId id, std::shared_ptr<Batch> batch,
                                uint64_t max_queued_tasks, uint64_t max_queued_bytes) {
  const auto found = clients_.find(id);
  if (found == clients_.end()) {
    return absl::NotFoundError(
        "the client's queue is gone: its session has ended. Fix: open a new session");
  }
  Client& client = *found->second;
  const uint64_t count = batch->tasks.size();
  const uint64_t queued = client.use->tasks();
  if (queued != 0 && queued + count > max_queued_tasks) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the client has ", queued, " tasks queued; ", count, " more would pass the limit of ",
        max_queued_tasks, ". Fix: wait for results, or raise --max_queued_tasks"));
  }
  const uint64_t bytes = BytesOf(*batch);
  const uint64_t held = client.use->bytes();
  if (held != 0 && held + bytes > max_queued_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the client has batches queued or under way with ", held,
                     " bytes of tasks and arguments; ", bytes, " more would pass the limit of ",
                     max_queued_bytes, ". Fix: wait for results, or raise --max_client_host_mib"));
  }
  batch->use = client.use;
  batch->use->Add(count, bytes);
  client.queue.push_back(std::move(batch));
  if (!client.in_turn) {
    client.in_turn = true;
    turn_.push_back(found->second);
  }
  return absl::OkStatus();
}

bool ClientQueues::ServeNext(uint32_t quantum, RingTasks* ring_tasks, FinishedBatches* finished) {
  std::shared_ptr<Client> client = std::move(turn_.front());
  turn_.pop_front();
  bool published = false;
  while (!client->queue.empty() && quantum > 0) {
    std::shared_ptr<Batch>& batch = client->queue.front();
    if (const auto reason = ReasonToSkip(*batch)) {
      Skip(*client, 0, reason->status, reason->cause, finished);
      continue;
    }
    if (!ring_tasks->HasRoom()) break;  // The turn ends with what it got.
    if (batch->submitted == 0) ObserveQueued(*batch);
    if (batch->in_order) {
      std::shared_ptr<Batch> ordered = Pop(*client, 0);
      published |= ring_tasks->StartOrdered(std::move(ordered), finished);
      --quantum;
      continue;
    }
    const uint32_t given = ring_tasks->SubmitFrom(batch, quantum);
    quantum -= given;
    published |= given > 0;
    if (batch->submitted == batch->tasks.size()) Pop(*client, 0);
  }
  if (client->queue.empty()) {
    client->in_turn = false;
  } else {
    turn_.push_back(std::move(client));
  }
  return published;
}

void ClientQueues::SkipDoomed(FinishedBatches* finished) {
  for (auto& client : turn_) {
    for (size_t i = 0; i < client->queue.size();) {
      if (const auto reason = ReasonToSkip(*client->queue[i])) {
        Skip(*client, i, reason->status, reason->cause, finished);
      } else {
        ++i;
      }
    }
  }
}

void ClientQueues::SkipAll(TaskStatus status, const std::string& cause, FinishedBatches* finished) {
  for (auto& client : turn_) {
    while (!client->queue.empty()) Skip(*client, 0, status, cause, finished);
    client->in_turn = false;
  }
  turn_.clear();
}

void ClientQueues::Skip(Client& client, size_t position, TaskStatus status,
                        const std::string& cause, FinishedBatches* finished) {
  std::shared_ptr<Batch> batch = Pop(client, position);
  SkipRest(batch, status, cause, finished);
}

std::shared_ptr<Batch> ClientQueues::Pop(Client& client, size_t position) {
  std::shared_ptr<Batch> batch = std::move(client.queue[position]);
  client.queue.erase(client.queue.begin() + position);
  return batch;
}

void ClientQueues::Ended(const Batch& batch) {
  batch.use->RemoveBytes(BytesOf(batch));
  const auto client = clients_.find(batch.client);
  if (client != clients_.end()) client->second->completed_tasks += batch.tasks.size();
}

DeviceQueue::ClientCounters ClientQueues::counters(ClientId id) const {
  const auto found = clients_.find(id);
  if (found == clients_.end()) return {};
  return {found->second->use->tasks(), found->second->completed_tasks};
}

}  // namespace resident
