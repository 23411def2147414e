// LaneTable: all open lanes (lane.h): opens and closes them, binds buffers and prepares calls,
// hands their memory over, and waits for the doorbells and the ends of their clients.
//
//   Open ──▶ waits for its client ──Attach, Adopt──▶ attached ──▶ closed
//                 └──── kLaneTokenMs ──────────────────────────────▲
//
// A lane is closed by its client (the stream of Lanes.Open, or the socket), by the end of its
// session, by the daemon (drain, withdrawn credential), or because of what its client does (limits
// of refusals and of page faults).
//
// The thread "resident-lanes" reads the doorbells. A client that rings without a submission is not
// listened to for a while, at first kMinMute, doubling to kMaxMute. Every kTick the thread also
// looks at lanes that are asleep, so that no wake-up is lost for longer, and drops versions that no
// longer serve.
//
// Thread safety: all members may be called from any thread; OnSessionEnd of Core's clients must be
// set before the first call, by the constructor. Locks: Entry::change_mu, mu_. No callback is
// called with one of them.
#ifndef RESIDENT_SERVER_LANES_LANE_TABLE_H_
#define RESIDENT_SERVER_LANES_LANE_TABLE_H_

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "resident/v1/lanes.pb.h"
#include "runtime/base/process/unique_fd.h"
#include "runtime/base/process/wake_event.h"
#include "server/connections/local_socket.h"
#include "server/core/core.h"
#include "server/core/shared_slots.h"
#include "server/lanes/lane.h"

namespace resident {

class LaneTable {
 public:
  static constexpr std::chrono::milliseconds kTick{100};
  // How often it looks at a sleeping lane that waits for a stream word, which a device writes
  // without ringing.
  static constexpr std::chrono::milliseconds kAwaitTick{1};
  static constexpr std::chrono::milliseconds kMinMute{1};
  static constexpr std::chrono::milliseconds kMaxMute{100};
  // Doorbells without a submission, within kMaxMute, before a client is not listened to.
  static constexpr uint32_t kFreeRings = 16;

  // Called once when a lane has ended, with the reason; OK: its client closed it.
  using Ended = std::function<void(const absl::Status& status)>;

  struct Options {
    uint32_t max_lanes = 256;
    std::chrono::milliseconds task_time_limit{0};  // --task_time_limit.
  };
  // The core must outlive it.
  LaneTable(Core& core, const Options& options);
  // Closes all lanes.
  ~LaneTable();
  LaneTable(const LaneTable&) = delete;
  LaneTable& operator=(const LaneTable&) = delete;

  // Errors: see Lanes.Open. On success `ended` follows once, unless Close was called.
  absl::Status Open(const std::shared_ptr<Client>& client, const v1::OpenLaneRequest& request,
                    Ended ended, v1::OpenLaneResponse* response);
  // Ends a lane, without `ended`. Does nothing if it has ended.
  void Close(uint64_t lane_id);

  // Errors: see the calls of resident.v1.Lanes.
  absl::Status Bind(const Client& client, const v1::BindLaneRequest& request,
                    v1::BindLaneResponse* response);
  absl::Status Prepare(const Client& client, const v1::PrepareLaneRequest& request,
                       v1::PrepareLaneResponse* response);
  absl::Status Release(const Client& client, const v1::ReleaseLaneRequest& request);

  // Gives a lane's memory to the process that has its token. Errors: NOT_FOUND.
  absl::StatusOr<LocalSocket::HandOver> Attach(const std::string& token);

  // Applies the rights of the lane's client to its calls.
  void Recheck(uint64_t lane_id);
  // The buffers of the device are on the session's engine.
  void OnRestart(uint32_t device, const std::shared_ptr<EngineSession>& session);
  // What clients have submitted and the daemon has not read ends as UNAVAILABLE.
  void BeginDrain();

