#include "server/graphs/errors.h"

#include "absl/strings/str_cat.h"
#include "runtime/base/errors/quote.h"
#include "runtime/base/errors/reason.h"

namespace resident::errors {

using absl::StrCat;

absl::Status NoGraph() {
  return absl::InvalidArgumentError("the request has no graph. Fix: set the field `graph`");
}

absl::Status UnknownDrawingFormat(int format) {
  return absl::InvalidArgumentError(
      StrCat("format ", format, " of a picture is not known. Fix: use FORMAT_DOT or FORMAT_SVG"));
}

absl::Status UnknownGraph(const std::string& id) {
  return absl::NotFoundError(StrCat("no graph with the id ", Quote(id),
                                    " is loaded. Fix: list the loaded graphs, or load it"));
}

absl::Status GraphOfOthers(const std::string& id, const std::string& name) {
  return absl::PermissionDeniedError(StrCat("graph ", id, " was not loaded by ", Quote(name),
                                            ". Fix: leave it to those who loaded it, or let an "
                                            "administrator unload it for all"));
}

absl::Status UnloadForAllNeedsAdmin(const std::string& name) {
  return absl::PermissionDeniedError(
      StrCat("unloading a graph for all callers needs the role "
             "'admin', which ",
             Quote(name),
             " does not have. Fix: omit `for_all`, or let an "
             "administrator call"));
}

absl::Status GraphMemoryFull(uint64_t bytes, uint64_t used, uint64_t limit) {
  return absl::ResourceExhaustedError(
      StrCat("the graph needs ", bytes, " bytes of the daemon's memory; loaded graphs use ", used,
             " of ", limit,
             " bytes, of which a caller leaves a part to others. Fix: unload graphs that are not "
             "needed, and close their sessions"));
}

absl::Status OperatorChangedInRun(const std::string& op) {
  return absl::FailedPreconditionError(
      StrCat("operator ", Quote(op),
             " was replaced during the run by one with another signature. "
             "Fix: adapt the graph to it"));
}

absl::Status StaleGraph(const std::string& id, const std::string& finding) {
  return absl::FailedPreconditionError(
      StrCat("GRAPH_E704: the operators of graph ", id,
             " have changed since it was loaded, and it does not fit them: ", finding));
}

absl::Status UnknownGraphSession(const std::string& id) {
  return absl::NotFoundError(StrCat("this client has no graph session ", Quote(id),
                                    ". Fix: list the client's graph sessions, or open one"));
}

absl::Status GraphSessionBusy(const std::string& id) {
  return absl::FailedPreconditionError(
      StrCat("graph session ", id,
             " is used by a run or a copy, and cannot be copied meanwhile. Fix: wait for its end"));
}

absl::Status GraphSessionInterrupted(const std::string& id, uint64_t step) {
  return absl::FailedPreconditionError(
      StrCat("graph session ", id, " was interrupted in step ", step,
             ", which may have written a part of its states. Fix: set repeat_interrupted if the "
             "step may be repeated, otherwise open another session"));
}

absl::Status GraphSessionLost(const std::string& id, uint32_t device, const std::string& cause) {
  return absl::FailedPreconditionError(
      StrCat("the states of graph session ", id, " were lost with the engine of device ", device,
             cause.empty() ? "" : StrCat(" (", cause, ")"), ". Fix: open another session"));
}

absl::Status GraphRefused(const std::string& finding, uint64_t others) {
  return absl::InvalidArgumentError(
      StrCat("the graph is refused: ", finding,
             others == 0 ? "" : StrCat(" (Graphs.Validate lists ", others, " more)")));
}

absl::Status TooManyNodesToRun(uint64_t count, uint64_t limit) {
  return absl::InvalidArgumentError(StrCat("the graph has ", count, " nodes, and one of at most ",
                                           limit, " can run. Fix: divide it"));
}

absl::Status BadBinding(const std::string& tensor, const std::string& what,
                        const std::string& fix) {
  return absl::InvalidArgumentError(
      StrCat("binding of tensor ", Quote(tensor), ": ", what, ". Fix: ", fix));
}

absl::Status GraphSessionOnOtherDevice(uint32_t device, uint32_t wanted) {
  return absl::InvalidArgumentError(StrCat("the graph session is on device ", device,
                                           ", and the request is for device ", wanted,
                                           ". Fix: omit `device`"));
}

absl::Status NotBound(const std::string& kind, const std::string& tensor, const std::string& fix) {
  return absl::InvalidArgumentError(
      StrCat("tensor ", Quote(tensor), " is ", kind, " and has no memory. Fix: ", fix));
}

absl::Status BadRunScalar(const std::string& scalar, const std::string& what,
                          const std::string& fix) {
  return absl::InvalidArgumentError(StrCat("scalar ", Quote(scalar), " ", what, ". Fix: ", fix));
}

absl::Status AmbiguousBufferName(const std::string& tensor, uint64_t first, uint64_t second) {
  return absl::InvalidArgumentError(StrCat("buffers ", first, " and ", second,
                                           " both have the name ", Quote(tensor),
                                           " of a tensor. Fix: bind one of them"));
}

absl::Status GraphAnswerTooLarge(const std::string& what, uint64_t bytes, uint64_t limit) {
  return absl::InvalidArgumentError(StrCat("the ", what, " ", bytes, " bytes, and at most ", limit,
                                           " are returned. Fix: bind outputs to buffers, or return "
                                           "less in each step"));
}

absl::Status TooManyDependenciesToRun(uint64_t count, uint64_t limit) {
  return absl::InvalidArgumentError(StrCat("the graph has ", count,
                                           " dependencies, and one of at most ", limit,
                                           " can run. Fix: divide it"));
}

absl::Status NoGraphTrace(const std::string& why, const std::string& fix) {
  return absl::FailedPreconditionError(
      StrCat("the run cannot be traced, because ", why, ". Fix: ", fix));
}

absl::Status StepFailed(absl::StatusCode code, uint64_t step, const std::string& what) {
  return absl::Status(code, StrCat("step ", step, ": ", what));
}

absl::Status NodeFailed(absl::StatusCode code, const FailedNode& failed, const std::string& what) {
  const std::string wanted =
      failed.wanted_version == 0 ? std::string() : StrCat(" version ", failed.wanted_version);
  return WithReason(
      absl::Status(code, StrCat("node ", Quote(failed.node), " (", failed.operator_name, wanted,
                                ") failed in step ", failed.step, ": ", what)),
      {"NODE_FAILED",
       {{"node", failed.node},
        {"operator", failed.operator_name},
        {"version", StrCat(failed.version == 0 ? failed.wanted_version : failed.version)},
        {"step", StrCat(failed.step)}}});
}

}  // namespace resident::errors
