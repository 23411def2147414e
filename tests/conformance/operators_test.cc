// Compares every built-in operator on a real engine (RESIDENT_TEST_ENGINE) with a float64
// reference: new random inputs, poisoned outputs, every form of a task (compact, with an
// argument block, split into chunks) and every alignment.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/support/engine_harness.h"

namespace resident {
namespace {

using testing::ArgumentTask;
using testing::Bits;
using testing::CompactTask;
using testing::DenseTensor;
using testing::EngineHarness;
using testing::OperatorSlot;
using testing::Scalar;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr uint32_t kPoison = 0x7f8badad;  // A NaN that no operator generates.
constexpr int64_t kMaxElements = 200'003;
constexpr int64_t kSizes[] = {1,    3,    4,    31,   255,    256,         1023,
                              1024, 1025, 4096, 5000, 65'537, kMaxElements};

class Operators : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    harness_ = new EngineHarness({});
    ring_ = harness_->NewRing();
    for (auto* area : {&x_, &y_, &out_}) *area = harness_->Staging((kMaxElements + 16) * 4);
  }
  static void TearDownTestSuite() {
    ring_ = nullptr;
    delete harness_;
  }

  // Runs one task and waits for it.
  static void Run(const TaskDescriptor& task, const std::vector<Argument>& arguments = {},
                  CompletionStatus expected = CompletionStatus::kOk) {
    const uint64_t sequence = *ring_->Reserve();
    std::copy(arguments.begin(), arguments.end(), ring_->arguments(sequence)->arguments);
    ring_->Publish(sequence, task);
    harness_->Ring();
    TaskCompletion completion{};
    while (ring_->Consume([&](uint64_t, const TaskCompletion& c) { completion = c; }) == 0) {
    }
    ASSERT_EQ(completion.status, expected) << "detail " << completion.detail;
  }

  float* x(int64_t shift = 0) { return x_.as<float>() + shift; }
  float* y(int64_t shift = 0) { return y_.as<float>() + shift; }
  float* out(int64_t shift = 0) { return out_.as<float>() + shift; }

  void Randomize(float* to, int64_t n) {
    std::normal_distribution<float> normal(0, 3);
    for (int64_t i = 0; i < n; ++i) to[i] = normal(random_);
  }
  void Specials(float* to, int64_t n) {
    const float kSpecials[] = {0.0f, -0.0f, kInf, -kInf, kNan, 1e-40f, 3e38f, -3e38f, 1.0f, -1.0f};
    for (int64_t i = 0; i < n; ++i) to[i] = kSpecials[(i * 7 + n) % std::size(kSpecials)];
  }
  void Poison(float* to, int64_t n) {
    for (int64_t i = 0; i < n; ++i) std::memcpy(to + i, &kPoison, 4);
  }

  using Reference = std::function<double(double x, double y)>;

