// Errors of models that are converted to task graphs (client/importers/llama/import.h).
//
// Thread safety: functions without state.
#ifndef RESIDENT_CLIENT_IMPORTERS_ERRORS_H_
#define RESIDENT_CLIENT_IMPORTERS_ERRORS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace resident::errors {

// A file of the folder that cannot be used. `what`: "is not valid JSON".
absl::Status BadModelFile(const std::string& path, const std::string& what, const std::string& fix);
absl::Status ModelFileTooLarge(const std::string& path, uint64_t bytes, uint64_t limit);
// A key of config.json. `what`: "is -1 and may be 1 to 1024".
absl::Status BadModelValue(const std::string& key, const std::string& what,
                           const std::string& file = "config.json");
// A key whose value the importer cannot express. `value`: as JSON. `supported`: "'silu'".
absl::Status UnsupportedModelValue(const std::string& key, const std::string& value,
                                   const std::string& supported);

absl::Status MissingModelTensor(const std::string& name);
// `other`: the name that the files have, which has another prefix.
absl::Status ModelTensorPrefix(const std::string& name, const std::string& other);
// A tensor that a model does not need, with a dtype of the format that residentd does not have.
absl::Status UnsupportedModelTensor(const std::string& name, const std::string& dtype);
// `shape`, `wanted`: "8x64". `because`: the keys of config.json that determine the shape.
absl::Status ModelTensorShape(const std::string& name, const std::string& shape,
                              const std::string& wanted, const std::string& because);
absl::Status ModelTensorDType(const std::string& name, const std::string& dtype);
// A tensor that a model of this form does not have, so that the graph would compute something else.
absl::Status UnknownModelTensor(const std::string& name, const std::string& architecture);
absl::Status ModelTensorTwice(const std::string& name, const std::string& first,
                              const std::string& second);
absl::Status ModelTensorName(const std::string& name, uint64_t limit);

// A weight that is not finite, or above the limit, in absolute value, of those that can be
// quantized.
absl::Status WeightOutOfRange(const std::string& tensor, uint64_t row, double limit);
// A file that has other tensors than when the graph was made.
absl::Status ModelFileChanged(const std::string& path);

// Options of the conversion.
absl::Status ContextLength(uint64_t wanted, uint64_t limit, const std::string& why);
absl::Status PromptLength(uint64_t wanted, uint64_t limit);
absl::Status BatchOfTexts(uint64_t wanted, uint64_t limit);
// `what`: "has no effect without --sample".
absl::Status BadModelOption(const std::string& option, const std::string& what,
                            const std::string& fix);
absl::Status CacheTooLarge(const std::string& shape);

}  // namespace resident::errors

#endif  // RESIDENT_CLIENT_IMPORTERS_ERRORS_H_
