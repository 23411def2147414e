#include "tests/conformance/operator_runner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "kernels/sdk/half.h"

namespace resident::testing {
namespace {

// Elements before and after a tensor's own.
constexpr int64_t kGuard = 64;
// The pattern's bytes. For floating point it is a NaN, which operators do not generate; for
// integers a value that tests do not expect.
uint8_t PatternByte(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16 ||
                 dtype == DType::kF64
             ? 0xff
             : 0xfb;
}

Dims DenseStrides(const Dims& shape) {
  Dims strides(shape.size());
  int64_t stride = 1;
  for (size_t d = shape.size(); d-- > 0;) {
    strides[d] = stride;
    stride *= std::max<int64_t>(shape[d], 1);
  }
  return strides;
}

template <typename T>
void Write(uint8_t* to, T value) {
  std::memcpy(to, &value, sizeof(value));
}
template <typename T>
T Read(const uint8_t* from) {
  T value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

void WriteElement(DType dtype, uint8_t* to, double value) {
  switch (dtype) {
    case DType::kF32:
      return Write(to, static_cast<float>(value));
    case DType::kF16:
      return Write(to, Half(static_cast<float>(value)));
    case DType::kBF16:
      return Write(to, BFloat16(static_cast<float>(value)));
    case DType::kF64:
      return Write(to, value);
    case DType::kI32:
      return Write(to, static_cast<int32_t>(value));
    case DType::kI64:
      return Write(to, static_cast<int64_t>(value));
    case DType::kU8:
      return Write(to, static_cast<uint8_t>(value));
    case DType::kI8:
      return Write(to, static_cast<int8_t>(value));
    case DType::kU32:
      return Write(to, static_cast<uint32_t>(value));
    case DType::kInvalid:
      break;
  }
  std::abort();
}

double ReadElement(DType dtype, const uint8_t* from) {
  switch (dtype) {
    case DType::kF32:
      return Read<float>(from);
    case DType::kF16:
      return static_cast<float>(Read<Half>(from));
    case DType::kBF16:
      return static_cast<float>(Read<BFloat16>(from));
    case DType::kF64:
      return Read<double>(from);
    case DType::kI32:
      return Read<int32_t>(from);
    case DType::kI64:
      return static_cast<double>(Read<int64_t>(from));
    case DType::kU8:
      return Read<uint8_t>(from);
    case DType::kI8:
      return Read<int8_t>(from);
    case DType::kU32:
      return Read<uint32_t>(from);
    case DType::kInvalid:
      break;
  }
  std::abort();
}

TestArgument MakeScalar(const auto& value) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(value));
  return TestArgument(bits);
}

}  // namespace

struct TestTensor::Memory {
  TensorMemory block;
  int64_t elements = 0;  // Without the guards.
};

