// Strided views, broadcasting and 16-bit types on the wire: test.axpy accepts all of them,
// the built-in operators none.
#include <cstring>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/sdk/half.h"
#include "tests/daemon/messages.h"

namespace resident::testing {
namespace {

using grpc::StatusCode;
using Dims = std::vector<uint64_t>;
using Strides = std::vector<int64_t>;

class StridedTest : public DaemonTest {
 protected:
  // Allocates a buffer with the values 0, 1, 2 ...
  uint64_t AllocateCounting(uint64_t floats) {
    const uint64_t id = MustAllocate(floats);
    std::vector<float> values(floats);
    for (uint64_t i = 0; i < floats; ++i) values[i] = static_cast<float>(i);
    const std::string bytes(reinterpret_cast<const char*>(values.data()), 4 * floats);
    EXPECT_TRUE(Upload(client_, id, bytes).ok());
    return id;
  }

  static v1::BufferColumn* View(v1::Batch& batch, uint64_t id, const Dims& shape,
                                const Strides& strides, uint64_t offset = 0) {
    v1::BufferColumn* column = Buffers(batch, {id});
    for (const uint64_t dim : shape) column->add_shape(dim);
    for (const int64_t stride : strides) column->add_strides(stride);
    if (offset != 0) column->add_offsets(offset);
    return column;
  }

  std::vector<float> MustRun(const v1::Batch& batch) {
    const RunOutcome outcome = client_.Run(batch);
    EXPECT_TRUE(outcome.call.ok()) << outcome.call.error_message();
    EXPECT_EQ(outcome.result.errors_size(), 0);
    return outcome.call.ok() ? Floats(outcome.result) : std::vector<float>();
  }

  void ExpectBatchRefused(const v1::Batch& batch, const std::vector<std::string>& parts) {
    ExpectRefused(client_.Run(batch).call, StatusCode::INVALID_ARGUMENT, parts);
    ExpectServes();
  }

