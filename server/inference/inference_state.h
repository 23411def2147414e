// InferenceState: what the calls of the Open Inference Protocol share.
//
// Thread safety: that of each member.
#ifndef RESIDENT_SERVER_INFERENCE_INFERENCE_STATE_H_
#define RESIDENT_SERVER_INFERENCE_INFERENCE_STATE_H_

#include <memory>

#include "server/buffers/buffers.h"
#include "server/inference/infer_request.h"
#include "server/inference/inference_options.h"
#include "server/inference/regions.h"
#include "server/inference/statistics.h"
#include "server/models/models.h"
#include "server/operators/installs.h"

namespace resident {

struct InferenceState {
  InferenceState(Buffers& buffers, Installs& the_installs, Models& the_models,
                 const InferenceOptions& the_options)
      : core(buffers.core),
        installs(the_installs),
        models(the_models),
        options(the_options),
        regions(std::make_shared<Regions>(buffers, the_options.region_idle)) {}

  ~InferenceState() { regions->Close(); }
  InferenceState(const InferenceState&) = delete;
  InferenceState& operator=(const InferenceState&) = delete;

  InferSources sources() const { return {core.limits, core.registry, core.models, *regions}; }

  Core& core;
  Installs& installs;
  Models& models;
  const InferenceOptions options;
  const std::shared_ptr<Regions> regions;
  InferenceStatistics statistics;
};

// Builds the answer to a request whose tasks have ended, records it in the statistics, and releases
// its regions. Returns the error of the request.
absl::Status FinishInference(InferenceState& state, InferContext& context, RequestBatch& batch,
                             inference::ModelInferResponse* response);
// The same for a request that is not answered, because its call was cancelled or its deadline
// passed before its tasks ran.
void AbandonInference(InferenceState& state, InferContext& context, const RequestBatch& batch);

}  // namespace resident

#endif  // RESIDENT_SERVER_INFERENCE_INFERENCE_STATE_H_
