// Describes the daemon, its devices and its clients for Admin.Status and the console.
//
// Thread safety: functions without state.
#ifndef RESIDENT_SERVER_CORE_DAEMON_STATUS_H_
#define RESIDENT_SERVER_CORE_DAEMON_STATUS_H_

#include <string>

#include "resident/v1/admin.pb.h"
#include "runtime/queue/batch.h"
#include "server/core/core.h"
#include "server/core/viewer.h"

namespace resident {

// Facts about the daemon that the core does not have.
struct DaemonFacts {
  Clock::time_point started;
  std::string metrics_address = {};  // Empty: there is no metrics page.
  std::string gpu_unavailable_reason = {};
  // Adds what a client's local lanes have; null: there are none.
  std::function<void(ClientId client, v1::ClientStatus* out)> lanes = nullptr;
  // Null: there is no --operators_dir.
  std::function<v1::OperatorsDirStatus()> operators_dir = nullptr;
};

void FillStatus(const Core& core, const DaemonFacts& facts, const Viewer& viewer,
                v1::StatusResponse* out);

}  // namespace resident

#endif  // RESIDENT_SERVER_CORE_DAEMON_STATUS_H_