  // Checks out = f(x, y) for all sizes, forms of a task, alignments, and special values.
  // `inputs`: how many of x and y the operator reads; `scalars`: its scalars, as bits.
  void CheckElementwise(const std::string& name, int inputs, std::vector<uint64_t> scalars,
                        const Reference& reference) {
    for (const int64_t n : kSizes) {
      for (const int64_t shift : {0, 1, 2}) {
        for (const uint32_t chunks : {0u, 1u, 7u}) {  // 0: compact.
          SCOPED_TRACE(name + " of " + std::to_string(n) + ", shifted by " + std::to_string(shift) +
                       ", chunks " + std::to_string(chunks));
          Randomize(x(shift), n);
          Randomize(y(shift), n);
          if (n % 2 == 1 && chunks != 1) Specials(x(shift), n);
          Poison(out(), kMaxElements + 16);
          std::vector<uint64_t> addresses;
          if (inputs > 0) addresses.push_back(x_.address + shift * 4);
          if (inputs > 1) addresses.push_back(y_.address + shift * 4);
          addresses.push_back(out_.address + shift * 4);
          Send(name, n, addresses, scalars, chunks);
          double error = 0, norm = 0;
          for (int64_t i = 0; i < n; ++i) {
            const float got = out(shift)[i];
            const double want = reference(x(shift)[i], y(shift)[i]);
            uint32_t bits;
            std::memcpy(&bits, &got, 4);
            ASSERT_NE(bits, kPoison) << "element " << i << " was not written";
            const float rounded = static_cast<float>(want);
            if (std::isnan(rounded) || std::isinf(rounded)) {
              ASSERT_EQ(std::isnan(rounded), std::isnan(got)) << i << ": " << got;
              if (std::isinf(rounded)) {
                ASSERT_EQ(rounded, got) << i;
              }
              continue;
            }
            ASSERT_TRUE(std::isfinite(got)) << i << ": " << got << " for " << want;
            error += (got - want) * (got - want);
            // A sum of few elements may cancel, as 1 - 0.999 does: then the error is
            // relative to the terms. Over many elements it is relative to the result alone.
            const bool cancels = n < 255 && (name == "add" || name == "sub");
            const double term = cancels ? std::abs(x(shift)[i]) + std::abs(y(shift)[i]) : 0;
            norm += want * want + (std::isfinite(term) ? term * term : 0);
          }
          if (norm > 0) {
            ASSERT_LT(std::sqrt(error / norm), 1e-6);
          }
          for (int64_t i = n; i < n + 8; ++i) {
            uint32_t bits;
            std::memcpy(&bits, out(shift) + i, 4);
            ASSERT_EQ(bits, kPoison) << "wrote past the end, element " << i;
          }
          for (int64_t i = 0; i < shift; ++i) {
            uint32_t bits;
            std::memcpy(&bits, out() + i, 4);
            ASSERT_EQ(bits, kPoison) << "wrote before the start";
          }
        }
      }
    }
  }

  void Send(const std::string& name, int64_t n, const std::vector<uint64_t>& addresses,
            const std::vector<uint64_t>& scalars, uint32_t chunks) {
    if (chunks == 0) {
      TaskDescriptor task = CompactTask(OperatorSlot(name), n, {});
      size_t word = 1;
      for (uint64_t address : addresses) task.words[word++] = address;
      for (uint64_t scalar : scalars) task.words[word++] = scalar;
      Run(task);
      return;
    }
    std::vector<Argument> arguments;
    for (uint64_t address : addresses) arguments.push_back(DenseTensor(address, DType::kF32, {n}));
    for (uint64_t scalar : scalars) arguments.push_back(Scalar(scalar));
    Run(ArgumentTask(OperatorSlot(name), static_cast<uint32_t>(arguments.size()), chunks),
        arguments);
  }

