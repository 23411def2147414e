// The tensors of a ModelInferRequest: their types, and where their elements are: in the request,
// raw or typed, or in a region of shared memory.
//
// Thread safety: functions without state.
//
//   ASSIGN_OR_RETURN(InputTensor x, ReadInputType(model, message));
//   RETURN_IF_ERROR(ReadContents(regions, "add", message, &raw, x));
#ifndef RESIDENT_SERVER_INFERENCE_INFER_TENSORS_H_
#define RESIDENT_SERVER_INFERENCE_INFER_TENSORS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "google/protobuf/map.h"
#include "inference/open_inference.pb.h"
#include "runtime/model/signature.h"
#include "server/inference/errors.h"
#include "server/inference/regions.h"

namespace resident {

using InferParameters = google::protobuf::Map<std::string, inference::InferParameter>;

// A part of a region.
struct RegionPart {
  std::shared_ptr<Region> region;  // Null: the tensor is not in a region.
  uint64_t offset = 0;             // Relative to the region.
  uint64_t bytes = 0;
};

// Reads shared_memory_region, shared_memory_byte_size and shared_memory_offset of a tensor.
// INVALID_ARGUMENT: an unknown parameter, or a part that exceeds the region. NOT_FOUND.
absl::StatusOr<RegionPart> ReadRegionPart(Regions& regions, const std::string& model,
                                          const char* kind, const std::string& tensor,
                                          const InferParameters& parameters);

struct InputTensor {
  const std::string* name = nullptr;  // In the message.
  DType dtype = DType::kInvalid;
  Shape shape;
  uint64_t elements = 0;
  uint64_t bytes = 0;
  // Either a part of a region or `data`.
  RegionPart part;
  std::string data;
};

// Reads the type of an input. INVALID_ARGUMENT: the datatype or a dimension.
absl::StatusOr<InputTensor> ReadInputType(
    const std::string& model, const inference::ModelInferRequest::InferInputTensor& message);

// Finds the elements. `raw`: the input's raw contents, which are moved out; null: the request has
// none. `message` must be that of `tensor`. Errors: INVALID_ARGUMENT, and those of ReadRegionPart.
absl::Status ReadContents(Regions& regions, const std::string& model,
                          const inference::ModelInferRequest::InferInputTensor& message,
                          std::string* raw, InputTensor& tensor);

// INVALID_ARGUMENT: the daemon copies the tensor, which is in a region that it cannot access.
absl::Status CheckCopied(const errors::TensorRef& tensor, const RegionPart& part);

// Moves the elements of a tensor in a region into `data`. INVALID_ARGUMENT: it is larger than
// --max_message_mib, that is, than any tensor in a message. FAILED_PRECONDITION: see Region::Read.
absl::Status CopyFromRegion(const std::string& model, uint64_t max_message_mib,
                            InputTensor& tensor);

}  // namespace resident

#endif  // RESIDENT_SERVER_INFERENCE_INFER_TENSORS_H_
