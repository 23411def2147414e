// Signature: the types that an operator accepts, and the check whether arguments match them.
//
// The text form is written next to each operator (kernels/ops/builtin.h):
//
//   signature := parameter ("," parameter)*
//   parameter := name ":" kind ["strided"] dtype ("|" dtype)* [shape] ["=" default]
//   kind      := "in" | "out" | "inout" | "scalar"
//   dtype     := "f32" | "f16" | "bf16" | "f64" | "i32" | "i64" | "u8" | "i8" | "u32"
//   shape     := "[" [dim ("," dim)*] "]"        For tensors; "[]": rank 0.
//   dim       := number | NAME | "*" NAME ["~"]  "*S": any number of dimensions.
//
// A NAME has the same value in the whole signature: its first use binds it, later uses
// must agree. "*S~" (only for an input) is any shape that broadcasts to S as in PyTorch:
// aligned at the last dimension, each dimension is that of S or 1, and leading ones may be
// missing. It does not bind S, so S must also be used without "~", usually in the output.
// The operator receives the shape that was sent.
//
// A tensor is dense (row-major) unless its parameter is "strided". A scalar has one dtype
// and may have a default, which is used if a request omits trailing scalars.
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

// Numbers of elements, outermost dimension first.
using Shape = absl::InlinedVector<int64_t, 4>;

// "[2, 3]".
std::string ShapeText(absl::Span<const int64_t> shape);
// Number of elements; nullopt when it does not fit 62 bits or a dimension is negative.
std::optional<int64_t> ElementCount(absl::Span<const int64_t> shape);

// The values are those of resident.v1.Parameter.Kind.
enum class ParameterKind : uint8_t { kInput = 1, kOutput = 2, kInOut = 3, kScalar = 4 };

// "an input", "a scalar".
std::string ParameterKindText(ParameterKind kind);
// The columns that a request may send for it: "a buffer column or an inline column".
std::string AcceptedColumns(ParameterKind kind);

struct DimPattern {
  // kBroadcast: dimensions that broadcast to the shape to which the variable is bound.
  enum class Kind : uint8_t { kFixed, kNamed, kSpread, kBroadcast };
  Kind kind = Kind::kFixed;
  int64_t size = 0;       // Only for kFixed.
  uint32_t variable = 0;  // For the other kinds: index in Signature::variables().

  bool operator==(const DimPattern&) const = default;
};

struct Parameter {
  std::string name;
  ParameterKind kind = ParameterKind::kInput;
  // The accepted dtypes; exactly one for a scalar.
  std::vector<DType> dtypes;
  // At most one of them is kSpread or kBroadcast.
  std::vector<DimPattern> dims;
  // Whether tensors need not be dense.
  bool strided = false;
  uint32_t min_rank = 0;
  uint32_t max_rank = 0;
  // Bits of a scalar's default, in the form of Argument::scalar_bits.
  std::optional<uint64_t> default_bits;

  bool scalar() const { return kind == ParameterKind::kScalar; }
  bool operator==(const Parameter&) const = default;
};

// The type of an argument in a request.
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

// The values to which Match bound the variables: one dimension for a NAME, any number for "*NAME".
struct Bindings {
  std::vector<Shape> values;
};

class Signature {
 public:
  // INVALID_ARGUMENT: the text is malformed; the message contains the reason and the position.
  static absl::StatusOr<Signature> Parse(std::string_view text);

  const std::vector<Parameter>& parameters() const { return parameters_; }
  // Names of the variables in the order in which they are bound; "*S" for a spread.
  const std::vector<std::string>& variables() const { return variables_; }
  // Number of arguments without the trailing scalars that have a default.
  size_t required_arguments() const { return required_; }
  // Whether tasks may be sent in compact form (kernels/layout/task.h) if all tensors are
  // dense float32 of one length: there are few parameters, all of them accept this, and the
  // operator cannot depend on the rank.
  bool compact() const { return compact_; }
  // Whether both accept the same requests; names of dimensions may differ.
  bool SameAs(const Signature& other) const { return parameters_ == other.parameters_; }

  // Whether `arguments` (at least required_arguments() of them) match. INVALID_ARGUMENT:
  // the message contains the first argument that does not, and both values that disagree.
  absl::Status Match(const std::string& operator_name, absl::Span<const ArgumentType> arguments,
                     Bindings* bindings = nullptr) const;

 private:
  // Whether a parameter binds the variable.
  bool Binds(uint32_t variable) const;

  std::vector<Parameter> parameters_;
  std::vector<std::string> variables_;
  size_t required_ = 0;
  bool compact_ = false;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_MODEL_SIGNATURE_H_