int64_t CountElements(const Dims& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

TestTensor TestTensor::Make(DType dtype, Dims shape, Dims strides, int64_t elements) {
  TestTensor tensor;
  tensor.dtype_ = dtype;
  tensor.shape_ = std::move(shape);
  tensor.strides_ = std::move(strides);
  tensor.memory_ = std::make_shared<Memory>();
  const uint64_t bytes = (elements + 2 * kGuard) * SizeOf(dtype);
  tensor.memory_->block = AllocateTensor(bytes, kGuard * SizeOf(dtype));
  tensor.memory_->elements = elements;
  std::memset(tensor.memory_->block.host.get(), PatternByte(dtype), bytes);
  return tensor;
}

TestTensor TestTensor::Output(DType dtype, Dims shape) {
  const Dims strides = DenseStrides(shape);
  const int64_t elements = CountElements(shape);
  return Make(dtype, std::move(shape), strides, elements);
}

TestTensor TestTensor::Input(DType dtype, Dims shape, const std::vector<double>& values) {
  TestTensor tensor = Output(dtype, std::move(shape));
  if (static_cast<int64_t>(values.size()) != tensor.size()) std::abort();
  for (int64_t i = 0; i < tensor.size(); ++i) WriteElement(dtype, tensor.ElementAt(i), values[i]);
  return tensor;
}

TestTensor TestTensor::Random(DType dtype, Dims shape, std::mt19937_64& random, double deviation) {
  std::normal_distribution<double> normal(0, deviation);
  std::vector<double> values(CountElements(shape));
  for (double& value : values) value = normal(random);
  return Input(dtype, std::move(shape), values);
}

TestTensor TestTensor::WithLayout(const std::vector<int>& order, int64_t spacing) const {
  if (order.size() != shape_.size()) std::abort();
  Dims strides(shape_.size());
  int64_t stride = spacing;
  for (size_t d = order.size(); d-- > 0;) {
    strides[order[d]] = stride;
    stride *= std::max<int64_t>(shape_[order[d]], 1);
  }
  TestTensor other = Make(dtype_, shape_, strides, stride);
  for (int64_t i = 0; i < size(); ++i) {
    std::memcpy(other.ElementAt(i), ElementAt(i), SizeOf(dtype_));
  }
  return other;
}

TestTensor TestTensor::View(Dims shape, Dims strides, int64_t offset) const {
  TestTensor view = *this;
  view.shape_ = std::move(shape);
  view.strides_ = std::move(strides);
  view.offset_ = offset_ + offset;
  return view;
}

uint8_t* TestTensor::ElementAt(int64_t index) const {
  int64_t offset = kGuard + offset_;
  for (size_t d = shape_.size(); d-- > 0;) {
    offset += index % shape_[d] * strides_[d];
    index /= shape_[d];
  }
  return memory_->block.host.get() + offset * static_cast<int64_t>(SizeOf(dtype_));
}

std::vector<double> TestTensor::Values() const {
  std::vector<double> values(size());
  for (int64_t i = 0; i < size(); ++i) values[i] = ReadElement(dtype_, ElementAt(i));
  return values;
}

std::string TestTensor::CheckWritten() const {
  const uint64_t bytes = SizeOf(dtype_);
  const int64_t all = memory_->elements + 2 * kGuard;
  std::vector<int64_t> index_of(all, -1);
  for (int64_t i = 0; i < size(); ++i) {
    index_of[(ElementAt(i) - memory_->block.host.get()) / static_cast<int64_t>(bytes)] = i;
  }
  const std::vector<uint8_t> pattern(bytes, PatternByte(dtype_));
  for (int64_t at = 0; at < all; ++at) {
    const bool untouched =
        std::memcmp(memory_->block.host.get() + at * bytes, pattern.data(), bytes) == 0;
    // One byte has no value that an operator could not write.
    if (index_of[at] >= 0 && untouched && bytes > 1) {
      return absl::StrCat("element ", index_of[at], " was not written");
    }
    if (index_of[at] < 0 && !untouched) {
      return absl::StrCat("memory that is no element was written, at element offset ", at - kGuard);
    }
  }
  return "";
}

uint64_t TestTensor::address() const {
  return memory_->block.address + (kGuard + offset_) * SizeOf(dtype_);
}

bool TestTensor::dense() const {
  int64_t expected = 1;
  for (size_t d = shape_.size(); d-- > 0;) {
    if (shape_[d] != 1 && strides_[d] != expected) return false;
    expected *= shape_[d];
  }
  return true;
}

Argument TestTensor::ToArgument() const {
  Argument argument{};
  argument.tensor.address = address();
  argument.tensor.dtype = dtype_;
  argument.tensor.rank = static_cast<uint8_t>(shape_.size());
  for (size_t d = 0; d < shape_.size(); ++d) {
    argument.tensor.shape[d] = shape_[d];
    argument.tensor.strides[d] = strides_[d];
  }
  return argument;
}

TestArgument F32(float value) { return MakeScalar(value); }
TestArgument F64(double value) { return MakeScalar(value); }
TestArgument I32(int32_t value) { return MakeScalar(value); }
TestArgument U32(uint32_t value) { return MakeScalar(value); }
TestArgument I64(int64_t value) { return MakeScalar(value); }

double Tolerance(DType dtype, bool products) {
  switch (dtype) {
    case DType::kF32:
      return products ? 1e-5 : 1e-6;
    case DType::kF16:
      return 2e-3;
    case DType::kBF16:
      return 1e-2;
    case DType::kF64:
      return 1e-12;
    default:
      return 0;
  }
}

void ExpectNear(const TestTensor& out, const std::vector<double>& reference, bool products) {
  ASSERT_EQ(out.CheckWritten(), "");
  const std::vector<double> values = out.Values();
  ASSERT_EQ(values.size(), reference.size());
  double error = 0;
  double norm = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    uint8_t bytes[8];
    WriteElement(out.dtype(), bytes, reference[i]);
    const double want = ReadElement(out.dtype(), bytes);
    if (std::isnan(want)) {
      ASSERT_TRUE(std::isnan(values[i])) << "element " << i << " is " << values[i] << ", not NaN";
    } else if (std::isinf(want)) {
      ASSERT_EQ(values[i], want) << "element " << i;
    } else {
      ASSERT_TRUE(std::isfinite(values[i]))
          << "element " << i << " is " << values[i] << ", not " << want;
      error += (values[i] - reference[i]) * (values[i] - reference[i]);
      norm += reference[i] * reference[i];
    }
  }
  const double limit = Tolerance(out.dtype(), products);
  EXPECT_LE(std::sqrt(error), limit * std::sqrt(norm))
      << "relative error " << std::sqrt(error / norm) << ", allowed " << limit;
}

void ExpectEqual(const TestTensor& out, const std::vector<double>& reference) {
  ASSERT_EQ(out.CheckWritten(), "");
  const std::vector<double> values = out.Values();
  ASSERT_EQ(values.size(), reference.size());
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::isnan(reference[i]) && std::isnan(values[i])) continue;
    ASSERT_EQ(values[i], reference[i]) << "element " << i;
  }
}

}  // namespace resident::testing
