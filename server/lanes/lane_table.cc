#include "server/lanes/lane_table.h"

#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <bit>
#include <cassert>
#include <utility>

#include "absl/strings/escaping.h"
#include "runtime/base/errors/daemon_errors.h"
#include "runtime/base/status_macros.h"
#include "runtime/device/errors.h"
#include "server/lanes/errors.h"
#include "server/workload/errors.h"
#include "server/workload/placement.h"

namespace resident {
namespace {

// The daemon's own memory for a lane, beside the shared memory: of each slot, with the batch of a
// lone task and its outcome, and of the tables.
constexpr uint64_t kHostBytesOfSlot = 768;
constexpr uint64_t kHostBytesOfLane =
    kMaxLaneBuffers * sizeof(BoundBuffer) + kMaxLaneCalls * (sizeof(CallTarget) + 64);
// Of a prepared call, and of each of its arguments.
constexpr uint64_t kHostBytesOfCall = 1024;
constexpr uint64_t kHostBytesOfArgument = 768;
// Packets that are read from a socket at a time.
constexpr int kPacketsAtOnce = 64;
constexpr uint64_t kWakeEvent = 0;  // No lane has this id.

// 128 random bits as hexadecimal digits.
std::string NewToken() {
  char bits[16];
  size_t have = 0;
  while (have < sizeof(bits)) {
    const ssize_t got = getrandom(bits + have, sizeof(bits) - have, 0);
    if (got > 0) have += static_cast<size_t>(got);
  }
  return absl::BytesToHexString(absl::string_view(bits, sizeof(bits)));
}

// The first free place of a list of at most `limit` places, which is extended if need be.
template <typename T, typename IsFree>
std::optional<size_t> FindPlace(std::vector<T>& list, size_t from, size_t limit, IsFree is_free) {
  for (size_t i = from; i < list.size(); ++i) {
    if (is_free(list[i])) return i;
  }
  if (list.size() >= limit) return std::nullopt;
  list.emplace_back();
  return list.size() - 1;
}

}  // namespace

LaneTable::LaneTable(Core& core, const Options& options)
    : core_(core),
      options_(options),
      slots_({.what = "local lanes", .flag = "--max_lanes"}, options.max_lanes),
      counters_(core.devices.size()),
      restarted_(core.devices.size()),
      epoll_(epoll_create1(EPOLL_CLOEXEC)) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kWakeEvent;
  epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.fd(), &event);
  core.clients.OnSessionEnd([this](const Client& client) {
    const absl::Status ended = SessionEnded(client.session());
    for (const EntryPtr& entry : List()) {
      if (entry->client.get() == &client) End(entry, &ended);
    }
  });
  thread_ = std::thread([this] { Loop(); });
}

absl::Status LaneTable::SessionEnded(const std::string& session) const {
  // The drain has ended it: a client that learns of it can go to another daemon.
  return core_.gate.draining() ? errors::Draining() : errors::UnknownSession(session);
}

LaneTable::~LaneTable() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
  }
  wake_.Signal();
  thread_.join();
  for (const EntryPtr& entry : List()) End(entry, nullptr);
}

absl::Status LaneTable::CheckOpen(const Client& client, const v1::OpenLaneRequest& request) const {
  if (core_.local_address.empty()) return errors::NoLanes("an empty --local_address");
  if (options_.max_lanes == 0) return errors::NoLanes("--max_lanes=0");
  if (core_.gate.draining()) return errors::Draining();
  const uint32_t slots = request.slots();
  if (slots != 0 &&
      (!std::has_single_bit(slots) || slots < kLaneMinSlots || slots > kLaneMaxSlots)) {
    return errors::LaneSlots(slots);
  }
  if (request.data_bytes() % kLanePageBytes != 0 || request.data_bytes() > kLaneMaxDataBytes) {
    return errors::LaneDataBytes(request.data_bytes());
  }
  uint32_t open = 0;
  for (const EntryPtr& entry : List()) open += entry->client.get() == &client;
  if (open >= kMaxSessionLanes) return errors::TooManySessionLanes(kMaxSessionLanes);
  return absl::OkStatus();
}

