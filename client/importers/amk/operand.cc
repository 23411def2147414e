#include "client/importers/amk/operand.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace resident::cli::amk {

using absl::StrCat;

std::string TypeName(Type type) { return std::string(kTypeNames[static_cast<size_t>(type)]); }
bool IsFloat(Type type) { return type == Type::kF32 || type == Type::kF16 || type == Type::kBF16; }

int64_t Numel(const Shape& shape) {
  int64_t n = 1;
  for (const int64_t size : shape) n *= size;
  return n;
}
std::string Text(const Shape& shape) { return StrCat("[", absl::StrJoin(shape, ", "), "]"); }

Shape DenseStrides(const Shape& shape) {
  Shape strides(shape.size());
  int64_t step = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = step;
    step *= shape[i];
  }
  return strides;
}

bool IsDense(const Operand& o) {
  int64_t step = 1;
  for (size_t i = o.shape.size(); i-- > 0;) {
    if (o.shape[i] != 1 && o.strides[i] != step) return false;
    step *= o.shape[i];
  }
  return true;
}

Operand Part(const Operand& whole, Shape shape, Shape strides, int64_t offset) {
  Operand part = whole;
  part.whole = false;
  part.shape = std::move(shape);
  part.strides = std::move(strides);
  part.offset = whole.offset + offset;
  return part;
}
Operand Reshaped(const Operand& whole, Shape shape, int64_t offset) {
  if (shape == whole.shape && offset == 0) return whole;
  Shape strides = DenseStrides(shape);
  return Part(whole, std::move(shape), std::move(strides), offset);
}

bool Broadcasts(const Shape& from, const Shape& to) {
  if (from.size() > to.size()) return false;
  for (size_t i = 0; i < from.size(); ++i) {
    const int64_t size = from[from.size() - 1 - i];
    if (size != 1 && size != to[to.size() - 1 - i]) return false;
  }
  return true;
}

}  // namespace resident::cli::amk
