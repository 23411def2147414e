// AttentionTest and AttendTest: operands of the operators of the family "attention", and references
// in float64.
//
// Thread safety: one thread.
#ifndef RESIDENT_TESTS_CONFORMANCE_ATTENTION_OPERANDS_H_
#define RESIDENT_TESTS_CONFORMANCE_ATTENTION_OPERANDS_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/conformance/operator_runner.h"

namespace resident::testing {

inline constexpr double kInf = std::numeric_limits<double>::infinity();
inline constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
inline constexpr DType kFloats[] = {DType::kF32, DType::kF16, DType::kBF16};

// The values as `dtype` represents them.
inline std::vector<double> Rounded(DType dtype, const std::vector<double>& values) {
  return TestTensor::Input(dtype, {static_cast<int64_t>(values.size())}, values).Values();
}

class AttentionTest : public ::testing::Test {
 protected:
  DType AnyFloat() { return kFloats[random_() % 3]; }
  int64_t Below(int64_t limit) {
    return static_cast<int64_t>(random_() % static_cast<uint64_t>(limit));
  }
  uint32_t AnyChunks() { return 1 + static_cast<uint32_t>(random_() % 5); }

  // The tensor in any order of dimensions, with any distance between elements.
  TestTensor RandomLayout(const TestTensor& tensor) {
    std::vector<int> order(tensor.shape().size());
    for (size_t d = 0; d < order.size(); ++d) order[d] = static_cast<int>(d);
    std::shuffle(order.begin(), order.end(), random_);
    return tensor.WithLayout(order, 1 + Below(3));
  }
  TestTensor RandomIds(DType dtype, const Dims& shape, int64_t limit) {
    std::vector<double> ids(CountElements(shape));
    for (double& id : ids) id = static_cast<double>(Below(limit));
    return TestTensor::Input(dtype, shape, ids);
  }

  const uint64_t seed_ = std::random_device{}();
  std::mt19937_64 random_{seed_};
  const ::testing::ScopedTrace trace_{__FILE__, __LINE__, "seed " + std::to_string(seed_)};
};

inline void ExpectRefused(const std::string& name, const std::vector<TestArgument>& arguments,
                          uint16_t detail, const std::vector<TestTensor>& outputs,
                          uint32_t chunks = 1) {
  std::vector<std::vector<double>> before;
  for (const TestTensor& output : outputs) before.push_back(output.Values());
  const Outcome outcome = RunOperator(name, arguments, chunks);
  EXPECT_EQ(outcome.status, CompletionStatus::kInvalidArgument) << name;
  EXPECT_EQ(outcome.detail, detail) << name;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const std::vector<double> after = outputs[i].Values();
    for (size_t k = 0; k < after.size(); ++k) {
      ASSERT_TRUE(after[k] == before[i][k] || (std::isnan(after[k]) && std::isnan(before[i][k])))
          << name << " wrote element " << k << " of output " << i;
    }
  }
}

struct Attention {
  TestTensor q;
  TestTensor k;
  TestTensor v;
  TestTensor mask = TestTensor::Output(DType::kF32, {0});
  float scale = 1;
  int32_t causal = 0;
  int64_t kv_len = -1;

  int64_t heads() const { return q.shape()[1]; }
  int64_t queries() const { return q.shape()[2]; }
  int64_t columns() const { return v.shape()[3]; }
  Dims OutShape() const { return {q.shape()[0], heads(), queries(), columns()}; }
};

// The mask's value for (b, n, s, t): aligned at the last dimension, dimensions of 1 repeat.
inline double MaskAt(const Dims& shape, const std::vector<double>& values,
                     const int64_t (&index)[4]) {
  int64_t at = 0;
  for (size_t d = 0; d < shape.size(); ++d) {
    const int64_t i = index[4 - shape.size() + d];
    at = at * shape[d] + (shape[d] == 1 ? 0 : i);
  }
  return values[at];
}

