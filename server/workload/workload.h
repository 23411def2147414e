// Workload: one batch of one kind of work, from the message to the result. There is a class for
// each kind (operator_workload.h, flux_workload.h, quantum_workload.h).
//
//   Check ──▶ ResourcesNeeded ──▶ (a ticket for them) ──▶ Prepare ──▶ Fill ──▶ (the tasks end)
//     ──▶ BuildResult
//
// Check translates the message once: it checks everything that a client sends, and looks up and
// keeps what the message names (buffers, the operator's version, the device and its engine). A
// batch that waits is not translated again.
//
// Thread safety: one thread at a time.
#ifndef RESIDENT_SERVER_WORKLOAD_WORKLOAD_H_
#define RESIDENT_SERVER_WORKLOAD_WORKLOAD_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "resident/v1/executor.pb.h"
#include "runtime/operators/registry/operator_version.h"
#include "runtime/queue/batch.h"
#include "server/admission/admission.h"

namespace resident {

struct RequestBatch;

class Workload {
 public:
  virtual ~Workload() = default;

  // Errors: see Executor.Run. The message must stay valid and unchanged until Fill.
  virtual absl::Status Check() = 0;
  // REQUIRES: Check has returned OK; the same holds for the members below.
  virtual Needs ResourcesNeeded() const = 0;
  // What can fail only with the ticket at hand. Called before Fill for work that needs a lender;
  // other work needs no call.
  virtual absl::Status Prepare(const Ticket&) { return absl::OkStatus(); }
  // Creates the tasks, with the resources of `ticket`. The message is not needed afterwards.
  virtual void Fill(const Ticket& ticket, RequestBatch& batch) = 0;
  // Whether a batch with a shadow should run on it. REQUIRES: as for BuildResult.
  virtual bool WantsShadow(const RequestBatch&) const { return true; }
  // Copies the batch's results out of staging memory. REQUIRES: Fill was called; every task has an
  // outcome.
  virtual void BuildResult(const RequestBatch& batch, v1::BatchResult* result) const = 0;
};

// SharedRun: lets batches of several requests run as one task. Each batch has its own ticket and
// answer.
//
// Thread safety: may be called from any thread.
class SharedRun {
 public:
  virtual ~SharedRun() = default;
  // The batch may run now. Its outcome is set, and its `done` called, when the task has ended.
  virtual void Join(std::shared_ptr<RequestBatch> batch) = 0;
};

// RequestBatch: a client's batch in the runtime, with the data that is needed to answer it.
//
// Thread safety: see Batch.
struct RequestBatch : Batch, std::enable_shared_from_this<RequestBatch> {
  // Chosen by the client.
  uint64_t id = 0;
  uint32_t device = 0;
  std::string operator_name;
  uint32_t version = 0;
  // The hash of that version, if the batch named a content hash or a label.
  std::string content_hash;

  // All resources with which the batch was admitted.
  Ticket ticket;
  // Builds the result.
  std::unique_ptr<const Workload> work;

  // If not null, the batch does not enter its client's queue: it joins this run instead.
  std::shared_ptr<SharedRun> shared;

  // If not null, the tasks also run on this version once they have ended
  // (server/core/shadow_runner.h). `shadow_outputs`: the indices of the arguments that are outputs.
  std::shared_ptr<const OperatorVersion> shadow;
  std::vector<uint32_t> shadow_outputs;
  // Whether clients can change inputs or outputs of the tasks at any time: some are buffers.
  bool shadow_buffers = false;
  // The version that the comparison is about; null: the shadow.
  std::shared_ptr<const OperatorVersion> judged;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_WORKLOAD_WORKLOAD_H_
