#include "server/onnx/tensor_data.h"

#include <cassert>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/errors/quote.h"
#include "runtime/base/status_macros.h"
#include "runtime/model/dtype.h"
#include "server/onnx/nodes/model_error.h"

namespace resident::onnx {

using absl::StrCat;
using errors::Quote;

namespace {

std::string Place(const TensorProto& tensor) { return StrCat("tensor ", Quote(tensor.name())); }

// The size in bytes of the tensor's elements. REQUIRES: the daemon has the type.
absl::StatusOr<uint64_t> CountBytes(const TensorProto& tensor) {
  if (static_cast<size_t>(tensor.dims_size()) > kMaxRank) {
    return ModelError(103, StrCat(Place(tensor), " has ", tensor.dims_size(),
                                  " dimensions, and at most ", kMaxRank, " are supported"));
  }
  const Sizes64 shape(tensor.dims().begin(), tensor.dims().end());
  const std::optional<int64_t> count = CountElements(shape);
  const uint64_t size = SizeOf(DTypeOf(static_cast<ElementType>(tensor.data_type())));
  if (!count.has_value() || static_cast<uint64_t>(*count) > (uint64_t{1} << 60) / size) {
    return ModelError(106, StrCat(Place(tensor), " has the shape ", ShapeText(shape),
                                  ", whose size is negative or overflows"));
  }
  return static_cast<uint64_t>(*count) * size;
}

bool IsPlainName(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.size() <= kMaxNameBytes &&
         !absl::StrContains(name, '/') && !absl::StrContains(name, '\\') &&
         !absl::StrContains(name, '\0');
}

absl::Status ReadExternal(const Files& files, uint64_t bytes, TensorProto* tensor) {
  std::string location;
  uint64_t offset = 0, length = bytes;
  for (const StringStringEntryProto& entry : tensor->external_data()) {
    if (entry.key() == "location") {
      location = entry.value();
    } else if (entry.key() == "offset" || entry.key() == "length") {
      uint64_t* const to = entry.key() == "offset" ? &offset : &length;
      if (!absl::SimpleAtoi(entry.value(), to)) {
        return ModelError(107, StrCat(Place(*tensor), ": ", entry.key(), " ", Quote(entry.value()),
                                      " of its data is not a number"));
      }
    }
  }
  if (!IsPlainName(location)) {
    return ModelError(107, StrCat(Place(*tensor), " is in the file ", Quote(location),
                                  ", which is not a plain name without a folder. Fix: save the "
                                  "model with its data in one file beside it"));
  }
  const auto file = files.find(location);
  if (file == files.end()) {
    return ModelError(107, StrCat(Place(*tensor), " is in the file ", Quote(location),
                                  ", which was not sent. Fix: send ", Quote(location), " along"));
  }
  if (length != bytes) {
    return ModelError(106, StrCat(Place(*tensor), " has ", length, " bytes in ", Quote(location),
                                  ", and its shape and type need ", bytes));
  }
  if (offset > file->second.size() || length > file->second.size() - offset) {
    return ModelError(107, StrCat(Place(*tensor), ": bytes ", offset, " to ", offset, " + ", length,
                                  " are outside of ", Quote(location), ", which has ",
                                  file->second.size(), " bytes. Fix: send the whole file"));
  }
  tensor->mutable_raw_data()->assign(file->second.substr(offset, length));
  tensor->clear_external_data();
  tensor->clear_data_location();
  return absl::OkStatus();
}

template <typename Stored, typename Field>
void AppendAs(const Field& values, std::string* bytes) {
  for (const auto value : values) {
    const auto stored = static_cast<Stored>(value);
    bytes->append(reinterpret_cast<const char*>(&stored), sizeof(stored));
  }
}

// The numbers of a list, as raw bytes. Of the small types, the list has int32 values.
std::string ListBytes(const TensorProto& tensor) {
  std::string bytes;
  switch (static_cast<ElementType>(tensor.data_type())) {
    case ElementType::kFloat:
      AppendAs<float>(tensor.float_data(), &bytes);
      break;
    case ElementType::kDouble:
      AppendAs<double>(tensor.double_data(), &bytes);
      break;
    case ElementType::kInt64:
      AppendAs<int64_t>(tensor.int64_data(), &bytes);
      break;
    case ElementType::kUint32:
      AppendAs<uint32_t>(tensor.uint64_data(), &bytes);
      break;
    case ElementType::kInt32:
      AppendAs<int32_t>(tensor.int32_data(), &bytes);
      break;
    case ElementType::kFloat16:
    case ElementType::kBfloat16:
      AppendAs<uint16_t>(tensor.int32_data(), &bytes);
      break;
    default:
      AppendAs<uint8_t>(tensor.int32_data(), &bytes);
      break;
  }
  return bytes;
}

}  // namespace

absl::Status NormalizeTensor(const Files& files, TensorProto* tensor) {
  if (tensor->has_segment()) {
    return ModelError(106, StrCat(Place(*tensor), " is only a segment of a tensor"));
  }
  const auto type = static_cast<ElementType>(tensor->data_type());
  if (DTypeOf(type) == DType::kInvalid) return absl::OkStatus();
  ASSIGN_OR_RETURN(const uint64_t bytes, CountBytes(*tensor));
  if (tensor->data_location() != 1 && tensor->external_data_size() > 0) {
    return ModelError(106,
                      StrCat(Place(*tensor), " names a file, and says that its data are here"));
  }
  if (tensor->data_location() == 1) {
    RETURN_IF_ERROR(ReadExternal(files, bytes, tensor));
  } else if (!tensor->has_raw_data()) {
    *tensor->mutable_raw_data() = ListBytes(*tensor);
  }
  tensor->clear_float_data();
  tensor->clear_int32_data();
  tensor->clear_int64_data();
  tensor->clear_double_data();
  tensor->clear_uint64_data();
  std::string& data = *tensor->mutable_raw_data();
  if (data.size() != bytes) {
    return ModelError(106, StrCat(Place(*tensor), " has ", data.size(),
                                  " bytes of data, and its "
                                  "shape and type need ",
                                  bytes));
  }
  if (type == ElementType::kBool) {
    for (char& value : data) value = value != 0 ? 1 : 0;
  }
  return absl::OkStatus();
}

Constant TakeConstant(TensorProto* tensor) {
  Constant constant;
  constant.type = static_cast<ElementType>(tensor->data_type());
  constant.shape.assign(tensor->dims().begin(), tensor->dims().end());
  [[maybe_unused]] const DType dtype = DTypeOf(constant.type);
  assert(dtype == DType::kInvalid ||
         tensor->raw_data().size() == static_cast<uint64_t>(constant.elements()) * SizeOf(dtype));
  constant.bytes = std::make_shared<const std::string>(std::move(*tensor->mutable_raw_data()));
  tensor->clear_raw_data();
  return constant;
}

}  // namespace resident::onnx
