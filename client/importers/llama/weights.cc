
#include "client/importers/llama/weights.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/importers/errors.h"
#include "client/importers/model_json.h"
#include "runtime/base/status_macros.h"
#include "runtime/model/dtype.h"

namespace resident::cli {
namespace {

using absl::StrCat;

std::string ShapeText(const std::vector<uint64_t>& shape) {
  return shape.empty() ? "()" : absl::StrJoin(shape, "x");
}

}  // namespace

absl::StatusOr<LlamaWeights> LlamaWeights::Read(const std::string& folder) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder, ignored)) {
    return errors::BadModelFile(folder, "is not a folder", "give the folder of a model");
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> paths, SafetensorsPaths(folder));
  LlamaWeights weights;
  for (const std::string& path : paths) RETURN_IF_ERROR(weights.AddFile(path));
  return weights;
}

absl::Status LlamaWeights::AddFile(const std::string& path) {
  const std::string file = std::filesystem::path(path).filename();
  const absl::StatusOr<SafetensorsFile> opened = SafetensorsFile::Open(path);
  if (!opened.ok()) {
    if (absl::IsInvalidArgument(opened.status())) return opened.status();
    return errors::BadModelFile(path, StrCat("cannot be read: ", opened.status().message()),
                                "add the file, or check its permissions");
  }
  for (const SafetensorsTensor& tensor : opened->unsupported()) {
    unsupported_.try_emplace(tensor.name, tensor.format_dtype);
  }
  for (const SafetensorsTensor& tensor : opened->tensors()) {
    const auto [entry, added] = tensors_.try_emplace(tensor.name);
    if (!added) return errors::ModelTensorTwice(tensor.name, files_[entry->second.file], file);
    entry->second.tensor = tensor;
    entry->second.file = files_.size();
  }
  files_.push_back(file);
  return absl::OkStatus();
}

absl::StatusOr<v1::DType> LlamaWeights::Take(const std::string& name,
                                             const std::vector<uint64_t>& shape,
                                             const std::string& because) {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) return Missing(name);
  Entry& entry = found->second;
  if (entry.tensor.shape != shape) {
    return errors::ModelTensorShape(name, ShapeText(entry.tensor.shape), ShapeText(shape), because);
  }
  switch (entry.tensor.dtype) {
    case DType::kF32:
    case DType::kBF16:
    case DType::kF16:
      break;
    default:
      return errors::ModelTensorDType(name, DTypeName(entry.tensor.dtype));
  }
  entry.taken = true;
  return static_cast<v1::DType>(entry.tensor.dtype);
}

absl::Status LlamaWeights::Missing(const std::string& name) const {
  const auto unsupported = unsupported_.find(name);
  if (unsupported != unsupported_.end()) return errors::ModelTensorDType(name, unsupported->second);
  for (const auto& [other, entry] : tensors_) {
    if (absl::EndsWith(other, StrCat(".", name)) || absl::EndsWith(name, StrCat(".", other))) {
      return errors::ModelTensorPrefix(name, other);
    }
  }
  return errors::MissingModelTensor(name);
}

std::vector<std::string> LlamaWeights::Rest() const {
  std::vector<std::string> names;
  for (const auto& [name, entry] : tensors_) {
    if (!entry.taken) names.push_back(name);
  }
  return names;
}

}  // namespace resident::cli
