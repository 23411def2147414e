#include "runtime/model/version_spec.h"

#include "absl/strings/str_cat.h"
#include "runtime/base/sha256.h"

namespace resident {

std::string ContentHash(std::string_view name, std::string_view body,
                        const std::map<std::string, std::string>& files, const VersionSpec& spec) {
  Sha256 hash;
  hash.Field(name).Field(OperatorKindName(spec.kind)).Field(body);
  for (const auto& [file, text] : files) hash.Field(file).Field(text);
  hash.Field(spec.signature).Field(spec.split);
  hash.Field(
      absl::StrCat(spec.task_time_limit.count(), " ", spec.scratch_bytes, " ", spec.allow_spills));
  // Versions that were installed before there was a choice keep their hash.
  if (spec.isolation != Isolation::kUnspecified) hash.Field(IsolationName(spec.isolation));
  return hash.Hex();
}

}  // namespace resident
