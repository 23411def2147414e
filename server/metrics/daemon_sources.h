// Builds the sources of a daemon's metrics page: each figure comes from the part that counts it.
//
// Thread safety: a function without state; for its result, see MetricsSources.
#ifndef RESIDENT_SERVER_METRICS_DAEMON_SOURCES_H_
#define RESIDENT_SERVER_METRICS_DAEMON_SOURCES_H_

#include "server/auth/access_files.h"
#include "server/connections/listener.h"
#include "server/graphs/graphs.h"
#include "server/lanes/lane_table.h"
#include "server/metrics/metrics_sources.h"

namespace resident {

// The arguments must outlive the result.
MetricsSources MakeDaemonSources(const Graphs& graphs, const LaneTable& lanes, Listener& listener,
                                 const AccessFiles& files);

}  // namespace resident

#endif  // RESIDENT_SERVER_METRICS_DAEMON_SOURCES_H_