// The function is long because what it takes is in local variables, which give all of it back when
// a later step fails, until the lane is in the table.
absl::Status LaneTable::Open(const std::shared_ptr<Client>& client,
                             const v1::OpenLaneRequest& request, Ended ended,
                             v1::OpenLaneResponse* response) {
  RETURN_IF_ERROR(CheckOpen(*client, request));
  ASSIGN_OR_RETURN(const Placement place, Place(core_.devices, request.device()));
  auto entry = std::make_shared<Entry>();
  ASSIGN_OR_RETURN(entry->slot, slots_.Take(NameHolder(client->account(), client->peer())));
  Lane::Options options;
  options.device = place.device;
  options.slots = request.slots() == 0 ? uint32_t{kLaneDefaultSlots} : request.slots();
  options.data_bytes = request.data_bytes();
  options.task_time_limit = options_.task_time_limit;
  options.max_batch_tasks = core_.limits.max_batch_tasks;
  options.max_queued_tasks = core_.limits.max_queued_tasks;
  const uint64_t bytes = lane_bytes(options.slots, options.data_bytes);
  Needs needs;
  needs.device = place.device;
  needs.session = place.session;
  needs.tasks = options.slots;
  needs.standing = true;
  needs.host_bytes = bytes + options.slots * kHostBytesOfSlot + kHostBytesOfLane;
  std::vector<Ticket> tickets(1);
  ASSIGN_OR_RETURN(tickets[0], core_.admission.TryAcquire(client->accounts(), needs));

  entry->client = client;
  entry->device = core_.devices[place.device];
  entry->ended = std::move(ended);
  entry->token = NewToken();
  entry->token_expires = Clock::now() + std::chrono::milliseconds(kLaneTokenMs);
  {
    absl::MutexLock lock(&mu_);
    entry->id = next_id_++;
  }
  const Lane::Host host{
      .registry = core_.registry,
      .gate = core_.gate,
      .counters = counters_[place.device],
      .admission = core_.admission,
      .accounts = client->accounts(),
      .standing_tasks =
          [this, id = client->id()] {
            uint64_t slots = 0;
            for (const EntryPtr& other : List()) {
              if (other->client->id() == id) slots += other->lane->options().slots;
            }
            return slots;
          },
      .post = [this](std::function<void()> work) { core_.pools.fills.Post(std::move(work)); },
      .note_work = [device =
                        entry->device](const Lane& lane) { device->queue().NoteLaneWork(&lane); },
      .refuse =
          [this, id = entry->id](const Lane&, const absl::Status& status) {
            {
              absl::MutexLock lock(&refused_mu_);
              refused_.emplace_back(id, status);
            }
            wake_.Signal();
          },
      .note_await = [this](const Lane&) { wake_.Signal(); }};
  ASSIGN_OR_RETURN(entry->lane, Lane::Create(options, host, std::move(tickets)));
  auto bindings = std::make_shared<LaneBindings>();
  bindings->session = place.session;
  entry->lane->SetBindings(std::move(bindings));
  std::shared_ptr<EngineSession> newer;
  {
    absl::MutexLock lock(&mu_);
    if (draining_ || stopping_) return errors::Draining();
    lanes_[entry->id] = entry;
    newer = restarted_[place.device];
  }
  if (newer != nullptr && newer->epoch() > place.session->epoch()) MoveTo(*entry, newer);
  // A session that ended meanwhile did not find the lane.
  if (!core_.clients.HasSession(client->session())) {
    End(entry, nullptr);
    return SessionEnded(client->session());
  }
  wake_.Signal();

  response->set_lane_id(entry->id);
  response->set_token(entry->token);
  response->set_local_address(core_.local_address);
  response->set_layout_hash(lane_layout_hash());
  response->set_slots(options.slots);
  response->set_data_bytes(options.data_bytes);
  response->set_memory_bytes(bytes);
  response->set_device(place.device);
  return absl::OkStatus();
}