  // Open lanes of a device.
  uint64_t CountOn(uint32_t device) const;
  // Of a client's lanes.
  struct Figures {
    uint64_t lanes = 0;
    uint64_t slots = 0;
    uint64_t calls = 0;
    uint64_t buffers = 0;
    uint64_t refused = 0;
  };
  Figures OfClient(ClientId client) const;
  const LaneCounters& counters(uint32_t device) const { return counters_[device]; }

 private:
  struct Entry {
    uint64_t id = 0;
    std::shared_ptr<Client> client;
    std::shared_ptr<Lane> lane;
    Device* device = nullptr;
    SharedSlots::Ticket slot;
    Ended ended;
    std::string token;
    Clock::time_point token_expires;

    // Serialises the changes of the lane's bindings.
    absl::Mutex change_mu;
    bool closed ABSL_GUARDED_BY(change_mu) = false;
    std::vector<Ticket> call_tickets ABSL_GUARDED_BY(change_mu);  // By call.
    uint64_t argument_bytes ABSL_GUARDED_BY(change_mu) = 0;       // Of a task; the largest call's.

    // Guarded by the table's mu_. The lane's thread uses the socket.
    UniqueFd socket;
    uint32_t rings = 0;  // Without a submission, since `rings_since`.
    Clock::time_point rings_since;
    Clock::time_point muted_until;  // In the past: it is listened to.
    bool muted = false;
    std::chrono::milliseconds mute{0};
  };
  using EntryPtr = std::shared_ptr<Entry>;

  absl::Status CheckOpen(const Client& client, const v1::OpenLaneRequest& request) const;
  absl::StatusOr<EntryPtr> Find(const Client& client, uint64_t lane_id) const;
  std::vector<EntryPtr> List() const;
  PreparedCall::Sources MakeSources(const Entry& entry,
                                    const std::shared_ptr<EngineSession>& session) const;
  // Gives the bindings memory for ranges of calls with so many words, if there is some.
  void GrowBlocks(const Entry& entry, size_t words, LaneBindings& bindings);
  // Moves the lane's bindings to the session's engine.
  void MoveTo(Entry& entry, const std::shared_ptr<EngineSession>& session);
  // The client has the memory: the lane begins.
  void Adopt(const EntryPtr& entry, UniqueFd connection);
  // Why the lanes of a session end with it: DRAINING or UNKNOWN_SESSION.
  absl::Status SessionEnded(const std::string& session) const;
  // Closes the lane; `status`: null if `ended` is not called.
  void End(const EntryPtr& entry, const absl::Status* status);

  void Loop();
  void OnEvent(uint64_t lane_id, uint32_t events);
  // Reads what the client has sent. Returns false if it has gone.
  bool ReadDoorbell(Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Listen(Entry& entry, bool doorbell) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Tick(Clock::time_point now);
  // Until when the thread may sleep, in ms; -1: any time.
  int NextWakeup(Clock::time_point now) const;

  Core& core_;
  const Options options_;
  SharedSlots slots_;
  std::deque<LaneCounters> counters_;  // By device.

  mutable absl::Mutex mu_;
  absl::flat_hash_map<uint64_t, EntryPtr> lanes_ ABSL_GUARDED_BY(mu_);  // By id.
  uint64_t next_id_ ABSL_GUARDED_BY(mu_) = 1;
  // By device: the newest engine that has its buffers; null: the first one.
  std::vector<std::shared_ptr<EngineSession>> restarted_ ABSL_GUARDED_BY(mu_);
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  // Lanes to close, with the reason (Lane::Host::refuse).
  absl::Mutex refused_mu_;
  std::vector<std::pair<uint64_t, absl::Status>> refused_ ABSL_GUARDED_BY(refused_mu_);

  UniqueFd epoll_;
  WakeEvent wake_;
  uint64_t seen_changes_ = 0;  // Used by the thread only.
  std::thread thread_;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_LANES_LANE_TABLE_H_