// Keys that the causal rule, kv_len or a mask of -infinity hides have no influence.
inline std::vector<double> AttentionReference(const Attention& a) {
  const std::vector<double> q = a.q.Values();
  const std::vector<double> k = a.k.Values();
  const std::vector<double> v = a.v.Values();
  const std::vector<double> mask = a.mask.Values();
  const int64_t n_count = a.heads();
  const int64_t s_count = a.queries();
  const int64_t m_count = a.k.shape()[1];
  const int64_t length = a.k.shape()[2];
  const int64_t d = a.q.shape()[3];
  const int64_t e = a.columns();
  const int64_t keys = a.kv_len < 0 ? length : a.kv_len;
  std::vector<double> out(CountElements(a.OutShape()));
  std::vector<double> weights(keys);
  for (int64_t row = 0; row < a.q.shape()[0] * n_count * s_count; ++row) {
    const int64_t b = row / s_count / n_count;
    const int64_t n = row / s_count % n_count;
    const int64_t s = row % s_count;
    const int64_t kv = b * m_count + n * m_count / n_count;
    double largest = -kInf;
    for (int64_t t = 0; t < keys; ++t) {
      weights[t] = -kInf;
      if (a.causal != 0 && t > keys - s_count + s) continue;
      double bias = 0;
      if (!mask.empty()) bias = MaskAt(a.mask.shape(), mask, {b, n, s, t});
      if (bias == -kInf) continue;
      double product = 0;
      for (int64_t i = 0; i < d; ++i) product += q[row * d + i] * k[(kv * length + t) * d + i];
      weights[t] = a.scale * product + bias;
      if (std::isnan(weights[t]) || weights[t] > largest) largest = weights[t];
      if (std::isnan(largest)) break;
    }
    double sum = 0;
    for (int64_t t = 0; t < keys; ++t) {
      if (weights[t] == -kInf) continue;
      const double weight = std::exp(weights[t] - largest);
      sum += weight;
      for (int64_t i = 0; i < e; ++i) out[row * e + i] += weight * v[(kv * length + t) * e + i];
    }
    for (int64_t i = 0; i < e && sum != 0; ++i) out[row * e + i] /= sum;
  }
  return out;
}

inline std::vector<TestArgument> AttentionArguments(const Attention& a, const TestTensor& out) {
  return {a.q, a.k, a.v, a.mask, out, F32(a.scale), I32(a.causal), I64(a.kv_len)};
}

// The result in parts, and combined.
struct Parts {
  TestTensor acc;
  TestTensor largest;
  TestTensor sum;
};
inline Parts NewParts(const Attention& a, int64_t parts) {
  const Dims rows = {a.q.shape()[0], a.heads(), a.queries(), parts};
  Dims acc = rows;
  acc.push_back(a.columns());
  return {TestTensor::Output(DType::kF32, acc), TestTensor::Output(DType::kF32, rows),
          TestTensor::Output(DType::kF32, rows)};
}
inline std::vector<TestArgument> PartialArguments(const Attention& a, const Parts& p) {
  return {a.q,       a.k,   a.v,          a.mask,        p.acc,
          p.largest, p.sum, F32(a.scale), I32(a.causal), I64(a.kv_len)};
}

inline void CheckAttention(const Attention& a, DType dtype, uint32_t chunks, int64_t parts = 0) {
  const std::vector<double> reference = AttentionReference(a);
  const TestTensor out = TestTensor::Output(dtype, a.OutShape());
  ASSERT_EQ(RunOperator("attention", AttentionArguments(a, out), chunks).status,
            CompletionStatus::kOk);
  ExpectNear(out, reference, /*products=*/true);
  if (parts == 0) return;
  const Parts p = NewParts(a, parts);
  ASSERT_EQ(RunOperator("attention_partial", PartialArguments(a, p), chunks).status,
            CompletionStatus::kOk);
  EXPECT_EQ(p.acc.CheckWritten(), "");
  EXPECT_EQ(p.largest.CheckWritten(), "");
  EXPECT_EQ(p.sum.CheckWritten(), "");
  const TestTensor combined = TestTensor::Output(dtype, a.OutShape());
  ASSERT_EQ(RunOperator("attention_combine", {p.acc, p.largest, p.sum, combined}, chunks).status,
            CompletionStatus::kOk);
  ExpectNear(combined, reference, /*products=*/true);
}

class AttendTest : public AttentionTest {
 protected:
  Attention Random(int64_t b, int64_t n, int64_t m, int64_t s, int64_t length, int64_t d, int64_t e,
                   DType dtype = DType::kF32) {
    Attention a{TestTensor::Random(dtype, {b, n, s, d}, random_),
                TestTensor::Random(dtype, {b, m, length, d}, random_),
                TestTensor::Random(dtype, {b, m, length, e}, random_)};
    a.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(std::max<int64_t>(d, 1))));
    return a;
  }
  TestTensor RandomMask(const Dims& shape, double hidden) {
    std::normal_distribution<double> normal;
    std::vector<double> values(CountElements(shape));
    for (double& value : values) {
      value = std::uniform_real_distribution<double>()(random_) < hidden ? -kInf : normal(random_);
    }
    return TestTensor::Input(DType::kF32, shape, values);
  }
};

}  // namespace resident::testing

#endif  // RESIDENT_TESTS_CONFORMANCE_ATTENTION_OPERANDS_H_
