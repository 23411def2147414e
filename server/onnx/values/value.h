// Value: what a name of the model stands for while its graph is made: a constant, or a strided view
// of a tensor of the graph. Layout operators only make another view.
//
// Thread safety: plain values, pure functions.
//
//   Value t = x;
//   std::swap(t.shape[0], t.shape[1]);  // A transposed matrix.
//   std::swap(t.strides[0], t.strides[1]);
#ifndef RESIDENT_SERVER_ONNX_VALUES_VALUE_H_
#define RESIDENT_SERVER_ONNX_VALUES_VALUE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "server/onnx/values/constant.h"

namespace resident::onnx {

struct Value {
  enum class Kind {
    // The node that computes it was refused: only its type and shape may be known.
    kRefused,
    kConstant,
    kView,
  };
  Kind kind = Kind::kRefused;
  ElementType type = ElementType::kUndefined;
  // kRefused: valid if `known`.
  bool known = false;
  Sizes64 shape;

  // kConstant.
  Constant constant;
  // kView: elements of a tensor of the graph, by its index there.
  int tensor = -1;
  int64_t offset = 0;
  Sizes64 strides;

  bool is_constant() const { return kind == Kind::kConstant; }
  size_t rank() const { return shape.size(); }
  int64_t size(size_t d) const { return shape[d]; }
  int64_t elements() const { return *CountElements(shape); }
};

Value ConstantValue(Constant constant);
// A constant scalar.
Value NumberValue(double value, ElementType type);
// A dense view with another shape of as many elements.
Value WithShape(const Value& dense, const Sizes64& shape);

// Whether a view is dense: row-major without gaps. Strides of dimensions of size 1 do not matter.
bool IsDense(const Value& view);
// The strides with which a view has another shape of as many elements; nullopt: there are none.
std::optional<Sizes64> StridesForShape(const Value& view, const Sizes64& shape);

}  // namespace resident::onnx

#endif  // RESIDENT_SERVER_ONNX_VALUES_VALUE_H_
