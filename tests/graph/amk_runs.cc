#include "tests/graph/amk_runs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "client/importers/amk/import.h"
#include "tests/graph/interpreter_memory.h"

namespace resident::testing::amk {
namespace {

v1::DType DTypeOf(const std::string& amk) {
  v1::DType dtype = v1::DTYPE_UNSPECIFIED;
  EXPECT_TRUE(v1::DType_Parse("DTYPE_" + amk, &dtype)) << amk;
  return dtype;
}

}  // namespace

Reals ValuedAmk::Numbers(const Shape& shape, int min, int max) {
  Reals reals(std::accumulate(shape.begin(), shape.end(), size_t{1},
                              [](size_t a, int64_t b) { return a * static_cast<size_t>(b); }));
  const auto width = static_cast<uint32_t>(max - min + 1);
  for (double& value : reals) value = min + static_cast<int>(random() % width);
  return reals;
}

std::string ValuedAmk::Bytes(int id) const {
  const std::string dtype = file["buffers"][static_cast<size_t>(id)]["dtype"];
  const Reals& reals = values.at(id);
  std::string bytes;
  if (dtype == "I4") {
    for (size_t i = 0; i + 1 < reals.size(); i += 2) {
      bytes.push_back(
          static_cast<char>(static_cast<int>(reals[i]) + 16 * static_cast<int>(reals[i + 1])));
    }
    return bytes;
  }
  const auto size = static_cast<size_t>(ElementBytes(DTypeOf(dtype)));
  bytes.resize(size * reals.size());
  for (size_t i = 0; i < reals.size(); ++i) {
    EncodeNumber(DTypeOf(dtype), reals[i], bytes.data() + i * size);
  }
  return bytes;
}

void AmkRuns::Check(const ValuedAmk& amk, const std::map<int, Reals>& expected) {
  const auto imported = cli::ImportAmk("f", amk.file.dump());
  ASSERT_TRUE(imported.ok()) << imported.status();
  v1::LoadGraphResponse loaded;
  const grpc::Status status = calls_.Load(imported->graph, &loaded);
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_TRUE(loaded.report().accepted()) << FindingsText(loaded.report());
  v1::RunGraphRequest request;
  request.set_graph_id(loaded.graph_id());
  for (const auto& [id, values] : amk.values) {
    Bind(request, "b" + std::to_string(id)).set_data(amk.Bytes(id));
  }
  for (int run = 0; run < 2; ++run) {
    const GraphOutcome outcome = calls_.Run(request);
    ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
    ASSERT_EQ(static_cast<size_t>(outcome.result.outputs_size()), expected.size());
    for (const v1::GraphValue& output : outcome.result.outputs()) {
      const auto found = expected.find(std::stoi(output.tensor().substr(1)));
      ASSERT_NE(found, expected.end()) << output.tensor();
      Compare(output, found->second);
    }
  }
  EXPECT_TRUE(calls_.Unload(loaded.graph_id()).ok());
  for (const Json& task : amk.file["tasks"]) ran_.insert(task["op"].get<std::string>());
}

void AmkRuns::Compare(const v1::GraphValue& output, const Reals& expected) {
  const auto size = static_cast<size_t>(ElementBytes(output.dtype()));
  ASSERT_EQ(output.data().size(), expected.size() * size) << output.tensor();
  for (size_t i = 0; i < expected.size(); ++i) {
    const double got = DecodeNumber(output.dtype(), output.data().data() + i * size);
    EXPECT_NEAR(got, expected[i], 1e-5 * std::max(1.0, std::abs(expected[i])))
        << output.tensor() << ", element " << i;
  }
}

}  // namespace resident::testing::amk