std::vector<LaneTable::EntryPtr> LaneTable::List() const {
  std::vector<EntryPtr> list;
  absl::MutexLock lock(&mu_);
  list.reserve(lanes_.size());
  for (const auto& [id, entry] : lanes_) list.push_back(entry);
  return list;
}

absl::StatusOr<LaneTable::EntryPtr> LaneTable::Find(const Client& client, uint64_t lane_id) const {
  absl::MutexLock lock(&mu_);
  const auto found = lanes_.find(lane_id);
  if (found == lanes_.end() || found->second->client.get() != &client) {
    return errors::UnknownLane(lane_id);
  }
  return found->second;
}

void LaneTable::Close(uint64_t lane_id) {
  EntryPtr entry;
  {
    absl::MutexLock lock(&mu_);
    const auto found = lanes_.find(lane_id);
    if (found == lanes_.end()) return;
    entry = found->second;
  }
  End(entry, nullptr);
}

void LaneTable::End(const EntryPtr& entry, const absl::Status* status) {
  UniqueFd socket;
  {
    absl::MutexLock lock(&mu_);
    if (lanes_.erase(entry->id) == 0) return;
    socket = std::move(entry->socket);
  }
  {
    absl::MutexLock lock(&entry->change_mu);
    entry->closed = true;
    entry->call_tickets.clear();
  }
  entry->lane->Close();
  entry->device->queue().RemoveLane(entry->lane.get());
  // The pending batch, which Close has marked.
  entry->device->queue().NoteCancelled();
  socket.Reset();  // Removes it from the epoll set, too.
  if (status != nullptr) entry->ended(*status);
}

PreparedCall::Sources LaneTable::MakeSources(const Entry& entry,
                                             const std::shared_ptr<EngineSession>& session) const {
  return {.registry = core_.registry,
          .buffers = core_.buffers,
          .client = entry.client->id(),
          .device = entry.device->index(),
          .session = session,
          .task_time_limit = options_.task_time_limit};
}

absl::Status LaneTable::Bind(const Client& client, const v1::BindLaneRequest& request,
                             v1::BindLaneResponse* response) {
  ASSIGN_OR_RETURN(const EntryPtr entry, Find(client, request.lane_id()));
  if (request.buffer_ids().empty()) return errors::NothingToBind();
  absl::MutexLock lock(&entry->change_mu);
  if (entry->closed) return errors::UnknownLane(request.lane_id());
  auto next = std::make_shared<LaneBindings>(*entry->lane->bindings());
  const uint64_t epoch = next->session->epoch();
  absl::flat_hash_map<uint64_t, uint32_t> index_of;  // By buffer.
  for (size_t i = 0; i < next->buffers.size(); ++i) {
    const BoundBuffer& bound = next->buffers[i];
    // A buffer that was lost can be bound again, at another index.
    if (bound.buffer != nullptr && bound.address != 0) {
      index_of[bound.buffer->id] = static_cast<uint32_t>(i);
    }
  }
  size_t from = 0;
  for (const uint64_t id : request.buffer_ids()) {
    if (const auto bound = index_of.find(id); bound != index_of.end()) {
      response->add_indices(bound->second);
      continue;
    }
    ASSIGN_OR_RETURN(auto buffer, core_.buffers.Find(client.id(), id));
    if (buffer->device != entry->device->index()) {
      return errors::BufferOnOtherDevice(id, buffer->device, entry->device->index());
    }
    if (buffer->memory == nullptr) {
      return errors::LostBuffer(id, buffer->device, buffer->lost_cause);
    }
    if (buffer->epoch != epoch) {
      return errors::DeviceUnavailable(buffer->device, "its engine is being replaced");
    }
    const auto place = FindPlace(next->buffers, from, kMaxLaneBuffers,
                                 [](const BoundBuffer& bound) { return bound.buffer == nullptr; });
    if (!place.has_value()) {
      return errors::TooManyLaneBuffers(static_cast<uint64_t>(request.buffer_ids_size()),
                                        kMaxLaneBuffers - index_of.size(), kMaxLaneBuffers);
    }
    from = *place + 1;
    next->buffers[*place] = MakeBound(std::move(buffer), epoch);
    index_of[id] = static_cast<uint32_t>(*place);
    response->add_indices(static_cast<uint32_t>(*place));
  }
  entry->lane->SetBindings(std::move(next));
  return absl::OkStatus();
}

