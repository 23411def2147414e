#include "client/cli/model_json.h"

#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "runtime/base/errors/model_errors.h"
#include "runtime/base/shallow_json.h"

namespace resident::cli {

using absl::StrCat;

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
  nlohmann::json json = ParseShallowJson<nlohmann::json>(text);
  if (!json.is_object()) {
    return errors::BadModelFile(path, "is not a JSON object, or nested too deeply",
                                "write the file again");
  }
  return json;
}

const nlohmann::json* ModelObject::Find(const char* key) const {
  const auto found = json_.find(key);
  return found == json_.end() || found->is_null() ? nullptr : &*found;
}

absl::Status ModelObject::Missing(const char* key) const {
  return errors::BadModelValue(Name(key), "is missing");
}

absl::StatusOr<int64_t> ModelObject::Integer(const char* key, int64_t least, int64_t most,
                                             std::optional<int64_t> fallback) const {
  const nlohmann::json* const value = Find(key);
  if (value == nullptr) {
    if (fallback.has_value()) return *fallback;
    return Missing(key);
  }
  // A number above the range of int64_t is unsigned and becomes negative.
  const bool whole = value->is_number_integer();
  const int64_t number = whole ? value->get<int64_t>() : 0;
  if (!whole || number < least || number > most || (value->is_number_unsigned() && number < 0)) {
    return errors::BadModelValue(
        Name(key),
        StrCat("is ",
               value->dump(-1, ' ', true, nlohmann::json::error_handler_t::replace).substr(0, 64),
               " and may be a whole number from ", least, " to ", most));
  }
  return number;
}

absl::StatusOr<double> ModelObject::Number(const char* key, double least, double most,
                                           std::optional<double> fallback) const {
  const nlohmann::json* const value = Find(key);
  if (value == nullptr) {
    if (fallback.has_value()) return *fallback;
    return Missing(key);
  }
  const double number = value->is_number() ? value->get<double>() : least;
  if (!(number > least && number <= most)) {
    return errors::BadModelValue(
        Name(key),
        StrCat("is ",
               value->dump(-1, ' ', true, nlohmann::json::error_handler_t::replace).substr(0, 64),
               " and may be a number above ", least, " and up to ", most));
  }
  return number;
}

absl::StatusOr<bool> ModelObject::Bool(const char* key, bool fallback) const {
  const nlohmann::json* const value = Find(key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) return errors::BadModelValue(Name(key), "is not true or false");
  return value->get<bool>();
}

absl::StatusOr<std::string> ModelObject::Text(const char* key,
                                              std::optional<std::string> fallback) const {
  const nlohmann::json* const value = Find(key);
  if (value == nullptr) {
    if (fallback.has_value()) return *fallback;
    return Missing(key);
  }
  if (!value->is_string()) return errors::BadModelValue(Name(key), "is not a text");
  return value->get<std::string>();
}

}  // namespace resident::cli
