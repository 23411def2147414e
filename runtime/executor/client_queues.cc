#include "runtime/executor/client_queues.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace resident {
namespace {

uint64_t BytesOf(const Batch& batch) {
  return batch.tasks.size() * sizeof(TaskDescriptor) + batch.arguments.size() * sizeof(Argument);
}

}  // namespace

void ClientQueues::Add(ClientId client) {
  clients_.try_emplace(client, std::make_shared<Client>());
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
  if (client.queued_tasks != 0 && client.queued_tasks + count > max_queued_tasks) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the client has ", client.queued_tasks, " tasks queued; ", count,
                     " more would pass the limit of ", max_queued_tasks,
                     ". Fix: wait for results, or raise --max_queued_tasks"));
  }
  const uint64_t bytes = BytesOf(*batch);
  if (client.queued_bytes != 0 && client.queued_bytes + bytes > max_queued_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the client has tasks queued with ", client.queued_bytes,
                     " bytes of arguments; ", bytes, " more would pass the limit of ",
                     max_queued_bytes, ". Fix: wait for results, or raise --max_client_host_mib"));
  }
  client.queued_bytes += bytes;
  client.queued_tasks += count;
  queued_tasks_ += count;
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
      Dequeued(*client, ordered->tasks.size());
      published |= ring_tasks->StartOrdered(std::move(ordered), finished);
      --quantum;
      continue;
    }
    const uint32_t given = ring_tasks->SubmitFrom(batch, quantum);
    quantum -= given;
    published |= given > 0;
    Dequeued(*client, given);
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
  Dequeued(client, batch->tasks.size() - batch->submitted);
  SkipRest(batch, status, cause, finished);
}

std::shared_ptr<Batch> ClientQueues::Pop(Client& client, size_t position) {
  std::shared_ptr<Batch> batch = std::move(client.queue[position]);
  client.queue.erase(client.queue.begin() + position);
  client.queued_bytes -= BytesOf(*batch);
  return batch;
}

void ClientQueues::Dequeued(Client& client, uint64_t tasks) {
  client.queued_tasks -= tasks;
  queued_tasks_ -= tasks;
}

void ClientQueues::CountCompleted(const Batch& batch) {
  const auto client = clients_.find(batch.client);
  if (client != clients_.end()) client->second->completed_tasks += batch.tasks.size();
}

DeviceQueue::ClientCounters ClientQueues::counters(ClientId id) const {
  const auto found = clients_.find(id);
  if (found == clients_.end()) return {};
  return {found->second->queued_tasks, found->second->completed_tasks};
}

}  // namespace resident
