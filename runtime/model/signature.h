// Signature: the types an operator takes, and whether given arguments have them.
//
// The text form stands beside each operator (kernels/ops/builtin.h):
//
//   signature := parameter ("," parameter)*
//   parameter := name ":" kind ["strided"] dtype ("|" dtype)* [shape] ["=" default]
//   kind      := "in" | "out" | "inout" | "scalar"
//   dtype     := "f32" | "f16" | "bf16" | "f64" | "i32" | "i64" | "u8" | "i8" | "u32"
//   shape     := "[" [dim ("," dim)*] "]"        Of tensors; "[]": rank 0.
//   dim       := number | NAME | "*" NAME ["~"]  "*S": any number of dimensions.
//
// A NAME means the same wherever it stands: its first use binds it, later uses must
// agree. "*S~" (of an input) is any shape that broadcasts to S, as PyTorch does: aligned
// at the last dimension, each dimension is S's or 1, and leading ones may be missing; it
// binds nothing, so S stands without "~" somewhere, as a rule in the output. The operator
// sees the shape as it was sent.
//
// A tensor is dense (row-major) unless its parameter is "strided". A scalar takes one
// dtype and may have a default, which trailing scalars that a request leaves out get.
//
//   "x: in f32[*S], y: in f32|f16[*S], out: out f32[*S], alpha: scalar f32 = 1"
//   "x: in strided f32[*S~], y: in strided f32[*S~], out: out strided f32[*S]"
//
// Thread safety: immutable after Parse.
//
//   ASSIGN_OR_RETURN(Signature signature, Signature::Parse(text));
//   RETURN_IF_ERROR(signature.Match("add", {ArgumentType::Tensor(DType::kF32, shape), ...}));
#ifndef RESIDENT_RUNTIME_MODEL_SIGNATURE_H_
#define RESIDENT_RUNTIME_MODEL_SIGNATURE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/layout/task.h"
#include "runtime/model/dtype.h"

namespace resident {

// Elements, outermost first.
using Shape = absl::InlinedVector<int64_t, 4>;

// "[2, 3]".
std::string ShapeText(absl::Span<const int64_t> shape);
// Number of elements; nullopt when it does not fit 62 bits or a dimension is negative.
std::optional<int64_t> ElementCount(absl::Span<const int64_t> shape);

// The values are those of resident.v1.Parameter.Kind.
enum class ParameterKind : uint8_t { kInput = 1, kOutput = 2, kInOut = 3, kScalar = 4 };

// "an input", "a scalar".
std::string ParameterKindText(ParameterKind kind);
// What a request may send for it: "a buffer column or an inline column".
std::string ColumnsTaken(ParameterKind kind);

struct DimPattern {
  // kBroadcast: what broadcasts to the shape that its variable is bound to.
  enum class Kind : uint8_t { kFixed, kNamed, kSpread, kBroadcast };
  Kind kind = Kind::kFixed;
  int64_t size = 0;       // kFixed.
  uint32_t variable = 0;  // Otherwise: index in Signature::variables().

  bool operator==(const DimPattern&) const = default;
};

struct Parameter {
  std::string name;
  ParameterKind kind = ParameterKind::kInput;
  // What is taken; exactly one for a scalar.
  std::vector<DType> dtypes;
  // At most one of them is kSpread or kBroadcast.
  std::vector<DimPattern> dims;
  // Whether tensors need not be dense.
  bool strided = false;
  uint32_t min_rank = 0;
  uint32_t max_rank = 0;
  // Bits of a scalar's default, as Argument::scalar_bits has them.
  std::optional<uint64_t> default_bits;

  bool scalar() const { return kind == ParameterKind::kScalar; }
  bool operator==(const Parameter&) const = default;
};

// One argument as a request gives it.
struct ArgumentType {
  bool scalar = false;
  DType dtype = DType::kInvalid;
  absl::Span<const int64_t> shape;
  bool dense = true;

  static ArgumentType Tensor(DType dtype, absl::Span<const int64_t> shape, bool dense = true) {
    return {false, dtype, shape, dense};
  }
  static ArgumentType Scalar(DType dtype) { return {true, dtype, {}}; }
};

// What Match bound each variable to: one dimension for a NAME, any for "*NAME".
struct Bindings {
  std::vector<Shape> values;
};

class Signature {
 public:
  // INVALID_ARGUMENT: what is wrong, and where.
  static absl::StatusOr<Signature> Parse(std::string_view text);

  const std::vector<Parameter>& parameters() const { return parameters_; }
  // Names of the variables in the order in which they are bound; "*S" for a spread.
  const std::vector<std::string>& variables() const { return variables_; }
  // Arguments without trailing scalars that have a default.
  size_t required_arguments() const { return required_; }
  // Whether tasks may travel in compact form (kernels/layout/task.h) when all tensors are
  // dense float32 of one length: few parameters, all of which take that, and no rank that
  // an operator could ask for.
  bool compact() const { return compact_; }
  // Whether both take the same requests; names of dimensions do not count.
  bool SameAs(const Signature& other) const { return parameters_ == other.parameters_; }

  // Whether `arguments` (required_arguments() or more of them) fit. INVALID_ARGUMENT
  // names the first that does not, with both sides of the disagreement.
  absl::Status Match(const std::string& operator_name, absl::Span<const ArgumentType> arguments,
                     Bindings* bindings = nullptr) const;

 private:
  // Whether a parameter gives the variable its value.
  bool Binds(uint32_t variable) const;

  std::vector<Parameter> parameters_;
  std::vector<std::string> variables_;
  size_t required_ = 0;
  bool compact_ = false;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_MODEL_SIGNATURE_H_
