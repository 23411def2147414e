// GraphProfile: where the time of a run of a graph goes: by operator, on the critical path of each
// step, and as a file for Perfetto (https://ui.perfetto.dev) and Chrome's chrome://tracing.
//
// The critical path of a step is found from its end. It begins with the chunk that ended last. The
// chunk before a chunk is the one that ended last among those after which it could begin: the
// chunks of the nodes for which its node waits, and the one before it on the same worker. So the
// path covers the time from the beginning of its first chunk to the end of the step: work of its
// chunks, and gaps between them, in which nothing on the path was executed.
//
// Nodes that are executed together (GraphFusion) are the last one of them, with all for which they
// wait.
//
//   GraphProfile profile(graph, report);
//   client.RunGraph(request, nullptr, [&](const v1::GraphTrace& trace) { profile.Add(trace); });
//   for (const GraphProfile::Operator& op : profile.Operators(profile.CriticalPath())) ...
#ifndef RESIDENT_CLIENT_CLI_GRAPH_PROFILE_H_
#define RESIDENT_CLIENT_CLI_GRAPH_PROFILE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "resident/v1/graphs.pb.h"

namespace resident::cli {

class GraphProfile {
 public:
  // `report`: the graph's, with all dependencies.
  GraphProfile(const v1::Graph& graph, const v1::GraphReport& report);

  void Add(const v1::GraphTrace& trace);

  // A chunk on the critical path of its step.
  struct PathPart {
    uint32_t event = 0;  // Index in events().
    // From the end of the part before it to its beginning, and from then, or from the end of the
    // part before it if that is later, to its end. They add up to the time of the path.
    uint64_t gap_ns = 0;
    uint64_t work_ns = 0;
  };
  // The paths of all steps, in the order of time.
  std::vector<PathPart> CriticalPath() const;

  struct Operator {
    std::string name;
    uint64_t chunks = 0;
    // Sums over its chunks: of their time, of the time for which their workers looked for work
    // before them, and of their work on the critical path.
    uint64_t work_ns = 0;
    uint64_t wait_ns = 0;
    uint64_t critical_ns = 0;
  };
  // The one with most work first.
  std::vector<Operator> Operators(const std::vector<PathPart>& path) const;

  // The trace as JSON: a track for each worker, a slice for each chunk.
  std::string PerfettoJson(const std::vector<PathPart>& path) const;

  const std::vector<v1::GraphTraceEvent>& events() const { return events_; }
  // Counts the workers that executed something.
  size_t CountWorkers() const;

 private:
  // Replaces nodes that are executed together by the last one.
  void Fuse(const v1::GraphReport& report);
  std::string NodeName(uint32_t node) const;
  const std::string& OperatorName(uint32_t node) const;

  const v1::Graph& graph_;
  // Names of the streams, in the order of the graph's tensors.
  std::vector<std::string> streams_;
  // By node, and then by stream for the copies of records: the operator that executes it.
  std::vector<std::string> operators_;
  // The same: the nodes for which it waits.
  std::vector<std::vector<uint32_t>> waits_for_;
  std::vector<v1::GraphTraceEvent> events_;
};

}  // namespace resident::cli

#endif  // RESIDENT_CLIENT_CLI_GRAPH_PROFILE_H_
