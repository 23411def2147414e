// Graphs: what the calls of resident.v1.Graphs share. The console and the metrics read it too.
//
// The graph sessions of a client end with its session. The core and the buffers outlive this
// object; REQUIRES: no call of theirs is left when it is destroyed.
//
// Thread safety: that of each member.
#ifndef RESIDENT_SERVER_GRAPHS_GRAPHS_H_
#define RESIDENT_SERVER_GRAPHS_GRAPHS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "kernels/graph/graph_task.h"
#include "resident/v1/graphs.pb.h"
#include "runtime/graph/graph.h"
#include "server/buffers/buffers.h"
#include "server/core/core.h"
#include "server/core/viewer.h"
#include "server/graphs/graph_checker.h"
#include "server/graphs/graph_quanta.h"
#include "server/graphs/graph_sessions.h"
#include "server/graphs/graph_store.h"

namespace resident {

// RecentTraces: what the workers did in the last traced runs of graphs, for the console. A trace
// also goes to the client that asked for it.
//
// Bounded: kMaxTraces runs, each with the first kMaxEvents events and names of kMaxNameBytes, so
// that all of them take at most about 3 MB.
//
// Thread safety: all members may be called from any thread.
class RecentTraces {
 public:
  static constexpr size_t kMaxTraces = 8;
  static constexpr size_t kMaxEvents = 4096;
  static constexpr size_t kMaxNameBytes = 32;

  struct Node {
    std::string name;
    std::string operator_name;
  };
  struct Trace {
    uint64_t number = 0;  // From 1 on.
    int64_t time_ms = 0;  // Since 1970, of its first part.
    std::string graph;
    std::map<uint32_t, Node> nodes = {};  // Those with an event.
    std::vector<GraphTraceEvent> events = {};
    uint64_t dropped = 0;  // Events that are not kept.
  };

  // `keep`: whether traces are kept at all.
  explicit RecentTraces(bool keep) : keep_(keep) {}

  // Adds a part of a run's trace. `number`: 0 for the run's first part, and set here.
  void Add(const graph::Graph& graph, const std::vector<GraphTraceEvent>& events, uint64_t* number)
      ABSL_LOCKS_EXCLUDED(mu_);
  // The newest first.
  std::vector<Trace> List() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  const bool keep_;
  mutable absl::Mutex mu_;
  uint64_t last_number_ ABSL_GUARDED_BY(mu_) = 0;
  std::deque<Trace> traces_ ABSL_GUARDED_BY(mu_);
};

struct GraphsOptions {
  // --graphs_in_engine: whether engines that can do so execute graphs themselves.
  bool in_engine = true;
  // Whether the traces of the last runs are kept for the console.
  bool keep_traces = false;
};

// What GraphQuanta needs.
QuantumSources MakeQuantumSources(Core& core);

struct Graphs {
  explicit Graphs(Buffers& buffers, const GraphsOptions& options = {});
  Graphs(const Graphs&) = delete;
  Graphs& operator=(const Graphs&) = delete;

  void Describe(LoadedGraph& graph, const Viewer& viewer, v1::LoadedGraph* out) const;

  Core& core;
  const Buffers& buffers;
  const bool in_engine;
  GraphStore store;
  // It frees buffers.
  GraphSessions sessions;
  RecentTraces traces;
  GraphChecker checker;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_GRAPHS_GRAPHS_H_
