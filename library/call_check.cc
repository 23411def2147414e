#include "library/call_check.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/ops/builtin.h"
#include "library/errors.h"
#include "runtime/base/nearest.h"
#include "runtime/base/status_macros.h"
#include "runtime/model/dtype.h"
#include "runtime/model/errors.h"
#include "runtime/model/strided_view.h"

namespace resident {
namespace {

// Larger sizes and strides exceed every memory, and the extents of such tensors fit 128 bits.
constexpr int64_t kMaxSize = int64_t{1} << 60;

static_assert(RESIDENT_OPS_MAX_RANK == kMaxRank, "");
static_assert(RESIDENT_OPS_MAX_ARGUMENTS == kMaxArguments, "");
static_assert(RESIDENT_OPS_RESULT_BYTES == kResultBytes, "");
static_assert(RESIDENT_OPS_F32 == static_cast<int>(DType::kF32), "");
static_assert(RESIDENT_OPS_F16 == static_cast<int>(DType::kF16), "");
static_assert(RESIDENT_OPS_BF16 == static_cast<int>(DType::kBF16), "");
static_assert(RESIDENT_OPS_F64 == static_cast<int>(DType::kF64), "");
static_assert(RESIDENT_OPS_I32 == static_cast<int>(DType::kI32), "");
static_assert(RESIDENT_OPS_I64 == static_cast<int>(DType::kI64), "");
static_assert(RESIDENT_OPS_U8 == static_cast<int>(DType::kU8), "");
static_assert(RESIDENT_OPS_I8 == static_cast<int>(DType::kI8), "");
static_assert(RESIDENT_OPS_U32 == static_cast<int>(DType::kU32), "");

std::vector<LibraryOperator> MakeOperators() {
  std::vector<LibraryOperator> operators;
  for (const BuiltinOperator& builtin : kBuiltinOperators) {
    auto signature = Signature::Parse(builtin.signature);
    if (!signature.ok()) std::abort();  // A test of the table parses all of them.
    auto split = ParseSplit(builtin.split, *signature);
    if (!split.ok()) std::abort();
    LibraryOperator op;
    op.name = builtin.name;
    op.signature_text = builtin.signature;
    op.slot = *FindBuiltinSlot(builtin.name);
    op.in_place = std::string_view(builtin.family) == "elementwise";
    op.returns_result = std::none_of(
        signature->parameters().begin(), signature->parameters().end(), [](const Parameter& p) {
          return p.kind == ParameterKind::kOutput || p.kind == ParameterKind::kInOut;
        });
    op.signature = *std::move(signature);
    op.split = *split;
    operators.push_back(std::move(op));
  }
  return operators;
}

// A tensor of a call, in the host's types (device code has other 64-bit types).
struct CallTensor {
  uint64_t address = 0;
  DType dtype = DType::kInvalid;
  uint32_t rank = 0;
  int64_t sizes[kMaxRank];
  int64_t steps[kMaxRank];

  absl::Span<const int64_t> shape() const { return absl::MakeConstSpan(sizes, rank); }
  absl::Span<const int64_t> strides() const { return absl::MakeConstSpan(steps, rank); }
  bool empty() const { return std::find(sizes, sizes + rank, 0) != sizes + rank; }
  bool operator==(const CallTensor& other) const {
    return address == other.address && dtype == other.dtype && shape() == other.shape() &&
           strides() == other.strides();
  }

