// Errors of calls about task graphs. What is wrong with a graph itself is a finding
// (runtime/graph/finding.h).
//
// Thread safety: functions without state.
#ifndef RESIDENT_SERVER_GRAPHS_ERRORS_H_
#define RESIDENT_SERVER_GRAPHS_ERRORS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace resident::errors {

absl::Status NoGraph();
// A format of a picture that does not exist.
absl::Status UnknownDrawingFormat(int format);
// No graph of this id is loaded.
absl::Status UnknownGraph(const std::string& id);
// A caller unloads a graph that it does not hold. `name`: the caller's.
absl::Status GraphOfOthers(const std::string& id, const std::string& name);
absl::Status UnloadForAllNeedsAdmin(const std::string& name);
// `bytes`: of the graph; `used`: of all graphs.
absl::Status GraphMemoryFull(uint64_t bytes, uint64_t used, uint64_t limit);
// An operator of a loaded graph was removed or has another signature. `finding`: as below.
// An operator was removed and installed again during a run.
absl::Status OperatorChangedInRun(const std::string& op);
absl::Status StaleGraph(const std::string& id, const std::string& finding);
// The client has no such graph session.
absl::Status UnknownGraphSession(const std::string& id);
absl::Status GraphSessionBusy(const std::string& id);
// `step`: index of the step that was interrupted, counted from the session's first step.
absl::Status GraphSessionInterrupted(const std::string& id, uint64_t step);
absl::Status GraphSessionLost(const std::string& id, uint32_t device, const std::string& cause);
// `finding`: the first error, with its code; `others`: the number of the others.
absl::Status GraphRefused(const std::string& finding, uint64_t others);
absl::Status TooManyNodesToRun(uint64_t count, uint64_t limit);
// A binding of a tensor that must not have it, or of none. `fix`: "bind an input".
absl::Status BadBinding(const std::string& tensor, const std::string& what, const std::string& fix);
// A run of a graph session requests a device other than the session's.
absl::Status GraphSessionOnOtherDevice(uint32_t device, uint32_t wanted);
// A weight, constant or input without memory.
absl::Status NotBound(const std::string& kind, const std::string& tensor, const std::string& fix);
absl::Status BadRunScalar(const std::string& scalar, const std::string& what,
                          const std::string& fix);
// Several buffers have the name of a tensor.
absl::Status AmbiguousBufferName(const std::string& tensor, uint64_t first, uint64_t second);
// `what`: "outputs of the graph have".
absl::Status GraphAnswerTooLarge(const std::string& what, uint64_t bytes, uint64_t limit);
absl::Status TooManyDependenciesToRun(uint64_t count, uint64_t limit);
// A run that should be traced is executed node by node. `why`: "its engine does not ...".
absl::Status NoGraphTrace(const std::string& why, const std::string& fix);
// A step that the engine was executing ended without a result of a node.
absl::Status StepFailed(absl::StatusCode code, uint64_t step, const std::string& what);
// The node of a run that failed.
struct FailedNode {
  std::string node;
  // The nodes that its operator executes, too: "norm, #7"; empty: none.
  std::string fused_with = {};
  std::string operator_name;
  // The version that the graph names, and the one that was executed; 0: none.
  uint32_t wanted_version = 0;
  uint32_t version = 0;
  uint64_t step = 0;
};
// `what`: the error of the node's task. The reason, NODE_FAILED, has the fields of FailedNode.
absl::Status NodeFailed(absl::StatusCode code, const FailedNode& failed, const std::string& what);

}  // namespace resident::errors

#endif  // RESIDENT_SERVER_GRAPHS_ERRORS_H_
