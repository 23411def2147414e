#include "server/inference/model_metadata.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/model/dtype.h"
#include "runtime/operators/registry/registry.h"
#include "server/inference/datatypes.h"
#include "server/inference/errors.h"

namespace resident {
namespace {

constexpr std::string_view kHashVersion = "sha256:";
constexpr std::string_view kLabelVersion = "@";

bool IsInternal(std::string_view name) {
  return name == kFluxRunOperator || name == kCompareOperator;
}

}  // namespace

absl::StatusOr<ModelName> ParseModelName(const std::string& name, const std::string& version) {
  ModelName model;
  model.batch = name.ends_with(kBatchSuffix);
  model.operator_name = name.substr(0, name.size() - (model.batch ? kBatchSuffix.size() : 0));
  if (IsInternal(model.operator_name)) return errors::UnknownModel(name);
  if (const std::string_view text = version; text.starts_with(kHashVersion)) {
    model.content_hash = text.substr(kHashVersion.size());
    return IsContentHash(model.content_hash) ? absl::StatusOr<ModelName>(std::move(model))
                                             : errors::ModelVersion(version);
  } else if (text.starts_with(kLabelVersion)) {
    model.label = text.substr(kLabelVersion.size());
    return IsVersionLabel(model.label) ? absl::StatusOr<ModelName>(std::move(model))
                                       : errors::ModelVersion(version);
  }
  if (!version.empty() && (!absl::SimpleAtoi(version, &model.version) || model.version == 0)) {
    return errors::ModelVersion(version);
  }
  return model;
}

bool IsModel(const Operator& op) { return !IsInternal(op.name()); }

namespace {

// One input or output, with the dimensions of one task.
struct Tensor {
  std::string name;
  DType dtype;
  std::vector<int64_t> shape;
};

std::vector<int64_t> DescribeShape(const Parameter& parameter) {
  if (parameter.scalar()) return {1};
  std::vector<int64_t> shape;
  for (const DimPattern& dim : parameter.dims) {
    shape.push_back(dim.kind == DimPattern::Kind::kFixed ? dim.size : -1);
  }
  return shape;
}

std::vector<Tensor> ListInputs(const Operator& op) {
  // The runs of a bytecode operator are its first dimension.
  if (op.bytecode()) return {{kRegistersTensor, DType::kI32, {-1, -1}}};
  std::vector<Tensor> inputs;
  for (const Parameter& parameter : op.signature().parameters()) {
    if (parameter.kind == ParameterKind::kOutput || parameter.default_bits.has_value()) continue;
    inputs.push_back({parameter.name, parameter.dtypes[0], DescribeShape(parameter)});
  }
  return inputs;
}

std::vector<Tensor> ListOutputs(const Operator& op) {
  if (op.bytecode()) {
    return {{kRegistersTensor, DType::kI32, {-1, -1}},
            {kErrorsTensor, DType::kU8, {-1}},
            {kCyclesTensor, DType::kU32, {-1}}};
  }
  std::vector<Tensor> outputs;
  for (const Parameter& parameter : op.signature().parameters()) {
    if (parameter.kind != ParameterKind::kOutput && parameter.kind != ParameterKind::kInOut) {
      continue;
    }
    outputs.push_back({parameter.name, parameter.dtypes[0], DescribeShape(parameter)});
  }
  return outputs;
}

std::string ModelText(const OperatorView& op, bool batch) {
  return ModelName{op.op->name(), batch}.text();
}

void SetParameter(inference::ModelConfig* config, const std::string& name,
                  const std::string& value) {
  (*config->mutable_parameters())[name].set_string_value(value);
}

// "FP64, default 1".
std::string DescribeScalar(const Parameter& parameter) {
  const DType dtype = parameter.dtypes[0];
  std::string text = GetDatatype(dtype).name;
  if (!parameter.default_bits.has_value()) return text;
  const Element value = ReadElement(dtype, &*parameter.default_bits);
  absl::StrAppend(&text, ", default ");
  if (value.floating) {
    absl::StrAppend(&text, value.real);
  } else {
    absl::StrAppend(&text, value.integer);
  }
  return text;
}

void DescribeParameters(const OperatorView& op, inference::ModelConfig* out) {
  SetParameter(out, "signature", op.op->signature_text());
  if (!op.summary.empty()) SetParameter(out, "summary", op.summary);
  for (const Parameter& parameter : op.op->signature().parameters()) {
    if (parameter.scalar()) {
      SetParameter(out, absl::StrCat("scalar.", parameter.name), DescribeScalar(parameter));
      continue;
    }
    const auto append = [](std::string* text, DType dtype) {
      text->append(GetDatatype(dtype).name);
    };
    SetParameter(out, absl::StrCat("dtypes.", parameter.name),
                 absl::StrJoin(parameter.dtypes, ", ", append));
  }
}

}  // namespace

bool IsReady(VersionState state) {
  return state == VersionState::kActive || state == VersionState::kPrevious ||
         state == VersionState::kLoaded;
}

void FillMetadata(const OperatorView& op, bool batch, inference::ModelMetadataResponse* out) {
  out->set_name(ModelText(op, batch));
  out->set_platform(kPlatform);
  for (const VersionView& version : op.versions) {
    if (IsReady(version.state)) out->add_versions(absl::StrCat(version.version));
  }
  const bool leading = batch && !op.op->bytecode();
  const auto add = [leading](const Tensor& tensor,
                             inference::ModelMetadataResponse::TensorMetadata* to) {
    to->set_name(tensor.name);
    to->set_datatype(GetDatatype(tensor.dtype).name);
    if (leading) to->add_shape(-1);
    for (const int64_t size : tensor.shape) to->add_shape(size);
  };
  for (const Tensor& tensor : ListInputs(*op.op)) add(tensor, out->add_inputs());
  for (const Tensor& tensor : ListOutputs(*op.op)) add(tensor, out->add_outputs());
}

void FillConfig(const OperatorView& op, bool batch, uint32_t max_tasks,
                inference::ModelConfig* out) {
  out->set_name(ModelText(op, batch));
  out->set_platform(kPlatform);
  out->set_backend(kPlatform);
  out->mutable_model_transaction_policy()->set_decoupled(false);
  if (batch) {
    const uint32_t largest = std::numeric_limits<int32_t>::max();
    out->set_max_batch_size(static_cast<int32_t>(std::min(max_tasks, largest)));
  }
  // The first dimension of a batch is not part of `dims`. For bytecode it is the number of runs.
  const size_t skip = batch && op.op->bytecode() ? 1 : 0;
  const auto add = [skip](const Tensor& tensor, auto* to) {
    to->set_name(tensor.name);
    to->set_data_type(GetDatatype(tensor.dtype).config);
    for (size_t d = skip; d < tensor.shape.size(); ++d) to->add_dims(tensor.shape[d]);
  };
  for (const Tensor& tensor : ListInputs(*op.op)) add(tensor, out->add_input());
  for (const Tensor& tensor : ListOutputs(*op.op)) add(tensor, out->add_output());
  DescribeParameters(op, out);
}

}  // namespace resident
