// A batch of FLUX programs (workload.h). Its class is in flux_workload.cc.
//
// Thread safety: functions without state; one thread at a time uses the workload.
#ifndef RESIDENT_SERVER_WORKLOAD_FLUX_WORKLOAD_H_
#define RESIDENT_SERVER_WORKLOAD_FLUX_WORKLOAD_H_

#include <memory>
#include <string>

#include "resident/v1/executor.pb.h"
#include "server/workload/planner.h"
#include "server/workload/workload.h"

namespace resident {

// `sources` outlives the workload; `message` is valid until Workload::Fill has returned.
std::unique_ptr<Workload> MakeFluxWorkload(const PlanSources& sources, const v1::Batch& message);

// The operator that runs the programs: flux.run for programs without a name.
std::string FindFluxOperatorName(const v1::FluxPrograms& message);

}  // namespace resident

#endif  // RESIDENT_SERVER_WORKLOAD_FLUX_WORKLOAD_H_
