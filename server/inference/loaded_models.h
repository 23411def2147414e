// Models that were loaded (server/models), in the words of the Open Inference Protocol: their
// metadata, config and index. Operators are models too (model_metadata.h); a name belongs to one of
// the two.
//
// Thread safety: functions without state.
//
//   if (core.models.Has(name)) {
//     ASSIGN_OR_RETURN(const LoadedModel model, FindLoadedModel(core.models, name, version));
//     FillMetadata(model, response);
//   }
#ifndef RESIDENT_SERVER_INFERENCE_LOADED_MODELS_H_
#define RESIDENT_SERVER_INFERENCE_LOADED_MODELS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "inference/open_inference.pb.h"
#include "resident/v1/models.pb.h"
#include "server/inference/model_metadata.h"
#include "server/models/table/model_table.h"

namespace resident {

struct LoadedModel {
  std::string name;
  // The version that a request without one gets; 0: none.
  uint32_t active = 0;
  std::vector<uint32_t> versions;  // All that can serve.
  // The version that is described: the one that was asked for, else the active one, else the last.
  uint32_t version = 0;
  v1::ModelVersion info;
};

// NOT_FOUND: no such model or version. INVALID_ARGUMENT: models have neither labels nor a batch
// form.
absl::StatusOr<LoadedModel> FindLoadedModel(const ModelTable& models, const ModelName& name);

void FillMetadata(const LoadedModel& model, inference::ModelMetadataResponse* out);
void FillConfig(const LoadedModel& model, inference::ModelConfig* out);
// Adds all versions of all models.
void FillIndex(const ModelTable& models, bool ready_only, inference::RepositoryIndexResponse* out);

}  // namespace resident

#endif  // RESIDENT_SERVER_INFERENCE_LOADED_MODELS_H_
