#include "server/inference/loaded_models.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "absl/strings/str_cat.h"
#include "runtime/base/status_macros.h"
#include "server/inference/datatypes.h"
#include "server/inference/errors.h"
#include "server/models/table/errors.h"

namespace resident {

absl::StatusOr<LoadedModel> FindLoadedModel(const ModelTable& models, const ModelName& name) {
  if (name.batch) return errors::UnknownModel(name.text());
  if (!name.content_hash.empty() || !name.label.empty()) {
    return errors::ModelVersion(name.label.empty() ? "sha256:" + name.content_hash
                                                   : "@" + name.label);
  }
  ASSIGN_OR_RETURN(const ModelTable::Model found, models.Describe(name.operator_name));
  LoadedModel model;
  model.name = found.name;
  for (const ModelTable::Version& version : found.versions) {
    model.versions.push_back(version.version);
    if (version.state == ModelTable::State::kActive) model.active = version.version;
  }
  const uint32_t other = model.active != 0 ? model.active : model.versions.back();
  model.version = name.version != 0 ? name.version : other;
  for (const ModelTable::Version& version : found.versions) {
    if (version.version != model.version) continue;
    version.served->Describe(&model.info);
    return model;
  }
  return errors::NoSuchModelVersion(model.name, name.version, model.active);
}

void FillMetadata(const LoadedModel& model, inference::ModelMetadataResponse* out) {
  out->set_name(model.name);
  out->set_platform(kPlatform);
  for (const uint32_t version : model.versions) out->add_versions(absl::StrCat(version));
  const auto add = [](const v1::ModelTensorInfo& tensor,
                      inference::ModelMetadataResponse::TensorMetadata* to) {
    to->set_name(tensor.name());
    to->set_datatype(GetDatatype(static_cast<DType>(tensor.dtype())).name);
    to->mutable_shape()->CopyFrom(tensor.shape());
  };
  for (const v1::ModelTensorInfo& tensor : model.info.inputs()) add(tensor, out->add_inputs());
  for (const v1::ModelTensorInfo& tensor : model.info.outputs()) add(tensor, out->add_outputs());
}

void FillConfig(const LoadedModel& model, inference::ModelConfig* out) {
  out->set_name(model.name);
  out->set_platform(kPlatform);
  out->set_backend(kPlatform);
  out->mutable_model_transaction_policy()->set_decoupled(false);
  // If requests are combined, `dims` leave out the outermost dimension, as the protocol wants it.
  const bool combined = model.info.max_batch() != 0;
  if (combined) {
    const uint64_t largest = std::numeric_limits<int32_t>::max();
    out->set_max_batch_size(static_cast<int32_t>(std::min(model.info.inputs(0).max(), largest)));
  }
  const auto add = [combined](const v1::ModelTensorInfo& tensor, auto* to) {
    to->set_name(tensor.name());
    to->set_data_type(GetDatatype(static_cast<DType>(tensor.dtype())).config);
    for (int d = combined ? 1 : 0; d < tensor.shape_size(); ++d) to->add_dims(tensor.shape(d));
  };
  for (const v1::ModelTensorInfo& tensor : model.info.inputs()) add(tensor, out->add_input());
  for (const v1::ModelTensorInfo& tensor : model.info.outputs()) add(tensor, out->add_output());
  const auto set = [out](const std::string& name, const std::string& value) {
    (*out->mutable_parameters())[name].set_string_value(value);
  };
  set("content_hash", model.info.content_hash());
  set("instances", absl::StrCat(model.info.max_instances()));
  if (!combined) set("not_batched", model.info.not_batched());
  for (const v1::GraphScalar& scalar : model.info.scalars()) {
    set("scalar." + scalar.name(),
        absl::StrCat(scalar.least(), " to ", scalar.most(),
                     scalar.has_initial() ? absl::StrCat(", default ", scalar.initial()) : ""));
  }
}

void FillIndex(const ModelTable& models, bool ready_only, inference::RepositoryIndexResponse* out) {
  for (const ModelTable::Model& model : models.List()) {
    for (const ModelTable::Version& version : model.versions) {
      const bool ready = version.state != ModelTable::State::kLoaded;
      if (ready_only && !ready) continue;
      auto* const to = out->add_models();
      to->set_name(model.name);
      to->set_version(absl::StrCat(version.version));
      to->set_state(ready ? "READY" : "UNAVAILABLE");
      if (!ready) to->set_reason("loaded, but not active: a request must name this version");
    }
  }
}

}  // namespace resident
