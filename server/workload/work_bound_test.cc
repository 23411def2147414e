#include "server/workload/work_bound.h"

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/ops/builtin.h"
#include "runtime/engine/cpu/cpu_registration.h"
#include "runtime/engine/cuda/cuda_registration.h"
#include "runtime/operators/registry/registry.h"

namespace resident {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

class WorkBoundTest : public ::testing::Test {
 protected:
  WorkBoundTest() {
    cpu_.traits = CpuTraits();
    cpu_.workers = 2;
    gpu_.traits = CudaTraits(90, 256, 132);
    gpu_.workers = 132;
    // Work in milliseconds.
    simple_.traits.max_operations_per_ms = 100;
    simple_.traits.max_elements_per_ms = 10;
    simple_.traits.max_scattered_elements_per_ms = 5;
    simple_.workers = 4;
  }

  const OperatorVersion& Version(const std::string& name) {
    held_.push_back(*registry_->Resolve(name, 0));
    return *held_.back().version;
  }
  // `scattered`: all tensors repeat one element.
  static TaskWork Count(const OperatorVersion& version, const std::vector<Shape>& shapes,
                        bool scattered = false, const std::vector<double>& scalars = {}) {
    std::vector<Shape> strides(shapes.size());
    for (size_t i = 0; i < shapes.size() && scattered; ++i) strides[i].resize(shapes[i].size(), 0);
    return CountWork(version, shapes, strides, scalars);
  }
  absl::Status Check(const std::string& name, const std::vector<Shape>& shapes,
                     const EngineInfo& engine, uint64_t chunks = 1, bool scattered = false,
                     const std::vector<double>& scalars = {}) {
    const OperatorVersion& version = Version(name);
    return CheckWork(version, Count(version, shapes, scattered, scalars), chunks,
                     {0, engine, milliseconds(10'000)});
  }

  const std::unique_ptr<Registry> registry_ = *Registry::Create({.test_operators = true});
  std::vector<ResolvedOperator> held_;
  EngineInfo cpu_;
  EngineInfo gpu_;
  EngineInfo simple_;
};

// Sizes of `size` for all dimensions that a parameter has at least.
Shape Square(const Parameter& parameter, int64_t size) {
  return Shape(parameter.scalar() ? 0 : std::max<size_t>(parameter.min_rank, parameter.dims.size()),
               size);
}

// What a view without memory of its own repeats is counted, whatever the operator is.
TEST_F(WorkBoundTest, EachStridedInputOfEveryOperatorCounts) {
  constexpr int64_t kSize = 7;
  for (const BuiltinOperator& op : kBuiltinOperators) {
    const OperatorVersion& version = Version(op.name);
    std::vector<Shape> shapes;
    for (const Parameter& parameter : version.op->signature().parameters()) {
      shapes.push_back(Square(parameter, kSize));
    }
    const TaskWork work = Count(version, shapes, /*scattered=*/true);
    const double counted = std::max(work.operations, work.scattered);
    for (size_t i = 0; i < shapes.size(); ++i) {
      const Parameter& parameter = version.op->signature().parameters()[i];
      if (parameter.kind != ParameterKind::kInput || !parameter.strided) continue;
      EXPECT_GE(counted, std::pow(kSize, shapes[i].size())) << op.name << ", " << parameter.name;
    }
    if (!version.cost.terms.empty()) {
      EXPECT_GE(counted, kSize) << op.name;
    }
  }
}

TEST_F(WorkBoundTest, EitherAmountDecides) {
  // 2 M N K operations, and 1,000 elements of a.
  const auto gemm = [](int64_t m, int64_t k) {
    return std::vector<Shape>{{m, k}, {k, 1}, {m, 1}, {}, {}};
  };
  EXPECT_TRUE(Check("gemm", gemm(1, 100'000), simple_).ok());  // 10 s for the elements of a.
  EXPECT_FALSE(Check("gemm", gemm(1, 100'001), simple_).ok());
  EXPECT_TRUE(Check("gemm", {{50, 100}, {100, 100}, {50, 100}, {}, {}}, simple_).ok());
  EXPECT_FALSE(Check("gemm", {{50, 101}, {101, 100}, {50, 100}, {}, {}}, simple_).ok());
}

// A view has adjacent elements if one dimension has them, wherever it is.
TEST_F(WorkBoundTest, ScatteredElementsHaveARateOfTheirOwn) {
  EXPECT_TRUE(Check("sum", {{50'000}, {}, {}}, simple_, 1, /*scattered=*/true).ok());
  EXPECT_FALSE(Check("sum", {{50'001}, {}, {}}, simple_, 1, /*scattered=*/true).ok());
  const OperatorVersion& sum = Version("sum");
  for (const std::vector<int64_t>& strides :
       std::vector<std::vector<int64_t>>{{0, 1}, {1, 200}, {0, -1}}) {
    const Shape view(strides.begin(), strides.end());
    EXPECT_EQ(CountWork(sum, {{200, 300}, {}, {}}, {view, {}, {}}).elements, 60'000) << view[1];
  }
  EXPECT_EQ(CountWork(sum, {{200, 300}, {}, {}}, {{600, 2}, {}, {}}).scattered, 60'000);
  EXPECT_EQ(CountWork(sum, {{1, 300}, {}, {}}, {{1, 2}, {}, {}}).scattered, 300);
}

// Each chunk may have a work unit, and there are not more than the engine has.
TEST_F(WorkBoundTest, ChunksShareTheWork) {
  const std::vector<Shape> shapes = {{300'000}, {}, {}};
  EXPECT_FALSE(Check("sum", shapes, simple_, 2).ok());
  EXPECT_TRUE(Check("sum", shapes, simple_, 3).ok());
  EXPECT_TRUE(Check("sum", {{400'000}, {}, {}}, simple_, 1000).ok());
  EXPECT_FALSE(Check("sum", {{400'001}, {}, {}}, simple_, 1000).ok());
}

TEST_F(WorkBoundTest, TheErrorHasBothNumbersAndTheFix) {
  const absl::Status refused = Check("sum", {{200'000}, {}, {}}, simple_);
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("sum: a task of 200000 elements of an input takes at least 20 s"),
                    HasSubstr("over --task_time_limit of 10 s"),
                    HasSubstr("Fix: split it into smaller tasks, or raise --task_time_limit")));
}

TEST_F(WorkBoundTest, TheLimitOfAVersionReplacesTheDaemons) {
  OperatorVersion version;
  version.op = Version("test.axpy").op;
  version.spec.task_time_limit = milliseconds(1'000);
  const std::vector<Shape> shapes = {{20'000}, {1}, {20'000}, {}};
  const TaskWork work = Count(version, shapes);
  const absl::Status refused = CheckWork(version, work, 1, {0, simple_, milliseconds(10'000)});
  EXPECT_THAT(std::string(refused.message()), HasSubstr("the version's time limit of 1 s"));
  version.spec.task_time_limit = milliseconds(0);
  EXPECT_TRUE(CheckWork(version, work, 1, {0, simple_, milliseconds(10'000)}).ok());
  EXPECT_FALSE(CheckWork(version, work, 1, {0, simple_, milliseconds(1'000)}).ok());
}

TEST_F(WorkBoundTest, WithoutALimitOrARateEverythingIsAccepted) {
  const OperatorVersion& version = Version("sum");
  const TaskWork work = Count(version, {{int64_t{1} << 60}, {}, {}});
  EXPECT_TRUE(CheckWork(version, work, 1, {0, simple_, milliseconds(0)}).ok());
  EXPECT_TRUE(CheckWork(version, work, 1, {0, EngineInfo(), milliseconds(1)}).ok());
}

// A cache has many more keys than a step of decoding reads.
TEST_F(WorkBoundTest, AttentionCountsTheKeysThatAreUsed) {
  const std::vector<Shape> shapes = {
      {1, 1, 1, 8}, {1, 1, 1 << 20, 8}, {1, 1, 1 << 20, 8}, {0}, {1, 1, 1, 8}, {}, {}, {}};
  EXPECT_FALSE(Check("attention", shapes, simple_, 1, false, {0, 0, 0, 0, 0, 0, 0, -1}).ok());
  EXPECT_FALSE(Check("attention", shapes, simple_).ok());
  EXPECT_TRUE(Check("attention", shapes, simple_, 1, false, {0, 0, 0, 0, 0, 0, 0, 1'000}).ok());
}

TEST_F(WorkBoundTest, NothingIsReadForAnEmptyProduct) {
  EXPECT_TRUE(
      Check("gemm", {{0, 1 << 20}, {1 << 20, 1 << 20}, {0, 1 << 20}, {}, {}}, simple_).ok());
}

// 47 bytes and 60 bytes: without the bound each of them ends the engine.
TEST_F(WorkBoundTest, RepeatedElementsAreRefused) {
  for (const EngineInfo& engine : {cpu_, gpu_}) {
    const int64_t side = engine.traits.engine == kCpuEngineName ? 1 << 20 : 1 << 26;
    EXPECT_FALSE(Check("sum", {{side, side}, {}, {}}, engine, 1024, true).ok());
    EXPECT_FALSE(
        Check("gemm", {{1, side * side}, {side * side, 1}, {1, 1}, {}, {}}, engine, 1, true).ok());
  }
}

// What was measured to end within 10 s (docs/operations.md), and what a larger memory could hold.
TEST_F(WorkBoundTest, HonestWorkIsAccepted) {
  EXPECT_TRUE(Check("gemm", {{5120, 5120}, {5120, 5120}, {5120, 5120}, {}, {}}, cpu_, 1024).ok());
  const int64_t large = int64_t{1} << 33;
  EXPECT_TRUE(Check("add", {{large}, {large}, {large}, {}}, cpu_, 1024).ok());
  EXPECT_TRUE(Check("sum", {{large}, {}, {}}, cpu_, 1024).ok());
  EXPECT_TRUE(Check("sum", {{64 * large}, {}, {}}, gpu_, 1024).ok());
  EXPECT_TRUE(
      Check("gemm", {{65'536, 65'536}, {65'536, 65'536}, {65'536, 65'536}, {}, {}}, gpu_, 1024)
          .ok());
}

}  // namespace
}  // namespace resident
