#include "server/graphs/graph_sessions.h"

#include <algorithm>
#include <cassert>

#include "runtime/graph/limits.h"
#include "server/graphs/errors.h"

namespace resident {

GraphSession::Snapshot GraphSession::snapshot() const {
  absl::MutexLock lock(&mu_);
  return {state_.device, state_.scalars, user_ != nullptr, interrupted_, runs_, steps_};
}

bool GraphSessionUse::Acquire(std::shared_ptr<GraphSession> session,
                              std::function<void()> granted) {
  assert(session_ == nullptr);
  session_ = std::move(session);
  absl::MutexLock lock(&session_->mu_);
  if (session_->user_ == nullptr) {
    session_->user_ = this;
    return true;
  }
  if (granted != nullptr) session_->waiting_.push_back({this, std::move(granted)});
  return false;
}

bool GraphSessionUse::Remove(GraphSession& session, std::function<void()>* granted) const {
  for (auto it = session.waiting_.begin(); it != session.waiting_.end(); ++it) {
    if (it->use != this) continue;
    *granted = std::move(it->granted);
    session.waiting_.erase(it);
    return true;
  }
  return false;
}

void GraphSessionUse::Leave(GraphSession& session) {
  std::function<void()> granted;  // Destroyed without the lock.
  absl::MutexLock lock(&session.mu_);
  Remove(session, &granted);
}

absl::StatusOr<GraphSessionState> GraphSessionUse::Take(bool repeat_interrupted) {
  absl::MutexLock lock(&session_->mu_);
  assert(session_->user_ == this);
  if (session_->interrupted_ && !repeat_interrupted) {
    return errors::GraphSessionInterrupted(session_->id_, session_->steps_);
  }
  return session_->state_;
}

void GraphSessionUse::End(const GraphRunLeft& left) {
  const std::shared_ptr<GraphSession> session = std::exchange(session_, nullptr);
  if (session == nullptr) return;
  std::function<void()> granted;
  std::function<void()> removed;  // Destroyed without the lock.
  {
    absl::MutexLock lock(&session->mu_);
    Remove(*session, &removed);
    if (session->user_ != this) return;
    if (left.steps > 0 || left.in_step) {
      ++session->runs_;
      session->steps_ += left.steps;
      session->interrupted_ = left.in_step;
      session->state_.scalars.assign(left.scalars.begin(), left.scalars.end());
    }
    session->user_ = nullptr;
    if (!session->waiting_.empty()) {
      session->user_ = session->waiting_.front().use;
      granted = std::move(session->waiting_.front().granted);
      session->waiting_.pop_front();
    }
  }
  if (granted != nullptr) granted();
}

GraphSessions::GraphSessions() : slots_({.what = "graph sessions"}, graph::kMaxGraphSessions) {}

bool GraphSessions::Add(std::shared_ptr<GraphSession> session,
                        const std::function<bool()>& is_open) {
  absl::MutexLock lock(&mu_);
  if (!is_open()) return false;
  const ClientId client = session->client();
  const std::string id = session->id();
  session->graph()->sessions.fetch_add(1, std::memory_order_relaxed);
  sessions_[client][id] = std::move(session);
  return true;
}

absl::StatusOr<std::shared_ptr<GraphSession>> GraphSessions::Find(ClientId client,
                                                                  const std::string& id) const {
  absl::MutexLock lock(&mu_);
  const auto of_client = sessions_.find(client);
  if (of_client == sessions_.end()) return errors::UnknownGraphSession(id);
  const auto found = of_client->second.find(id);
  if (found == of_client->second.end()) return errors::UnknownGraphSession(id);
  return found->second;
}

absl::Status GraphSessions::Close(ClientId client, const std::string& id) {
  std::shared_ptr<GraphSession> closed;  // Destroyed without the lock.
  absl::MutexLock lock(&mu_);
  const auto of_client = sessions_.find(client);
  if (of_client == sessions_.end()) return errors::UnknownGraphSession(id);
  const auto found = of_client->second.find(id);
  if (found == of_client->second.end()) return errors::UnknownGraphSession(id);
  closed = std::move(found->second);
  closed->graph()->sessions.fetch_sub(1, std::memory_order_relaxed);
  of_client->second.erase(found);
  if (of_client->second.empty()) sessions_.erase(of_client);
  return absl::OkStatus();
}

std::vector<std::shared_ptr<GraphSession>> GraphSessions::List(ClientId client) const {
  std::vector<std::shared_ptr<GraphSession>> list;
  absl::MutexLock lock(&mu_);
  const auto of_client = sessions_.find(client);
  if (of_client == sessions_.end()) return list;
  for (const auto& [id, session] : of_client->second) list.push_back(session);
  // Ids are numbers after a fixed prefix.
  std::sort(list.begin(), list.end(), [](const auto& a, const auto& b) {
    return std::pair(a->id().size(), a->id()) < std::pair(b->id().size(), b->id());
  });
  return list;
}

void GraphSessions::CloseAll(ClientId client) {
  std::map<std::string, std::shared_ptr<GraphSession>> closed;
  absl::MutexLock lock(&mu_);
  const auto of_client = sessions_.find(client);
  if (of_client == sessions_.end()) return;
  closed = std::move(of_client->second);
  sessions_.erase(of_client);
  for (const auto& [id, session] : closed) {
    session->graph()->sessions.fetch_sub(1, std::memory_order_relaxed);
  }
}

uint64_t GraphSessions::count() const {
  absl::MutexLock lock(&mu_);
  uint64_t count = 0;
  for (const auto& [client, sessions] : sessions_) count += sessions.size();
  return count;
}

uint64_t GraphSessions::bytes() const {
  absl::MutexLock lock(&mu_);
  uint64_t bytes = 0;
  for (const auto& [client, sessions] : sessions_) {
    for (const auto& [id, session] : sessions) bytes += session->memory().bytes;
  }
  return bytes;
}

}  // namespace resident
