#include "server/inference/model_name.h"

#include "absl/strings/numbers.h"
#include "runtime/operators/registry/registry.h"
#include "server/inference/errors.h"

namespace resident {
namespace {

bool IsInternal(std::string_view name) {
  return name == kFluxRunOperator || name == kCompareOperator;
}

}  // namespace

absl::StatusOr<ModelName> ParseModelName(const std::string& name, const std::string& version) {
  ModelName model;
  model.batch = name.ends_with(kBatchSuffix);
  model.operator_name = name.substr(0, name.size() - (model.batch ? kBatchSuffix.size() : 0));
  if (IsInternal(model.operator_name)) return errors::UnknownModel(name);
  if (!version.empty() && (!absl::SimpleAtoi(version, &model.version) || model.version == 0)) {
    return errors::ModelVersion(version);
  }
  return model;
}

bool IsModel(const Operator& op) { return !IsInternal(op.name()); }

}  // namespace resident