absl::Status LaneTable::Prepare(const Client& client, const v1::PrepareLaneRequest& request,
                                v1::PrepareLaneResponse* response) {
  ASSIGN_OR_RETURN(const EntryPtr entry, Find(client, request.lane_id()));
  if (core_.gate.draining()) return errors::Draining();
  RETURN_IF_ERROR(client.account().MaySubmit(request.tasks().operator_()));
  absl::MutexLock lock(&entry->change_mu);
  if (entry->closed) return errors::UnknownLane(request.lane_id());
  const auto before = entry->lane->bindings();
  ASSIGN_OR_RETURN(auto call, PreparedCall::Prepare(MakeSources(*entry, before->session), request));
  const std::optional<CallTarget> target = call->Resolve(
      core_.registry, {entry->device->index(), before->session->info(), options_.task_time_limit});
  // The memory of the call, and that for the arguments of as many tasks as the lane has slots.
  Needs needs;
  needs.device = entry->device->index();
  needs.host_bytes = kHostBytesOfCall + call->arguments() * kHostBytesOfArgument;
  ASSIGN_OR_RETURN(Ticket ticket, core_.admission.TryAcquire(client.accounts(), needs));
  if (call->argument_bytes() > entry->argument_bytes) {
    needs.host_bytes =
        2 * entry->lane->options().slots * (call->argument_bytes() - entry->argument_bytes);
    ASSIGN_OR_RETURN(Ticket arguments, core_.admission.TryAcquire(client.accounts(), needs));
    entry->argument_bytes = call->argument_bytes();
    entry->lane->Keep(std::move(arguments));
  }
  auto next = std::make_shared<LaneBindings>(*before);
  const auto place =
      FindPlace(next->calls, 0, kMaxLaneCalls, [](const auto& other) { return other == nullptr; });
  if (!place.has_value()) return errors::TooManyLaneCalls(kMaxLaneCalls);
  const bool ranges = target.has_value() && target->ranges;
  if (ranges) GrowBlocks(*entry, call->words(), *next);
  response->set_joins(ranges && !call->task_times() && next->blocks != nullptr &&
                      next->blocks->tasks() >= kMinRangeTasks &&
                      next->blocks->words() >= call->words());
  next->calls[*place] = std::move(call);
  if (entry->call_tickets.size() <= *place) entry->call_tickets.resize(*place + 1);
  entry->call_tickets[*place] = std::move(ticket);
  entry->lane->SetBindings(std::move(next));
  // The rights may have changed since they were checked.
  Recheck(entry->id);
  response->set_call(static_cast<uint32_t>(*place));
  if (target.has_value() && target->version != nullptr) {
    response->set_version(target->version->version);
  }
  return absl::OkStatus();
}

