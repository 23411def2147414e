// RequestBatch: a client's batch in the runtime, with the data that is needed to answer it.
//
// Thread safety: see Batch.
#ifndef RESIDENT_SERVER_WORKLOAD_REQUEST_BATCH_H_
#define RESIDENT_SERVER_WORKLOAD_REQUEST_BATCH_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/operators/registry/operator_version.h"
#include "runtime/queue/batch.h"
#include "server/admission/admission.h"
#include "server/workload/workload.h"

namespace resident {

struct RequestBatch : Batch, std::enable_shared_from_this<RequestBatch> {
  // Chosen by the client.
  uint64_t id = 0;
  uint32_t device = 0;
  std::string operator_name;
  uint32_t version = 0;

  // All resources with which the batch was admitted.
  Ticket ticket;
  // Builds the result.
  std::unique_ptr<const Workload> work;

  // If not null, the tasks also run on this version once they have ended
  // (server/core/shadow_runner.h). `shadow_outputs`: the indices of the arguments that are outputs.
  std::shared_ptr<const OperatorVersion> shadow;
  std::vector<uint32_t> shadow_outputs;
  // The version that the comparison is about; null: the shadow.
  std::shared_ptr<const OperatorVersion> judged;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_WORKLOAD_REQUEST_BATCH_H_
