// Functions of rows in blocks of several warps (RESIDENT_EMULATED_THREADS; tests/conformance has
// blocks of one): all of them read a row together, from copies that are on their way while earlier
// rows are computed.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/ops/emulated_task.h"
#include "kernels/ops/row_stream.h"
#include "kernels/sdk/operator.h"
#include "tests/support/float64.h"

extern "C" {
void resident_operator_softmax(resident::BlockState* state);
void resident_operator_log_softmax(resident::BlockState* state);
void resident_operator_rmsnorm(resident::BlockState* state);
void resident_operator_rmsnorm_residual(resident::BlockState* state);
}

namespace resident {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kEps = 1e-5f;

const std::vector<i64> kChunkCounts = {2, 3, 7};

enum class Form { kStream, kOther };

// The largest relative error of a row: the norm of the difference, over the norm.
template <typename T>
constexpr double kTolerance = std::is_same_v<T, float>  ? 1e-6
                              : std::is_same_v<T, Half> ? 1e-3
                                                        : 5e-3;

template <typename T>
constexpr DType kDType = DType::kF32;
template <>
constexpr DType kDType<Half> = DType::kF16;
template <>
constexpr DType kDType<BFloat16> = DType::kBF16;

// Columns of a segment that all warps of the block have.
template <typename T>
constexpr i64 kSegment = i64{kThreadElements<T>} * Block::kMaxThreads;
// Rows of this many columns have a team of all threads (rows.h); those of the second number also
// several segments.
template <typename T>
constexpr i64 kOneSegment = kSegment<T> < 1040 ? 1040 : kSegment<T>;
template <typename T>
constexpr i64 kThreeSegments = 2 * kSegment<T> + 1048;

// Elements at a multiple of 16 bytes, between two chunks that nothing may write.
template <typename T>
class Memory {
 public:
  explicit Memory(i64 size)
      : size_(size), chunks_(2 + (size * sizeof(T) + kChunkBytes - 1) / kChunkBytes) {
    std::memset(static_cast<void*>(chunks_.data()), 0x5a, chunks_.size() * kChunkBytes);
  }
  T* data() { return reinterpret_cast<T*>(chunks_.data() + 1); }
  T& operator[](i64 i) { return data()[i]; }
  float At(i64 i) { return static_cast<float>(data()[i]); }
  bool Intact() const {
    const unsigned char* const bytes = reinterpret_cast<const unsigned char*>(chunks_.data());
    for (size_t i = 0; i < chunks_.size() * kChunkBytes; ++i) {
      const bool inside = i >= kChunkBytes && i < kChunkBytes + size_ * sizeof(T);
      if (!inside && bytes[i] != 0x5a) return false;
    }
    return true;
  }

 private:
  i64 size_;
  std::vector<Bytes16> chunks_;
};

Argument TensorArgument(const void* data, DType dtype, i64 rows, i64 columns) {
  return DenseArgument(data, dtype,
                       rows == 0 ? std::vector<i64>{columns} : std::vector<i64>{rows, columns});
}

// Runs all chunks of an operator.
void Run(OperatorFunction function, const std::vector<Argument>& arguments, i64 chunks, Form form) {
  const u64 before = emulated::Streams::count;
  EXPECT_EQ(RunEmulated(function, arguments, static_cast<u64>(chunks)), 0u);
  const u64 streams = form == Form::kStream ? static_cast<u64>(chunks) * Block::kMaxThreads : 0;
  EXPECT_EQ(emulated::Streams::count - before, streams) << "streams of threads";
}

// Values that are not the same in any two segments, and that differ by some units.
float Value(i64 i) { return static_cast<float>((i * 7919 + i / 977) % 4093) / 512 - 4; }

template <typename T>
void Fill(Memory<T>& memory, i64 size, i64 seed) {
  for (i64 i = 0; i < size; ++i) memory[i] = T(Value(i + seed));
}

// Norms of the differences and of the wanted values of a row.
class Difference {
 public:
  void Add(double value, double want) {
    if (std::isnan(want)) {
      if (!std::isnan(value)) ++wrong_;
    } else if (std::isinf(want)) {
      if (value != want) ++wrong_;
    } else {
      difference_ += (value - want) * (value - want);
      norm_ += want * want;
    }
  }
  void Expect(double tolerance) const {
    EXPECT_EQ(wrong_, 0) << "values that should be infinite or NaN";
    EXPECT_LE(std::sqrt(difference_), tolerance * std::sqrt(norm_));
  }