void LaneTable::GrowBlocks(const Entry& entry, size_t words, LaneBindings& bindings) {
  if (bindings.blocks != nullptr && bindings.blocks->words() >= words) return;
  const Lane::Options& lane = entry.lane->options();
  const uint32_t tasks =
      std::min(lane.slots, lane.data_bytes == 0 ? kMaxLaneJoined : kMaxLaneRange);
  Needs needs;
  needs.device = lane.device;
  needs.session = bindings.session;
  needs.staging_bytes = RangeBlocks::Bytes(tasks, words);
  auto ticket = core_.admission.TryAcquire(entry.client->accounts(), needs);
  // Without them the lane is slower.
  if (ticket.ok()) {
    bindings.blocks = std::make_shared<RangeBlocks>(*std::move(ticket), tasks, words);
  }
}

absl::Status LaneTable::Release(const Client& client, const v1::ReleaseLaneRequest& request) {
  ASSIGN_OR_RETURN(const EntryPtr entry, Find(client, request.lane_id()));
  absl::MutexLock lock(&entry->change_mu);
  if (entry->closed) return errors::UnknownLane(request.lane_id());
  auto next = std::make_shared<LaneBindings>(*entry->lane->bindings());
  for (const uint32_t index : request.buffers()) {
    if (index >= next->buffers.size() || next->buffers[index].buffer == nullptr) {
      return errors::NotBound(index);
    }
    next->buffers[index] = {};
  }
  for (const uint32_t call : request.calls()) {
    if (call >= next->calls.size() || next->calls[call] == nullptr) {
      return errors::NotPrepared(call);
    }
    next->calls[call] = nullptr;
  }
  entry->lane->SetBindings(std::move(next));
  for (const uint32_t call : request.calls()) entry->call_tickets[call].Release();
  return absl::OkStatus();
}

void LaneTable::Recheck(uint64_t lane_id) {
  EntryPtr entry;
  {
    absl::MutexLock lock(&mu_);
    const auto found = lanes_.find(lane_id);
    if (found == lanes_.end()) return;
    entry = found->second;
  }
  entry->lane->SetAllowed(
      [&entry](const std::string& name) { return entry->client->account().MaySubmit(name).ok(); });
}

void LaneTable::MoveTo(Entry& entry, const std::shared_ptr<EngineSession>& session) {
  {
    absl::MutexLock lock(&entry.change_mu);
    const auto before = entry.lane->bindings();
    if (entry.closed || before->session->epoch() >= session->epoch()) return;
    auto next = std::make_shared<LaneBindings>();
    next->session = session;
    next->buffers.reserve(before->buffers.size());
    for (const BoundBuffer& bound : before->buffers) {
      if (bound.buffer == nullptr) {
        next->buffers.emplace_back();
        continue;
      }
      // One that was freed meanwhile is not on the new engine.
      const auto buffer = core_.buffers.Find(entry.client->id(), bound.buffer->id);
      next->buffers.push_back(MakeBound(buffer.ok() ? *buffer : bound.buffer, session->epoch()));
    }
    const PreparedCall::Sources sources = MakeSources(entry, session);
    for (const auto& call : before->calls) {
      next->calls.push_back(call == nullptr ? nullptr : call->MoveTo(sources));
    }
    if (before->blocks != nullptr) GrowBlocks(entry, before->blocks->words(), *next);
    entry.lane->SetBindings(std::move(next));
  }
  entry.device->queue().NoteLaneWork(entry.lane.get());
}

void LaneTable::OnRestart(uint32_t device, const std::shared_ptr<EngineSession>& session) {
  {
    absl::MutexLock lock(&mu_);
    if (restarted_[device] != nullptr && restarted_[device]->epoch() >= session->epoch()) return;
    restarted_[device] = session;
  }
  for (const EntryPtr& entry : List()) {
    if (entry->device->index() == device) MoveTo(*entry, session);
  }
}

void LaneTable::BeginDrain() {
  {
    absl::MutexLock lock(&mu_);
    draining_ = true;
  }
  for (const EntryPtr& entry : List()) {
    entry->lane->BeginDrain();
    entry->device->queue().NoteLaneWork(entry->lane.get());
  }
}

