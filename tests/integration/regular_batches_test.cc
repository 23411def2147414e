// Regular batches, which run as ranges: their results are those of the same tasks one by one.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/daemon/messages.h"

namespace resident::testing {
namespace {

constexpr uint32_t kTasks = 700;

class RegularBatchesTest : public DaemonTest {
 protected:
  std::vector<float> Normal(size_t count) {
    std::normal_distribution<float> normal;
    std::vector<float> values(count);
    for (float& value : values) value = normal(random_);
    return values;
  }

  v1::BatchResult Run(v1::Batch batch, bool one_by_one) {
    if (one_by_one) {
      batch.mutable_options()->set_ordering(v1::BatchOptions::ORDERING_IN_ORDER);
    }
    const RunOutcome outcome = client_.Run(batch);
    EXPECT_TRUE(outcome.call.ok()) << outcome.message();
    // A range has one value for all tasks.
    EXPECT_EQ(outcome.result.device_ns_size(), one_by_one ? kTasks : 1);
    return outcome.result;
  }

  // Expects the same results from a range and from the tasks one by one; returns the first.
  v1::BatchResult ExpectEqual(const v1::Batch& batch) {
    v1::BatchResult range = Run(batch, false);
    const v1::BatchResult single = Run(batch, true);
    EXPECT_EQ(range.outputs_size(), single.outputs_size());
    for (int c = 0; c < range.outputs_size(); ++c) {
      EXPECT_TRUE(range.outputs(c) == single.outputs(c)) << batch.tasks().operator_();
    }
    EXPECT_EQ(range.status_size(), single.status_size());
    for (int i = 0; i < range.status_size(); ++i) {
      EXPECT_EQ(range.status(i), single.status(i)) << i;
    }
    EXPECT_EQ(range.errors_size(), single.errors_size());
    for (int i = 0; i < range.errors_size(); ++i) {
      EXPECT_EQ(range.errors(i).index(), single.errors(i).index());
      EXPECT_EQ(range.errors(i).message(), single.errors(i).message());
    }
    EXPECT_EQ(range.version(), single.version());
    return range;
  }

