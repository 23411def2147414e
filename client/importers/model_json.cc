#include "client/importers/model_json.h"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <set>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/importers/errors.h"
#include "runtime/base/errors/quote.h"
#include "runtime/base/json_error.h"
#include "runtime/base/shallow_json.h"
#include "runtime/base/status_macros.h"
#include "runtime/model/safetensors.h"

namespace resident::cli {

using absl::StrCat;

namespace {

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

// Puts the constants that JSON does not have, but Python's json writes, into quotes.
void QuoteConstants(std::string& text) {
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (quoted && text[i] == '\\') {
      ++i;
    } else if (text[i] == '"') {
      quoted = !quoted;
    } else if (!quoted) {
      for (const std::string_view constant : {"NaN", "Infinity", "-Infinity"}) {
        if (text.compare(i, constant.size(), constant) != 0) continue;
        text.replace(i, constant.size(), StrCat("\"", View(constant), "\""));
        i += constant.size() + 1;
        break;
      }
    }
  }
}

}  // namespace

absl::StatusOr<nlohmann::json> ReadModelJson(const std::string& path, uint64_t max_bytes) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    return errors::BadModelFile(
        path, error ? StrCat("cannot be read: ", error.message()) : "is not a regular file",
        "give the folder of a model");
  }
  const uint64_t bytes = std::filesystem::file_size(path, error);
  if (error) return errors::BadModelFile(path, "cannot be read", "give the folder of a model");
  if (bytes > max_bytes) return errors::ModelFileTooLarge(path, bytes, max_bytes);
  std::string text(bytes, '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(text.data(), static_cast<std::streamsize>(bytes));
  if (!file) return errors::BadModelFile(path, "cannot be read", "check its permissions");
  if (const FileKind kind = FindFileKind(text); !kind.what.empty() && text.find('{') != 0) {
    return errors::BadModelFile(path, StrCat("is ", View(kind.what)), std::string(kind.fix));
  }
  QuoteConstants(text);
  nlohmann::json json = ParseShallowJson<nlohmann::json>(text);
  if (json.is_discarded()) {
    return errors::BadModelFile(path, StrCat("is not valid JSON", JsonErrorPlace(text)),
                                "correct the text there, or write the file again");
  }
  if (!json.is_object()) {
    return errors::BadModelFile(path, StrCat("is not a JSON object, but ", json.type_name()),
                                "write the file again");
  }
  return json;
}

const nlohmann::json* ModelObject::Find(const char* key) const {
  const auto found = json_.find(key);
  return found == json_.end() || found->is_null() ? nullptr : &*found;
}

absl::Status ModelObject::Bad(const char* key, const std::string& what) const {
  return errors::BadModelValue(Name(key), what, file_);
}

absl::StatusOr<int64_t> ModelObject::Integer(const char* key, int64_t min, int64_t max,
                                             std::optional<int64_t> fallback) const {
  const nlohmann::json* const value = Find(key);
  if (value == nullptr) {
    if (fallback.has_value()) return *fallback;
    return Missing(key);
  }
  // A number above the range of int64_t is unsigned and becomes negative.
  const bool whole = value->is_number_integer();
  const int64_t number = whole ? value->get<int64_t>() : 0;
  if (!whole || number < min || number > max || (value->is_number_unsigned() && number < 0)) {
    return Bad(
        key,
        StrCat("is ",
               value->dump(-1, ' ', true, nlohmann::json::error_handler_t::replace).substr(0, 64),
               " and may be a whole number from ", min, " to ", max));
  }
  return number;
}

absl::StatusOr<double> ModelObject::Number(const char* key, double min, double max,
                                           std::optional<double> fallback) const {
  const nlohmann::json* const value = Find(key);
  if (value == nullptr) {
    if (fallback.has_value()) return *fallback;
    return Missing(key);
  }
  const double number = value->is_number() ? value->get<double>() : min;
  if (!(number > min && number <= max)) {
    return Bad(
        key,
        StrCat("is ",
               value->dump(-1, ' ', true, nlohmann::json::error_handler_t::replace).substr(0, 64),
               " and may be a number above ", min, " and up to ", max));
  }
  return number;
}

absl::StatusOr<bool> ModelObject::Bool(const char* key, bool fallback) const {
  const nlohmann::json* const value = Find(key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) return Bad(key, "is not true or false");
  return value->get<bool>();
}

absl::StatusOr<std::string> ModelObject::Text(const char* key,
                                              std::optional<std::string> fallback) const {
  const nlohmann::json* const value = Find(key);
  if (value == nullptr) {
    if (fallback.has_value()) return *fallback;
    return Missing(key);
  }
  if (!value->is_string()) return Bad(key, "is not a text");
  return value->get<std::string>();
}

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