absl::StatusOr<LocalSocket::HandOver> LaneTable::Attach(const std::string& token) {
  EntryPtr entry;
  {
    absl::MutexLock lock(&mu_);
    for (const auto& [id, candidate] : lanes_) {
      if (!candidate->token.empty() && candidate->token == token) entry = candidate;
    }
    if (entry == nullptr || entry->token_expires <= Clock::now()) {
      return errors::UnknownLaneToken(kLaneTokenMs);
    }
    entry->token.clear();
  }
  const lane_welcome welcome = entry->lane->Welcome();
  return LocalSocket::HandOver{
      .memory = entry->lane->TakeMemory(),
      .answer = std::string(reinterpret_cast<const char*>(&welcome), sizeof(welcome)),
      .adopt = [this, entry](UniqueFd connection) { Adopt(entry, std::move(connection)); }};
}

void LaneTable::Adopt(const EntryPtr& entry, UniqueFd connection) {
  if (connection.get() < 0) {
    const absl::Status status = absl::OkStatus();  // The client has gone.
    return End(entry, &status);
  }
  bool waits = false;
  {
    absl::MutexLock lock(&mu_);
    if (!lanes_.contains(entry->id)) return;
    epoll_event event{};
    event.events = EPOLLIN | EPOLLRDHUP;
    event.data.u64 = entry->id;
    waits = epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, connection.get(), &event) == 0;
    if (waits) entry->socket = std::move(connection);
  }
  if (!waits) {
    const absl::Status status = errors::LaneMemory("it cannot wait for the client's socket");
    return End(entry, &status);
  }
  entry->device->queue().AddLane(entry->client->id(), entry->lane);
  absl::MutexLock lock(&mu_);
  // End may have removed it before it was added.
  if (!lanes_.contains(entry->id)) entry->device->queue().RemoveLane(entry->lane.get());
}

void LaneTable::Listen(Entry& entry, bool doorbell) {
  entry.muted = !doorbell;
  epoll_event event{};
  event.events = doorbell ? EPOLLIN | EPOLLRDHUP : EPOLLRDHUP;
  event.data.u64 = entry.id;
  epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, entry.socket.get(), &event);
}

bool LaneTable::ReadDoorbell(Entry& entry) {
  const Clock::time_point now = Clock::now();
  char packet[8];
  uint32_t packets = 0;
  for (int i = 0; i < kPacketsAtOnce; ++i) {
    const ssize_t got = recv(entry.socket.get(), packet, sizeof(packet), MSG_DONTWAIT);
    if (got == 0) return false;
    if (got < 0) break;
    ++packets;
  }
  if (entry.lane->Ready()) {
    entry.rings = 0;
    entry.mute = std::chrono::milliseconds(0);
    return true;
  }
  if (now - entry.rings_since > kMaxMute) {
    entry.rings_since = now;
    entry.rings = 0;
    entry.mute = entry.mute / 2;
  }
  entry.rings += packets;
  if (entry.rings <= kFreeRings) return true;
  entry.mute = std::clamp(entry.mute * 2, kMinMute, kMaxMute);
  entry.muted_until = now + entry.mute;
  Listen(entry, /*doorbell=*/false);
  return true;
}

void LaneTable::OnEvent(uint64_t lane_id, uint32_t events) {
  EntryPtr entry;
  bool open = (events & (EPOLLHUP | EPOLLRDHUP | EPOLLERR)) == 0;
  {
    absl::MutexLock lock(&mu_);
    const auto found = lanes_.find(lane_id);
    if (found == lanes_.end()) return;
    entry = found->second;
    if (open && (events & EPOLLIN) != 0) open = ReadDoorbell(*entry);
  }
  if (open) {
    // Also without a submission: the client may have cancelled some.
    entry->device->queue().NoteLaneWork(entry->lane.get());
    return;
  }
  const absl::Status status = absl::OkStatus();
  End(entry, &status);
}