  std::mt19937 random_{std::random_device{}()};
};

TEST_F(RegularBatchesTest, OperatorsOfOneInput) {
  for (const char* name : {"copy", "relu", "silu", "gelu", "softmax", "log_softmax"}) {
    for (const uint64_t columns : {1u, 17u, 64u, 300u}) {
      v1::Batch batch = Tasks(name, kTasks);
      Inline(batch, {2, columns}, Normal(kTasks * 2 * columns));
      Returned(batch, {2, columns});
      const v1::BatchResult result = ExpectEqual(batch);
      EXPECT_EQ(result.status_size(), 0) << name;
    }
  }
}

TEST_F(RegularBatchesTest, ReductionsAndProducts) {
  v1::Batch sums = Tasks("sum_rows", kTasks);
  Inline(sums, {3, 100}, Normal(kTasks * 300));
  Returned(sums, {3});
  ExpectEqual(sums);

  v1::Batch products = Tasks("gemv", kTasks);
  Inline(products, {33}, Normal(kTasks * 33));
  Inline(products, {5, 33}, Normal(5 * 33));  // Shared by all tasks.
  Inline(products, {5}, Normal(5));
  Returned(products, {5});
  ExpectEqual(products);
}

// The result of a task depends neither on its place in the batch nor on the tasks around it.
TEST_F(RegularBatchesTest, APermutationOfTheTasksPermutesTheResults) {
  const std::vector<float> matrix = Normal(5 * 33);
  std::vector<uint32_t> order(kTasks);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random_);
  struct Case {
    const char* name;
    uint64_t columns;
    uint64_t outputs;
    int inputs;
  };
  for (const Case& test :
       {Case{"copy", 33, 33, 1}, Case{"silu", 33, 33, 1}, Case{"softmax", 300, 300, 1},
        Case{"layernorm", 33, 33, 3}, Case{"add", 33, 33, 2}, Case{"gemv", 33, 5, 1}}) {
    const std::string name = test.name;
    std::vector<std::vector<float>> inputs(test.inputs);
    for (std::vector<float>& input : inputs) input = Normal(kTasks * test.columns);
    const std::vector<float> scalars = Normal(kTasks);
    // Task i of the batch is task at(i).
    const auto make = [&](const auto& at) {
      v1::Batch batch = Tasks(name, kTasks);
      for (const std::vector<float>& input : inputs) {
        std::vector<float> values(input.size());
        for (uint32_t i = 0; i < kTasks; ++i) {
          std::copy_n(input.begin() + static_cast<int64_t>(at(i) * test.columns), test.columns,
                      values.begin() + static_cast<int64_t>(i * test.columns));
        }
        Inline(batch, {test.columns}, values);
      }
      if (name == "gemv") {
        Inline(batch, {5, 33}, matrix);
        Inline(batch, {5}, {1, 2, 3, 4, 5});
      }
      Returned(batch, {test.outputs});
      if (name == "layernorm") Scalar(batch, {1e-5});
      if (name == "add") {
        v1::ScalarColumn* const factors = batch.mutable_tasks()->add_arguments()->mutable_scalar();
        for (uint32_t i = 0; i < kTasks; ++i) factors->add_f64(scalars[at(i)]);
      }
      return batch;
    };
    const v1::Batch in_order = make([](uint32_t i) { return i; });
    const v1::Batch permuted = make([&](uint32_t i) { return order[i]; });
    for (const bool one_by_one : {false, true}) {
      SCOPED_TRACE(name + (one_by_one ? ", one by one" : ", as a range"));
      const v1::BatchResult first = Run(in_order, one_by_one);
      const v1::BatchResult second = Run(permuted, one_by_one);
      ASSERT_EQ(first.status_size(), 0);
      const uint64_t bytes = test.outputs * sizeof(float);
      ASSERT_EQ(first.outputs(0).size(), kTasks * bytes);
      ASSERT_EQ(second.outputs(0).size(), kTasks * bytes);
      for (uint32_t i = 0; i < kTasks; ++i) {
        ASSERT_TRUE(second.outputs(0).substr(i * bytes, bytes) ==
                    first.outputs(0).substr(order[i] * bytes, bytes))
            << "task " << i;
      }
    }
  }
}

TEST_F(RegularBatchesTest, ScalarsOfEachTask) {
  v1::Batch batch = Tasks("add", kTasks);
  Inline(batch, {7}, Normal(kTasks * 7));
  Inline(batch, {7}, Normal(7));
  Returned(batch, {7});
  v1::ScalarColumn* const factors = batch.mutable_tasks()->add_arguments()->mutable_scalar();
  for (const float factor : Normal(kTasks)) factors->add_f64(factor);
  ExpectEqual(batch);
}

TEST_F(RegularBatchesTest, BuffersByStrideByOffsetsAndWithStrides) {
  constexpr uint64_t kElements = 4096;
  const uint64_t x = MustAllocate(kElements);
  const std::vector<float> values = Normal(kElements);
  const std::string bytes(reinterpret_cast<const char*>(values.data()), kElements * 4);
  ASSERT_TRUE(Upload(client_, x, bytes).ok());

  v1::Batch batch = Tasks("sub", kTasks);
  v1::BufferColumn* column = Buffers(batch, {x});
  column->set_stride_bytes(4);
  column->add_shape(33);
  column = Buffers(batch, {x});
  for (uint32_t i = 0; i < kTasks; ++i) column->add_offsets(4 * (random_() % (kElements - 33)));
  column->add_shape(33);
  Returned(batch, {33});
  const std::vector<float> differences = Floats(ExpectEqual(batch));
  EXPECT_EQ(differences[5 * 33 + 2],
            values[7] - values[batch.tasks().arguments(1).buffer().offsets(5) / 4 + 2]);

  v1::Batch transposed = Tasks("add", kTasks);
  column = Buffers(transposed, {x});
  column->set_stride_bytes(16);
  for (const uint64_t size : {3, 5}) column->add_shape(size);
  for (const int64_t stride : {1, 3}) column->add_strides(stride);
  Inline(transposed, {3, 5}, Normal(15));
  Returned(transposed, {3, 5});
  ExpectEqual(transposed);
}

TEST_F(RegularBatchesTest, OutputsInBuffers) {
  const uint64_t out = MustAllocate(kTasks * 16);
  v1::Batch batch = Tasks("fill", kTasks);
  v1::BufferColumn* const column = Buffers(batch, {out});
  column->set_stride_bytes(64);
  column->add_shape(16);
  v1::ScalarColumn* const values = batch.mutable_tasks()->add_arguments()->mutable_scalar();
  for (uint32_t i = 0; i < kTasks; ++i) values->add_f64(i);
  Run(batch, false);
  std::string bytes;
  ASSERT_TRUE(Download(client_, out, &bytes).ok());
  const auto* const floats = reinterpret_cast<const float*>(bytes.data());
  for (uint32_t i = 0; i < kTasks * 16; ++i) ASSERT_EQ(floats[i], static_cast<float>(i / 16)) << i;
}

TEST_F(RegularBatchesTest, FailedTasksHaveTheirErrors) {
  v1::Batch batch = Tasks("fill", kTasks);
  Returned(batch, {3})->set_dtype(v1::DTYPE_I32);
  v1::ScalarColumn* const values = batch.mutable_tasks()->add_arguments()->mutable_scalar();
  // An int32 cannot have a fraction.
  for (uint32_t i = 0; i < kTasks; ++i) values->add_f64(i % 5 == 3 ? 0.5 : i);
  const v1::BatchResult result = ExpectEqual(batch);
  ASSERT_EQ(result.status_size(), static_cast<int>(kTasks));
  const std::vector<int32_t> numbers = Integers(result.outputs(0));
  for (uint32_t i = 0; i < kTasks; ++i) {
    const bool failed = i % 5 == 3;
    EXPECT_EQ(result.status(static_cast<int>(i)),
              failed ? v1::TASK_STATUS_INVALID_ARGUMENT : v1::TASK_STATUS_OK);
    EXPECT_EQ(numbers[3 * i + 2], failed ? 0 : static_cast<int32_t>(i));
  }
}

TEST_F(RegularBatchesTest, TheTimeOfEachTaskOnRequest) {
  v1::Batch batch = Tasks("silu", kTasks);
  Inline(batch, {8}, Normal(kTasks * 8));
  Returned(batch, {8});
  const v1::BatchResult expected = Run(batch, false);
  batch.mutable_options()->set_task_times(true);
  const RunOutcome outcome = client_.Run(batch);
  ASSERT_TRUE(outcome.all_ok()) << outcome.message();
  EXPECT_EQ(outcome.result.device_ns_size(), static_cast<int>(kTasks));
  EXPECT_TRUE(outcome.result.outputs(0) == expected.outputs(0));
}

TEST_F(RegularBatchesTest, ADeadlineThatHasPassedEndsTheTasksThatDidNotRun) {
  v1::Batch batch = Tasks("test.spin", kTasks * 100);
  Returned(batch, {1});
  Integer(batch, {1'000'000});
  // Long enough for the first tasks to run, and much too short for all.
  int late = 0, ok = 0;
  for (uint64_t timeout_us = 100'000; ok == 0 && timeout_us < 10'000'000; timeout_us *= 2) {
    batch.mutable_options()->set_timeout_us(timeout_us);
    const RunOutcome outcome = client_.Run(batch);
    ASSERT_TRUE(outcome.call.ok()) << outcome.message();
    late = 0;
    for (const int status : outcome.result.status()) {
      late += status == v1::TASK_STATUS_DEADLINE_EXCEEDED;
      ok += status == v1::TASK_STATUS_OK;
    }
    EXPECT_EQ(late + ok, outcome.result.status_size());
  }
  EXPECT_GT(late, 0);
  EXPECT_GT(ok, 0);
  ExpectServes();
}

}  // namespace
}  // namespace resident::testing
