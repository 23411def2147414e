// What becomes of a batch's tasks: records outcomes, and gathers the batches that have one
// for every task. Not for what tasks report while they are in the ring: see ring_tasks.h.
//
// Thread safety: none; the caller owns the batches (batch.h).
//
//   FinishedBatches finished;
//   if (const auto reason = ReasonToSkip(*batch)) {
//     SkipRest(batch, reason->status, reason->cause, &finished);
//   }
//   for (auto& done : finished) CountOutcomes(*done);
#ifndef RESIDENT_RUNTIME_QUEUE_BATCH_OUTCOME_H_
#define RESIDENT_RUNTIME_QUEUE_BATCH_OUTCOME_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/queue/batch.h"

namespace resident {

// Batches whose `done` is to be called once no lock is held.
using FinishedBatches = std::vector<std::shared_ptr<Batch>>;

struct SkipReason {
  TaskStatus status;
  std::string cause;
};

// Why the tasks of a batch that are not in the ring will not get there, if so.
std::optional<SkipReason> ReasonToSkip(const Batch& batch);

// Gives every task that is not submitted its outcome; it is queued no longer.
void SkipRest(const std::shared_ptr<Batch>& batch, TaskStatus status, const std::string& cause,
              FinishedBatches* finished);

// Adds the time from admission to the first submission to the operator's statistics.
void ObserveQueued(const Batch& batch);

// Adds a finished batch to its operator's statistics: a few atomics for a batch.
void CountOutcomes(const Batch& batch);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_QUEUE_BATCH_OUTCOME_H_
