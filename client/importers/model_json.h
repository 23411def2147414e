// JSON files of a model's folder: bounded in size, and values with checks.
//
// Thread safety: pure functions; ModelObject reads the JSON that it was made from.
//
//   ASSIGN_OR_RETURN(const nlohmann::json file, ReadModelJson("model/config.json", 1 << 20));
//   ASSIGN_OR_RETURN(const int64_t layers, ModelObject(file).Integer("num_hidden_layers", 1,
//   1024));
#ifndef RESIDENT_CLIENT_IMPORTERS_MODEL_JSON_H_
#define RESIDENT_CLIENT_IMPORTERS_MODEL_JSON_H_

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace resident::cli {

// An object. NaN, Infinity and -Infinity, which Python's json writes, are texts with these names,
// so that a key that is read refuses them. INVALID_ARGUMENT: the file cannot be read, has more than
// `max_bytes`, or is not a JSON object.
absl::StatusOr<nlohmann::json> ReadModelJson(const std::string& path, uint64_t max_bytes);

// An object of config.json. A key whose value is null counts as missing.
class ModelObject {
 public:
  // `prefix`: of the keys in messages, such as "rope_scaling.". `file`: for messages.
  explicit ModelObject(const nlohmann::json& json, std::string prefix = "",
                       std::string file = "config.json")
      : json_(json), prefix_(std::move(prefix)), file_(std::move(file)) {}

  // Null: it is missing.
  const nlohmann::json* Find(const char* key) const;
  // Whether the key is there, also with the value null.
  bool Has(const char* key) const { return json_.contains(key); }
  // INVALID_ARGUMENT about a key. `what`: "is missing".
  absl::Status Bad(const char* key, const std::string& what) const;
  std::string Name(const char* key) const { return prefix_ + key; }

  // INVALID_ARGUMENT: it has another type or is out of range, or it is missing and there is no
  // `fallback`.
  absl::StatusOr<int64_t> Integer(const char* key, int64_t min, int64_t max,
                                  std::optional<int64_t> fallback = {}) const;
  // `least` itself is excluded.
  absl::StatusOr<double> Number(const char* key, double min, double max,
                                std::optional<double> fallback = {}) const;
  absl::StatusOr<bool> Bool(const char* key, bool fallback) const;
  absl::StatusOr<std::string> Text(const char* key, std::optional<std::string> fallback = {}) const;

 private:
  absl::Status Missing(const char* key) const { return Bad(key, "is missing"); }

  const nlohmann::json& json_;
  const std::string prefix_;
  const std::string file_;
};

// The safetensors files that a word of the command line stands for.

// The limit of one index.
inline constexpr size_t kMaxSafetensorsFiles = 1024;

// `path`: a safetensors file, the index of several (*.index.json), or the folder of a model, which
// has model.safetensors or model.safetensors.index.json. Paths in alphabetical order; one that is
// neither an index nor a folder is returned as it is. INVALID_ARGUMENT: an index is damaged, or a
// folder has no files.
absl::StatusOr<std::vector<std::string>> SafetensorsPaths(const std::string& path);

}  // namespace resident::cli

#endif  // RESIDENT_CLIENT_IMPORTERS_MODEL_JSON_H_
