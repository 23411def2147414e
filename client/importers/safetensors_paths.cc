#include "client/importers/safetensors_paths.h"

#include <cstdint>
#include <filesystem>
#include <set>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/importers/errors.h"
#include "client/importers/model_json.h"
#include "runtime/base/errors/quote.h"
#include "runtime/base/status_macros.h"

namespace resident::cli {
namespace {

using absl::StrCat;

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";
constexpr uint64_t kMaxIndexBytes = uint64_t{64} << 20;

// The paths of the files that an index lists, which are in its folder.
absl::StatusOr<std::vector<std::string>> ReadIndex(const std::string& path) {
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
    if (files.size() > kMaxSafetensorsFiles) {
      return errors::BadModelFile(path, StrCat("names more than ", kMaxSafetensorsFiles, " files"),
                                  "write the weights to fewer files");
    }
  }
  std::vector<std::string> paths;
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  for (const std::string& file : files) paths.push_back(folder / file);
  return paths;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> SafetensorsPaths(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(path, ignored)) {
    if (absl::EndsWith(path, ".index.json")) return ReadIndex(path);
    return std::vector<std::string>{path};
  }
  const std::filesystem::path folder(path);
  if (std::filesystem::exists(folder / kSingleFile, ignored)) {
    return std::vector<std::string>{folder / kSingleFile};
  }
  if (std::filesystem::exists(folder / kIndexFile, ignored)) return ReadIndex(folder / kIndexFile);
  return errors::BadModelFile(path, StrCat("has neither ", kSingleFile, " nor ", kIndexFile),
                              "give the folder of a model with safetensors files, or the files");
}

}  // namespace resident::cli