  std::vector<float> Contents(uint64_t id) {
    std::string bytes;
    EXPECT_TRUE(Download(client_, id, &bytes).ok());
    std::vector<float> values(bytes.size() / 4);
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
};

TEST_F(StridedTest, AColumnAndARowBroadcast) {
  v1::Batch batch = Tasks("test.axpy", 1);
  Inline(batch, {3, 1}, {10, 20, 30});
  Inline(batch, {3, 4}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
  Returned(batch, {3, 4});
  EXPECT_EQ(MustRun(batch), (std::vector<float>{10, 11, 12, 13, 24, 25, 26, 27, 38, 39, 40, 41}));
  batch = Tasks("test.axpy", 2);
  Inline(batch, {4}, {1, 2, 3, 4, 5, 6, 7, 8});
  Inline(batch, {}, {100});  // Rank 0, shared by both tasks.
  Returned(batch, {2, 4});
  Scalar(batch, {2, -1});
  EXPECT_EQ(MustRun(batch), (std::vector<float>{102, 104, 106, 108, 102, 104, 106, 108, 95, 94, 93,
                                                92, 95, 94, 93, 92}));
}

TEST_F(StridedTest, TransposedReversedAndRepeatedInputs) {
  const uint64_t id = AllocateCounting(12);
  v1::Batch batch = Tasks("test.axpy", 1);
  View(batch, id, {4, 3}, {1, 4});          // Transposed.
  View(batch, id, {4, 3}, {0, -1}, 2 * 4);  // One reversed row, repeated.
  Returned(batch, {4, 3});
  Scalar(batch, {100});
  EXPECT_EQ(MustRun(batch),
            (std::vector<float>{2, 401, 800, 102, 501, 900, 202, 601, 1000, 302, 701, 1100}));
}

TEST_F(StridedTest, AStridedOutputDoesNotChangeTheGapsBetweenItsElements) {
  const uint64_t x = AllocateCounting(6);
  const uint64_t out = AllocateCounting(12);
  v1::Batch batch = Tasks("test.axpy", 1);
  View(batch, x, {2, 3}, {});
  Inline(batch, {1}, {100});
  View(batch, out, {2, 3}, {6, 2}, 4);
  EXPECT_TRUE(client_.Run(batch).call.ok());
  EXPECT_EQ(Contents(out), (std::vector<float>{0, 100, 2, 101, 4, 102, 6, 103, 8, 104, 10, 105}));
}

TEST_F(StridedTest, TypesMix) {
  v1::Batch batch = Tasks("test.axpy", 1);
  const u16 halves[] = {Half::Narrow(0.5f), Half::Narrow(-2.0f)};
  const u16 bfloats[] = {BFloat16::Narrow(1.0f), BFloat16::Narrow(3.0f)};
  v1::InlineColumn* x = Inline(batch, {2}, {});
  x->set_dtype(v1::DTYPE_F16);
  x->set_data(std::string(reinterpret_cast<const char*>(halves), 4));
  v1::InlineColumn* y = Inline(batch, {2}, {});
  y->set_dtype(v1::DTYPE_BF16);
  y->set_data(std::string(reinterpret_cast<const char*>(bfloats), 4));
  Returned(batch, {2});
  Scalar(batch, {10});
  EXPECT_EQ(MustRun(batch), (std::vector<float>{6, -17}));
  batch.mutable_tasks()->mutable_arguments(2)->mutable_returned()->set_dtype(v1::DTYPE_F16);
  const RunOutcome outcome = client_.Run(batch);
  ASSERT_TRUE(outcome.call.ok()) << outcome.call.error_message();
  u16 got[2];
  ASSERT_EQ(outcome.result.outputs(0).size(), sizeof(got));
  std::memcpy(got, outcome.result.outputs(0).data(), sizeof(got));
  EXPECT_EQ(Half::Widen(got[0]), 6.0f);
  EXPECT_EQ(Half::Widen(got[1]), -17.0f);
}

TEST_F(StridedTest, LargeTasksAreSplitAndCorrect) {
  const uint64_t kRows = 1000, kColumns = 301;
  const uint64_t id = AllocateCounting(kRows * kColumns);
  const uint64_t out = MustAllocate(kRows * kColumns);
  v1::Batch batch = Tasks("test.axpy", 1);
  View(batch, id, {kRows, kColumns}, {1, kRows});
  View(batch, id, {1, kColumns}, {});
  View(batch, out, {kRows, kColumns}, {});
  EXPECT_TRUE(client_.Run(batch).call.ok());
  const std::vector<float> got = Contents(out);
  for (uint64_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i], static_cast<float>(i / kColumns + i % kColumns * kRows + i % kColumns)) << i;
  }
}

TEST_F(StridedTest, EmptyViewsDoNothing) {
  const uint64_t id = AllocateCounting(4);
  v1::Batch batch = Tasks("test.axpy", 1);
  View(batch, id, {0, 4}, {int64_t{1} << 40, 7});
  Inline(batch, {1}, {1});
  View(batch, id, {0, 4}, {0, 0});
  EXPECT_TRUE(client_.Run(batch).call.ok());
  EXPECT_EQ(Contents(id), (std::vector<float>{0, 1, 2, 3}));
}

TEST_F(StridedTest, StridesOfADenseTensorAreAcceptedByEveryOperator) {
  const uint64_t id = AllocateCounting(4);
  v1::Batch batch = Tasks("add", 1);
  View(batch, id, {1, 4}, {77, 1});
  View(batch, id, {1, 4}, {4, 1});
  Returned(batch, {1, 4});
  EXPECT_EQ(MustRun(batch), (std::vector<float>{0, 2, 4, 6}));
}

TEST_F(StridedTest, AnOperatorOnDenseTensorsAcceptsNoViewsAndDoesNotBroadcast) {
  const uint64_t id = AllocateCounting(8);
  v1::Batch batch = Tasks("sum_rows", 1);
  View(batch, id, {2, 2}, {4, 2});
  Returned(batch, {2});
  ExpectBatchRefused(batch, {"argument 1 'x' of sum_rows", "strided view", "dense"});
  batch = Tasks("rmsnorm", 1);
  View(batch, id, {2, 4}, {});
  View(batch, id, {1}, {});
  Returned(batch, {2, 4});
  ExpectBatchRefused(batch, {"argument 2 'w' of rmsnorm", "[1]", "C = 4"});
  batch = Tasks("test.axpy", 1);
  View(batch, id, {3}, {});
  View(batch, id, {4}, {});
  Returned(batch, {4});
  ExpectBatchRefused(batch, {"argument 1 'x' of test.axpy", "[3] does not broadcast to S = [4]"});
}

TEST_F(StridedTest, BadStridesAreRefusedWithTheReason) {
  const uint64_t id = AllocateCounting(12);
  const struct {
    Dims shape;
    Strides strides;
    uint64_t offset;
    std::vector<std::string> parts;
  } kInputs[] = {
      {{3, 4}, {1}, 0, {"1 strides and 2 dimensions"}},
      {{3}, {1, 1}, 0, {"2 strides and 1 dimensions"}},
      {{3}, {INT64_MIN}, 0, {"stride", "larger than any memory"}},
      {{3}, {INT64_MAX}, 0, {"stride", "larger than any memory"}},
      {{3}, {int64_t{1} << 60}, 0, {"beyond buffer"}},
      {{3}, {6}, 0, {"from 0 bytes before offset 0 to 52 bytes after it", "of 48 bytes"}},
      {{3}, {-1}, 4, {"from 8 bytes before offset 4"}},
      {{3}, {-1}, 0, {"from 8 bytes before offset 0"}},
      {{3, 4}, {4, 1}, 4, {"buffer"}},
      {{uint64_t{1} << 40, uint64_t{1} << 40}, {0, 0}, 0, {"overflow"}},
  };
  for (const auto& c : kInputs) {
    v1::Batch batch = Tasks("test.axpy", 1);
    View(batch, id, c.shape, c.strides, c.offset);
    Inline(batch, {1}, {1});
    Returned(batch, c.shape);
    SCOPED_TRACE(c.parts[0]);
    ExpectBatchRefused(batch, c.parts);
  }
  const struct {
    Dims shape;
    Strides strides;
    std::vector<std::string> parts;
  } kOutputs[] = {
      {{3}, {-1}, {"stride -1 of dimension 0 is negative"}},
      {{3}, {0}, {"may overlap"}},
      {{2, 3}, {1, 1}, {"[2, 3]", "[1, 1]", "may overlap"}},
      {{2, 3}, {2, 1}, {"may overlap"}},
      {{3, 2}, {1, 2}, {"may overlap"}},
      {{3}, {6}, {"beyond buffer"}},
  };
  for (const auto& c : kOutputs) {
    v1::Batch batch = Tasks("test.axpy", 1);
    Inline(batch, {1}, {1});
    Inline(batch, {1}, {1});
    View(batch, id, c.shape, c.strides);
    SCOPED_TRACE(c.parts[0]);
    ExpectBatchRefused(batch, c.parts);
  }
}

TEST_F(StridedTest, EachTaskOfABatchIsCheckedAgainstTheBuffer) {
  const uint64_t id = AllocateCounting(12);
  v1::Batch batch = Tasks("test.axpy", 3);
  v1::BufferColumn* column = View(batch, id, {2}, {-4});
  for (const uint64_t offset : {16, 20, 44}) column->add_offsets(offset);
  Inline(batch, {1}, {0});
  Returned(batch, {2});
  EXPECT_EQ(MustRun(batch), (std::vector<float>{4, 0, 5, 1, 11, 7}));
  column->set_offsets(1, 12);
  ExpectBatchRefused(batch, {"task 1 reaches from 16 bytes before offset 12"});
  column->clear_offsets();
  column->clear_strides();
  column->add_strides(4);
  column->set_stride_bytes(16);
  ExpectBatchRefused(batch, {"task 2 reaches", "offset 32 to 20 bytes after it"});
}

}  // namespace
}  // namespace resident::testing
