// ClientTable: the clients that send work, and the queues of each.
//
// A client is a session (Sessions.Open), or, for calls without one, the pair of one identity and
// one connection. Only the identity that opened a session may use it. Each client has its own queue
// on every device, and a second one for uploads and downloads, so that they do not wait behind the
// client's own tasks. A connection's client owns no buffers and is removed when it has been idle
// for a while.
//
// Thread safety: all members may be called from any thread.
//
//   ASSIGN_OR_RETURN(std::shared_ptr<Client> client, table.ForCall(session_id, peer));
//   auto ticket = admission.TryAcquire(client->accounts(), needs);
#ifndef RESIDENT_SERVER_CORE_CLIENT_TABLE_H_
#define RESIDENT_SERVER_CORE_CLIENT_TABLE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "runtime/base/limits.h"
#include "runtime/device/buffer_table.h"
#include "server/admission/admission.h"
#include "server/auth/account.h"
#include "server/core/shared_slots.h"

namespace resident {

class Client {
 public:
  Client(ClientId id, ClientId transfer_id, std::string session, std::string name, std::string peer,
         std::shared_ptr<Account> account, size_t devices);

  // The ids of its queues.
  ClientId id() const { return id_; }
  ClientId transfer_id() const { return transfer_id_; }
  bool is_session() const { return !session_.empty(); }
  // The session's id; empty for a connection.
  const std::string& session() const { return session_; }
  const std::string& name() const { return name_; }
  const std::string& peer() const { return peer_; }
  // The account whose rights and quotas apply.
  Account& account() const { return *account_; }
  // The amounts that it holds of each budget.
  const std::shared_ptr<ClientAccounts>& accounts() const { return accounts_; }

 private:
  const ClientId id_;
  const ClientId transfer_id_;
  const std::string session_;
  const std::string name_;
  const std::string peer_;
  const std::shared_ptr<Account> account_;
  const std::shared_ptr<ClientAccounts> accounts_;
};

class ClientTable {
 public:
  ClientTable(const Limits& limits, std::vector<Device*> devices, BufferTable& buffers)
      : session_slots_({.what = "sessions", .flag = "--max_sessions", .quota = "sessions"},
                       limits.max_sessions),
        peer_slots_({.what = "connections with work and no session", .flag = "--max_sessions"},
                    limits.max_sessions),
        devices_(std::move(devices)),
        buffers_(buffers) {}

  // Errors: RESOURCE_EXHAUSTED (--max_sessions, the account's quota), INVALID_ARGUMENT (name too
  // long).
  absl::StatusOr<std::shared_ptr<Client>> OpenSession(const std::string& name,
                                                      const std::string& peer,
                                                      const std::shared_ptr<Account>& account);
  // Drops the session's queued tasks, frees its buffers, and calls the functions of OnSessionEnd.
  void EndSession(const std::shared_ptr<Client>& client);
  // Calls `ended`, without locks, when a session has ended. REQUIRES: called before the first call
  // of a client; what `ended` refers to outlives all calls.
  void OnSessionEnd(std::function<void(const Client&)> ended) {
    session_ended_.push_back(std::move(ended));
  }

  // The client of a call of `account`: that of `session`, or that of the connection if `session` is
  // empty. Errors: UNAUTHENTICATED (unknown session, or that of another daemon), PERMISSION_DENIED
  // (another identity's session), RESOURCE_EXHAUSTED.
  absl::StatusOr<std::shared_ptr<Client>> ForCall(const std::string& session,
                                                  const std::string& peer,
                                                  const std::shared_ptr<Account>& account);

  // A client of the daemon's own, for memory and tasks that belong to none of the others. It is in
  // no list, and no call can name it; its queues and buffers end with the last reference. The
  // account's quotas apply. REQUIRES: the table outlives it.
  std::shared_ptr<Client> MakeInternal(const std::string& name,
                                       const std::shared_ptr<Account>& account);

  // The client of an open session, for any identity; null: there is no such session.
  std::shared_ptr<Client> FindSession(const std::string& session) const;
  // Whether the session is open, for any identity.
  bool HasSession(const std::string& session) const;

  std::vector<std::shared_ptr<Client>> List() const;
  uint64_t sessions() const;

 private:
  std::shared_ptr<Client> Make(std::string session, std::string name, std::string peer,
                               std::shared_ptr<Account> account) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ForgetIdle(absl::Time now, bool all) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RemoveQueues(const Client& client);

  struct Peer {
    std::shared_ptr<Client> client;
    absl::Time last_seen;
    SharedSlots::Ticket slot;
  };
  struct Session {
    std::shared_ptr<Client> client;
    SharedSlots::Ticket slot;
  };

  std::vector<std::function<void(const Client&)>> session_ended_;
  SharedSlots session_slots_;
  SharedSlots peer_slots_;
  const std::vector<Device*> devices_;
  BufferTable& buffers_;

  mutable absl::Mutex mu_;
  absl::flat_hash_map<std::string, Session> sessions_ ABSL_GUARDED_BY(mu_);
  // By peer and account.
  absl::flat_hash_map<std::pair<std::string, std::string>, Peer> peers_ ABSL_GUARDED_BY(mu_);
  absl::Time last_sweep_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  ClientId next_id_ ABSL_GUARDED_BY(mu_) = 1;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_CORE_CLIENT_TABLE_H_
