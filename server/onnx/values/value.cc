#include "server/onnx/values/value.h"

#include <utility>

namespace resident::onnx {

Value ConstantValue(Constant constant) {
  Value value;
  value.kind = Value::Kind::kConstant;
  value.type = constant.type;
  value.known = true;
  value.shape = constant.shape;
  value.constant = std::move(constant);
  return value;
}

Value NumberValue(double value, ElementType type) {
  return ConstantValue(Constant::Reals({}, {value}, type));
}

Value WithShape(const Value& dense, const Sizes64& shape) {
  Value view = dense;
  view.shape = shape;
  view.strides = DenseStrides(shape);
  return view;
}

bool IsDense(const Value& view) {
  const Sizes64 dense = DenseStrides(view.shape);
  for (size_t d = 0; d < dense.size(); ++d) {
    if (view.size(d) != 1 && view.strides[d] != dense[d]) return false;
  }
  return true;
}

std::optional<Sizes64> StridesForShape(const Value& view, const Sizes64& shape) {
  // The view's dimensions without those of size 1; neighbours that are adjacent become one.
  struct Run {
    int64_t size;
    int64_t stride;
  };
  std::vector<Run> runs;
  for (size_t d = 0; d < view.rank(); ++d) {
    if (view.size(d) == 1) continue;
    if (!runs.empty() && runs.back().stride == view.strides[d] * view.size(d)) {
      runs.back().size *= view.size(d);
      runs.back().stride = view.strides[d];
    } else {
      runs.push_back({view.size(d), view.strides[d]});
    }
  }
  // From the innermost dimension outwards, each run is divided among dimensions of the shape.
  Sizes64 strides(shape.size(), 1);
  size_t d = shape.size();
  for (size_t r = runs.size(); r-- > 0;) {
    int64_t left = runs[r].size;
    int64_t stride = runs[r].stride;
    while (left > 1) {
      if (d == 0) return std::nullopt;
      --d;
      if (shape[d] == 0 || left % shape[d] != 0) return std::nullopt;
      strides[d] = stride;
      stride *= shape[d];
      left /= shape[d];
    }
  }
  return strides;
}

}  // namespace resident::onnx
