#include "server/core/client_table.h"

#include <sys/random.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "runtime/base/errors/daemon_errors.h"
#include "runtime/base/status_macros.h"
#include "server/core/errors.h"

namespace resident {
namespace {

// Connections' clients without work are removed after kForgetAfter; the table is scanned every
// kSweepEvery at most.
constexpr absl::Duration kForgetAfter = absl::Seconds(30);
constexpr absl::Duration kSweepEvery = absl::Seconds(5);

// Hexadecimal digits of random bytes.
template <size_t kBytes>
std::string RandomDigits() {
  char bits[kBytes];
  size_t have = 0;
  while (have < sizeof(bits)) {
    const ssize_t got = getrandom(bits + have, sizeof(bits) - have, 0);
    if (got > 0) have += static_cast<size_t>(got);
  }
  return absl::BytesToHexString(absl::string_view(bits, sizeof(bits)));
}

// The last digits of all session ids of this process.
const std::string& DaemonDigits() {
  static const std::string* const kDigits = new std::string(RandomDigits<4>());
  return *kDigits;
}

// 128 random bits, because a session's id gives access to its buffers.
constexpr size_t kSecretBytes = 16;

std::string NewSessionId() { return absl::StrCat(RandomDigits<kSecretBytes>(), DaemonDigits()); }

// Whether another process made the id of a session.
bool IsOfOtherDaemon(const std::string& session) {
  return session.size() == 2 * kSecretBytes + DaemonDigits().size() &&
         std::all_of(session.begin(), session.end(), absl::ascii_isxdigit) &&
         !absl::EndsWith(session, DaemonDigits());
}

}  // namespace

Client::Client(ClientId id, ClientId transfer_id, std::string session, std::string name,
               std::string peer, std::shared_ptr<Account> account, size_t devices)
    : id_(id),
      transfer_id_(transfer_id),
      session_(std::move(session)),
      name_(std::move(name)),
      peer_(std::move(peer)),
      account_(std::move(account)),
      accounts_(std::make_shared<ClientAccounts>(account_, devices)) {}

std::shared_ptr<Client> ClientTable::Make(std::string session, std::string name, std::string peer,
                                          std::shared_ptr<Account> account) {
  const ClientId id = next_id_;
  next_id_ += 2;
  auto client = std::make_shared<Client>(id, id + 1, std::move(session), std::move(name),
                                         std::move(peer), std::move(account), devices_.size());
  for (Device* device : devices_) {
    device->queue().AddClient(client->id());
    device->queue().AddClient(client->transfer_id());
  }
  return client;
}

void ClientTable::RemoveQueues(const Client& client) {
  for (Device* device : devices_) {
    device->queue().RemoveClient(client.id());
    device->queue().RemoveClient(client.transfer_id());
  }
}

absl::StatusOr<std::shared_ptr<Client>> ClientTable::OpenSession(
    const std::string& name, const std::string& peer, const std::shared_ptr<Account>& account) {
  if (name.size() > kMaxClientNameBytes) {
    return errors::ClientNameTooLong(name.size(), kMaxClientNameBytes);
  }
  ASSIGN_OR_RETURN(auto slot,
                   session_slots_.Take(NameHolder(*account, peer), account->session_quota()));
  absl::MutexLock lock(&mu_);
  std::shared_ptr<Client> client = Make(NewSessionId(), name, peer, account);
  sessions_[client->session()] = {client, std::move(slot)};
  buffers_.AddOwner(client->id());
  return client;
}

void ClientTable::EndSession(const std::shared_ptr<Client>& client) {
  {
    absl::MutexLock lock(&mu_);
    if (sessions_.erase(client->session()) == 0) return;
  }
  RemoveQueues(*client);
  buffers_.RemoveOwner(client->id());
  for (const auto& ended : session_ended_) ended(*client);
}

void ClientTable::ForgetIdle(absl::Time now, bool all) {
  if (!all && now - last_sweep_ < kSweepEvery) return;
  last_sweep_ = now;
  for (auto it = peers_.begin(); it != peers_.end();) {
    const auto current = it++;
    // Only the table refers to the client, so no call can have work for it.
    if (current->second.client.use_count() == 1 &&
        (all || now - current->second.last_seen > kForgetAfter)) {
      RemoveQueues(*current->second.client);
      buffers_.RemoveOwner(current->second.client->id());
      peers_.erase(current);
    }
  }
}

std::shared_ptr<Client> ClientTable::MakeInternal(const std::string& name,
                                                  const std::shared_ptr<Account>& account) {
  std::shared_ptr<Client> client;
  {
    absl::MutexLock lock(&mu_);
    client = Make(/*session=*/"", name, /*peer=*/"", account);
  }
  buffers_.AddOwner(client->id());
  Client* const known = client.get();
  return {known, [this, client = std::move(client)](const Client*) {
            RemoveQueues(*client);
            buffers_.RemoveOwner(client->id());
          }};
}

absl::StatusOr<std::shared_ptr<Client>> ClientTable::ForCall(
    const std::string& session, const std::string& peer, const std::shared_ptr<Account>& account) {
  const absl::Time now = absl::Now();
  absl::MutexLock lock(&mu_);
  if (!session.empty()) {
    const auto found = sessions_.find(session);
    if (found == sessions_.end()) {
      return IsOfOtherDaemon(session) ? errors::SessionElsewhere(session)
                                      : errors::UnknownSession(session);
    }
    const std::shared_ptr<Client>& client = found->second.client;
    if (client->account().name() != account->name()) {
      return errors::SessionOfOtherIdentity(account->name());
    }
    return client;
  }
  std::pair<std::string, std::string> key(peer, account->name());
  const auto found = peers_.find(key);
  if (found != peers_.end()) {
    found->second.last_seen = now;
    return found->second.client;
  }
  ForgetIdle(now, /*all=*/false);
  const std::string holder = NameHolder(*account, peer);
  auto slot = peer_slots_.Take(holder);
  if (!slot.ok()) {
    ForgetIdle(now, /*all=*/true);
    slot = peer_slots_.Take(holder);
    if (!slot.ok()) return slot.status();
  }
  std::shared_ptr<Client> client = Make("", "", peer, account);
  buffers_.AddOwner(client->id());  // Of the memory of its graph runs.
  peers_[std::move(key)] = {client, now, *std::move(slot)};
  return client;
}

std::shared_ptr<Client> ClientTable::FindSession(const std::string& session) const {
  absl::MutexLock lock(&mu_);
  const auto found = sessions_.find(session);
  return found == sessions_.end() ? nullptr : found->second.client;
}

bool ClientTable::HasSession(const std::string& session) const {
  return FindSession(session) != nullptr;
}

std::vector<std::shared_ptr<Client>> ClientTable::List() const {
  std::vector<std::shared_ptr<Client>> list;
  absl::MutexLock lock(&mu_);
  for (const auto& [id, session] : sessions_) list.push_back(session.client);
  for (const auto& [peer, entry] : peers_) list.push_back(entry.client);
  return list;
}

uint64_t ClientTable::sessions() const {
  absl::MutexLock lock(&mu_);
  return sessions_.size();
}

}  // namespace resident
