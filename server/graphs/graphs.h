// Graphs: what the calls of resident.v1.Graphs share. The console and the metrics read it too.
//
// The graph sessions of a client end with its session. The core and the buffers outlive this
// object; REQUIRES: no call of theirs is left when it is destroyed.
//
// Thread safety: that of each member.
#ifndef RESIDENT_SERVER_GRAPHS_GRAPHS_H_
#define RESIDENT_SERVER_GRAPHS_GRAPHS_H_

#include "resident/v1/graphs.pb.h"
#include "server/buffers/buffers.h"
#include "server/core/core.h"
#include "server/core/viewer.h"
#include "server/graphs/graph_checker.h"
#include "server/graphs/graph_quanta.h"
#include "server/graphs/graph_sessions.h"
#include "server/graphs/graph_store.h"
#include "server/graphs/recent_traces.h"

namespace resident {

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
