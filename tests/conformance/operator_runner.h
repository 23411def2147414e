// Runs built-in operators on tensors of any dtype, shape and strides, for comparisons with a
// float64 reference.
//
//   const TestTensor x = TestTensor::Input(DType::kF16, {3, 4}, values);
//   TestTensor out = TestTensor::Output(DType::kF32, {3});
//   ASSERT_EQ(RunOperator("sum", {x, out, U32(0b10)}).status, CompletionStatus::kOk);
//   ExpectNear(out, reference);
//
// These libraries implement RunOperator, and each family's test is built with all of them:
//
//   engine_runner     an engine (RESIDENT_TEST_ENGINE=cpu|cuda)
//   library_runner    libresident_ops
//   emulated_runner   blocks of several threads on the host (kernels/sdk/emulated_block.h)
//   checked_runner    the same with the checked build of the operators (kernels/sdk/checks.h)
//
// A tensor's memory starts with a pattern, a NaN for floating point. What is not an element
// (before, after, and between strided elements) must keep it.
#ifndef RESIDENT_TESTS_CONFORMANCE_OPERATOR_RUNNER_H_
#define RESIDENT_TESTS_CONFORMANCE_OPERATOR_RUNNER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "kernels/layout/task.h"

namespace resident::testing {

using Dims = std::vector<int64_t>;

int64_t CountElements(const Dims& shape);

class TestTensor {
 public:
  // An input with the values (row-major, converted to the dtype). Values() returns what the dtype
  // can represent of them, which a reference should use.
  static TestTensor Input(DType dtype, Dims shape, const std::vector<double>& values);
  // An output; its elements have the pattern.
  static TestTensor Output(DType dtype, Dims shape);
  // Independent, normally distributed values with mean 0.
  static TestTensor Random(DType dtype, Dims shape, std::mt19937_64& random, double deviation = 1);

  // The same tensor in another layout: dimensions in the order of `order` (outermost first), each
  // element `spacing` elements from the next. Call it before the tensor is used.
  TestTensor WithLayout(const std::vector<int>& order, int64_t spacing) const;
  // A view of the same memory with another shape and strides, such as strides of 0, starting at
  // element `offset`.
  TestTensor View(Dims shape, Dims strides, int64_t offset = 0) const;

  DType dtype() const { return dtype_; }
  const Dims& shape() const { return shape_; }
  int64_t size() const { return CountElements(shape_); }
  // The elements, row-major.
  std::vector<double> Values() const;
  // "": every element was written, and nothing else; otherwise the first violation.
  std::string CheckWritten() const;

  // As the argument of a task.
  Argument ToArgument() const;
  bool dense() const;
  uint64_t address() const;

 private:
  struct Memory;
  static TestTensor Make(DType dtype, Dims shape, Dims strides, int64_t elements);
  uint8_t* ElementAt(int64_t index) const;

  DType dtype_ = DType::kF32;
  Dims shape_;
  Dims strides_;
  int64_t offset_ = 0;  // Of the first element in the memory, in elements.
  std::shared_ptr<Memory> memory_;
};

// A tensor, whose memory it keeps, or a scalar.
struct TestArgument {
  TestArgument(const TestTensor& value) : tensor(value), argument(value.ToArgument()) {}
  explicit TestArgument(uint64_t bits) { argument.scalar_bits = bits; }

  std::optional<TestTensor> tensor;
  Argument argument{};
};
TestArgument F32(float value);
TestArgument F64(double value);
TestArgument I32(int32_t value);
TestArgument U32(uint32_t value);
TestArgument I64(int64_t value);

struct Outcome {
  CompletionStatus status = CompletionStatus::kOk;
  uint16_t detail = 0;
};

// Runs one task. `chunks`: 0: in compact form, if the arguments allow it; otherwise the number of
// chunks.
Outcome RunOperator(const std::string& name, const std::vector<TestArgument>& arguments,
                    uint32_t chunks = 1);

// Whether threads of the host emulate those of a block; tests may then use fewer sizes.
bool Emulated();
// Products of fragments that emulated tensor cores have computed; 0 with an engine.
uint64_t EmulatedTensorCoreProducts();

// The largest relative error ||out - reference|| / ||reference|| for results of this dtype:
// 1e-6 for float32 (`products`: 1e-5, for sums of many terms), 2e-3 for float16, 1e-2 for bfloat16,
// 1e-12 for float64, 0 for integers.
double Tolerance(DType dtype, bool products = false);

// Expects that every element was written, that nothing else was, and that the elements are close to
// the reference: NaN and infinity where the reference (in the output's dtype) has them and nowhere
// else, and the relative error is at most Tolerance().
void ExpectNear(const TestTensor& out, const std::vector<double>& reference, bool products = false);
// The same, for equal values.
void ExpectEqual(const TestTensor& out, const std::vector<double>& reference);

// --- For the implementations
// ----------------------------------------------------------------------

// Memory for tensors, aligned to 16 bytes, which is released with the last copy of `host`.
struct TensorMemory {
  uint64_t address = 0;  // For operators.
  std::shared_ptr<uint8_t> host;
};
// The first and the last `guard_bytes` are not for operators.
TensorMemory AllocateTensor(uint64_t bytes, uint64_t guard_bytes);

}  // namespace resident::testing

#endif  // RESIDENT_TESTS_CONFORMANCE_OPERATOR_RUNNER_H_
