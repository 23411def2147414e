#include "server/inference/infer_tensors.h"

#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/layout/task.h"
#include "runtime/base/status_macros.h"
#include "runtime/model/dtype.h"
#include "server/inference/datatypes.h"
#include "server/inference/errors.h"
#include "server/inference/infer_parameters.h"

namespace resident {
namespace {

using inference::InferTensorContents;
using Message = inference::ModelInferRequest::InferInputTensor;

// Appends values of a field as elements of type To. Fails at the first that To cannot represent.
template <typename To, typename Field>
absl::Status Append(const errors::TensorRef& tensor, const Field& values, std::string* data) {
  data->resize(values.size() * sizeof(To));
  char* to = data->data();
  for (int i = 0; i < values.size(); ++i, to += sizeof(To)) {
    const auto value = static_cast<To>(values[i]);
    if (sizeof(To) < sizeof(values[i]) && value != values[i]) {
      const Datatype* const type =
          FindDatatype(sizeof(To) == 1 && std::is_signed_v<To> ? "INT8" : "UINT8");
      return errors::TypedContentsRange(tensor, type->name, static_cast<uint64_t>(i),
                                        absl::StrCat(values[i]));
    }
    std::memcpy(to, &value, sizeof(value));
  }
  return absl::OkStatus();
}

// Values in all fields of the contents.
int CountValues(const InferTensorContents& contents) {
  return contents.bool_contents_size() + contents.int_contents_size() +
         contents.int64_contents_size() + contents.uint_contents_size() +
         contents.uint64_contents_size() + contents.fp32_contents_size() +
         contents.fp64_contents_size() + contents.bytes_contents_size();
}

// The field of an element type, and its number of values; null: there is none.
struct TypedField {
  const char* name = nullptr;
  int values = 0;
};
TypedField FindField(DType dtype, const InferTensorContents& contents) {
  switch (dtype) {
    case DType::kF32:
      return {"fp32_contents", contents.fp32_contents_size()};
    case DType::kF64:
      return {"fp64_contents", contents.fp64_contents_size()};
    case DType::kI8:
    case DType::kI32:
      return {"int_contents", contents.int_contents_size()};
    case DType::kI64:
      return {"int64_contents", contents.int64_contents_size()};
    case DType::kU8:
    case DType::kU32:
      return {"uint_contents", contents.uint_contents_size()};
    case DType::kF16:
    case DType::kBF16:
    case DType::kInvalid:
      break;
  }
  return {};
}

absl::Status ReadTyped(const errors::TensorRef& place, const InferTensorContents& contents,
                       InputTensor& tensor) {
  const char* const datatype = GetDatatype(tensor.dtype).name;
  const TypedField field = FindField(tensor.dtype, contents);
  if (field.name == nullptr) return errors::NoTypedContents(place, datatype);
  if (CountValues(contents) != field.values) {
    return errors::TypedContentsField(place, datatype, field.name);
  }
  if (static_cast<uint64_t>(field.values) != tensor.elements) {
    return errors::TypedContentsCount(place, static_cast<uint64_t>(field.values), tensor.elements);
  }
  switch (tensor.dtype) {
    case DType::kF32:
      return Append<float>(place, contents.fp32_contents(), &tensor.data);
    case DType::kF64:
      return Append<double>(place, contents.fp64_contents(), &tensor.data);
    case DType::kI8:
      return Append<int8_t>(place, contents.int_contents(), &tensor.data);
    case DType::kI32:
      return Append<int32_t>(place, contents.int_contents(), &tensor.data);
    case DType::kI64:
      return Append<int64_t>(place, contents.int64_contents(), &tensor.data);
    case DType::kU8:
      return Append<uint8_t>(place, contents.uint_contents(), &tensor.data);
    default:
      return Append<uint32_t>(place, contents.uint_contents(), &tensor.data);
  }
}

}  // namespace

absl::StatusOr<RegionPart> ReadRegionPart(Regions& regions, const std::string& model,
                                          const char* kind, const std::string& tensor,
                                          const InferParameters& parameters) {
  const errors::TensorRef place{model, kind, tensor};
  RegionPart part;
  const std::string* name = nullptr;
  bool has_bytes = false;
  for (const auto& [key, value] : parameters) {
    if (key == "shared_memory_region") {
      if (!value.has_string_param()) return errors::InferParameterValue(key, "a string");
      name = &value.string_param();
    } else if (key == "shared_memory_byte_size") {
      ASSIGN_OR_RETURN(part.bytes, ReadCount(key, value));
      has_bytes = true;
    } else if (key == "shared_memory_offset") {
      ASSIGN_OR_RETURN(part.offset, ReadCount(key, value));
    } else if (key == "classification") {
      return errors::ClassificationUnsupported(tensor);
    } else if (key == "binary_data_size" || key == "binary_data") {
      // Of the protocol's binary extension for HTTP; KServe's SDK also sends them through gRPC.
    } else {
      return errors::UnknownInferParameter(
          errors::TensorText(place), key,
          "shared_memory_region, shared_memory_byte_size, shared_memory_offset");
    }
  }
  if (name == nullptr) {
    if (!has_bytes && part.offset == 0) return part;
    return errors::InferParameterValue("shared_memory_region", "the name of a region");
  }
  ASSIGN_OR_RETURN(part.region, regions.Find(*name));
  const uint64_t region_bytes = part.region->spec().bytes;
  if (!has_bytes || part.offset > region_bytes || part.bytes > region_bytes - part.offset) {
    return errors::BeyondRegion(place, *name, part.offset, part.bytes, region_bytes);
  }
  return part;
}

absl::StatusOr<InputTensor> ReadInputType(const std::string& model, const Message& message) {
  const errors::TensorRef place{model, "input", message.name()};
  InputTensor tensor;
  tensor.name = &message.name();
  const Datatype* const type = FindDatatype(message.datatype());
  if (type == nullptr) return errors::Datatype(place, message.datatype(), DatatypeNames());
  tensor.dtype = type->dtype;
  // One more for the tasks of a batch.
  constexpr int kMaxDimensions = static_cast<int>(kMaxRank) + 1;
  if (message.shape_size() > kMaxDimensions) {
    return errors::TooManyDimensions(place, message.shape_size(), kMaxDimensions);
  }
  for (const int64_t size : message.shape()) {
    if (size < 0) return errors::Dimension(place, size);
    tensor.shape.push_back(size);
  }
  const std::optional<int64_t> elements = ElementCount(tensor.shape);
  // Sizes up to this have room for a few additions.
  constexpr int64_t kMaxElements = int64_t{1} << 56;
  if (!elements.has_value() || *elements > kMaxElements) return errors::TensorTooLarge(place);
  tensor.elements = static_cast<uint64_t>(*elements);
  tensor.bytes = tensor.elements * SizeOf(tensor.dtype);
  return tensor;
}

absl::Status ReadContents(Regions& regions, const std::string& model, const Message& message,
                          std::string* raw, InputTensor& tensor) {
  const errors::TensorRef place{model, "input", message.name()};
  if (!message.parameters().empty()) {
    ASSIGN_OR_RETURN(tensor.part,
                     ReadRegionPart(regions, model, "input", message.name(), message.parameters()));
  }
  if (tensor.part.region != nullptr) {
    if (message.has_contents()) return errors::RegionAndContents(place);
    if (tensor.part.bytes != tensor.bytes) {
      return errors::ContentsSize(place, tensor.part.bytes, tensor.bytes);
    }
    return absl::OkStatus();
  }
  if (message.has_contents()) {
    if (raw != nullptr) return errors::RawAndTypedContents();
    return ReadTyped(place, message.contents(), tensor);
  }
  const uint64_t bytes = raw == nullptr ? 0 : raw->size();
  if (bytes != tensor.bytes) return errors::ContentsSize(place, bytes, tensor.bytes);
  if (raw != nullptr) tensor.data = std::move(*raw);
  return absl::OkStatus();
}

absl::Status CheckCopied(const errors::TensorRef& tensor, const RegionPart& part) {
  if (part.region == nullptr || part.region->spec().kind != RegionKind::kCuda) {
    return absl::OkStatus();
  }
  return errors::CudaRegionCopied(tensor);
}

absl::Status CopyFromRegion(const std::string& model, uint64_t max_message_mib,
                            InputTensor& tensor) {
  const errors::TensorRef place{model, "input", *tensor.name};
  RETURN_IF_ERROR(CheckCopied(place, tensor.part));
  const uint64_t limit = max_message_mib << 20;
  if (tensor.bytes > limit) return errors::RegionCopyTooLarge(place, tensor.bytes, limit);
  ASSIGN_OR_RETURN(tensor.data, tensor.part.region->Read(tensor.part.offset, tensor.bytes));
  return absl::OkStatus();
}

}  // namespace resident
