// Builds the sources of a daemon's metrics page: each figure comes from the part that counts it.
//
// Thread safety: a function without state; for its result, see MetricsSources.
#ifndef RESIDENT_SERVER_METRICS_DAEMON_SOURCES_H_
#define RESIDENT_SERVER_METRICS_DAEMON_SOURCES_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "runtime/operators/install/operator_manager.h"
#include "server/auth/access_files.h"
#include "server/connections/listener.h"
#include "server/graphs/graphs.h"
#include "server/lanes/lane_table.h"
#include "server/metrics/metrics_sources.h"

namespace resident {

// OperatorEventCounter: counts the changes of operators since its construction, by kind of event.
//
// Counts the manager's own events, so that the metrics page, Watch and the audit log cannot
// disagree.
//
// Thread safety: counts() may be called from any thread.
class OperatorEventCounter {
 public:
  // The manager must outlive it.
  explicit OperatorEventCounter(OperatorManager* manager);
  ~OperatorEventCounter();
  OperatorEventCounter(const OperatorEventCounter&) = delete;

  // By name ("rolled_back"); includes every kind, also those without an event.
  std::map<std::string, uint64_t> counts() const;

 private:
  void Count();

  OperatorManager* const manager_;
  mutable absl::Mutex mu_;
  uint64_t after_ ABSL_GUARDED_BY(mu_);  // Revision of the last event counted.
  std::map<EventKind, uint64_t> counts_ ABSL_GUARDED_BY(mu_);
  uint64_t subscription_;
};

// The arguments must outlive the result.
MetricsSources MakeDaemonSources(const Graphs& graphs, const LaneTable& lanes, Listener& listener,
                                 const AccessFiles& files);

}  // namespace resident

#endif  // RESIDENT_SERVER_METRICS_DAEMON_SOURCES_H_
