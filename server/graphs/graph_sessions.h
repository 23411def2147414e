// GraphSessions: the graph sessions of all clients. A graph session keeps the states and the
// scalars of a loaded graph between runs.
//
//          ┌──────── Take ───────▶ BUSY ── End, a step is incomplete ──▶ INTERRUPTED
//        READY ◀── End, complete ──┘ ▲                                        │
//                                    └────── Take(repeat_interrupted) ────────┘
//
// A session is used by one run or copy at a time. Runs wait for it in the order of their arrival,
// because a client that cancels a run does not learn when it has ended, and would otherwise not
// know when it may start the next one.
//
// A session that is closed stays usable for the run that uses it; its memory is freed with the last
// reference. Its graph counts open sessions only, so that a client that has closed one sees it at
// once.
//
// Thread safety: all members may be called from any thread. Callbacks are called without locks.
//
//   ASSIGN_OR_RETURN(const auto session, sessions.Find(client->id(), id));
//   GraphSessionUse use;
//   if (!use.Acquire(session, /*granted=*/[...] {...})) ... wait until granted is called ...
//   ASSIGN_OR_RETURN(GraphSessionState state, use.Take(/*repeat_interrupted=*/false));
//   ... run ...
//   use.End({.steps = 3, .scalars = {35}, .in_step = false});
#ifndef RESIDENT_SERVER_GRAPHS_GRAPH_SESSIONS_H_
#define RESIDENT_SERVER_GRAPHS_GRAPH_SESSIONS_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "runtime/graph/check.h"
#include "runtime/queue/device_queue.h"
#include "server/admission/budget.h"
#include "server/core/shared_slots.h"
#include "server/graphs/graph_store.h"
#include "server/graphs/graph_tasks.h"

namespace resident {

// What a graph session holds for its next run.
struct GraphSessionState {
  uint32_t device = 0;
  // Memory, by tensor; buffer 0: each run binds the tensor. All states have memory.
  std::vector<GraphPlace> places;
  // Values for the next run, by scalar, which may be out of range; nullopt: the run must set it.
  std::vector<std::optional<double>> scalars;
};

// What a run leaves.
struct GraphRunLeft {
  // Complete steps.
  uint64_t steps = 0;
  // Scalars of the step that follows them, which may be out of range.
  std::vector<double> scalars;
  // Whether that step has begun, so that it may have written a part of what it writes.
  bool in_step = false;
};

class GraphSessionUse;

class GraphSession {
 public:
  struct Memory {
    // The buffer with the states that are not in buffers of the client; 0: none.
    uint64_t state_buffer = 0;
    // Bytes of device memory that the session has allocated.
    uint64_t bytes = 0;
    // Frees the memory that the session has allocated for states, and that for weights and
    // constants, which forks share.
    std::shared_ptr<const void> states;
    std::shared_ptr<const void> constants;
    // The daemon's memory for the places.
    Budget::Charge host;
  };

  // `checked`: the graph when the session is opened.
  GraphSession(std::string id, ClientId client, std::shared_ptr<LoadedGraph> graph,
               LoadedGraph::Checked checked, GraphSessionState state, Memory memory,
               SharedSlots::Ticket slot)
      : id_(std::move(id)),
        client_(client),
        graph_(std::move(graph)),
        checked_(std::move(checked)),
        memory_(std::move(memory)),
        slot_(std::move(slot)),
        state_(std::move(state)) {}
  GraphSession(const GraphSession&) = delete;
  GraphSession& operator=(const GraphSession&) = delete;

  const std::string& id() const { return id_; }
  ClientId client() const { return client_; }
  const std::shared_ptr<LoadedGraph>& graph() const { return graph_; }
  // Its tensors and scalars; use graph() for a run.
  const LoadedGraph::Checked& checked() const { return checked_; }
  const Memory& memory() const { return memory_; }

  struct Snapshot {
    uint32_t device = 0;
    // See GraphSessionState.
    std::vector<std::optional<double>> scalars;
    bool busy = false;
    bool interrupted = false;
    uint64_t runs = 0;
    uint64_t steps = 0;
  };
  Snapshot snapshot() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  friend class GraphSessionUse;

