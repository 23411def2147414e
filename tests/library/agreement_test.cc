// Operators of each family give the same bits through libresident_ops as elsewhere: on the CPU as a
// task of the daemon's CPU engine, and on a GPU as the library on the CPU. The values are such that
// each operator's result is exact.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <variant>
#include <vector>

#include "kernels/ops/builtin.h"
#include "library/resident_ops.h"
#include "runtime/model/dtype.h"
#include "runtime/model/signature.h"
#include "runtime/model/split_rule.h"
#include "tests/conformance/library_runner.h"
#include "tests/library/cpu_engine.h"

namespace resident::testing {
namespace {

using Dims = std::vector<int64_t>;
using Bytes = std::vector<uint8_t>;

struct Tensor {
  DType dtype;
  Dims shape;
  Bytes bytes;
};
using CaseArgument = std::variant<Tensor, double, int64_t>;

struct Case {
  std::string op;
  std::vector<CaseArgument> arguments;
  const char* label = "";
};

int64_t Count(const Dims& shape) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

// Whole numbers from `low` to `high`, which every dtype represents if they are small.
Tensor Whole(DType dtype, Dims shape, int64_t low, int64_t high, uint32_t seed = 1) {
  std::mt19937 random(seed);
  std::uniform_int_distribution<int64_t> draw(low, high);
  Tensor tensor{dtype, std::move(shape), {}};
  for (int64_t i = Count(tensor.shape); i > 0; --i) {
    const int64_t value = draw(random);
    const uint64_t bits =
        IsFloat(dtype) ? ScalarBits(dtype, static_cast<double>(value)) : ScalarBits(dtype, value);
    const auto* const from = reinterpret_cast<const uint8_t*>(&bits);
    tensor.bytes.insert(tensor.bytes.end(), from, from + SizeOf(dtype));
  }
  return tensor;
}

Tensor Out(DType dtype, Dims shape) {
  Tensor tensor{dtype, std::move(shape), {}};
  tensor.bytes.assign(Count(tensor.shape) * SizeOf(dtype), 0xfb);
  return tensor;
}

constexpr DType kF32 = DType::kF32, kF16 = DType::kF16, kBF16 = DType::kBF16, kF64 = DType::kF64,
                kI32 = DType::kI32, kI64 = DType::kI64, kU8 = DType::kU8, kU32 = DType::kU32;

std::vector<Case> MakeCases() {
  return {
      // Elementwise: dense, broadcast, mixed dtypes, and many chunks.
      {"add",
       {Whole(kF32, {3, 1000}, -99, 99), Whole(kF32, {1000}, -99, 99, 2), Out(kF32, {3, 1000}),
        2.0}},
      {"mul",
       {Whole(kF16, {33, 65}, -9, 9), Whole(kBF16, {33, 65}, -9, 9, 2), Out(kF32, {33, 65})}},
      {"clamp", {Whole(kI32, {70000}, -1000000, 1000000), Out(kI32, {70000}), -70.0, 9000.0}},
      {"copy", {Whole(kF64, {5, 7, 3}, -300, 300), Out(kU8, {5, 7, 3})}},
      {"add",
       {Whole(kF32, {3000001}, -99, 99), Whole(kF32, {3000001}, -99, 99, 2), Out(kF32, {3000001})},
       "wide"},
      // Reductions.
      {"sum", {Whole(kF32, {300, 257}, -9, 9), Out(kF32, {300}), int64_t{2}}},
      {"sum_rows", {Whole(kF32, {64, 4097}, -9, 9), Out(kF32, {64})}},
      {"max", {Whole(kBF16, {16, 500}, -99, 99), Out(kBF16, {500}), int64_t{1}}},
      {"argmax", {Whole(kF32, {1000, 300}, -99, 99), Out(kI64, {1000}), int64_t{2}}},
      {"sum", {Whole(kF32, {2, 140'001}, -9, 9), Out(kF32, {2}), int64_t{2}}, "of long rows"},
      {"sum_rows", {Whole(kF32, {1, 300'000}, -9, 9), Out(kF32, {1})}, "of a long row"},
      {"argmax", {Whole(kF32, {1, 400'003}, -99, 99), Out(kI64, {1}), int64_t{2}}, "of a long row"},
      // Normalization: rows of equal elements, whose number is a power of two.
      {"softmax", {Whole(kF32, {300, 64}, 5, 5), Out(kF32, {300, 64})}},
      {"softmax", {Whole(kF32, {1, 1 << 17}, 5, 5), Out(kF32, {1, 1 << 17})}, "of a long row"},
      // Products of matrices.
      {"gemm",
       {Whole(kF32, {65, 130}, -5, 5), Whole(kF32, {130, 70}, -5, 5, 2),
        Whole(kF32, {65, 70}, -5, 5, 3), 2.0, 1.0}},
      {"gemv",
       {Whole(kF16, {3, 200}, -5, 5), Whole(kF16, {77, 200}, -5, 5, 2), Whole(kF32, {77}, -5, 5),
        Out(kF32, {3, 77})}},
      {"linear",
       {Whole(kF32, {3, 200}, -5, 5), Whole(kF32, {77, 200}, -5, 5, 2), Whole(kF32, {77}, -5, 5),
        Whole(kF16, {3, 77}, -5, 5), Out(kF32, {3, 77}), int64_t{1}}},
      {"gemv_silu_mul",
       {Whole(kF16, {3, 20}, 0, 5), Whole(kF32, {9, 20}, 10, 19), Whole(kF32, {9, 20}, -5, 5, 2),
        Out(kF32, {3, 9})}},
      // Rows of 16 elements 2, so that the mean of their squares is 4.
      {"rmsnorm_gemv",
       {Whole(kF32, {3, 16}, 2, 2), Whole(kF16, {16}, -5, 5), Whole(kF16, {9, 16}, -5, 5, 2),
        Whole(kF32, {9}, -5, 5), Out(kF32, {3, 9}), 0.0}},
      {"rmsnorm_gemv_silu_mul",
       {Whole(kF32, {3, 16}, 2, 2), Whole(kF16, {16}, 1, 5), Whole(kF32, {9, 16}, 10, 19),
        Whole(kF32, {9, 16}, -5, 5, 2), Out(kF32, {3, 9}), 0.0}},
      {"gemv_quant",
       {Whole(kF32, {2, 64}, -5, 5), Whole(kU8, {40, 32}, 0, 255), Whole(kF16, {40, 2}, 1, 4),
        Whole(kF16, {40, 2}, 0, 15), Out(kF32, {2, 40}), int64_t{32}}},
      {"gemv_quant_bias",
       {Whole(kF32, {2, 64}, -5, 5), Whole(kU8, {40, 32}, 0, 255), Whole(kF16, {40, 2}, 1, 4),
        Whole(kF16, {40, 2}, 0, 15), Whole(kF32, {40}, -99, 99), Out(kF32, {2, 40}), int64_t{32}}},
      // As of rmsnorm_gemv, with weights of at least 1 where silu is that of a large number.
      {"rmsnorm_gemv_quant",
       {Whole(kF32, {3, 16}, 2, 2), Whole(kF16, {16}, -5, 5), Whole(kU8, {9, 8}, 0, 255),
        Whole(kF16, {9, 2}, 1, 4), Whole(kF16, {0}, 0, 0), Whole(kF32, {9}, -5, 5),
        Out(kF32, {3, 9}), int64_t{8}, 0.0}},
      {"rmsnorm_gemv_quant_silu_mul",
       {Whole(kF32, {3, 16}, 2, 2), Whole(kF16, {16}, 1, 5), Whole(kU8, {9, 16}, 138, 140),
        Whole(kF16, {9, 2}, 1, 2), Whole(kF16, {0}, 0, 0), Whole(kU8, {9, 8}, 0, 255, 2),
        Whole(kF16, {9, 2}, 1, 2, 2), Whole(kF16, {9, 2}, 0, 15, 2), Out(kF32, {3, 9}), int64_t{8},
        0.0}},
      // Attention: what copies. A head of dimension 1 with one key returns its value.
      {"embedding",
       {Whole(kI64, {1000}, 0, 49), Whole(kBF16, {50, 96}, -99, 99), Out(kBF16, {1000, 96})}},
      {"kv_append",
       {Whole(kF16, {2, 3, 4, 32}, -9, 9), Whole(kF16, {2, 3, 16, 32}, -9, 9, 2), int64_t{5}}},
      {"attention",
       {Whole(kF32, {1, 4, 3, 32}, -2, 2), Whole(kF32, {1, 2, 1, 32}, -2, 2),
        Whole(kF32, {1, 2, 1, 32}, -99, 99), Whole(kF32, {0}, 0, 0), Out(kF32, {1, 4, 3, 32}),
        0.25}},
      // Position 0: its own key has all of the weight, so that the result is the value.
      {"attention_decode",
       {Whole(kF32, {4, 64}, -2, 2), Whole(kF32, {2, 64}, -2, 2), Whole(kF32, {2, 64}, -99, 99),
        Whole(kF32, {0}, 0, 0), Whole(kBF16, {2, 16, 64}, -9, 9),
        Whole(kBF16, {2, 16, 64}, -9, 9, 2), Out(kF32, {4, 2, 64}), Out(kF32, {4, 2}),
        Out(kF32, {4, 2}), Whole(kI32, {2}, 0, 0), Out(kF32, {4, 64}), int64_t{0}, 0.25}},
      // Training.
      {"scatter_add",
       {Whole(kF32, {50, 64}, -9, 9), Whole(kI64, {2000}, 0, 49), Whole(kF32, {2000, 64}, -9, 9)}},
      {"grad_norm_partial", {Whole(kF32, {200000}, -9, 9), Whole(kF64, {8}, 0, 0), int64_t{2}}},
      // Decoding: tokens are the same on every engine.
      {"sample", {Whole(kF32, {64, 1000}, -9, 9), Out(kI64, {64}), 0.7, int64_t{1234}, int64_t{7}}},
      {"sample_topk",
       {Whole(kF32, {64, 1000}, -9, 9), Out(kI64, {64}), 0.7, int64_t{1234}, int64_t{7},
        int64_t{40}}},
      {"sample_topp",
       {Whole(kF16, {64, 1000}, -9, 9), Out(kI64, {64}), 1.0, int64_t{99}, int64_t{0}, 0.9}},
      // Data.
      {"copy_bytes", {Whole(kU8, {300001}, 0, 255), Out(kU8, {300001})}},
      // MUL R0, R0, R0; HALT, for 1,000 values of R0.
      {"flux.run",
       {Tensor{kU8, {5}, {0x22, 0, 0, 0, 0x00}}, Whole(kU32, {0}, 0, 0), Whole(kU32, {0}, 0, 0),
        Whole(kI32, {1000}, -999, 999), Out(kI32, {1000}), Out(kU8, {1000}), Out(kU32, {1000}),
        int64_t{1000}, int64_t{1}, int64_t{0}, int64_t{0}, int64_t{1}, int64_t{100}, int64_t{0}}},
  };
}

const std::vector<Case>& Cases() {
  static const auto* const cases = new std::vector<Case>(MakeCases());
  return *cases;
}

const BuiltinOperator& FindBuiltin(const std::string& name) {
  return *std::find_if(std::begin(kBuiltinOperators), std::end(kBuiltinOperators),
                       [&](const BuiltinOperator& op) { return op.name == name; });
}

// A case's tensors in memory that all devices can access.
class Placed {
 public:
  Placed(const LibraryDevice& device, const Case& c)
      : case_(c), signature_(*Signature::Parse(FindBuiltin(c.op).signature)) {
    for (const CaseArgument& argument : c.arguments) {
      const auto* const tensor = std::get_if<Tensor>(&argument);
      uint8_t* memory = nullptr;
      if (tensor != nullptr) {
        memory = device.Allocate(tensor->bytes.size() + 64);
        std::copy(tensor->bytes.begin(), tensor->bytes.end(), memory);
      }
      memory_.push_back(memory);
    }
  }

  std::vector<resident_ops_argument> ForLibrary() const {
    std::vector<resident_ops_argument> arguments;
    for (size_t i = 0; i < memory_.size(); ++i) {
      const CaseArgument& argument = case_.arguments[i];
      if (const auto* const tensor = std::get_if<Tensor>(&argument)) {
        arguments.push_back(resident_ops_dense(memory_[i], static_cast<int32_t>(tensor->dtype),
                                               static_cast<int32_t>(tensor->shape.size()),
                                               tensor->shape.data()));
      } else if (const auto* const real = std::get_if<double>(&argument)) {
        arguments.push_back(resident_ops_real(*real));
      } else {
        arguments.push_back(resident_ops_integer(std::get<int64_t>(argument)));
      }
    }
    return arguments;
  }

  // For a task of an engine: all arguments, with defaults.
  std::vector<Argument> ForTask() const {
    std::vector<Argument> arguments(signature_.parameters().size());
    for (size_t i = 0; i < arguments.size(); ++i) {
      const Parameter& parameter = signature_.parameters()[i];
      if (i >= memory_.size()) {
        arguments[i].scalar_bits = *parameter.default_bits;
      } else if (const auto* const tensor = std::get_if<Tensor>(&case_.arguments[i])) {
        TensorArgument& to = arguments[i].tensor;
        to = {};
        to.address = reinterpret_cast<uint64_t>(memory_[i]);
        to.dtype = tensor->dtype;
        to.rank = static_cast<u8>(tensor->shape.size());
        int64_t stride = 1;
        for (size_t d = tensor->shape.size(); d-- > 0;) {
          to.shape[d] = tensor->shape[d];
          to.strides[d] = stride;
          stride *= std::max<int64_t>(tensor->shape[d], 1);
        }
      } else if (const auto* const real = std::get_if<double>(&case_.arguments[i])) {
        arguments[i].scalar_bits = ScalarBits(parameter.dtypes[0], *real);
      } else {
        arguments[i].scalar_bits =
            ScalarBits(parameter.dtypes[0], std::get<int64_t>(case_.arguments[i]));
      }
    }
    return arguments;
  }

  uint32_t chunks() const {
    const SplitRule split = *ParseSplit(FindBuiltin(case_.op).split, signature_);
    if (split.parameter < 0) return 1;
    return static_cast<uint32_t>(split.Chunks([&](int parameter) -> absl::Span<const int64_t> {
      return std::get<Tensor>(case_.arguments[parameter]).shape;
    }));
  }

  // The contents of all tensors.
  std::vector<Bytes> Contents() const {
    std::vector<Bytes> contents;
    for (size_t i = 0; i < memory_.size(); ++i) {
      if (memory_[i] == nullptr) continue;
      contents.emplace_back(memory_[i],
                            memory_[i] + std::get<Tensor>(case_.arguments[i]).bytes.size());
    }
    return contents;
  }

 private:
  const Case& case_;
  const Signature signature_;
  std::vector<uint8_t*> memory_;
};

class LibraryAgreementTest : public ::testing::Test {
 protected:
  static LibraryDevice& Device() {
    static auto* const device = new LibraryDevice;
    return *device;
  }

  static std::vector<Bytes> RunOnCpuEngine(const Case& c) {
    const Placed placed(Device(), c);
    RunTaskOnCpuEngine(c.op, placed.ForTask(), placed.chunks());
    return placed.Contents();
  }

  std::vector<Bytes> RunWithLibrary(const Case& c, int32_t number, void* stream) {
    const Placed placed(Device(), c);
    resident_ops* ops = nullptr;
    EXPECT_EQ(resident_ops_create(number, 0, &ops), RESIDENT_OPS_OK) << resident_ops_last_error();
    const auto arguments = placed.ForLibrary();
    EXPECT_EQ(resident_ops_run(ops, c.op.c_str(), arguments.data(), arguments.size(), stream),
              RESIDENT_OPS_OK)
        << resident_ops_last_error();
    Device().Synchronize();
    EXPECT_EQ(resident_ops_status(ops, nullptr), RESIDENT_OPS_OK) << resident_ops_last_error();
    EXPECT_EQ(resident_ops_destroy(ops), RESIDENT_OPS_OK);
    return placed.Contents();
  }
};

TEST_F(LibraryAgreementTest, EveryFamilyGivesTheSameBits) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(c.op + " " + c.label);
    const std::vector<Bytes> got = RunWithLibrary(c, Device().number(), Device().stream());
    const std::vector<Bytes> expected =
        Device().gpu() ? RunWithLibrary(c, RESIDENT_OPS_CPU, nullptr) : RunOnCpuEngine(c);
    ASSERT_EQ(got.size(), expected.size());
    for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(got[i] == expected[i]) << "tensor " << i;
    // The operator has written something.
    bool changed = false;
    size_t t = 0;
    for (const CaseArgument& argument : c.arguments) {
      if (const auto* const tensor = std::get_if<Tensor>(&argument)) {
        changed = changed || got[t++] != tensor->bytes;
      }
    }
    EXPECT_TRUE(changed);
  }
}

TEST_F(LibraryAgreementTest, CasesHaveAllFamilies) {
  for (const BuiltinOperator& op : kBuiltinOperators) {
    const std::string family = op.family;
    bool found = false;
    for (const Case& c : Cases()) found = found || FindBuiltin(c.op).family == family;
    EXPECT_TRUE(found) << family;
  }
}

// An operator that works element by element may write to its input. All of them are tried, in sizes
// of one chunk and of many, dense and strided.
TEST_F(LibraryAgreementTest, ElementwiseOperatorsInPlaceGiveTheSameBits) {
  resident_ops* ops = nullptr;
  ASSERT_EQ(resident_ops_create(Device().number(), 0, &ops), RESIDENT_OPS_OK);
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  int tried = 0;
  constexpr int64_t kLargest = 3 * 300001;
  auto* const x = reinterpret_cast<float*>(Device().Allocate(4 * kLargest));
  auto* const y = reinterpret_cast<float*>(Device().Allocate(4 * kLargest));
  auto* const out = reinterpret_cast<float*>(Device().Allocate(4 * kLargest));
  std::vector<float> values(kLargest);
  for (float& value : values) value = normal(random);
  for (const BuiltinOperator& op : kBuiltinOperators) {
    const Signature signature = *Signature::Parse(op.signature);
    if (std::string(op.family) != "elementwise") continue;
    if (signature.parameters()[0].kind != ParameterKind::kInput) continue;
    for (const auto& [elements, spacing] :
         {std::pair<int64_t, int64_t>{1003, 1}, {300001, 1}, {5001, 3}}) {
      SCOPED_TRACE(std::string(op.name) + " " + std::to_string(elements));
      std::copy(values.begin(), values.end(), x);
      std::copy(values.rbegin(), values.rend(), y);
      std::copy(values.begin(), values.end(), out);
      const auto run = [&](float* first, float* to) {
        std::vector<resident_ops_argument> arguments;
        bool is_first = true;
        for (const Parameter& parameter : signature.parameters()) {
          if (parameter.scalar()) {
            if (parameter.default_bits) break;
            arguments.push_back(resident_ops_real(0.75));
            continue;
          }
          float* const data = parameter.kind == ParameterKind::kOutput ? to : is_first ? first : y;
          is_first = false;
          arguments.push_back(resident_ops_dense(data, RESIDENT_OPS_F32, 1, &elements));
          arguments.back().strides[0] = spacing;
        }
        ASSERT_EQ(
            resident_ops_run(ops, op.name, arguments.data(), arguments.size(), Device().stream()),
            RESIDENT_OPS_OK)
            << resident_ops_last_error();
        Device().Synchronize();
        ASSERT_EQ(resident_ops_status(ops, nullptr), RESIDENT_OPS_OK) << resident_ops_last_error();
      };
      run(x, out);
      run(x, x);
      EXPECT_EQ(std::memcmp(x, out, 4 * elements * spacing), 0);
      ++tried;
    }
  }
  EXPECT_GT(tried, 60);
  EXPECT_EQ(resident_ops_destroy(ops), RESIDENT_OPS_OK);
}

TEST_F(LibraryAgreementTest, CompareReturnsItsResult) {
  resident_ops* ops = nullptr;
  ASSERT_EQ(resident_ops_create(Device().number(), 0, &ops), RESIDENT_OPS_OK);
  constexpr int64_t kElements = 1000;
  auto* const x = reinterpret_cast<float*>(Device().Allocate(4 * kElements));
  auto* const y = reinterpret_cast<float*>(Device().Allocate(4 * kElements));
  for (int i = 0; i < kElements; ++i) x[i] = y[i] = static_cast<float>(i);
  y[3] = y[700] = y[999] = -1;
  const resident_ops_argument arguments[] = {
      resident_ops_dense(x, RESIDENT_OPS_F32, 1, &kElements),
      resident_ops_dense(y, RESIDENT_OPS_F32, 1, &kElements)};
  ASSERT_EQ(resident_ops_run(ops, "compare", arguments, 2, Device().stream()), RESIDENT_OPS_OK);
  Device().Synchronize();
  uint64_t result[RESIDENT_OPS_RESULT_BYTES / 8];
  ASSERT_EQ(resident_ops_result(ops, result), RESIDENT_OPS_OK);
  EXPECT_EQ(result[0], 3u);
  // Elements of two sizes: y would be read beyond its end.
  resident_ops_argument mixed[] = {arguments[0], arguments[1]};
  mixed[1].dtype = RESIDENT_OPS_F16;
  resident_ops_run(ops, "compare", mixed, 2, Device().stream());
  Device().Synchronize();
  EXPECT_EQ(resident_ops_status(ops, nullptr), RESIDENT_OPS_INVALID_VALUE);
  EXPECT_EQ(resident_ops_destroy(ops), RESIDENT_OPS_OK);
}

TEST_F(LibraryAgreementTest, FewBlocksRunAllChunks) {
  const Case wide = {
      "add",
      {Whole(kF32, {1000001}, -99, 99), Whole(kF32, {1000001}, -99, 99, 2), Out(kF32, {1000001})}};
  const Placed placed(Device(), wide);
  resident_ops* ops = nullptr;
  ASSERT_EQ(resident_ops_create(Device().number(), /*max_blocks=*/3, &ops), RESIDENT_OPS_OK);
  const auto arguments = placed.ForLibrary();
  ASSERT_EQ(resident_ops_run(ops, "add", arguments.data(), arguments.size(), Device().stream()),
            RESIDENT_OPS_OK);
  Device().Synchronize();
  EXPECT_TRUE(placed.Contents() == RunWithLibrary(wide, RESIDENT_OPS_CPU, nullptr));
  EXPECT_EQ(resident_ops_destroy(ops), RESIDENT_OPS_OK);
}

}  // namespace
}  // namespace resident::testing
