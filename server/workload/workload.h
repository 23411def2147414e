// Workload: one batch of one kind of work, from the message to the result. There is a class for
// each kind (operator_workload.h, flux_workload.h); nothing outside this folder knows the kinds.
//
//   Check ──▶ ResourcesNeeded ──▶ (a ticket for them) ──▶ Fill ──▶ (the tasks end) ──▶ BuildResult
//
// Check translates the message once: everything that a client sends is checked there, and what it
// names (buffers, the operator's version, the device and its engine) is looked up and kept. What
// a batch then waits for costs no second translation.
//
// Thread safety: one thread at a time.
#ifndef RESIDENT_SERVER_WORKLOAD_WORKLOAD_H_
#define RESIDENT_SERVER_WORKLOAD_WORKLOAD_H_

#include "absl/status/status.h"
#include "resident/v1/executor.pb.h"
#include "server/admission/admission.h"

namespace resident {

struct RequestBatch;  // server/workload/request_batch.h

class Workload {
 public:
  virtual ~Workload() = default;

  // Errors: as Executor.Run documents. The message must not change or go until Fill.
  virtual absl::Status Check() = 0;
  // REQUIRES: Check, as the members below.
  virtual Needs ResourcesNeeded() const = 0;
  // Makes the tasks, with what `ticket` holds. The message is not needed afterwards.
  virtual void Fill(const Ticket& ticket, RequestBatch& batch) = 0;
  // Copies what the batch returns out of staging memory. REQUIRES: Fill; every task has an outcome.
  virtual void BuildResult(const RequestBatch& batch, v1::BatchResult* result) const = 0;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_WORKLOAD_WORKLOAD_H_