 private:
  int wrong_ = 0;
  double difference_ = 0;
  double norm_ = 0;
};

template <typename T>
void ExpectSameBits(Memory<T>& x, Memory<T>& y, i64 size) {
  EXPECT_EQ(std::memcmp(x.data(), y.data(), size * sizeof(T)), 0) << "bits depend on the chunks";
}

// Values of these types, and weights, which may have another one (W).
template <typename T, typename W>
bool IsOneRowOfFloats(i64 rows, i64 columns) {
  return std::is_same_v<T, float> && columns % 4 == 0 && columns <= 8 * 4 * Block::kMaxThreads &&
         (rows == 1 || (!std::is_same_v<W, float> && columns > 1024));
}

// x has rows * columns elements.
template <typename T>
void CheckSoftmax(Memory<T>& x, i64 rows, i64 columns, Form form = Form::kStream) {
  SCOPED_TRACE("softmax, " + std::to_string(rows) + " x " + std::to_string(columns) + ", " +
               std::to_string(sizeof(T)) + " bytes");
  for (const bool log : {false, true}) {
    const auto function = log ? &resident_operator_log_softmax : &resident_operator_softmax;
    Memory<T> out(rows * columns);
    const Argument from = TensorArgument(x.data(), kDType<T>, rows, columns);
    Run(function, {from, TensorArgument(out.data(), kDType<T>, rows, columns)}, 1, form);
    EXPECT_TRUE(out.Intact());
    for (i64 row = 0; row < rows; ++row) {
      SCOPED_TRACE((log ? "log, row " : "row ") + std::to_string(row));
      std::vector<double> values;
      for (i64 c = 0; c < columns; ++c) values.push_back(x.At(row * columns + c));
      const std::vector<double> want = log ? testing::LogSoftmax(values) : testing::Softmax(values);
      Difference difference;
      for (i64 c = 0; c < columns; ++c) {
        difference.Add(out.At(row * columns + c), want[static_cast<size_t>(c)]);
      }
      difference.Expect(kTolerance<T>);
    }
    if (form == Form::kOther) continue;
    for (const i64 chunks : kChunkCounts) {
      Memory<T> other(rows * columns);
      Run(function, {from, TensorArgument(other.data(), kDType<T>, rows, columns)}, chunks, form);
      ExpectSameBits(out, other, rows * columns);
    }
  }
}

template <typename T, typename W>
void CheckRmsNorm(Memory<T>& x, Memory<T>& r, Memory<W>& w, i64 rows, i64 columns,
                  Form form = Form::kStream) {
  const bool of_floats = IsOneRowOfFloats<T, W>(rows, columns);
  for (const bool residual : {false, true}) {
    SCOPED_TRACE((residual ? "rmsnorm_residual, " : "rmsnorm, ") + std::to_string(rows) + " x " +
                 std::to_string(columns) + ", " + std::to_string(sizeof(T)) + " bytes");
    const auto run = [&](Memory<T>& out, Memory<T>& h, i64 chunks) {
      std::vector<Argument> arguments = {TensorArgument(x.data(), kDType<T>, rows, columns)};
      if (residual) arguments.push_back(TensorArgument(r.data(), kDType<T>, rows, columns));
      arguments.push_back(TensorArgument(w.data(), kDType<W>, 0, columns));
      arguments.push_back(TensorArgument(out.data(), kDType<T>, rows, columns));
      if (residual) arguments.push_back(TensorArgument(h.data(), kDType<T>, rows, columns));
      Argument eps{};
      eps.scalar_bits = bit_cast<u32>(kEps);
      arguments.push_back(eps);
      Run(residual ? &resident_operator_rmsnorm_residual : &resident_operator_rmsnorm, arguments,
          chunks, of_floats ? Form::kOther : form);
      EXPECT_TRUE(out.Intact());
      EXPECT_TRUE(h.Intact());
    };
    Memory<T> out(rows * columns);
    Memory<T> h(rows * columns);
    run(out, h, 1);
    std::vector<double> weights;
    for (i64 c = 0; c < columns; ++c) weights.push_back(w.At(c));
    for (i64 row = 0; row < rows; ++row) {
      SCOPED_TRACE("row " + std::to_string(row));
      std::vector<double> values;
      for (i64 i = row * columns; i < (row + 1) * columns; ++i) {
        values.push_back(residual ? double{x.At(i)} + double{r.At(i)} : double{x.At(i)});
      }
      const std::vector<double> wanted = testing::RmsNorm(values, weights, kEps);
      Difference difference;
      for (i64 c = 0; c < columns; ++c) {
        difference.Add(out.At(row * columns + c), wanted[static_cast<size_t>(c)]);
        if (residual) {
          const T want(static_cast<float>(values[static_cast<size_t>(c)]));
          EXPECT_EQ(std::memcmp(&h[row * columns + c], &want, sizeof(T)), 0) << "column " << c;
        }
      }
      difference.Expect(kTolerance<T>);
    }
    if (form == Form::kOther && !of_floats) continue;
    for (const i64 chunks : kChunkCounts) {
      Memory<T> other(rows * columns);
      Memory<T> other_h(rows * columns);
      run(other, other_h, chunks);
      ExpectSameBits(out, other, rows * columns);
      if (residual) ExpectSameBits(h, other_h, rows * columns);
    }
  }
}

template <typename T>
void Check(i64 rows, i64 columns, Form form = Form::kStream) {
  Memory<T> x(rows * columns);
  Memory<T> r(rows * columns);
  Memory<T> w(columns);
  Fill(x, rows * columns, 1);
  Fill(r, rows * columns, 12345);
  Fill(w, columns, 777);
  CheckSoftmax(x, rows, columns, form);
  CheckRmsNorm(x, r, w, rows, columns, form);
}

template <typename T>
class NormalizationWarpsTest : public ::testing::Test {};
using Types = ::testing::Types<float, Half, BFloat16>;
TYPED_TEST_SUITE(NormalizationWarpsTest, Types);

// One row, also one in which most threads have no column.
TYPED_TEST(NormalizationWarpsTest, OneRow) {
  Check<TypeParam>(1, 8);
  Check<TypeParam>(1, 1096);
  Check<TypeParam>(1, kSegment<TypeParam>);
  Check<TypeParam>(1, kSegment<TypeParam> + 8);
}

// More rows than stages and than teams of warps, and numbers of rows that no number of teams
// divides; segments that are full, that lack one chunk, and that have few.
TYPED_TEST(NormalizationWarpsTest, RowsOfOneSegment) {
  for (const i64 columns : {i64{1032}, i64{2056}, kSegment<TypeParam> / 2, kSegment<TypeParam> - 8,
                            kSegment<TypeParam>}) {
    if (columns > 1024 && columns <= kSegment<TypeParam>) Check<TypeParam>(13, columns);
  }
}

TYPED_TEST(NormalizationWarpsTest, RowsOfSeveralSegments) {
  const i64 segments = kSegment<TypeParam> <= 1024 ? 3 : 1;
  Check<TypeParam>(5, segments * kSegment<TypeParam> + 8);
  Check<TypeParam>(3, 3 * kSegment<TypeParam>);
  Check<TypeParam>(4, 3 * kSegment<TypeParam> + kSegment<TypeParam> / 2 + 24);
}

TYPED_TEST(NormalizationWarpsTest, OtherForms) {
  // Rows at multiples of 8 bytes, and of one element.
  if (sizeof(TypeParam) == 2) Check<TypeParam>(3, kSegment<TypeParam> + 4, Form::kOther);
  Check<TypeParam>(3, kSegment<TypeParam> + 1, Form::kOther);
}

// Activations of float32 and weights of 16 bits: rows of few and of many quads for each thread,
// some of which have none; and rows that are too long for the registers, or not of whole quads.
template <typename W>
void CheckFloatsWith(i64 rows, i64 columns) {
  Memory<float> x(rows * columns);
  Memory<float> r(rows * columns);
  Memory<W> w(columns);
  Fill(x, rows * columns, 1);
  Fill(r, rows * columns, 12345);
  Fill(w, columns, 777);
  CheckRmsNorm(x, r, w, rows, columns, Form::kOther);
}
TEST(RmsNormOfFloatsTest, WeightsOfAnotherType) {
  const i64 quads = 4 * Block::kMaxThreads;
  for (const i64 columns : {i64{4}, i64{516}, i64{1028}, 2 * quads - 4, 2 * quads, 2 * quads + 4,
                            8 * quads, 8 * quads + 4, i64{515}}) {
    CheckFloatsWith<BFloat16>(1, columns);
    CheckFloatsWith<Half>(5, columns);
  }
}

// The largest value is in any thread's part, far above the others, in one segment or another.
TYPED_TEST(NormalizationWarpsTest, LargestAnywhere) {
  for (const i64 columns : {kOneSegment<TypeParam>, kThreeSegments<TypeParam>}) {
    std::vector<float> gaps = {1, 88, 89, 200, 1e4f};
    const i64 places[] = {0, 9, columns / 3, kSegment<TypeParam> - 1, columns - 1};
    Memory<TypeParam> x(5 * static_cast<i64>(gaps.size()) * columns);
    i64 row = 0;
    for (const float gap : gaps) {
      for (const i64 place : places) {
        for (i64 c = 0; c < columns; ++c) {
          x[row * columns + c] = TypeParam(c == place ? gap / 2 : -gap / 2 + Value(c) / 8);
        }
        ++row;
      }
    }
    CheckSoftmax(x, row, columns);
  }
}

// A warp, or a segment, of which all values are -infinity, or the lowest finite number; and rows of
// only the lowest number, whose values are equal.
TYPED_TEST(NormalizationWarpsTest, PartsOfMinusInfinity) {
  for (const i64 columns : {kOneSegment<TypeParam>, kThreeSegments<TypeParam>}) {
    const i64 rows = 7;
    const float lowest =
        sizeof(TypeParam) == 4 || std::is_same_v<TypeParam, BFloat16> ? -3.38e38f : -30000.0f;
    Memory<TypeParam> x(rows * columns);
    for (i64 c = 0; c < columns; ++c) x[6 * columns + c] = TypeParam(lowest);
    for (i64 row = 0; row < 6; ++row) {
      const i64 begin = columns * row / rows;
      const i64 end = columns * (row + 1) / rows;
      for (i64 c = 0; c < columns; ++c) {
        const float other = row % 2 == 0 ? -300 : 300;
        const float masked = row < 3 ? -kInfinity : lowest;
        const bool inside = c >= begin && c < end;
        x[row * columns + c] = TypeParam(inside ? other + Value(c) / 4 : masked);
      }
    }
    CheckSoftmax(x, rows, columns);
  }
}

// NaN, infinity, and rows of only -infinity, between ordinary ones.
TYPED_TEST(NormalizationWarpsTest, UndefinedRows) {
  for (const i64 columns : {kOneSegment<TypeParam>, kThreeSegments<TypeParam>}) {
    const i64 places[] = {0, columns / 2 + 3, columns - 1};
    const float values[] = {NAN, kInfinity};
    Memory<TypeParam> x(9 * columns);
    Memory<TypeParam> r(9 * columns);
    Memory<TypeParam> w(columns);
    Fill(x, 9 * columns, 5);
    Fill(r, 9 * columns, 55);
    Fill(w, columns, 555);
    i64 row = 1;
    for (const float value : values) {
      for (const i64 place : places) x[row++ * columns + place] = TypeParam(value);
    }
    for (i64 c = 0; c < columns; ++c) x[row * columns + c] = TypeParam(-kInfinity);
    CheckSoftmax(x, 9, columns);
    CheckRmsNorm(x, r, w, 9, columns);
  }
}

// All values are equal, so that errors of rounding have one sign.
TYPED_TEST(NormalizationWarpsTest, EqualValues) {
  for (const i64 columns : {kOneSegment<TypeParam>, 5 * kSegment<TypeParam> + 1048}) {
    Memory<TypeParam> x(2 * columns);
    Memory<TypeParam> w(columns);
    for (i64 i = 0; i < 2 * columns; ++i) x[i] = TypeParam(i < columns ? 0.1f : 3.3f);
    for (i64 c = 0; c < columns; ++c) w[c] = TypeParam(1.0f);
    CheckSoftmax(x, 2, columns);
    CheckRmsNorm(x, x, w, 2, columns);
  }
}

// The sum of a row's squares is out of the range of float32, and their mean is not.
TYPED_TEST(NormalizationWarpsTest, LargeValues) {
  if (std::is_same_v<TypeParam, Half>) return;  // It has no such values.
  for (const i64 columns : {kOneSegment<TypeParam>, kThreeSegments<TypeParam>}) {
    Memory<TypeParam> x(2 * columns);
    Memory<TypeParam> w(columns);
    for (i64 i = 0; i < 2 * columns; ++i) x[i] = TypeParam(i % 2 == 0 ? 2e18f : -1e18f);
    for (i64 c = 0; c < columns; ++c) w[c] = TypeParam(1.0f);
    CheckRmsNorm(x, x, w, 2, columns);
  }
}

// The largest value so far grows in each segment, by little.
TYPED_TEST(NormalizationWarpsTest, RisingValues) {
  const i64 columns = 5 * kSegment<TypeParam> + 1048;
  Memory<TypeParam> x(columns);
  for (i64 c = 0; c < columns; ++c) {
    x[c] = TypeParam(static_cast<float>(c) * (40.0f / static_cast<float>(columns)));
  }
  CheckSoftmax(x, 1, columns);
}

}  // namespace
}  // namespace resident
