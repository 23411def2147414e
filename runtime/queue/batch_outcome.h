// Outcomes of a batch's tasks: skips tasks, collects the batches in which every task has an
// outcome, and counts them. ring_tasks.h records the outcomes of the tasks in the ring.
//
// Thread safety: none; the caller owns the batches (batch.h).
//
//   FinishedBatches finished;
//   if (const auto reason = ReasonToSkip(*batch, time)) {
//     SkipRest(batch, reason->status, reason->cause, &finished);
//   }
//   for (auto& done : finished) CountOutcomes(*done);
#ifndef RESIDENT_RUNTIME_QUEUE_BATCH_OUTCOME_H_
#define RESIDENT_RUNTIME_QUEUE_BATCH_OUTCOME_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/time_source.h"
#include "runtime/queue/batch.h"

namespace resident {

// Batches whose `done` is to be called once no lock is held.
using FinishedBatches = std::vector<std::shared_ptr<Batch>>;

struct SkipReason {
  TaskStatus status;
  std::string cause;
};

// Gives a batch that is queued the columns of its outcomes (batch.h).
void PrepareOutcomes(Batch& batch);

// Gives a batch of a range its columns for failures.
void PrepareFailures(Batch& batch);

// Returns why the tasks of a batch that are not in the ring must be skipped, or nullopt.
std::optional<SkipReason> ReasonToSkip(const Batch& batch, const TimeSource& time);

// Records this outcome for every task that is not submitted yet. These tasks no longer count as
// queued.
void SkipRest(const std::shared_ptr<Batch>& batch, TaskStatus status, const std::string& cause,
              FinishedBatches* finished);

// Adds the time from admission to the first submission to the operator's statistics.
void ObserveQueued(const Batch& batch);

// Adds a finished batch to its operator's statistics, with a few atomic operations for each batch.
void CountOutcomes(const Batch& batch);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_QUEUE_BATCH_OUTCOME_H_
