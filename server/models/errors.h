// Errors of loads of models, and of requests to them.
//
// Thread safety: functions without state.
#ifndef RESIDENT_SERVER_MODELS_ERRORS_H_
#define RESIDENT_SERVER_MODELS_ERRORS_H_

#include <chrono>
#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace resident::errors {

// Loads.
absl::Status NotAModel(const std::string& why, const std::string& fix);
absl::Status ModelName(const std::string& name);
absl::Status ModelNameIsOperator(const std::string& name);
absl::Status ModelLoadWithoutHeader();
absl::Status ModelLoadSecondHeader();
absl::Status ModelLoadEmptyMessage();
absl::Status ModelInstances(uint32_t wanted, uint32_t limit);
// A tensor that has no contents of its own.
absl::Status ModelWeightUnknown(const std::string& tensor);
absl::Status ModelWeightBytes(const std::string& tensor, uint64_t got, uint64_t wanted);
absl::Status ModelMemoryFull(uint64_t bytes, uint64_t used, uint64_t limit);
absl::Status ModelStagingFull(uint64_t bytes, uint64_t used);
absl::Status ModelNeedsGraphsInEngine(uint32_t device);

// Files.
absl::Status ModelWithoutSource();
absl::Status ModelFileName(const std::string& name);
absl::Status ModelFileLimit(uint64_t bytes, uint64_t limit);
absl::Status ModelFileCount(int limit);
absl::Status ModelFileMissing(const std::string& name);
absl::Status ModelFileBytes(uint64_t got, uint64_t wanted);
absl::Status ModelPartOfOther(const std::string& what);
absl::Status ImportNotStarted(const std::string& why);
absl::Status ImportFailed(const std::string& how);
absl::Status ImportTooSlow(std::chrono::seconds limit);

// Plans.
// `why`: how the graph differs from that of the largest sizes.
absl::Status ModelPlanDiffers(const std::string& why);
// `sizes`: "sequence=12".
absl::Status ModelPlanFailed(const std::string& sizes, const absl::Status& why);
absl::Status ModelWarmupCount(int limit);
absl::Status ModelWarmup(const std::string& why);
// `most`: the bound of the dimension.
absl::Status ModelSizeAboveBound(const std::string& model, const std::string& tensor,
                                 const std::string& dimension, uint64_t got, uint64_t max);

// A version that a restart restores.
absl::Status StoredModelDamaged(const std::string& name, uint32_t version);
absl::Status ModelDeviceGone(const std::string& name, uint32_t version, uint32_t device);

// Requests.
absl::Status ModelInputMissing(const std::string& model, const std::string& tensor);
// `names`: those that the model has.
absl::Status ModelTensorUnknown(const std::string& model, const std::string& kind,
                                const std::string& tensor, const std::string& names);
absl::Status ModelTensorTwice(const std::string& model, const std::string& tensor);
// `what`: the dtype, the shape, or the bytes.
absl::Status ModelTensorType(const std::string& model, const std::string& tensor,
                             const std::string& what, const std::string& got,
                             const std::string& wanted);
absl::Status ModelSizesDiffer(const std::string& model, const std::string& tensor, uint64_t got,
                              const std::string& scalar, uint64_t other);
absl::Status ModelScalarMissing(const std::string& model, const std::string& scalar);
absl::Status ModelScalarIsSize(const std::string& model, const std::string& scalar);
absl::Status ModelOnOtherDevice(const std::string& model, uint32_t device, uint32_t wanted);
// The message of a task that did not end in time.
std::string ModelTooSlow(std::chrono::milliseconds limit);

}  // namespace resident::errors

#endif  // RESIDENT_SERVER_MODELS_ERRORS_H_
