// Operators that a graph may start early (early_operators.h), in blocks of several warps: before
// Block::await_inputs() they read no element but those that they may read, and write nothing. Their
// other tests find what they compute.
#include "kernels/ops/early_operators.h"

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "kernels/ops/emulated_task.h"
#include "kernels/sdk/operator.h"

#define RESIDENT_EARLY_OPERATORS(X) \
  X(attention)                      \
  X(attention_combine)              \
  X(attention_decode)               \
  X(attention_partial)              \
  X(choose_token)                   \
  X(gemv)                           \
  X(gemv_quant)                     \
  X(gemv_quant_bias)                \
  X(gemv_silu_mul)                  \
  X(kv_append)                      \
  X(linear)                         \
  X(rmsnorm)                        \
  X(rmsnorm_gemv)                   \
  X(rmsnorm_gemv_qkv)               \
  X(rmsnorm_gemv_quant)             \
  X(rmsnorm_gemv_quant_silu_mul)    \
  X(rmsnorm_gemv_silu_mul)          \
  X(rmsnorm_residual)               \
  X(rope)
#define DECLARE(name) extern "C" void resident_operator_##name(resident::BlockState* state);
RESIDENT_EARLY_OPERATORS(DECLARE)
#undef DECLARE

namespace resident {
namespace {

using Bytes = std::vector<unsigned char>;

OperatorFunction FunctionOf(const std::string& name) {
#define FIND(op) \
  if (name == #op) return resident_operator_##op;
  RESIDENT_EARLY_OPERATORS(FIND)
#undef FIND
  return nullptr;
}

// A task of an operator, with the memory of its arguments.
class EarlyTask {
 public:
  explicit EarlyTask(const char* name) : name_(name) {}
  EarlyTask(const EarlyTask&) = delete;  // The arguments have addresses of its tensors.
  EarlyTask& operator=(const EarlyTask&) = delete;

  // Random values from 0 to 1, whose sums and roots are finite; or random bytes.
  EarlyTask& In(DType dtype, const std::vector<i64>& shape) {
    Tensor& tensor = Add(dtype, shape);
    if (dtype == DType::kI8 || dtype == DType::kU8) {
      for (unsigned char& byte : tensor.bytes) byte = static_cast<unsigned char>(random_());
      return *this;
    }
    std::uniform_real_distribution<float> value(0, 1);
    for (size_t i = 0; i < tensor.bytes.size() / SizeOf(dtype); ++i) {
      StoreFloat(reinterpret_cast<u64>(tensor.bytes.data()), dtype, static_cast<i64>(i),
                 value(random_));
    }
    return *this;
  }
  EarlyTask& Zeros(DType dtype, const std::vector<i64>& shape) {
    Tensor& tensor = Add(dtype, shape);
    tensor.bytes.assign(tensor.bytes.size(), 0);
    tensor.counts = true;
    return *this;
  }
  EarlyTask& Out(DType dtype, const std::vector<i64>& shape) {
    Add(dtype, shape).output = true;
    return *this;
  }
  EarlyTask& Scalar(i64 value) {
    arguments_.push_back(ScalarArgument(static_cast<u64>(value)));
    tensors_.emplace_back();
    return *this;
  }
  EarlyTask& Scalar(float value) {
    u32 bits;
    std::memcpy(&bits, &value, sizeof(bits));
    return Scalar(i64{bits});
  }

  const std::string& name() const { return name_; }

  // Executes the task; `reads`: EarlyOperator::reads.
  void Check(u32 reads) {
    for (const u64 chunks : {1, 3}) {
      SCOPED_TRACE(name_ + " in " + std::to_string(chunks) + " chunks");
      PoisonOutputs();
      emulated::State::await_inputs = nullptr;
      ASSERT_EQ(Run(chunks), 0u);
      const std::vector<Bytes> expected = Outputs();

      std::vector<Bytes> inputs;
      for (const Tensor& tensor : tensors_) inputs.push_back(tensor.bytes);
      PoisonOutputs();
      const std::vector<Bytes> untouched = Outputs();
      PoisonInputs(reads);
      int waits = 0;
      emulated::State::await_inputs = [&] {
        ++waits;
        EXPECT_TRUE(waits > 1 || Outputs() == untouched) << "it wrote before its inputs were ready";
        for (size_t i = 0; i < tensors_.size(); ++i) {
          if (tensors_[i].output) continue;
          // What chunks count stays from one to the next.
          if (tensors_[i].counts && waits > 1) continue;
          if (!inputs[i].empty()) {
            std::memcpy(tensors_[i].bytes.data(), inputs[i].data(), inputs[i].size());
          }
        }
        return true;
      };
      EXPECT_EQ(Run(chunks), 0u);
      EXPECT_GT(waits, 0);
      EXPECT_TRUE(Outputs() == expected) << "it read what was not ready";

      PoisonOutputs();
      emulated::State::await_inputs = [] { return false; };
      (void)Run(chunks);
      EXPECT_TRUE(Outputs() == untouched) << "it wrote although it was withdrawn";
      emulated::State::await_inputs = nullptr;
    }
  }

 private:
  struct Tensor {
    bool output = false;
    Bytes bytes;
    bool counts = false;
  };

  Tensor& Add(DType dtype, const std::vector<i64>& shape) {
    u64 bytes = SizeOf(dtype);
    for (const i64 size : shape) bytes *= static_cast<u64>(size);
    tensors_.push_back({false, Bytes(bytes, 0x11), false});
    arguments_.push_back(DenseArgument(tensors_.back().bytes.data(), dtype, shape));
    return tensors_.back();
  }

  u32 Run(u64 chunks) { return RunEmulated(FunctionOf(name_), arguments_, chunks); }

  std::vector<Bytes> Outputs() const {
    std::vector<Bytes> outputs;
    for (const Tensor& tensor : tensors_) {
      if (tensor.output) outputs.push_back(tensor.bytes);
    }
    return outputs;
  }
  void PoisonOutputs() {
    for (Tensor& tensor : tensors_) {
      if (tensor.output) tensor.bytes.assign(tensor.bytes.size(), 0x11);
    }
  }
  // NaNs, in place of what may not be read.
  void PoisonInputs(u32 reads) {
    for (size_t i = 0; i < tensors_.size(); ++i) {
      if (tensors_[i].output || (reads >> i & 1) != 0) continue;
      tensors_[i].bytes.assign(tensors_[i].bytes.size(), 0xff);
    }
  }

  const std::string name_;
  std::mt19937 random_{7};
  std::vector<Tensor> tensors_;
  std::vector<Argument> arguments_;
};

constexpr DType kF32 = DType::kF32;
constexpr DType kBF16 = DType::kBF16;

// The form of a decoding step of each operator, and another one.
std::deque<EarlyTask> Tasks() {
  std::deque<EarlyTask> tasks;
  const auto add = [&tasks](const char* name) -> EarlyTask& { return tasks.emplace_back(name); };
  for (const DType keys : {kBF16, kF32}) {
    add("attention")
        .In(kF32, {1, 4, 1, 64})
        .In(keys, {1, 2, 20, 64})
        .In(keys, {1, 2, 20, 64})
        .In(kF32, {0})
        .Out(kF32, {1, 4, 1, 64})
        .Scalar(0.125f)
        .Scalar(i64{0})
        .Scalar(i64{17});
    add("attention_partial")
        .In(kF32, {1, 4, 1, 64})
        .In(keys, {1, 2, 20, 64})
        .In(keys, {1, 2, 20, 64})
        .In(kF32, {0})
        .Out(kF32, {1, 4, 1, 2, 64})
        .Out(kF32, {1, 4, 1, 2})
        .Out(kF32, {1, 4, 1, 2})
        .Scalar(0.125f)
        .Scalar(i64{0})
        .Scalar(i64{17});
    // With several parts there is an item for each head, and an empty one.
    for (const i64 parts : {1, 3}) {
      add("attention_decode")
          .In(kF32, {4, 64})
          .In(kF32, {2, 64})
          .In(kF32, {2, 64})
          .In(kF32, {32})
          .In(keys, {2, 20, 64})
          .In(keys, {2, 20, 64})
          .Out(kF32, {4, parts, 64})
          .Out(kF32, {4, parts})
          .Out(kF32, {4, parts})
          .Zeros(DType::kI32, {2})
          .Out(kF32, {4, 64})
          .Scalar(i64{16})
          .Scalar(0.125f)
          .Scalar(i64{1});
    }
  }
  for (const i64 parts : {1, 5}) {
    add("choose_token")
        .In(kF32, {1003})
        .Out(DType::kI64, {parts})
        .Zeros(DType::kI32, {1})
        .Out(DType::kI64, {1})
        .Out(DType::kI64, {1})
        .Out(DType::kI64, {1})
        .Scalar(i64{3})
        .Scalar(i64{2});
  }
  for (const i64 depth : {1024, 40}) {
    add("rmsnorm_gemv_qkv")
        .In(kF32, {1, depth})
        .In(kBF16, {depth})
        .In(kBF16, {20, depth})
        .In(kBF16, {7, depth})
        .In(kBF16, {7, depth})
        .In(kF32, {20})
        .In(kF32, {0})
        .In(kF32, {7})
        .Out(kF32, {1, 20})
        .Out(kF32, {1, 7})
        .Out(kF32, {1, 7})
        .Scalar(1e-6f);
  }
  add("attention_combine")
      .In(kF32, {1, 4, 1, 5, 64})
      .In(kF32, {1, 4, 1, 5})
      .In(kF32, {1, 4, 1, 5})
      .Out(kF32, {1, 4, 1, 64});
  add("gemv").In(kF32, {1, 1024}).In(kBF16, {40, 1024}).In(kF32, {40}).Out(kF32, {1, 40});
  add("gemv").In(kF32, {4, 96}).In(kBF16, {40, 96}).In(kF32, {4, 40}).Out(kF32, {4, 40});
  add("gemv").In(kF32, {2, 7}).In(kF32, {5, 7}).In(kF32, {0}).Out(kBF16, {2, 5});
  for (const i64 depth : {100, 256, 1100}) {
    add("gemv").In(kF32, {1, depth}).In(kF32, {40, depth}).In(kF32, {40}).Out(kF32, {1, 40});
    for (const i64 vectors : {1, 3, 20}) {
      add("linear")
          .In(kF32, {vectors, depth})
          .In(kF32, {40, depth})
          .In(kF32, {40})
          .In(kF32, {vectors, 40})
          .Out(kF32, {vectors, 40})
          .Scalar(i64{1});
    }
  }
  add("linear")
      .In(kF32, {2, 64})
      .In(kBF16, {5, 64})
      .In(kF32, {0})
      .In(kF32, {0})
      .Out(kF32, {2, 5})
      .Scalar(i64{2});
  add("gemv").In(kBF16, {3, 64}).In(kBF16, {32, 64}).In(kF32, {0}).Out(kBF16, {3, 32});
  for (const i64 bits : {8, 4}) {
    add("gemv_quant")
        .In(kF32, {1, 1024})
        .In(DType::kU8, {40, 1024 * bits / 8})
        .In(DType::kF16, {40, 8})
        .In(DType::kF16, {40, 8})
        .Out(kF32, {1, 40})
        .Scalar(i64{128});
    add("gemv_quant")
        .In(kBF16, {1, 2048})
        .In(DType::kI8, {40, 2048 * bits / 8})
        .In(DType::kF16, {40, 1})
        .In(DType::kF16, {0})
        .Out(kF32, {1, 40})
        .Scalar(i64{2048});
  }
  add("gemv_quant")
      .In(kF32, {2, 7})
      .In(DType::kI8, {5, 7})
      .In(DType::kF16, {5, 2})
      .In(DType::kF16, {0})
      .Out(kBF16, {2, 5})
      .Scalar(i64{4});
  add("gemv_quant")
      .In(kBF16, {2, 128})
      .In(DType::kU8, {5, 64})
      .In(DType::kF16, {5, 1})
      .In(DType::kF16, {5, 1})
      .Out(kBF16, {2, 5})
      .Scalar(i64{128});
  // With x of bfloat16, or a norm of float32, not the form of a decoding step.
  for (const i64 bits : {8, 4}) {
    for (const DType x : {kF32, kBF16}) {
      add("gemv_quant_bias")
          .In(x, {1, 1024})
          .In(DType::kU8, {40, 1024 * bits / 8})
          .In(DType::kF16, {40, 8})
          .In(DType::kF16, {0})
          .In(kF32, {40})
          .Out(kF32, {1, 40})
          .Scalar(i64{128});
    }
    for (const DType norm : {kBF16, kF32}) {
      add("rmsnorm_gemv_quant")
          .In(kF32, {1, 4128})
          .In(norm, {4128})
          .In(DType::kU8, {9, 4128 * bits / 8})
          .In(DType::kF16, {9, 129})
          .In(DType::kF16, {0})
          .In(kF32, {9})
          .Out(kF32, {1, 9})
          .Scalar(i64{32})
          .Scalar(1e-6f);
      add("rmsnorm_gemv_quant_silu_mul")
          .In(kF32, {1024})
          .In(norm, {1024})
          .In(DType::kI8, {40, 1024 * bits / 8})
          .In(DType::kF16, {40, 1})
          .In(DType::kF16, {0})
          .In(DType::kI8, {40, 1024 * bits / 8})
          .In(DType::kF16, {40, 1})
          .In(DType::kF16, {0})
          .Out(kF32, {40})
          .Scalar(i64{1024})
          .Scalar(1e-6f);
    }
  }
  add("rmsnorm_gemv_quant")
      .In(kBF16, {2, 7})
      .In(kF32, {7})
      .In(DType::kI8, {5, 4})
      .In(DType::kF16, {5, 2})
      .In(DType::kF16, {5, 2})
      .In(kF32, {0})
      .Out(kBF16, {2, 5})
      .Scalar(i64{4})
      .Scalar(1e-6f);
  add("rmsnorm_gemv_quant_silu_mul")
      .In(kBF16, {2, 7})
      .In(kF32, {7})
      .In(DType::kI8, {5, 7})
      .In(DType::kF16, {5, 2})
      .In(DType::kF16, {5, 2})
      .In(DType::kU8, {5, 4})
      .In(DType::kF16, {5, 2})
      .In(DType::kF16, {0})
      .Out(kBF16, {2, 5})
      .Scalar(i64{4})
      .Scalar(1e-6f);
  add("gemv_silu_mul")
      .In(kF32, {1, 1024})
      .In(kBF16, {40, 1024})
      .In(kBF16, {40, 1024})
      .Out(kF32, {1, 40});
  add("gemv_silu_mul").In(kF32, {9, 96}).In(kBF16, {40, 96}).In(kBF16, {40, 96}).Out(kF32, {9, 40});
  add("gemv_silu_mul").In(kF32, {2, 7}).In(kF32, {5, 7}).In(kF32, {5, 7}).Out(kF32, {2, 5});
  add("kv_append").In(kF32, {1, 2, 1, 64}).Out(kBF16, {1, 2, 8, 64}).Scalar(i64{3});
  add("kv_append").In(kF32, {2, 2, 2, 3}).Out(kF32, {2, 2, 8, 3}).Scalar(i64{3});
  add("rmsnorm").In(kF32, {1, 2048}).In(kBF16, {2048}).Out(kF32, {1, 2048}).Scalar(1e-6f);
  add("rmsnorm").In(kBF16, {3, 100}).In(kF32, {100}).Out(kF32, {3, 100}).Scalar(1e-6f);
  add("rmsnorm_residual")
      .In(kF32, {1, 2048})
      .In(kF32, {1, 2048})
      .In(kBF16, {2048})
      .Out(kF32, {1, 2048})
      .Out(kF32, {1, 2048})
      .Scalar(1e-6f);
  add("rmsnorm_residual")
      .In(kF32, {3, 100})
      .In(kBF16, {3, 100})
      .In(kF32, {100})
      .Out(kF32, {3, 100})
      .Out(kF32, {3, 100})
      .Scalar(1e-6f);
  add("rmsnorm_gemv")
      .In(kF32, {9, 96})
      .In(kBF16, {96})
      .In(kBF16, {40, 96})
      .In(kF32, {40})
      .Out(kF32, {9, 40})
      .Scalar(1e-6f);
  add("rmsnorm_gemv_silu_mul")
      .In(kF32, {4, 96})
      .In(kBF16, {96})
      .In(kBF16, {40, 96})
      .In(kBF16, {40, 96})
      .Out(kF32, {4, 40})
      .Scalar(1e-6f);
  add("rmsnorm_gemv")
      .In(kF32, {1, 1024})
      .In(kBF16, {1024})
      .In(kBF16, {40, 1024})
      .In(kF32, {40})
      .Out(kF32, {1, 40})
      .Scalar(1e-6f);
  add("rmsnorm_gemv")
      .In(kF32, {1, 4104})
      .In(kBF16, {4104})
      .In(kBF16, {9, 4104})
      .In(kF32, {0})
      .Out(kF32, {9})
      .Scalar(1e-6f);
  add("rmsnorm_gemv")
      .In(kBF16, {2, 7})
      .In(kF32, {7})
      .In(kF32, {5, 7})
      .In(kF32, {0})
      .Out(kBF16, {2, 5})
      .Scalar(1e-6f);
  add("rmsnorm_gemv_silu_mul")
      .In(kF32, {1, 1024})
      .In(kBF16, {1024})
      .In(kBF16, {40, 1024})
      .In(kBF16, {40, 1024})
      .Out(kF32, {1, 40})
      .Scalar(1e-6f);
  add("rmsnorm_gemv_silu_mul")
      .In(kF32, {2, 7})
      .In(kBF16, {7})
      .In(kF32, {5, 7})
      .In(kF32, {5, 7})
      .Out(kF32, {2, 5})
      .Scalar(1e-6f);
  for (const i64 layout : {0, 1}) {
    for (const i64 half : {32, 5}) {
      add("rope")
          .In(kF32, {1, 1, 4, 2 * half})
          .In(kF32, {3, half})
          .Out(kF32, {1, 1, 4, 2 * half})
          .Scalar(i64{1})
          .Scalar(layout);
    }
  }
  return tasks;
}

TEST(EarlyOperatorsTest, NothingIsReadOrWrittenBeforeTheInputsAreReady) {
  std::deque<EarlyTask> tasks = Tasks();
  for (const EarlyOperator& early : kEarlyOperators) {
    int checked = 0;
    for (EarlyTask& task : tasks) {
      if (task.name() != early.name) continue;
      task.Check(early.reads);
      ++checked;
    }
    EXPECT_GT(checked, 0) << early.name;
  }
}

}  // namespace
}  // namespace resident
