// MetricsSources: the functions and counters that the metrics page reads.
//
// Thread safety: everything here is called from the scrape threads while the daemon
// works, so each function must be safe to call at any time. The objects behind pointers and
// references must outlive the MetricsServer, which is stopped last.
#ifndef RESIDENT_SERVER_METRICS_METRICS_SOURCES_H_
#define RESIDENT_SERVER_METRICS_METRICS_SOURCES_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "resident/v1/admin.pb.h"
#include "resident/v1/models.pb.h"
#include "runtime/device/device.h"
#include "runtime/operators/install/operator_manager.h"
#include "runtime/queue/operator_stats.h"
#include "server/auth/access.h"
#include "server/auth/access_files.h"
#include "server/connections/connection_table.h"
#include "server/core/rpc_counters.h"

namespace resident {

// Counters of one operator version on one device.
struct OperatorSeries {
  uint32_t device;
  std::shared_ptr<const OperatorStats> stats;
};

// A version on trial.
struct TrialSeries {
  std::string operator_name;
  uint32_t version = 0;
  uint64_t shadow_tasks = 0;
  uint64_t shadow_mismatches = 0;
};

// An installed operator that serves.
struct ActiveSeries {
  std::string operator_name;
  std::string set;
  std::string label;
  std::string hash;  // The first kMinHashDigits digits of the content hash.
};

// Staging memory of a device.
struct StagingFigures {
  uint64_t used_bytes = 0;
  uint64_t waiting = 0;  // Streams and transfers that wait for it.
};

struct GraphFigures {
  uint64_t loaded = 0;
  uint64_t loaded_bytes = 0;  // Of the front end's memory.
  uint64_t sessions = 0;
  uint64_t session_bytes = 0;  // Of device memory.
};

// Local lanes of a device; submissions since the daemon started.
struct LaneFigures {
  uint64_t lanes = 0;
  uint64_t ok = 0;
  uint64_t failed = 0;
  uint64_t refused = 0;
  uint64_t cancelled = 0;
  uint64_t joined = 0;
};

struct MetricsSources {
  // Version of the daemon, for resident_build_info.
  std::string version;
  std::vector<const Device*> devices;
  const RpcCounters& rpc;
  const Access& access;
  std::function<AccessFiles::Counters()> access_files;
  // Every operator version with counters, on every device.
  std::function<std::vector<OperatorSeries>()> operators;
  // The number of buffers on a device.
  std::function<uint64_t(uint32_t device)> buffers;
  std::function<StagingFigures(uint32_t device)> staging;
  std::function<LaneFigures(uint32_t device)> lanes;
  // Bytes of the front end's own memory that clients use, by purpose ("requests").
  std::function<std::map<std::string, uint64_t>()> host_memory;
  // Loaded graphs and graph sessions.
  std::function<GraphFigures()> graphs;
  // By name; empty: no series about models.
  std::function<std::vector<v1::Model>()> models;
  // Open sessions.
  std::function<uint64_t()> clients;
  std::function<ConnectionFigures()> connections;
  // Log lines of gRPC that were suppressed.
  std::function<uint64_t()> log_lines_suppressed;
  // Changes of operators since the start, by kind ("installed", "rolled_back"), and the versions
  // that are on trial now.
  std::function<std::map<std::string, uint64_t>()> operator_events;
  std::function<std::vector<TrialSeries>()> trials;
  std::function<OperatorManager::NativeCounters()> native_forms;
  // Installs whose code could not be made stoppable, by rule.
  std::function<std::map<std::string, uint64_t>()> isolation_refusals;
  std::function<std::vector<ActiveSeries>()> active;
  // Age of the plan that has the daemon's claim, in seconds; 0: there is none.
  std::function<double()> claim_seconds;
  // Null: there is no --operators_dir.
  std::function<v1::OperatorsDirStatus()> operators_dir;
  // Whether the daemon accepts work, a device is usable and the set of --operators_dir was applied,
  // for /readyz.
  std::function<bool()> ready;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_METRICS_METRICS_SOURCES_H_