  static inline EngineHarness* harness_ = nullptr;
  static inline std::shared_ptr<HostRing> ring_;
  static inline EngineHarness::Span x_, y_, out_;
  std::mt19937 random_{std::random_device{}()};
};

TEST_F(Operators, Copy) {
  CheckElementwise("copy", 1, {}, [](double x, double) { return x; });
}
TEST_F(Operators, Fill) {
  CheckElementwise("fill", 0, {Bits(-2.5)}, [](double, double) { return -2.5; });
}
TEST_F(Operators, Add) {
  CheckElementwise("add", 2, {Bits(0.75)}, [](double x, double y) { return x + 0.75 * y; });
}
TEST_F(Operators, Sub) {
  CheckElementwise("sub", 2, {Bits(1.25)}, [](double x, double y) { return x - 1.25 * y; });
}
TEST_F(Operators, Mul) {
  CheckElementwise("mul", 2, {}, [](double x, double y) { return x * y; });
}
TEST_F(Operators, Div) {
  CheckElementwise("div", 2, {}, [](double x, double y) { return x / y; });
}
TEST_F(Operators, Scale) {
  CheckElementwise("scale", 1, {Bits(-3.0f)}, [](double x, double) { return -3.0 * x; });
}
TEST_F(Operators, ReluKeepsNan) {
  CheckElementwise("relu", 1, {},
                   [](double x, double) { return std::isnan(x) ? x : std::max(x, 0.0); });
}
TEST_F(Operators, SiluOfMinusInfinityIsZero) {
  CheckElementwise("silu", 1, {}, [](double x, double) {
    return x == -std::numeric_limits<double>::infinity() ? 0.0 : x / (1 + std::exp(-x));
  });
}

TEST_F(Operators, DivisionByZeroGivesInfinityOrNan) {
  const float kX[] = {1, -1, 0, 2};
  const float kY[] = {0, 0, 0, -0.0f};
  std::memcpy(x(), kX, sizeof(kX));
  std::memcpy(y(), kY, sizeof(kY));
  Send("div", 4, {x_.address, y_.address, out_.address}, {}, 0);
  EXPECT_EQ(out()[0], kInf);
  EXPECT_EQ(out()[1], -kInf);
  EXPECT_TRUE(std::isnan(out()[2]));
  EXPECT_EQ(out()[3], -kInf);
}

TEST_F(Operators, SumOfRows) {
  for (const auto& [rows, columns] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 1}, {1, kMaxElements}, {7, 1000}, {300, 257}, {2000, 64}, {5, 0}, {3, 4096}}) {
    for (const uint32_t chunks : {1u, 5u}) {
      SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(columns));
      Randomize(x(), rows * columns);
      Poison(out(), rows + 1);
      Run(ArgumentTask(OperatorSlot("sum_rows"), 2, chunks),
          {DenseTensor(x_.address, DType::kF32, {rows, columns}),
           DenseTensor(out_.address, DType::kF32, {rows})});
      double error = 0, norm = 0;
      for (int64_t r = 0; r < rows; ++r) {
        double sum = 0, magnitude = 0;
        for (int64_t c = 0; c < columns; ++c) {
          sum += x()[r * columns + c];
          magnitude += std::abs(x()[r * columns + c]);
        }
        ASSERT_FALSE(std::isnan(out()[r])) << "row " << r;
        error += (out()[r] - sum) * (out()[r] - sum);
        norm += magnitude * magnitude;
      }
      if (norm > 0) {
        EXPECT_LT(std::sqrt(error / norm), 1e-6);
      }
    }
  }
}

TEST_F(Operators, SumOfRowsPropagatesNanAndInfinity) {
  Randomize(x(), 3 * 500);
  x()[123] = kNan;
  x()[500 + 77] = kInf;
  Run(ArgumentTask(OperatorSlot("sum_rows"), 2, 1), {DenseTensor(x_.address, DType::kF32, {3, 500}),
                                                     DenseTensor(out_.address, DType::kF32, {3})});
  EXPECT_TRUE(std::isnan(out()[0]));
  EXPECT_EQ(out()[1], kInf);
  EXPECT_TRUE(std::isfinite(out()[2]));
}

TEST_F(Operators, CopyBytesOfEveryAlignmentAndLength) {
  auto* from = reinterpret_cast<uint8_t*>(x());
  auto* to = reinterpret_cast<uint8_t*>(out());
  for (const int64_t n : {1, 15, 16, 17, 4095, 4096, 40'000, 300'001}) {
    for (const int64_t shift : {0, 1, 7, 16}) {
      for (const uint32_t chunks : {1u, 9u}) {
        SCOPED_TRACE(std::to_string(n) + " bytes, shifted by " + std::to_string(shift));
        for (int64_t i = 0; i < n; ++i) from[shift + i] = static_cast<uint8_t>(random_());
        std::memset(to, 0xee, n + 64);
        Run(ArgumentTask(OperatorSlot("copy_bytes"), 2, chunks),
            {DenseTensor(x_.address + shift, DType::kU8, {n}),
             DenseTensor(out_.address + 16, DType::kU8, {n})});
        EXPECT_EQ(std::memcmp(from + shift, to + 16, n), 0);
        EXPECT_EQ(to[15], 0xee);
        EXPECT_EQ(to[16 + n], 0xee);
      }
    }
  }
}

