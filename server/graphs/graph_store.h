// GraphStore: the task graphs that callers have loaded, by the hash of their content.
//
// A graph has one or more holders: the identities that have loaded it. It is in the table until
// the last one unloads it; runs and graph sessions keep it longer. With a state folder, graphs and
// their holders are there before Load returns, and are restored at the next start.
//
//                    Load                             an operator changed
//   (not in table) ───────▶ READY ──────────────────────────────────────────▶ STALE
//                             ▲                                                 │
//   restored: UNCHECKED ──────┴── checked again before a run, and accepted ◀────┘
//
// A run of a graph that is READY checks nothing: the revisions of its operators are compared with
// those at the last check. If one has changed, its signature and split are compared, and only if
// these have changed too is the graph checked again. It is also checked again, while it stays
// READY, if other nodes of it can be fused with the operators that serve now
// (runtime/graph/fuse.h).
//
// Invariants:
//   1. The content of a graph never changes, so that indices of its tensors and scalars stay valid
//      when it is checked again.
//   2. A graph in the table has at least one holder, each with a slot and a charge for its content.
//      When the last one unloads it, the graph keeps that charge until its last user ends.
//   3. Each checked form of a graph has a charge of its own, which ends with its last user.
//
// Thread safety: all members may be called from any thread. Load, Unload and Restore wait for the
// disk of the state folder; Load and LoadedGraph::Check may take seconds.
//
//   ASSIGN_OR_RETURN(const auto graph, store.Find(id));
//   auto checked = graph->FindChecked(registry);               // Null: it must be checked.
//   if (checked == nullptr) ASSIGN_OR_RETURN(checked, graph->Check(registry));
#ifndef RESIDENT_SERVER_GRAPHS_GRAPH_STORE_H_
#define RESIDENT_SERVER_GRAPHS_GRAPH_STORE_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "resident/v1/graphs.pb.h"
#include "runtime/graph/check.h"
#include "runtime/graph/finding.h"
#include "runtime/operators/registry/registry.h"
#include "runtime/state/state_store.h"
#include "server/admission/budget.h"
#include "server/core/shared_slots.h"

namespace resident {

// Equal messages give equal bytes: the fields in the order of their numbers, and no maps.
std::string SerializeGraph(const v1::Graph& message);

// The status of a call whose graph was refused: its first error.
absl::Status GraphRefusal(const graph::Findings& findings);

class LoadedGraph {
 public:
  using Checked = std::shared_ptr<const graph::CheckedGraph>;
  // The operators on which the checked graph depends, each once, with their revisions
  // (Registry::Revision).
  using Revisions = std::vector<std::pair<std::string, uint64_t>>;

  // `content`: the serialized message. `memory`, `account`: checked forms are charged to them.
  // `memory` must outlive this object and its checked forms.
  LoadedGraph(std::string id, std::string content, const v1::Graph& message, Budget& memory,
              std::shared_ptr<Budget::Account> account)
      : id_(std::move(id)),
        content_(std::move(content)),
        name_(message.name()),
        nodes_(static_cast<uint64_t>(message.nodes_size())),
        memory_(memory),
        account_(std::move(account)) {}

  const std::string& id() const { return id_; }
  const std::string& name() const { return name_; }
  const std::string& content() const { return content_; }
  uint64_t nodes() const { return nodes_; }

  // The checked graph if its operators are those of the last check; null: call Check. A graph that
  // was refused with the present operators is refused again.
  absl::StatusOr<Checked> FindChecked(const Registry& registry) ABSL_LOCKS_EXCLUDED(mu_);
  // Checks the graph again. FAILED_PRECONDITION: it is stale (GRAPH_E704). RESOURCE_EXHAUSTED: the
  // checked form does not fit into the memory for loaded graphs. CANCELLED: the check has ended for
  // a reason that is not the graph's.
  absl::StatusOr<Checked> Check(const Registry& registry, graph::CheckBudget& budget)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Uses the result of a check, unless the graph has one of the same operators; returns the one
  // that it has now. `revisions`: those before the check began. RESOURCE_EXHAUSTED: as in Check.
  absl::StatusOr<Checked> SetChecked(graph::CheckedGraph checked, Revisions revisions)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Keeps a charge for the content, which ends with the last reference to this object.
  void Keep(Budget::Charge charge) ABSL_LOCKS_EXCLUDED(mu_);
  static Revisions ReadRevisions(const v1::Graph& graph, const Registry& registry);

