// A batch of tasks of one operator (workload.h). Its class is in operator_workload.cc.
//
// Thread safety: functions without state; one thread at a time uses the workload.
#ifndef RESIDENT_SERVER_WORKLOAD_OPERATOR_WORKLOAD_H_
#define RESIDENT_SERVER_WORKLOAD_OPERATOR_WORKLOAD_H_

#include <memory>

#include "resident/v1/executor.pb.h"
#include "server/workload/planner.h"
#include "server/workload/workload.h"

namespace resident {

// `sources` outlives the workload; `message` is valid until Workload::Fill has returned.
std::unique_ptr<Workload> MakeOperatorWorkload(const PlanSources& sources, const v1::Batch& message,
                                               ClientId client);

}  // namespace resident

#endif  // RESIDENT_SERVER_WORKLOAD_OPERATOR_WORKLOAD_H_
