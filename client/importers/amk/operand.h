// Operands of AMK's tasks: tensors and parts of them.
//
// Thread safety: pure functions.
#ifndef RESIDENT_CLIENT_IMPORTERS_AMK_OPERAND_H_
#define RESIDENT_CLIENT_IMPORTERS_AMK_OPERAND_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "client/importers/amk/file.h"
#include "resident/v1/types.pb.h"

namespace resident::cli::amk {

enum class Type : uint8_t {
  kF32,
  kF16,
  kBF16,
  kF8E4M3,
  kF8E5M2,
  kI32,
  kI8,
  kI4,
  kU8,
  kBool,
  // Only of intermediate results.
  kI64,
  kF64
};
inline constexpr std::string_view kTypeNames[] = {"F32", "F16", "BF16", "F8E4M3", "F8E5M2", "I32",
                                                  "I8",  "I4",  "U8",   "BOOL",   "I64",    "F64"};
inline constexpr v1::DType kDTypes[] = {
    v1::DTYPE_F32,         v1::DTYPE_F16, v1::DTYPE_BF16, v1::DTYPE_UNSPECIFIED,
    v1::DTYPE_UNSPECIFIED, v1::DTYPE_I32, v1::DTYPE_I8,   v1::DTYPE_U8,
    v1::DTYPE_U8,          v1::DTYPE_U8,  v1::DTYPE_I64,  v1::DTYPE_F64};
// The types that a file may name come first.
inline constexpr size_t kFileTypes = 10;

std::string TypeName(Type type);
bool IsFloat(Type type);

int64_t Numel(const Shape& shape);
std::string Text(const Shape& shape);
Shape DenseStrides(const Shape& shape);

// A tensor, or a part of it.
struct Operand {
  std::string tensor;
  Type type = Type::kF32;
  Shape shape;
  // In elements.
  Shape strides;
  int64_t offset = 0;
  bool whole = true;
};

bool IsDense(const Operand& o);
// A part of the memory of a whole tensor; offset and strides in elements.
Operand Part(const Operand& whole, Shape shape, Shape strides, int64_t offset = 0);
// The same memory with another shape.
Operand Reshaped(const Operand& whole, Shape shape, int64_t offset = 0);
// Whether a tensor with this shape can be read with the other one, as in PyTorch.
bool Broadcasts(const Shape& from, const Shape& to);

}  // namespace resident::cli::amk

#endif  // RESIDENT_CLIENT_IMPORTERS_AMK_OPERAND_H_