  v1::LoadedGraph::State FindState(const Registry& registry) ABSL_LOCKS_EXCLUDED(mu_);
  // The daemon's memory.
  uint64_t memory_bytes() const ABSL_LOCKS_EXCLUDED(mu_);

  // Figures for List.
  std::atomic<uint64_t> runs{0};
  std::atomic<uint64_t> steps{0};
  std::atomic<uint64_t> sessions{0};

 private:
  // Sets the revisions to the present ones. Returns whether they have changed.
  bool UpdateRevisions(const Registry& registry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::string id_;
  const std::string content_;
  const std::string name_;
  const uint64_t nodes_;
  Budget& memory_;
  const std::shared_ptr<Budget::Account> account_;

  mutable absl::Mutex mu_;
  // The last check that was accepted, if it still fits the operators of `revisions_`.
  Checked checked_ ABSL_GUARDED_BY(mu_);
  // Whether nodes are to be fused anew, because a version of an operator in FusionOperators() came
  // or went since the last check.
  bool fuse_again_ ABSL_GUARDED_BY(mu_) = false;
  // The error of the last check, if it refused the graph with the operators of `revisions_`.
  absl::Status refused_ ABSL_GUARDED_BY(mu_);
  Revisions revisions_ ABSL_GUARDED_BY(mu_);
  // Whether there was a check.
  bool was_checked_ ABSL_GUARDED_BY(mu_) = false;
  Budget::Charge content_charge_ ABSL_GUARDED_BY(mu_);
};

class GraphStore {
 public:
  GraphStore();

  // The identity of a caller, and the holder of its slots (NameHolder).
  struct Caller {
    std::string name;
    std::string slots;
  };

  // Stores graphs in the state folder from now on, and adds those that are there, unchecked. Call
  // it once, before the other members. Returns warnings about graphs that could not be read.
  std::vector<std::string> Restore(StateStore* state);

  struct Added {
    std::shared_ptr<LoadedGraph> graph;
    bool already_loaded = false;
  };
  // Adds the caller as a holder of an accepted graph. `revisions`: those before the check. Errors:
  // RESOURCE_EXHAUSTED, and those of StateStore::PutGraph; then nothing has changed.
  absl::StatusOr<Added> Load(const Caller& caller, const v1::Graph& message,
                             graph::CheckedGraph checked, LoadedGraph::Revisions revisions)
      ABSL_LOCKS_EXCLUDED(save_mu_, mu_);
  // Ends the hold of the caller, or all of them. Returns whether the graph was removed. NOT_FOUND,
  // PERMISSION_DENIED (the caller does not hold it), and errors of the state folder; then nothing
  // has changed.
  absl::StatusOr<bool> Unload(const std::string& id, const std::string& caller, bool for_all)
      ABSL_LOCKS_EXCLUDED(save_mu_, mu_);

  // NOT_FOUND.
  absl::StatusOr<std::shared_ptr<LoadedGraph>> Find(const std::string& id) const;
  // All graphs, by name and id.
  std::vector<std::shared_ptr<LoadedGraph>> List() const;
  // The holders' names, sorted, with the time of each in milliseconds since 1970.
  std::map<std::string, int64_t> Holders(const std::string& id) const;

  uint64_t count() const;
  uint64_t bytes() const { return memory_.used(); }

 private:
  struct Holder {
    int64_t loaded_ms = 0;
    SharedSlots::Ticket slot;
    Budget::Charge content;
  };
  struct Entry {
    std::shared_ptr<LoadedGraph> graph;
    std::map<std::string, Holder> holders;
  };

  absl::StatusOr<Holder> TakeHold(const Caller& caller, uint64_t bytes) ABSL_LOCKS_EXCLUDED(mu_);
  std::shared_ptr<Budget::Account> FindAccount(const std::string& name) ABSL_LOCKS_EXCLUDED(mu_);
  static StoredGraph Describe(const std::string& id, const Entry& entry);

  SharedSlots slots_;
  Budget memory_;
  StateStore* state_ = nullptr;  // Null: graphs are not stored.
  // Held during a change of the table, so that the state folder has the changes in the same order.
  absl::Mutex save_mu_ ABSL_ACQUIRED_BEFORE(mu_);
  mutable absl::Mutex mu_;
  absl::flat_hash_map<std::string, Entry> graphs_ ABSL_GUARDED_BY(mu_);
  // What each caller holds of `memory_`.
  absl::flat_hash_map<std::string, std::shared_ptr<Budget::Account>> accounts_ ABSL_GUARDED_BY(mu_);
};

}  // namespace resident

#endif  // RESIDENT_SERVER_GRAPHS_GRAPH_STORE_H_
