// Admission: decides whether and when a batch, or a piece of a transfer, may begin.
//
// A plan states what it needs (Needs). A Ticket owns all of it: a count in the gate, so that a
// drain waits for the tasks, the quota of the identity, places in the client's queue, staging
// memory, and the daemon's own memory for descriptors, outcomes and the answer. Destroying the
// ticket releases everything.
//
// A request holds either everything or nothing: a request that waits holds no resources, so that
// there is no deadlock. Requests that wait are kept in the order of arrival. They are tried again
// whenever something was released, and every kPollInterval; one request is tried in constant time.
// If several requests of one client on one device lack the same resource, only the oldest is tried.
//
//              ┌──── free now ───────────────────────────────────▶ done, from within Acquire
//   Acquire ───┤
//              └─▶ waiting ──released──▶ done, from a thread of `post`
//                     └──── deadline, drain ──▶ done, with the error
//                     └──── Wait::Cancel ──▶ (done is not called)
//
// Thread safety: all members may be called from any thread. Callbacks are called without locks.
//
// Memory ordering: see Wake(). A release that misses a new waiter delays it by kPollInterval at
// most.
//
//   Admission::Wait wait_{admission};  // A member of the caller.
//   admission.Acquire(wait_, client, needs, deadline, [self](absl::StatusOr<Ticket> ticket) {...});
#ifndef RESIDENT_SERVER_ADMISSION_ADMISSION_H_
#define RESIDENT_SERVER_ADMISSION_ADMISSION_H_

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "runtime/base/limits.h"
#include "runtime/base/time_source.h"
#include "runtime/device/device.h"
#include "server/admission/budget.h"
#include "server/admission/drain_gate.h"
#include "server/auth/account.h"

namespace resident {

class Admission;

// The resources that a request can lack.
enum class Resource : uint8_t { kNone, kQuota, kQueue, kStaging, kHost, kLoan };
inline constexpr size_t kResources = 6;

// Lender: something of which there are a few, and which one ticket has at a time, such as the
// instances of a model.
//
// Thread safety: may be called from any thread, also with Admission's lock held: it must not wait
// for anything, and must not call Admission.
class Lender {
 public:
  virtual ~Lender() = default;
  // What the ticket gets, and returns when it is destroyed. Null: nothing is free now; Admission
  // tries again whenever something was released. An error refuses the request. `shared`: other
  // requests that wait are tried next, which may share it until Settle is called.
  virtual absl::StatusOr<std::shared_ptr<void>> TryBorrow(bool shared) = 0;
  // False: TryBorrow would return null now. A cheap check, before anything else is taken for the
  // request.
  virtual bool MayLend() const { return true; }
  // What was lent as shared is shared by no further request. Called after each round of tries in
  // which the request got something, before its ticket is used.
  virtual void Settle() {}
};

// What one client holds of each budget.
class ClientAccounts {
 public:
  ClientAccounts(std::shared_ptr<Account> identity, size_t devices);

  Account& identity() const { return *identity_; }
  const std::shared_ptr<Budget::Account>& host() const { return host_; }

 private:
  friend class Admission;
  friend class Ticket;
  struct OnDevice {
    std::shared_ptr<Budget::Account> queue = std::make_shared<Budget::Account>();
    std::shared_ptr<Budget::Account> staging = std::make_shared<Budget::Account>();
    // The last scan in which a request lacked the resource.
    std::array<uint64_t, kResources> lacked{};  // Guarded by Admission's mu_.
  };