  const std::string id_;
  const ClientId client_;
  const std::shared_ptr<LoadedGraph> graph_;
  const LoadedGraph::Checked checked_;
  const Memory memory_;
  const SharedSlots::Ticket slot_;

  mutable absl::Mutex mu_;
  GraphSessionState state_ ABSL_GUARDED_BY(mu_);
  // The use that has the session, null: none; and those that wait for it.
  const GraphSessionUse* user_ ABSL_GUARDED_BY(mu_) = nullptr;
  struct Waiting {
    const GraphSessionUse* use;
    std::function<void()> granted;
  };
  std::deque<Waiting> waiting_ ABSL_GUARDED_BY(mu_);
  bool interrupted_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t runs_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t steps_ ABSL_GUARDED_BY(mu_) = 0;
};

// The use of a session by one run or copy; its destructor ends it and changes nothing.
//
// Thread safety: Acquire comes first; then Leave may be called from any thread, and the others from
// the one that has the session.
class GraphSessionUse {
 public:
  GraphSessionUse() = default;
  ~GraphSessionUse() { End(); }
  GraphSessionUse(const GraphSessionUse&) = delete;
  GraphSessionUse& operator=(const GraphSessionUse&) = delete;

  // Whether the session is this use's now. Otherwise `granted` is called when it is, unless Leave
  // is called before; if it is null, this use does not wait. REQUIRES: called once.
  bool Acquire(std::shared_ptr<GraphSession> session, std::function<void()> granted);
  // Ends the waiting, if this use waits. `session`: the one of Acquire.
  void Leave(GraphSession& session) ABSL_LOCKS_EXCLUDED(session.mu_);
  // What the session holds. FAILED_PRECONDITION: it is interrupted, and `repeat_interrupted` is
  // false. REQUIRES: the session is this use's.
  absl::StatusOr<GraphSessionState> Take(bool repeat_interrupted);
  // Ends the use or the waiting. A run that executed nothing changes nothing.
  void End() { End({}); }
  void End(const GraphRunLeft& left);

 private:
  // Removes this use from those that wait. Returns whether it was one of them.
  bool Remove(GraphSession& session, std::function<void()>* granted) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(session.mu_);

  std::shared_ptr<GraphSession> session_;  // Null: none.
};

class GraphSessions {
 public:
  GraphSessions();

  std::string NewId() { return absl::StrCat("gs", next_.fetch_add(1) + 1); }
  // RESOURCE_EXHAUSTED. `holder`: see NameHolder.
  absl::StatusOr<SharedSlots::Ticket> TakeSlot(const std::string& holder) {
    return slots_.Take(holder);
  }
  // Adds a session if `is_open`, which is called with the table locked, says that its client's
  // session is open; otherwise the session would never be removed. Returns whether it was added.
  bool Add(std::shared_ptr<GraphSession> session, const std::function<bool()>& is_open);
  // NOT_FOUND: the client has no such session.
  absl::StatusOr<std::shared_ptr<GraphSession>> Find(ClientId client, const std::string& id) const;
  absl::Status Close(ClientId client, const std::string& id);
  // In the order in which they were opened.
  std::vector<std::shared_ptr<GraphSession>> List(ClientId client) const;
  // The client's session has ended.
  void CloseAll(ClientId client);

  uint64_t count() const;
  // Device memory that the sessions have allocated.
  uint64_t bytes() const;

 private:
  SharedSlots slots_;
  std::atomic<uint64_t> next_{0};
  mutable absl::Mutex mu_;
  // The sessions of each client, by number of the id.
  absl::flat_hash_map<ClientId, std::map<std::string, std::shared_ptr<GraphSession>>> sessions_
      ABSL_GUARDED_BY(mu_);
};

}  // namespace resident

#endif  // RESIDENT_SERVER_GRAPHS_GRAPH_SESSIONS_H_
