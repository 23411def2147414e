// What libresident_ops refuses before it launches, and what it must accept.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "library/resident_ops.h"
#include "tests/conformance/library_runner.h"

namespace resident::testing {
namespace {

using ::testing::HasSubstr;
using Arguments = std::vector<resident_ops_argument>;

constexpr int64_t kRows = 4;
constexpr int64_t kColumns = 8;

resident_ops_argument Dense(void* data, std::vector<int64_t> shape,
                            int32_t dtype = RESIDENT_OPS_F32) {
  return resident_ops_dense(data, dtype, static_cast<int32_t>(shape.size()), shape.data());
}

resident_ops_argument Strided(void* data, std::vector<int64_t> shape, std::vector<int64_t> strides,
                              int32_t dtype = RESIDENT_OPS_F32) {
  resident_ops_argument argument = Dense(data, std::move(shape), dtype);
  std::copy(strides.begin(), strides.end(), argument.strides);
  return argument;
}

class ResidentOpsRefusalsTest : public ::testing::Test {
 protected:
  static LibraryDevice& Device() {
    static auto* const device = new LibraryDevice;
    return *device;
  }
  static float* Memory() {
    static auto* const memory = reinterpret_cast<float*>(Device().Allocate(1 << 20));
    return memory;
  }
  static resident_ops* Ops() {
    static resident_ops* const ops = [] {
      resident_ops* handle = nullptr;
      EXPECT_EQ(resident_ops_create(Device().number(), 0, &handle), RESIDENT_OPS_OK)
          << resident_ops_last_error();
      return handle;
    }();
    return ops;
  }

  float* x_ = Memory();
  float* y_ = Memory() + 1024;
  float* out_ = Memory() + 2048;

  void SetUp() override {
    for (int i = 0; i < 4096; ++i) Memory()[i] = static_cast<float>(i % 7);
  }

  int32_t Run(const char* name, const Arguments& arguments) {
    const int32_t code =
        resident_ops_run(Ops(), name, arguments.data(), arguments.size(), Device().stream());
    Device().Synchronize();
    return code;
  }

  void ExpectRefused(const char* name, const Arguments& arguments, const std::string& why) {
    const std::vector<float> before(Memory(), Memory() + 4096);
    EXPECT_EQ(Run(name, arguments), RESIDENT_OPS_INVALID_VALUE) << why;
    EXPECT_THAT(resident_ops_last_error(), HasSubstr(why));
    EXPECT_THAT(resident_ops_last_error(), HasSubstr("Fix: "));
    EXPECT_EQ(std::memcmp(before.data(), Memory(), before.size() * sizeof(float)), 0) << why;
    EXPECT_EQ(resident_ops_status(Ops(), nullptr), RESIDENT_OPS_OK) << why;
  }