// Blocks count chunks in 32 bits: larger numbers must not be truncated to valid ones or to
// 0.
TEST_F(Operators, TooManyChunksAreRefused) {
  constexpr int64_t kN = 1000;
  for (const uint64_t chunks :
       std::vector<uint64_t>{kMaxTaskChunks + 1, (uint64_t{1} << 32) - 1, uint64_t{1} << 32,
                             (uint64_t{1} << 32) + 1, (uint64_t{1} << 32) + 7, UINT64_MAX}) {
    SCOPED_TRACE(chunks);
    Poison(out(), kN);
    TaskDescriptor task = ArgumentTask(OperatorSlot("copy"), 2, 1);
    task.set_chunks(chunks);
    Run(task,
        {DenseTensor(x_.address, DType::kF32, {kN}), DenseTensor(out_.address, DType::kF32, {kN})},
        CompletionStatus::kInvalidArgument);
    uint32_t bits;
    std::memcpy(&bits, out(), sizeof(bits));
    EXPECT_EQ(bits, kPoison) << "the task ran";
  }
  Randomize(x(), kN);
  Send("copy", kN, {x_.address, out_.address}, {}, 7);  // The engine still works.
  for (int64_t i = 0; i < kN; ++i) ASSERT_EQ(out()[i], x()[i]);
}

// A task in a resident kernel must see what the host wrote after the previous task,
// although it has read the same addresses before.
TEST_F(Operators, InputsThatChangeBetweenTasksAreReadAgain) {
  constexpr int64_t kN = 256;
  for (int round = 0; round < 2000; ++round) {
    const uint32_t chunks = round % 3;  // Lone, through the device ring, wide.
    for (int64_t i = 0; i < kN; ++i) x()[i] = static_cast<float>(round + i);
    Send("scale", kN, {x_.address, out_.address}, {Bits(2.0f)}, chunks);
    for (int64_t i = 0; i < kN; ++i) {
      ASSERT_EQ(out()[i], 2.0f * static_cast<float>(round + i)) << "round " << round;
    }
  }
}

// The same for device memory: a task reads what the previous task wrote.
TEST_F(Operators, OutputsAreVisibleToTheNextTask) {
  constexpr int64_t kN = 3000;
  const uint64_t a = harness_->Memory(kN * 4), b = harness_->Memory(kN * 4);
  for (int round = 0; round < 1000; ++round) {
    // x (host) -> a -> b -> out (host); each task is alone, and completes ahead of its
    // fence where allowed.
    for (int64_t i = 0; i < kN; ++i) x()[i] = static_cast<float>(round * 3 + i % 100);
    TaskDescriptor first = CompactTask(OperatorSlot("copy"), kN, {x_.address, a});
    first.flags |= kTaskDeviceOutputs;
    TaskDescriptor second = CompactTask(OperatorSlot("scale"), kN, {a, b, Bits(2.0f)});
    second.flags |= kTaskDeviceOutputs;
    Run(first);
    Run(second);
    Send("copy", kN, {b, out_.address}, {}, round % 3);
    for (int64_t i = 0; i < kN; ++i) {
      ASSERT_EQ(out()[i], 2.0f * static_cast<float>(round * 3 + i % 100)) << "round " << round;
    }
  }
}

// Flags that only the poller of a GPU reads, of lone tasks and among others.
TEST_F(Operators, ATaskWithASlowAnswerRunsAsOthersDo) {
  constexpr int64_t kN = 64;
  constexpr int kTasks = 200;
  Randomize(x(), kN);
  for (const int at_once : {1, 2, 5, 100}) {
    Poison(out(), kTasks * kN);
    for (int begin = 0; begin < kTasks; begin += at_once) {
      for (int i = begin; i < begin + at_once; ++i) {
        TaskDescriptor task =
            CompactTask(OperatorSlot("scale"), kN,
                        {x_.address, out_.address + static_cast<uint64_t>(i * kN) * sizeof(float),
                         Bits(static_cast<float>(i))});
        if (i % 3 != 0) task.flags |= kTaskSlowAnswer;
        ring_->Publish(*ring_->Reserve(), task);
      }
      harness_->Ring();
      for (int ended = 0; ended < at_once;) {
        ended += static_cast<int>(ring_->Consume([](uint64_t, const TaskCompletion& completion) {
          EXPECT_EQ(completion.status, CompletionStatus::kOk);
        }));
      }
    }
    for (int64_t i = 0; i < kTasks * kN; ++i) {
      ASSERT_EQ(out()[i], x()[i % kN] * static_cast<float>(i / kN)) << i << ", " << at_once;
    }
  }
}