  const std::shared_ptr<Account> identity_;
  const std::shared_ptr<Budget::Account> host_ = std::make_shared<Budget::Account>();
  std::vector<OnDevice> devices_;
  std::atomic<uint64_t> tickets_{0};  // Tickets with tasks.
};

// What a plan needs.
struct Needs {
  uint32_t device = 0;
  // The engine that staging memory is allocated from.
  std::shared_ptr<EngineSession> session;
  // Tasks of a batch; 0 for a piece of a transfer, which takes neither quota nor queue.
  uint64_t tasks = 0;
  uint64_t staging_bytes = 0;
  // The daemon's own memory.
  uint64_t host_bytes = 0;
  Budget::Purpose purpose = Budget::Purpose::kBatches;
  // Additional host memory for a version on trial; if it is refused, the batch runs without the
  // trial.
  uint64_t trial_bytes = 0;
  // The ticket is held for as long as a lane is open (server/lanes/lane.h): for tasks that are
  // submitted at any time meanwhile, each of which enters the gate itself. A drain does not wait
  // for the ticket, and requests of the client that lack quota do not wait for it either.
  bool standing = false;
  // What else the request needs; null: nothing. A request that waits for this does not hold back
  // other requests of its client.
  std::shared_ptr<Lender> lender;
};

class Ticket {
 public:
  Ticket() = default;
  ~Ticket() { Release(); }
  Ticket(Ticket&& other) noexcept { *this = std::move(other); }
  Ticket& operator=(Ticket&& other) noexcept;

  // Null if none was needed.
  const StagingMemory* staging() const { return staging_.get(); }
  // Whether there is memory for the trial.
  bool trial() const { return trial_; }
  // What Needs::lender has lent.
  void* loan() const { return loan_.get(); }

  // The tasks have ended: the client may use its queue again, and the identity its quota. Requests
  // that wait for these are tried when the rest is released.
  void EndTasks();
  // Takes the daemon's memory out of the ticket, as a charge of `bytes` for an answer.
  Budget::Charge TakeAnswer(uint64_t bytes);
  // Takes the charge out without changing it.
  Budget::Charge TakeHost() { return std::move(host_charge_); }
  // Releases everything.
  void Release();

 private:
  friend class Admission;
  // Same as Release, but without trying the requests that wait.
  void Undo();
  void ReleaseTasks();

  Admission* admission_ = nullptr;
  std::shared_ptr<ClientAccounts> client_;
  uint64_t quota_tasks_ = 0;
  DrainGate::Entry entry_;
  bool begun_ = false;
  bool trial_ = false;
  Budget::Charge queue_charge_;
  std::shared_ptr<const StagingMemory> staging_;
  Budget::Charge staging_charge_;
  Budget::Charge host_charge_;
  std::shared_ptr<void> loan_;
};

class Admission {
 public:
  static constexpr std::chrono::milliseconds kPollInterval{20};

  // What a caller waits with; see below.
  class Wait;

  using Done = std::function<void(absl::StatusOr<Ticket> ticket)>;
  using Post = std::function<void(std::function<void()> work)>;

  // `time`: for the deadlines of requests; outlives this object.
  Admission(const Limits& limits, DrainGate* gate, TimeSource& time);
  // REQUIRES: no ticket is left.
  ~Admission() { Stop(); }
  Admission(const Admission&) = delete;
  Admission& operator=(const Admission&) = delete;

  // REQUIRES: called before all other members, in the order of the devices' indices.
  void AddDevice(uint64_t staging_bytes);
  // `post` runs its argument on another thread. Requests can wait from now on.
  void Start(Post post);
  // Refuses the requests that wait. No request waits from now on.
  void Stop();

  // RESOURCE_EXHAUSTED: a resource is not free now; the message names it. UNAVAILABLE: the daemon
  // drains.
  absl::StatusOr<Ticket> TryAcquire(const std::shared_ptr<ClientAccounts>& client,
                                    const Needs& needs);
  // Calls `done` once. Errors: RESOURCE_EXHAUSTED (the request can never be admitted), UNAVAILABLE
  // (the daemon drains), DEADLINE_EXCEEDED, CANCELLED (`wait` was cancelled before the request
  // began to wait). REQUIRES: no request waits with `wait`, which is valid until `done` is called.
  void Acquire(Wait& wait, std::shared_ptr<ClientAccounts> client, Needs needs,
               Clock::time_point deadline, Done done);

  // Takes memory of the daemon for a run of a graph or a graph session. Does not wait.
  // RESOURCE_EXHAUSTED.
  absl::StatusOr<Budget::Charge> AcquireForGraph(const ClientAccounts& client, uint64_t bytes,
                                                 Budget::Purpose purpose);

  // Returns false if the client's next request may be read now. Otherwise returns true, and calls
  // `done` once it may be read, unless `wait` is cancelled. Replaces what waits with `wait`.
  bool WaitToRead(Wait& wait, std::shared_ptr<ClientAccounts> client, std::function<void()> done);

