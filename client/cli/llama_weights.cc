#include "client/cli/llama_weights.h"

#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/model_json.h"
#include "runtime/base/errors/model_errors.h"
#include "runtime/base/errors/quote.h"
#include "runtime/base/status_macros.h"
#include "runtime/model/dtype.h"

namespace resident::cli {
namespace {

using absl::StrCat;

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";
constexpr uint64_t kMaxIndexBytes = uint64_t{64} << 20;

std::string ShapeText(const std::vector<uint64_t>& shape) {
  return shape.empty() ? "()" : absl::StrJoin(shape, "x");
}

// The files that the index lists.
absl::StatusOr<std::set<std::string>> ReadIndex(const std::string& folder) {
  const std::string path = StrCat(folder, "/", kIndexFile);
  ASSIGN_OR_RETURN(const nlohmann::json index, ReadModelJson(path, kMaxIndexBytes));
  const nlohmann::json* const map = ModelObject(index).Find("weight_map");
  if (map == nullptr || !map->is_object() || map->empty()) {
    return errors::BadModelFile(path, "has no object 'weight_map' with files",
                                "write the index again");
  }
  std::set<std::string> files;
  for (const auto& item : map->items()) {
    const std::string file = item.value().is_string() ? item.value().get<std::string>() : "";
    // A path would leave the folder.
    if (file.empty() || std::filesystem::path(file).filename() != file || file == "..") {
      return errors::BadModelFile(
          path,
          StrCat("names ",
                 errors::Quote(item.value().is_string() ? file : item.value().type_name()),
                 " for tensor ", errors::Quote(item.key()), ", which is not a file's name"),
          "write the index again");
    }
    files.insert(file);
    if (files.size() > LlamaWeights::kMaxFiles) {
      return errors::BadModelFile(path,
                                  StrCat("names more than ", LlamaWeights::kMaxFiles, " files"),
                                  "write the weights to fewer files");
    }
  }
  return files;
}

}  // namespace

absl::StatusOr<LlamaWeights> LlamaWeights::Read(const std::string& folder) {
  std::error_code ignored;
  std::set<std::string> files = {kSingleFile};
  if (!std::filesystem::exists(StrCat(folder, "/", kSingleFile), ignored)) {
    if (!std::filesystem::exists(StrCat(folder, "/", kIndexFile), ignored)) {
      return errors::BadModelFile(folder, StrCat("has neither ", kSingleFile, " nor ", kIndexFile),
                                  "give the folder of a model with safetensors files");
    }
    ASSIGN_OR_RETURN(files, ReadIndex(folder));
  }
  LlamaWeights weights;
  for (const std::string& file : files) RETURN_IF_ERROR(weights.AddFile(folder, file));
  return weights;
}

absl::Status LlamaWeights::AddFile(const std::string& folder, const std::string& file) {
  const std::string path = StrCat(folder, "/", file);
  const absl::StatusOr<SafetensorsFile> opened = SafetensorsFile::Open(path);
  if (!opened.ok()) {
    if (absl::IsInvalidArgument(opened.status())) return opened.status();
    return errors::BadModelFile(path, StrCat("cannot be read: ", opened.status().message()),
                                "add the file, or check its permissions");
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
  if (found == tensors_.end()) return errors::MissingModelTensor(name);
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

std::vector<std::string> LlamaWeights::Rest() const {
  std::vector<std::string> names;
  for (const auto& [name, entry] : tensors_) {
    if (!entry.taken) names.push_back(name);
  }
  return names;
}

}  // namespace resident::cli