  void ExpectRuns(const char* name, const Arguments& arguments) {
    EXPECT_EQ(Run(name, arguments), RESIDENT_OPS_OK) << resident_ops_last_error();
    EXPECT_STREQ(resident_ops_last_error(), "");
    EXPECT_EQ(resident_ops_status(Ops(), nullptr), RESIDENT_OPS_OK) << resident_ops_last_error();
  }
};

TEST_F(ResidentOpsRefusalsTest, NullPointersOfEveryFunction) {
  EXPECT_EQ(resident_ops_create(RESIDENT_OPS_CPU, 0, nullptr), RESIDENT_OPS_INVALID_VALUE);
  EXPECT_EQ(resident_ops_destroy(nullptr), RESIDENT_OPS_OK);
  EXPECT_EQ(resident_ops_status(nullptr, nullptr), RESIDENT_OPS_INVALID_VALUE);
  char result[RESIDENT_OPS_RESULT_BYTES];
  EXPECT_EQ(resident_ops_result(nullptr, result), RESIDENT_OPS_INVALID_VALUE);
  EXPECT_EQ(resident_ops_result(Ops(), nullptr), RESIDENT_OPS_INVALID_VALUE);
  const Arguments arguments = {Dense(out_, {4})};
  EXPECT_EQ(resident_ops_run(nullptr, "zero", arguments.data(), 1, nullptr),
            RESIDENT_OPS_INVALID_VALUE);
  EXPECT_THAT(resident_ops_last_error(), HasSubstr("handle is null"));
  EXPECT_EQ(resident_ops_run(Ops(), nullptr, arguments.data(), 1, nullptr),
            RESIDENT_OPS_INVALID_VALUE);
  EXPECT_EQ(resident_ops_run(Ops(), "zero", nullptr, 1, nullptr), RESIDENT_OPS_INVALID_VALUE);
  EXPECT_EQ(resident_ops_run(Ops(), "zero", nullptr, 0, nullptr), RESIDENT_OPS_INVALID_VALUE);
  EXPECT_EQ(resident_ops_signature(nullptr), nullptr);
  EXPECT_EQ(resident_ops_name(resident_ops_count()), nullptr);
}

TEST_F(ResidentOpsRefusalsTest, DevicesThatDoNotExist) {
  auto* handle = reinterpret_cast<resident_ops*>(1);
  EXPECT_EQ(resident_ops_create(-2, 0, &handle), RESIDENT_OPS_INVALID_VALUE);
  EXPECT_EQ(handle, nullptr);
  handle = reinterpret_cast<resident_ops*>(1);
  EXPECT_EQ(resident_ops_create(4096, 0, &handle), RESIDENT_OPS_NOT_AVAILABLE);
  EXPECT_EQ(handle, nullptr);
  EXPECT_STRNE(resident_ops_last_error(), "");
}

TEST_F(ResidentOpsRefusalsTest, WithoutCudaTheGpuIsNotAvailableAndTheCpuIs) {
  if (Device().gpu()) return;  // There the other tests use the GPU.
  resident_ops* handle = nullptr;
  EXPECT_EQ(resident_ops_create(0, 0, &handle), RESIDENT_OPS_NOT_AVAILABLE);
  EXPECT_EQ(handle, nullptr);
  EXPECT_STRNE(resident_ops_last_error(), "");
  EXPECT_EQ(resident_ops_create(RESIDENT_OPS_CPU, 0, &handle), RESIDENT_OPS_OK);
  EXPECT_EQ(resident_ops_destroy(handle), RESIDENT_OPS_OK);
}

TEST_F(ResidentOpsRefusalsTest, OperatorsThatDoNotExist) {
  ExpectRefused("", {Dense(out_, {4})}, "there is no operator");
  ExpectRefused("sum_row", {Dense(x_, {4, 8}), Dense(out_, {4})}, "'sum_rows'");
  // Operators of the daemon's tests are no part of the library.
  ExpectRefused("test.fault", {Dense(out_, {4})}, "there is no operator");
}

TEST_F(ResidentOpsRefusalsTest, NumberAndKindsOfArguments) {
  const auto x = Dense(x_, {4});
  const auto out = Dense(out_, {4});
  ExpectRefused("add", {}, "add takes 3 to 4 arguments and got 0");
  ExpectRefused("add", {x, x}, "got 2");
  ExpectRefused("add", {x, x, out, resident_ops_real(1), out}, "got 5");
  ExpectRefused("add", {x, x, resident_ops_real(1)}, "argument 3 'out' of add: kind 2");
  ExpectRefused("add", {x, x, out, out}, "argument 4 'alpha' of add: kind 1");
  ExpectRefused("add", {x, x, out, resident_ops_integer(1)}, "floating-point scalar");
  ExpectRefused("gelu", {x, out, resident_ops_real(1)}, "integer scalar");
  ExpectRefused("relu", {resident_ops_argument{}, out}, "kind 0");
  auto reserved = x;
  reserved.reserved = 1;
  ExpectRefused("relu", {reserved, out}, "reserved");
}

TEST_F(ResidentOpsRefusalsTest, ScalarsThatDoNotFitTheirType) {
  ExpectRefused("gelu", {Dense(x_, {4}), Dense(out_, {4}), resident_ops_integer(int64_t{1} << 31)},
                "does not fit i32");
  ExpectRefused("scale", {Dense(x_, {4}), Dense(out_, {4}), resident_ops_real(1e300)},
                "does not fit f32");
  ExpectRefused("sum", {Dense(x_, {4}), Dense(out_, {1}), resident_ops_integer(-1)},
                "does not fit u32");
  ExpectRuns("scale", {Dense(x_, {4}), Dense(out_, {4}),
                       resident_ops_real(std::numeric_limits<double>::infinity())});
}

TEST_F(ResidentOpsRefusalsTest, DTypes) {
  ExpectRefused("relu", {Dense(x_, {4}, 0), Dense(out_, {4})}, "0 is not a dtype");
  ExpectRefused("relu", {Dense(x_, {4}, 10), Dense(out_, {4})}, "10 is not a dtype");
  ExpectRefused("relu", {Dense(x_, {4}, -1), Dense(out_, {4})}, "-1 is not a dtype");
  ExpectRefused("relu", {Dense(x_, {4}, RESIDENT_OPS_I32), Dense(out_, {4})},
                "dtype i32 is not accepted");
}

TEST_F(ResidentOpsRefusalsTest, RanksAndSizes) {
  auto bad = Dense(x_, {4});
  bad.rank = -1;
  ExpectRefused("relu", {bad, Dense(out_, {4})}, "rank -1");
  bad.rank = 9;
  ExpectRefused("relu", {bad, Dense(out_, {4})}, "rank 9");
  ExpectRefused("relu", {resident_ops_dense(x_, RESIDENT_OPS_F32, 1, nullptr), Dense(out_, {4})},
                "rank -1");
  ExpectRefused("relu", {Dense(x_, {-4}), Dense(out_, {-4})}, "size -4 of dimension 0 is negative");
  ExpectRefused("relu", {Dense(x_, {4}), Dense(out_, {2, -2})}, "size -2 of dimension 1");
  ExpectRefused("relu", {Dense(x_, {0, -1}), Dense(out_, {0, -1})}, "is negative");
  ExpectRefused("relu", {Dense(x_, {std::numeric_limits<int64_t>::min()}), Dense(out_, {4})},
                "is negative");
  ExpectRefused("relu", {Dense(x_, {std::numeric_limits<int64_t>::max()}), Dense(out_, {4})},
                "larger than any memory");
  const std::vector<int64_t> huge(4, int64_t{1} << 32);
  ExpectRefused("relu", {Dense(x_, huge), Dense(out_, huge)}, "overflow 64 bits");
  ExpectRefused("zero", {Dense(out_, {int64_t{1} << 60, 2}, RESIDENT_OPS_F64)},
                "exceed the 64-bit addresses");
  ExpectRefused("softmax", {Dense(x_, {4}), Dense(out_, {5})}, "does not match C = 4");
  ExpectRefused("sum_rows", {Dense(x_, {4}), Dense(out_, {4})}, "does not have 2 dimensions");
  ExpectRefused("add", {Dense(x_, {3}), Dense(y_, {4}), Dense(out_, {4})}, "does not broadcast");
}

TEST_F(ResidentOpsRefusalsTest, NullAndMisalignedData) {
  ExpectRefused("relu", {Dense(nullptr, {4}), Dense(out_, {4})}, "the address is null");
  ExpectRefused("relu", {Dense(x_, {4}), Dense(nullptr, {4})}, "the address is null");
  ExpectRuns("relu", {Dense(nullptr, {0}), Dense(nullptr, {0})});
  char* const bytes = reinterpret_cast<char*>(x_);
  ExpectRefused("relu", {Dense(bytes + 2, {4}), Dense(out_, {4})}, "is not a multiple of 4");
  ExpectRuns("relu", {Dense(bytes + 2, {4}, RESIDENT_OPS_F16), Dense(out_, {4})});
}

TEST_F(ResidentOpsRefusalsTest, Strides) {
  ExpectRefused("softmax",
                {Strided(x_, {kRows, kColumns}, {1, kRows}), Dense(out_, {kRows, kColumns})},
                "are not dense");
  ExpectRefused("relu", {Dense(x_, {4}), Strided(out_, {4}, {-1})}, "is negative");
  ExpectRefused("relu", {Dense(x_, {4}), Strided(out_, {4}, {0})}, "may overlap");
  ExpectRefused("relu", {Dense(x_, {4, 4}), Strided(out_, {4, 4}, {3, 1})}, "may overlap");
  ExpectRefused("relu", {Strided(x_, {4}, {std::numeric_limits<int64_t>::min()}), Dense(out_, {4})},
                "larger than any memory");
  // Backwards beyond address 0, and forwards beyond the last one.
  ExpectRefused("relu", {Strided(x_, {4}, {-(int64_t{1} << 60)}), Dense(out_, {4})},
                "exceed the 64-bit addresses");
  ExpectRuns("relu", {Strided(x_ + 3, {4}, {-1}), Dense(out_, {4})});
  ExpectRuns("relu", {Strided(x_, {4}, {0}), Strided(out_, {4}, {2})});
  // Strides of dimensions of size 1 do not matter.
  ExpectRuns("softmax", {Strided(x_, {1, 8}, {77, 1}), Strided(out_, {1, 8}, {-5, 1})});
}

TEST_F(ResidentOpsRefusalsTest, OverlappingBuffers) {
  const auto overlap = "overlaps";
  // Shifted by one element, and only by the last one.
  ExpectRefused("relu", {Dense(x_, {16}), Dense(x_ + 1, {16})}, overlap);
  ExpectRefused("relu", {Dense(x_ + 15, {16}), Dense(x_, {16})}, overlap);
  ExpectRuns("relu", {Dense(x_ + 16, {16}), Dense(x_, {16})});
  // The same memory as another dtype, shape or strides.
  ExpectRefused("relu", {Dense(x_, {16}, RESIDENT_OPS_F16), Dense(x_, {16})}, overlap);
  ExpectRefused("relu", {Strided(x_, {4, 4}, {1, 4}), Dense(x_, {4, 4})}, overlap);
  ExpectRefused("add", {Dense(x_, {4}), Dense(y_, {2, 4}), Dense(x_, {2, 4})}, overlap);
  // Exactly the same tensor: only for operators that work element by element.
  ExpectRuns("relu", {Dense(x_, {16}), Dense(x_, {16})});
  ExpectRuns("add", {Dense(x_, {16}), Dense(x_, {16}), Dense(x_, {16})});
  ExpectRefused("softmax", {Dense(x_, {2, 8}), Dense(x_, {2, 8})}, overlap);
  ExpectRefused("sum_rows", {Dense(x_, {1, 1}), Dense(x_, {1})}, overlap);
  ExpectRefused("gemm", {Dense(x_, {4, 4}), Dense(y_, {4, 4}), Dense(x_, {4, 4})}, overlap);
  // Two outputs.
  ExpectRefused("softmax_topk",
                {Dense(x_, {2, 8}), Dense(out_, {2, 2}), Dense(out_, {2, 2}, RESIDENT_OPS_I64)},
                overlap);
  // Inputs may overlap each other.
  ExpectRuns("add", {Dense(x_, {16}), Dense(x_ + 3, {16}), Dense(out_, {16})});
  // Views side by side: columns 4 to 7 of a matrix become the function of columns 0 to 3.
  ExpectRuns("relu", {Strided(x_, {4, 4}, {8, 1}), Strided(x_ + 4, {4, 4}, {8, 1})});
  ExpectRefused("relu", {Strided(x_, {4, 5}, {8, 1}), Strided(x_ + 4, {4, 5}, {8, 1})}, overlap);
  // Tensors without elements overlap nothing.
  ExpectRuns("relu", {Dense(x_, {0, 4}), Dense(x_, {0, 4})});
}

TEST_F(ResidentOpsRefusalsTest, StreamOfTheCpu) {
  if (Device().gpu()) return;  // There a stream is what a call needs.
  const auto out = Dense(out_, {4});
  EXPECT_EQ(resident_ops_run(Ops(), "zero", &out, 1, x_), RESIDENT_OPS_INVALID_VALUE);
}

TEST_F(ResidentOpsRefusalsTest, ValueThatTheOperatorRefusesIsInTheStatus) {
  auto* const ids = reinterpret_cast<int64_t*>(y_);
  ids[0] = 3;
  ids[1] = 4;  // The table has four rows.
  const Arguments bad = {Dense(ids, {2}, RESIDENT_OPS_I64), Dense(x_, {4, 2}), Dense(out_, {2, 2})};
  resident_ops* ops = nullptr;
  ASSERT_EQ(resident_ops_create(Device().number(), 1, &ops), RESIDENT_OPS_OK);
  const auto run = [&](const char* name, const Arguments& arguments) {
    return resident_ops_run(ops, name, arguments.data(), arguments.size(), Device().stream());
  };
  ASSERT_EQ(run("zero", {Dense(out_, {4})}), RESIDENT_OPS_OK);
  EXPECT_EQ(run("embedding", bad), Device().gpu() ? RESIDENT_OPS_OK : RESIDENT_OPS_INVALID_VALUE);
  // Later calls run, and the first failure is kept.
  ASSERT_EQ(run("zero", {Dense(out_ + 16, {4})}), RESIDENT_OPS_OK);
  run("gelu", {Dense(x_, {4}), Dense(out_ + 32, {4}), resident_ops_integer(2)});
  Device().Synchronize();
  EXPECT_EQ(out_[16], 0);
  resident_ops_outcome outcome;
  EXPECT_EQ(resident_ops_status(ops, &outcome), RESIDENT_OPS_INVALID_VALUE);
  EXPECT_THAT(resident_ops_last_error(), HasSubstr("detail 1"));
  EXPECT_EQ(outcome.code, RESIDENT_OPS_INVALID_VALUE);
  EXPECT_EQ(outcome.detail, 1u);
  EXPECT_EQ(outcome.call, 2u);
  EXPECT_EQ(resident_ops_status(ops, &outcome), RESIDENT_OPS_OK);
  EXPECT_EQ(outcome.call, 0u);
  EXPECT_EQ(resident_ops_destroy(ops), RESIDENT_OPS_OK);
}

TEST_F(ResidentOpsRefusalsTest, OutOfMemory) {
  const pid_t child = fork();
  if (child == 0) {
    const rlimit none = {1, 1};
    setrlimit(RLIMIT_AS, &none);
    int32_t code = RESIDENT_OPS_OK;
    for (int i = 0; i < 10000 && code == RESIDENT_OPS_OK; ++i) {
      resident_ops* handle = nullptr;
      code = resident_ops_create(RESIDENT_OPS_CPU, 0, &handle);
    }
    _exit(code == RESIDENT_OPS_OUT_OF_MEMORY ? 42 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 42) << status;
}

TEST_F(ResidentOpsRefusalsTest, VersionAndTableOfOperators) {
  EXPECT_EQ(resident_ops_version(), RESIDENT_OPS_VERSION);
  ASSERT_GT(resident_ops_count(), 60u);
  for (size_t i = 0; i < resident_ops_count(); ++i) {
    ASSERT_NE(resident_ops_signature(resident_ops_name(i)), nullptr);
  }
  EXPECT_THAT(resident_ops_signature("softmax"), HasSubstr("x: in f32"));
  EXPECT_EQ(resident_ops_signature("no such operator"), nullptr);
}

// It makes the CUDA context of the process unusable, so that it runs in a process of its own (the
// check ops_library_fault).
TEST(ResidentOpsFaultTest, LaunchAfterAFaultFails) {
  const LibraryDevice device;
  if (!device.gpu()) return;  // There an invalid address ends the process.
  resident_ops* ops = nullptr;
  ASSERT_EQ(resident_ops_create(device.number(), 0, &ops), RESIDENT_OPS_OK);
  const int64_t shape[] = {1000};
  const auto invalid =
      resident_ops_dense(reinterpret_cast<void*>(4096), RESIDENT_OPS_F32, 1, shape);
  ASSERT_EQ(resident_ops_run(ops, "zero", &invalid, 1, device.stream()), RESIDENT_OPS_OK);
  ASSERT_FALSE(device.TrySynchronize());
  EXPECT_EQ(resident_ops_run(ops, "zero", &invalid, 1, device.stream()),
            RESIDENT_OPS_LAUNCH_FAILED);
  EXPECT_THAT(resident_ops_last_error(), HasSubstr("CUDA_ERROR"));
  EXPECT_EQ(resident_ops_destroy(ops), RESIDENT_OPS_OK);
}

}  // namespace
}  // namespace resident::testing
