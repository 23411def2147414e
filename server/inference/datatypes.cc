#include "server/inference/datatypes.h"

#include <array>
#include <cassert>

#include "absl/strings/str_join.h"

namespace resident {
namespace {

// In the order of the values of DType, from 1.
constexpr std::array<Datatype, 9> kDatatypes = {{
    {DType::kF32, "FP32", inference::TYPE_FP32},
    {DType::kF16, "FP16", inference::TYPE_FP16},
    {DType::kBF16, "BF16", inference::TYPE_BF16},
    {DType::kF64, "FP64", inference::TYPE_FP64},
    {DType::kI32, "INT32", inference::TYPE_INT32},
    {DType::kI64, "INT64", inference::TYPE_INT64},
    {DType::kU8, "UINT8", inference::TYPE_UINT8},
    {DType::kI8, "INT8", inference::TYPE_INT8},
    {DType::kU32, "UINT32", inference::TYPE_UINT32},
}};

constexpr bool InOrder() {
  for (size_t i = 0; i < kDatatypes.size(); ++i) {
    if (static_cast<size_t>(kDatatypes[i].dtype) != i + 1) return false;
  }
  return true;
}
static_assert(InOrder());

}  // namespace

const Datatype* FindDatatype(std::string_view name) {
  for (const Datatype& type : kDatatypes) {
    if (name == type.name) return &type;
  }
  return nullptr;
}

const Datatype& GetDatatype(DType dtype) {
  assert(dtype != DType::kInvalid);
  return kDatatypes[static_cast<size_t>(dtype) - 1];
}

std::string DatatypeNames() {
  return absl::StrJoin(kDatatypes, ", ",
                       [](std::string* out, const Datatype& type) { out->append(type.name); });
}

}  // namespace resident