  TensorArgument ToArgument() const {
    TensorArgument argument{};
    argument.address = address;
    argument.dtype = dtype;
    argument.rank = static_cast<u8>(rank);
    std::copy_n(sizes, rank, argument.shape);
    std::copy_n(steps, rank, argument.strides);
    return argument;
  }
};
using CallTensors = CallTensor[kMaxArguments];

bool IsWritten(const Parameter& parameter) {
  return parameter.kind == ParameterKind::kOutput || parameter.kind == ParameterKind::kInOut;
}

const char* WantedKind(const Parameter& parameter) {
  if (!parameter.scalar()) return "a tensor (RESIDENT_OPS_TENSOR)";
  return IsFloat(parameter.dtypes[0]) ? "a floating-point scalar (RESIDENT_OPS_REAL)"
                                      : "an integer scalar (RESIDENT_OPS_INTEGER)";
}

int32_t KindNumber(const Parameter& parameter) {
  if (!parameter.scalar()) return RESIDENT_OPS_TENSOR;
  return IsFloat(parameter.dtypes[0]) ? RESIDENT_OPS_REAL : RESIDENT_OPS_INTEGER;
}

absl::Status ReadScalar(const errors::ArgumentRef& place, const Parameter& parameter,
                        const resident_ops_argument& given, uint64_t* bits) {
  const DType dtype = parameter.dtypes[0];
  if (IsFloat(dtype)) {
    if (!ScalarFits(dtype, given.real)) {
      return errors::CallScalarRange(place, absl::StrCat(given.real), DTypeName(dtype));
    }
    *bits = ScalarBits(dtype, given.real);
    return absl::OkStatus();
  }
  if (!ScalarFits(dtype, given.integer)) {
    return errors::CallScalarRange(place, absl::StrCat(given.integer), DTypeName(dtype));
  }
  *bits = ScalarBits(dtype, given.integer);
  return absl::OkStatus();
}

// The type of a tensor: everything that its address does not affect.
absl::Status ReadTensorType(const errors::ArgumentRef& place, const resident_ops_argument& given,
                            CallTensor& tensor) {
  if (given.reserved != 0) return errors::CallReserved(place, given.reserved);
  if (FindDType(given.dtype) == nullptr) {
    return errors::CallDType(place, given.dtype, DTypeNames());
  }
  if (given.rank < 0 || given.rank > static_cast<int32_t>(kMaxRank)) {
    return errors::CallRank(place, given.rank, kMaxRank);
  }
  tensor.dtype = static_cast<DType>(given.dtype);
  tensor.rank = static_cast<uint32_t>(given.rank);
  for (int32_t d = 0; d < given.rank; ++d) {
    if (given.shape[d] < 0 || given.shape[d] > kMaxSize) {
      return errors::CallSize(place, d, given.shape[d]);
    }
    tensor.sizes[d] = given.shape[d];
    tensor.steps[d] = given.strides[d];
  }
  if (!ElementCount(tensor.shape()).has_value()) return errors::ShapeTooLarge(place);
  return absl::OkStatus();
}

// Sets the strides of a dense tensor to those of its shape: an operator may read them, also those
// of dimensions of size 1.
void SetDenseStrides(CallTensor& tensor) {
  int64_t stride = 1;
  for (uint32_t d = tensor.rank; d-- > 0;) {
    tensor.steps[d] = stride;
    stride *= std::max<int64_t>(tensor.sizes[d], 1);
  }
}

// REQUIRES: ReadTensorType.
absl::Status ReadTensorMemory(const errors::ArgumentRef& place, const Parameter& parameter,
                              const resident_ops_argument& given, CallTensor& tensor) {
  tensor.address = reinterpret_cast<uint64_t>(given.data);
  const uint32_t alignment = SizeOf(tensor.dtype);
  if (tensor.address % alignment != 0) {
    return errors::CallMisaligned(place, tensor.address, alignment);
  }
  if (tensor.empty()) {
    SetDenseStrides(tensor);
    return absl::OkStatus();
  }
  if (tensor.address == 0) return errors::CallNullData(place, ShapeText(tensor.shape()));
  if (IsDense(tensor.shape(), tensor.strides())) {
    SetDenseStrides(tensor);
  } else {
    if (!parameter.strided) {
      return errors::CallStrided(place, ShapeText(tensor.shape()), ShapeText(tensor.strides()));
    }
    for (uint32_t d = 0; d < tensor.rank; ++d) {
      const int64_t stride = tensor.steps[d];
      if (stride > kMaxSize || stride < -kMaxSize) return errors::StrideTooLarge(place, d, stride);
      if (IsWritten(parameter) && stride < 0) return errors::NegativeStride(place, d, stride);
    }
    if (IsWritten(parameter) && !IsInjective(tensor.shape(), tensor.strides())) {
      return errors::OverlappingStrides(place, ShapeText(tensor.shape()),
                                        ShapeText(tensor.strides()));
    }
  }
  const ByteExtent extent = FindExtent(tensor.dtype, tensor.shape(), tensor.strides());
  if (extent.before >= tensor.address || extent.from == kMaxExtent ||
      extent.from > std::numeric_limits<uint64_t>::max() - tensor.address) {
    return errors::CallBeyondMemory(place);
  }
  return absl::OkStatus();
}

absl::Status CheckOverlaps(const LibraryOperator& op, const CallTensors& tensors, size_t given) {
  const std::vector<Parameter>& parameters = op.signature.parameters();
  for (size_t i = 0; i < given; ++i) {
    if (!IsWritten(parameters[i])) continue;
    const CallTensor& written = tensors[i];
    if (written.empty()) continue;
    for (size_t k = 0; k < given; ++k) {
      if (k == i || parameters[k].scalar()) continue;
      const CallTensor& other = tensors[k];
      if (other.empty() || !MayOverlap(written.ToArgument(), other.ToArgument())) continue;
      const bool may_be_equal = op.in_place && parameters[k].kind == ParameterKind::kInput;
      if (may_be_equal && written == other) continue;
      return errors::CallOverlap({op.name, i, parameters[i].name}, parameters[k].name,
                                 may_be_equal);
    }
  }
  return absl::OkStatus();
}

}  // namespace

const std::vector<LibraryOperator>& LibraryOperators() {
  static const auto* const operators = new std::vector<LibraryOperator>(MakeOperators());
  return *operators;
}

absl::StatusOr<const LibraryOperator*> FindLibraryOperator(std::string_view name) {
  const std::vector<LibraryOperator>& operators = LibraryOperators();
  // About 70 short names: a loop takes less than a microsecond.
  for (const LibraryOperator& op : operators) {
    if (op.name == name) return &op;
  }
  std::vector<std::string_view> names;
  names.reserve(operators.size());
  for (const LibraryOperator& op : operators) names.push_back(op.name);
  return errors::UnknownLibraryOperator(std::string(name), Nearest(name, names));
}

absl::Status CheckCall(const LibraryOperator& op, absl::Span<const resident_ops_argument> given,
                       CheckedCall& call) {
  const std::vector<Parameter>& parameters = op.signature.parameters();
  if (given.size() < op.signature.required_arguments() || given.size() > parameters.size()) {
    return errors::CallArgumentCount(
        op.name, given.size(), op.signature.required_arguments(), parameters.size(),
        absl::StrJoin(parameters, ", ", [](std::string* out, const Parameter& parameter) {
          absl::StrAppend(out, parameter.name, parameter.default_bits ? " (optional)" : "");
        }));
  }
  absl::InlinedVector<ArgumentType, kMaxArguments> types;
  CallTensors tensors;
  for (size_t i = 0; i < given.size(); ++i) {
    const Parameter& parameter = parameters[i];
    const errors::ArgumentRef place{op.name, i, parameter.name};
    if (given[i].kind != KindNumber(parameter)) {
      return errors::CallArgumentKind(place, given[i].kind, WantedKind(parameter));
    }
    if (parameter.scalar()) {
      uint64_t bits = 0;
      RETURN_IF_ERROR(ReadScalar(place, parameter, given[i], &bits));
      call.arguments[i].scalar_bits = bits;
      types.push_back(ArgumentType::Scalar(parameter.dtypes[0]));
      continue;
    }
    RETURN_IF_ERROR(ReadTensorType(place, given[i], tensors[i]));
    types.push_back(ArgumentType::Tensor(tensors[i].dtype, tensors[i].shape()));
  }
  RETURN_IF_ERROR(op.signature.Match(op.name, types));
  for (size_t i = 0; i < given.size(); ++i) {
    if (parameters[i].scalar()) continue;
    RETURN_IF_ERROR(
        ReadTensorMemory({op.name, i, parameters[i].name}, parameters[i], given[i], tensors[i]));
    call.arguments[i].tensor = tensors[i].ToArgument();
  }
  RETURN_IF_ERROR(CheckOverlaps(op, tensors, given.size()));
  for (size_t i = given.size(); i < parameters.size(); ++i) {
    call.arguments[i].scalar_bits = *parameters[i].default_bits;
  }
  call.argument_count = static_cast<uint32_t>(parameters.size());
  call.chunks = op.split.Chunks(
      [&](int parameter) -> absl::Span<const int64_t> { return tensors[parameter].shape(); });
  return absl::OkStatus();
}

}  // namespace resident