  // Tries the requests that wait, because something was released or the daemon drains.
  void Wake();

  Budget& host() { return host_; }
  const Budget& host() const { return host_; }
  // The size of a transfer's pieces, at most `max_bytes`: small enough that several pieces fit.
  uint64_t PieceBytes(uint32_t device, uint64_t max_bytes) const;
  uint64_t staging_used(uint32_t device) const { return devices_[device].staging.used(); }
  uint64_t staging_waiting(uint32_t device) const;

 private:
  friend class Ticket;
  struct OnDevice {
    OnDevice(Budget::Options queue_options, Budget::Options staging_options)
        : queue(std::move(queue_options)), staging(std::move(staging_options)) {}
    Budget queue;
    Budget staging;
  };
  struct Waiting {
    Wait* wait = nullptr;
    std::shared_ptr<ClientAccounts> client;
    Needs needs;
    bool to_read = false;
    Clock::time_point deadline = Clock::time_point::max();
    Done done;
    Resource lacking = Resource::kNone;
    Budget::Place place;
  };
  using Line = std::list<Waiting>;

  // Tries once. `*lacking`: the resource that is not free now; kNone if waiting does not help.
  // `waiting`: the request, if it has waited; null on the first try.
  absl::StatusOr<Ticket> Try(const std::shared_ptr<ClientAccounts>& client, const Needs& needs,
                             Waiting* waiting, Resource* lacking);
  absl::Status TakeTasks(const Needs& needs, Ticket& ticket, Resource* lacking);
  absl::Status TakeStaging(const Needs& needs, Budget::Place* place, Ticket& ticket,
                           Resource* lacking);
  absl::Status TakeHost(const Needs& needs, Ticket& ticket, Resource* lacking);
  static absl::Status TakeLoan(const Needs& needs, bool shared, Ticket& ticket, Resource* lacking);

  // Moves the only request of `one` to the line, unless its wait was cancelled, or none waits any
  // more.
  absl::Status Insert(Line& one) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Serve() ABSL_LOCKS_EXCLUDED(mu_);
  // Returns whether `*result` is final.
  bool TryWaiting(Waiting& waiting, Clock::time_point now, absl::StatusOr<Ticket>* result)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Remove(Line::iterator position, Line* removed) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Loop();

  const uint64_t max_queued_tasks_;
  DrainGate* const gate_;
  TimeSource& time_;
  Budget host_;
  std::deque<OnDevice> devices_;
  Post post_;

  std::atomic<uint64_t> waiting_count_{0};  // The size of `line_`.
  mutable absl::Mutex mu_;
  Line line_ ABSL_GUARDED_BY(mu_);
  uint64_t scan_ ABSL_GUARDED_BY(mu_) = 0;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;

  absl::Mutex wake_mu_;
  bool wake_ ABSL_GUARDED_BY(wake_mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(wake_mu_) = false;
  std::thread thread_;
};

// What a caller waits with: for one request at a time, until it is cancelled.
//
// A caller that ends cancels it, also if it does not know yet whether it has to wait: Cancel is
// permanent, so that a request that would begin to wait later is refused.
//
// Thread safety: all members may be called from any thread. REQUIRES: the Admission outlives it.
class Admission::Wait {
 public:
  explicit Wait(Admission& admission) : admission_(admission) {}
  // Cancels.
  ~Wait() {
    if (waiting_.load(std::memory_order_acquire)) Cancel();
  }
  Wait(const Wait&) = delete;
  Wait& operator=(const Wait&) = delete;

  // Refuses all further requests with CANCELLED. Returns whether one was waiting: its `done` is not
  // called. If not, the `done` of a request that was made is called, if it was not yet: its result
  // may be a ticket.
  bool Cancel();

 private:
  friend class Admission;

  Admission& admission_;
  // Set with Admission's mu_.
  std::atomic<bool> cancelled_{false};
  std::atomic<bool> waiting_{false};
  Line::iterator position_;  // Of the request that is waiting.
};

}  // namespace resident

#endif  // RESIDENT_SERVER_ADMISSION_ADMISSION_H_