void LaneTable::Loop() {
  prctl(PR_SET_NAME, "resident-lanes");
  Clock::time_point next_tick = Clock::now() + kTick;
  epoll_event events[64];
  while (true) {
    const int count = epoll_wait(epoll_.get(), events, std::size(events), NextWakeup(Clock::now()));
    {
      absl::MutexLock lock(&mu_);
      if (stopping_) return;
    }
    for (int i = 0; i < count; ++i) {
      if (events[i].data.u64 == kWakeEvent) {
        wake_.Drain();
      } else {
        OnEvent(events[i].data.u64, events[i].events);
      }
    }
    std::vector<std::pair<uint64_t, absl::Status>> refused;
    {
      absl::MutexLock lock(&refused_mu_);
      refused.swap(refused_);
    }
    for (const auto& [id, status] : refused) {
      EntryPtr entry;
      {
        absl::MutexLock lock(&mu_);
        const auto found = lanes_.find(id);
        if (found != lanes_.end()) entry = found->second;
      }
      if (entry != nullptr) End(entry, &status);
    }
    const Clock::time_point now = Clock::now();
    std::vector<EntryPtr> awaited;
    {
      absl::MutexLock lock(&mu_);
      for (const auto& [id, entry] : lanes_) {
        if (entry->muted && entry->muted_until <= now) Listen(*entry, /*doorbell=*/true);
        if (entry->lane->asleep() && entry->lane->awaits() && entry->lane->Ready()) {
          awaited.push_back(entry);
        }
      }
    }
    for (const EntryPtr& entry : awaited) entry->device->queue().NoteLaneWork(entry->lane.get());
    if (now < next_tick) continue;
    next_tick = now + kTick;
    Tick(now);
  }
}

int LaneTable::NextWakeup(Clock::time_point now) const {
  absl::MutexLock lock(&mu_);
  if (lanes_.empty()) return -1;
  Clock::time_point next = now + kTick;
  for (const auto& [id, entry] : lanes_) {
    if (entry->lane->asleep() && entry->lane->awaits()) next = std::min(next, now + kAwaitTick);
    if (entry->muted) next = std::min(next, entry->muted_until);
  }
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - now).count();
  return static_cast<int>(std::max<int64_t>(left, 0));
}

void LaneTable::Tick(Clock::time_point now) {
  const uint64_t changes = core_.registry.changes();
  const bool changed = std::exchange(seen_changes_, changes) != changes;
  const absl::Status not_fetched = errors::LaneNotFetched(kLaneTokenMs);
  for (const EntryPtr& entry : List()) {
    bool expired = false;
    {
      absl::MutexLock lock(&mu_);
      expired = !entry->token.empty() && entry->token_expires <= now;
    }
    if (expired) {
      End(entry, &not_fetched);
      continue;
    }
    Lane& lane = *entry->lane;
    if (changed) lane.DropStaleTargets();
    if (!lane.asleep() || !lane.Ready()) continue;
    if (entry->device->session() == nullptr &&
        entry->device->snapshot().state == Device::State::kUnhealthy) {
      lane.RejectWaiting();
    } else {
      entry->device->queue().NoteLaneWork(&lane);
    }
  }
}

uint64_t LaneTable::CountOn(uint32_t device) const {
  uint64_t count = 0;
  for (const EntryPtr& entry : List()) count += entry->device->index() == device;
  return count;
}

LaneTable::Figures LaneTable::OfClient(ClientId client) const {
  Figures figures;
  for (const EntryPtr& entry : List()) {
    if (entry->client->id() != client) continue;
    ++figures.lanes;
    figures.slots += entry->lane->options().slots;
    figures.refused += entry->lane->refused();
    const auto bindings = entry->lane->bindings();
    for (const auto& call : bindings->calls) figures.calls += call != nullptr;
    for (const auto& bound : bindings->buffers) figures.buffers += bound.buffer != nullptr;
  }
  return figures;
}

}  // namespace resident
