// The model repository of the Open Inference Protocol: the index, and loading a model.
//
//   Load without parameters    activates the version that was loaded last and has not served yet,
//   or
//                              the standby if no version is active; otherwise nothing changes
//   Load with config, files    installs a version and activates it
//   Load with an ONNX file     loads a version of a model and activates it
//
// Thread safety: functions without state.
//
//   ASSIGN_OR_RETURN(const LoadRequest load, ParseLoad(message));
//   if (load.install) ...                     // On a thread that may block.
#ifndef RESIDENT_SERVER_INFERENCE_REPOSITORY_H_
#define RESIDENT_SERVER_INFERENCE_REPOSITORY_H_

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "inference/open_inference.pb.h"
#include "resident/v1/models.pb.h"
#include "runtime/operators/install/operator_manager.h"
#include "runtime/operators/registry/registry.h"
#include "server/models/model_loader.h"

namespace resident {

// `sees_others`: whether the caller may see why a version is quarantined in full.
void FillIndex(const Registry& registry, bool ready_only, bool sees_others,
               inference::RepositoryIndexResponse* out);

// Without `install` and `model`: activate what is loaded.
struct LoadRequest {
  std::string operator_name;
  std::optional<InstallRequest> install;
  // A model: the messages of a Models.Load. Empty: it is not one.
  std::vector<v1::LoadModelRequest> model;
};

// Moves the files out of the message. Errors: NOT_FOUND (another repository), INVALID_ARGUMENT
// (parameters, the limits of installs).
absl::StatusOr<LoadRequest> ParseLoad(inference::RepositoryModelLoadRequest& message);

// Errors: NOT_FOUND (no such operator), and those of OperatorManager::Activate.
absl::Status ActivateLoaded(const Registry& registry, OperatorManager& operators,
                            const std::string& name, const std::string& actor);

// Installs; the error of a version that is refused contains the compiler's output. Errors: see
// Operators.Install.
absl::Status InstallAndActivate(OperatorManager& operators, const InstallRequest& request,
                                const std::function<bool()>& withdrawn);

// Loads and activates; the error of a model that is refused contains the beginning of its findings.
// REQUIRES: ModelLoader::Finish has returned OK. Errors: see Models.Load.
absl::Status LoadModel(ModelLoader& loader);

}  // namespace resident

#endif  // RESIDENT_SERVER_INFERENCE_REPOSITORY_H_
