#include "server/inference/inference_state.h"

#include <algorithm>

#include "resident/v1/executor.pb.h"
#include "server/inference/infer_response.h"
#include "server/workload/result_builder.h"

namespace resident {

namespace {

// Releases the request's regions, and records it in the statistics. `ended`: when its tasks ended.
void RecordInference(InferenceState& state, InferContext& context, const RequestBatch& batch,
                     Clock::time_point ended, bool ok) {
  // A region is released before the answer is sent, so that a client that has the answer need not
  // wait when it unregisters the region.
  context.regions.clear();
  for (OutputPlan& output : context.outputs) output.part.region = nullptr;

  RequestTimes times;
  times.ok = ok;
  times.tasks = context.tasks;
  const Clock::time_point now = Clock::now();
  times.total = now - context.arrived;
  times.input = batch.enqueued_at - context.arrived;
  for (const uint32_t ns : batch.device_ns) {
    times.device = std::max(times.device, std::chrono::nanoseconds(ns));
  }
  times.queue = std::max<std::chrono::nanoseconds>(ended - batch.enqueued_at - times.device,
                                                   std::chrono::nanoseconds(0));
  times.output = now - ended;
  state.statistics.Record(context.model.text(), batch.version, times);
}

}  // namespace

absl::Status FinishInference(InferenceState& state, InferContext& context, RequestBatch& batch,
                             inference::ModelInferResponse* response) {
  const Clock::time_point ended = Clock::now();
  v1::BatchResult result;
  BuildResult(batch, &result);
  const absl::Status status = FillInferResponse(context, result, response);
  RecordInference(state, context, batch, ended, status.ok());
  return status;
}

void AbandonInference(InferenceState& state, InferContext& context, const RequestBatch& batch) {
  RecordInference(state, context, batch, Clock::now(), /*ok=*/false);
}

}  // namespace resident
