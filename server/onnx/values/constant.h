// Constant: a tensor whose elements are known when a model is imported: an initializer, or what was
// computed from initializers and shapes. ElementType: the format's types of elements.
//
// A constant shares its bytes with its copies, and with the weights of the graphs that are made
// from the model.
//
// Thread safety: a plain value; the shared bytes are never changed.
//
//   Constant axes = Constant::Integers({2}, {0, 1});
//   for (int64_t i = 0; i < axes.elements(); ++i) Use(axes.Integer(i));
#ifndef RESIDENT_SERVER_ONNX_VALUES_CONSTANT_H_
#define RESIDENT_SERVER_ONNX_VALUES_CONSTANT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/model/dtype.h"

namespace resident::onnx {

// The values are those of TensorProto.data_type.
enum class ElementType : int32_t {
  kUndefined = 0,
  kFloat = 1,
  kUint8 = 2,
  kInt8 = 3,
  kUint16 = 4,
  kInt16 = 5,
  kInt32 = 6,
  kInt64 = 7,
  kString = 8,
  kBool = 9,
  kFloat16 = 10,
  kDouble = 11,
  kUint32 = 12,
  kUint64 = 13,
  kComplex64 = 14,
  kComplex128 = 15,
  kBfloat16 = 16,
};

// "float16"; for another value "type 99".
std::string TypeName(ElementType type);
// The daemon's type; kInvalid: it has none. A bool is a u8 that is 0 or 1.
DType DTypeOf(ElementType type);
// float, double, float16, bfloat16.
bool IsFloatType(ElementType type);

using Sizes64 = std::vector<int64_t>;

// The number of elements. Nullopt: a size is negative, or the product of those that are not 0 is
// above kMaxElements, so that neither strides nor parts of the product overflow.
inline constexpr int64_t kMaxElements = int64_t{1} << 60;
std::optional<int64_t> CountElements(const Sizes64& shape);
// "[2, 3]".
std::string ShapeText(const Sizes64& shape);
// Strides of a dense tensor, in elements.
Sizes64 DenseStrides(const Sizes64& shape);

struct Constant {
  // REQUIRES: the type is one of the daemon's; values.size() is the number of elements.
  static Constant Integers(Sizes64 shape, const std::vector<int64_t>& values,
                           ElementType type = ElementType::kInt64);
  static Constant Reals(Sizes64 shape, const std::vector<double>& values,
                        ElementType type = ElementType::kFloat);

  int64_t elements() const { return *CountElements(shape); }
  std::string_view data() const { return *bytes; }
  // An element as a number. Integer() of a floating-point type truncates, with bounds.
  double Real(int64_t i) const;
  int64_t Integer(int64_t i) const;
  std::vector<int64_t> AllIntegers() const;

  ElementType type = ElementType::kUndefined;
  Sizes64 shape;
  // Dense, row-major, little-endian. Not null.
  std::shared_ptr<const std::string> bytes;
  // The name of the initializer; empty: the elements were computed.
  std::string name;
  // HashContent of it; empty: it was not computed yet.
  std::string content_hash = {};
};

// SHA-256 of the bytes.
std::string HashContent(const Constant& constant);

// A tensor of kind KIND_WEIGHT. In all graphs of one model weights of one name have one content.
struct Weight {
  std::string tensor;
  DType dtype = DType::kInvalid;
  Sizes64 shape;
  std::shared_ptr<const std::string> bytes;
};

// The bytes of elements of a type, with overflow of integers as in a conversion of C++ and rounding
// to nearest. REQUIRES: the type is one of the daemon's.
void AppendReal(ElementType type, double value, std::string* bytes);
void AppendInteger(ElementType type, int64_t value, std::string* bytes);

}  // namespace resident::onnx

#endif  // RESIDENT_SERVER_ONNX_VALUES_CONSTANT_H_
