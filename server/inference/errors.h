// Errors of the Open Inference Protocol, in its words.
//
//   return errors::UnknownTensor({"add", "input"}, name, "x, y");
//
// Thread safety: functions without state.
#ifndef RESIDENT_SERVER_INFERENCE_ERRORS_H_
#define RESIDENT_SERVER_INFERENCE_ERRORS_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace resident::errors {

// A tensor of a model: "input 'x' of add".
struct TensorRef {
  const std::string& model;
  const char* kind;  // "input" or "output".
  const std::string& name;
};
std::string TensorText(const TensorRef& tensor);
// An error of the daemon in the words of the Open Inference Protocol.
absl::Status InInferenceWords(const absl::Status& status);
absl::Status ModelVersion(const std::string& text);
absl::Status UnknownModel(const std::string& name);
// `known`: the names of the model's inputs, or outputs.
absl::Status UnknownTensor(const TensorRef& tensor, const std::string& known);
absl::Status TensorTwice(const TensorRef& tensor);
absl::Status InputMissing(const TensorRef& tensor);
absl::Status Datatype(const TensorRef& tensor, const std::string& datatype,
                      const std::string& known);
absl::Status ScalarDatatype(const TensorRef& tensor, const std::string& datatype,
                            const std::string& wanted);
absl::Status Dimension(const TensorRef& tensor, int64_t size);
absl::Status TooManyDimensions(const TensorRef& tensor, int got, int limit);
absl::Status TensorTooLarge(const TensorRef& tensor);
absl::Status ContentsSize(const TensorRef& tensor, uint64_t got, uint64_t wanted);
absl::Status ScalarShape(const TensorRef& tensor, const std::string& shape,
                         const std::string& wanted);
// The registers of a bytecode operator.
absl::Status RegistersShape(const TensorRef& tensor, const std::string& shape, int64_t registers);
absl::Status NoRuns(const TensorRef& tensor);
// Models "NAME:batch".
absl::Status NoBatchDimension(const TensorRef& tensor);
absl::Status BatchDimensions(const TensorRef& tensor, int64_t got, int64_t wanted,
                             const std::string& other);
absl::Status EmptyBatchDimension(const TensorRef& tensor);
absl::Status NoBatchSize(const std::string& model);
absl::Status OutputMissing(const TensorRef& tensor);
absl::Status RawAndTypedContents();
// The request as a whole; it was not parsed.
absl::Status RawContentsCount(size_t got, size_t wanted);
absl::Status NoTypedContents(const TensorRef& tensor, const std::string& datatype);
absl::Status TypedContentsField(const TensorRef& tensor, const std::string& datatype,
                                const std::string& field);
absl::Status TypedContentsCount(const TensorRef& tensor, uint64_t got, uint64_t wanted);
absl::Status TypedContentsRange(const TensorRef& tensor, const std::string& datatype,
                                uint64_t index, const std::string& value);
// `known`: names of the operator's scalars; may be empty.
absl::Status UnknownInferParameter(const std::string& model, const std::string& name,
                                   const std::string& known);
absl::Status InferParameterValue(const std::string& name, const std::string& wanted);
absl::Status ScalarTwice(const std::string& model, const std::string& name);
absl::Status SequencesUnsupported();
absl::Status ClassificationUnsupported(const std::string& output);
// A task failed. `index`: of `count` tasks, `failed` of which failed. `detail` ends with
// "Fix: ...".
absl::Status InferenceFailed(absl::StatusCode code, uint64_t index, uint64_t count, uint64_t failed,
                             const std::string& detail);
// Regions of shared memory.
absl::Status RegionName(size_t bytes, size_t limit);
absl::Status RegionExists(const std::string& name);
absl::Status UnknownRegion(const std::string& name);
absl::Status RegionSize(const std::string& name, uint64_t offset, uint64_t bytes);
absl::Status BeyondRegion(const TensorRef& tensor, const std::string& region, uint64_t offset,
                          uint64_t bytes, uint64_t region_bytes);
absl::Status RegionTooSmall(const TensorRef& tensor, uint64_t bytes, uint64_t wanted);
absl::Status RegionCopyTooLarge(const TensorRef& tensor, uint64_t bytes, uint64_t limit);
absl::Status RegionAlignment(const TensorRef& tensor, uint64_t offset, uint64_t element_bytes);
absl::Status RegionOnOtherDevice(const TensorRef& tensor, const std::string& region,
                                 uint32_t device, const std::string& other, uint32_t other_device);
absl::Status RegionTruncated(const std::string& name);
// Empty: all regions.
absl::Status UnregisteredButUsed(const std::string& name);
absl::Status RegionLost(const std::string& name, const std::string& cause);
absl::Status RegionAndContents(const TensorRef& tensor);
// Memory of a GPU. `why`: "the daemon's callers have identities".
absl::Status CudaRegionsNotAccepted(const std::string& why);
absl::Status CudaRegionsUnsupported(uint32_t device, const std::string& engine);
absl::Status CudaHandleSize(const std::string& name, size_t got, size_t wanted);
absl::Status CudaRegionCopied(const TensorRef& tensor);
// The repository and the settings.
absl::Status UnknownRepository(const std::string& name);
absl::Status LoadConfig(const std::string& what);
absl::Status LoadConfigTooLarge(size_t bytes, size_t limit);
absl::Status LoadFileName(const std::string& name);
absl::Status LoadFileTwice(const std::string& file);
absl::Status LoadFilesWithoutConfig();
absl::Status LoadModelConfig(const std::string& what);
absl::Status LoadModelTwice(const std::string& file, const std::string& other);
absl::Status LoadModelRefused(const std::string& findings);
absl::Status LoadParameter(const std::string& name);
absl::Status InstallRefused(absl::StatusCode code, const std::string& message,
                            const std::string& log);
absl::Status UnloadDisabled(const std::string& name);
absl::Status SettingsAreReadOnly(const std::string& what, const std::string& fix);

}  // namespace resident::errors

#endif  // RESIDENT_SERVER_INFERENCE_ERRORS_H_