// The last chunk of a task sees what the others have written, and a chunk that fails leaves nothing
// for the next task in the same slot of the ring.
TEST_F(Operators, TheLastChunkToArrive) {
  const uint32_t slots = EngineHarness::Options().ring_slots;
  const auto run = [&](uint32_t chunks, int64_t failing, CompletionStatus expected) {
    out()[0] = -1;
    Run(ArgumentTask(OperatorSlot("test.arrivals"), 2, chunks),
        {DenseTensor(out_.address, DType::kF32, {1}), Scalar(static_cast<uint64_t>(failing))},
        expected);
    const float sum = static_cast<float>(chunks * (chunks + 1) / 2);
    ASSERT_EQ(out()[0], expected == CompletionStatus::kOk ? sum : -1) << chunks << " chunks";
  };
  for (uint32_t i = 0; i < slots; ++i) {
    const uint32_t chunks = 2 + random_() % 300;
    const bool fails = i % 2 == 0;
    run(chunks, fails ? static_cast<int64_t>(random_() % chunks) : -1,
        fails ? CompletionStatus::kInvalidArgument : CompletionStatus::kOk);
    if (HasFatalFailure()) return;
  }
  for (uint32_t i = 0; i < slots; ++i) {
    run(2 + random_() % 300, -1, CompletionStatus::kOk);
    if (HasFatalFailure()) return;
  }
  // The chunks of a lone task share nothing.
  run(1, -1, CompletionStatus::kInvalidArgument);
}

// Tasks whose chunks wait for others of the same task, beside each other and beside others: all of
// them end, with the bits that a task of one chunk has.
TEST_F(Operators, SeveralTasksOfLongRowsAtOnce) {
  constexpr int64_t kColumns = 65'600, kLongRow = 140'000;
  constexpr int kTasks = 24;
  constexpr uint64_t kBytes = kColumns * sizeof(float);
  static const EngineHarness::Span outs = harness_->Staging(kTasks * kBytes);
  Randomize(x(), kLongRow);
  const auto arguments = [&](bool is_sum, uint64_t out) -> std::vector<Argument> {
    if (is_sum) {
      return {DenseTensor(x_.address, DType::kF32, {1, kLongRow}),
              DenseTensor(out, DType::kF32, {1}), Scalar(2)};
    }
    return {DenseTensor(x_.address, DType::kF32, {1, kColumns}),
            DenseTensor(out, DType::kF32, {1, kColumns})};
  };
  Run(ArgumentTask(OperatorSlot("softmax"), 2, 1), arguments(false, out_.address));
  Run(ArgumentTask(OperatorSlot("sum"), 3, 1), arguments(true, y_.address));
  const float sum = y()[0];
  for (int round = 0; round < 20; ++round) {
    std::memset(outs.host, 0xff, kTasks * kBytes);
    for (int t = 0; t < kTasks; ++t) {
      const bool is_sum = t % 3 == 0;
      const std::vector<Argument> of_task = arguments(is_sum, outs.address + t * kBytes);
      const uint64_t sequence = *ring_->Reserve();
      std::copy(of_task.begin(), of_task.end(), ring_->arguments(sequence)->arguments);
      ring_->Publish(sequence,
                     ArgumentTask(OperatorSlot(is_sum ? "sum" : "softmax"),
                                  static_cast<uint32_t>(of_task.size()), 1 + random_() % 60));
    }
    harness_->Ring();
    for (int ended = 0; ended < kTasks;) {
      ended += static_cast<int>(ring_->Consume(
          [](uint64_t, const TaskCompletion& c) { EXPECT_EQ(c.status, CompletionStatus::kOk); }));
    }
    for (int t = 0; t < kTasks; ++t) {
      const uint8_t* const got = outs.host + t * kBytes;
      if (t % 3 == 0) {
        ASSERT_EQ(std::memcmp(got, &sum, sizeof(sum)), 0) << "task " << t;
      } else {
        ASSERT_EQ(std::memcmp(got, out(), kBytes), 0) << "task " << t;
      }
    }
  }
}

}  // namespace
}  // namespace resident
