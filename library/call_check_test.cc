#include "library/call_check.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "runtime/model/strided_view.h"

namespace resident {
namespace {

TEST(CallCheck, EveryBuiltinOperatorIsInTheTable) {
  ASSERT_FALSE(LibraryOperators().empty());
  for (const LibraryOperator& op : LibraryOperators()) {
    const auto found = FindLibraryOperator(op.name);
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_EQ(*found, &op);
    EXPECT_EQ(op.returns_result, op.name == "compare");
  }
}

TEST(CallCheck, OmittedScalarsHaveTheirDefaults) {
  float data[4] = {};
  float out[4];
  const int64_t shape[] = {4};
  const resident_ops_argument arguments[] = {resident_ops_dense(data, RESIDENT_OPS_F32, 1, shape),
                                             resident_ops_dense(data, RESIDENT_OPS_F32, 1, shape),
                                             resident_ops_dense(out, RESIDENT_OPS_F32, 1, shape)};
  CheckedCall call;
  ASSERT_TRUE(CheckCall(**FindLibraryOperator("add"), arguments, call).ok());
  EXPECT_EQ(call.argument_count, 4u);
  double alpha = 0;
  std::memcpy(&alpha, &call.arguments[3].scalar_bits, sizeof(alpha));
  EXPECT_EQ(alpha, 1);
  EXPECT_EQ(call.chunks, 1u);
}

TEST(CallCheck, LargeTensorsHaveAChunkForEachGrain) {
  const int64_t shape[] = {3 * 32768 + 1};
  const auto out = resident_ops_dense(reinterpret_cast<void*>(4096), RESIDENT_OPS_F32, 1, shape);
  CheckedCall call;
  ASSERT_TRUE(CheckCall(**FindLibraryOperator("zero"), {&out, 1}, call).ok());
  EXPECT_EQ(call.chunks, 4u);
}

// Whatever the arguments are: a call is refused, or its tensors are aligned, lie within the
// addresses, and what is written overlaps nothing else.
TEST(CallCheck, AnyArgumentsAreRefusedOrSound) {
  std::mt19937_64 random(5);
  const auto draw = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  constexpr int64_t kExtreme[] = {std::numeric_limits<int64_t>::min(),
                                  std::numeric_limits<int64_t>::max(),
                                  -1,
                                  int64_t{1} << 31,
                                  int64_t{1} << 60,
                                  -(int64_t{1} << 60),
                                  (int64_t{1} << 60) + 1};
  const auto size = [&](int64_t low, int64_t high) {
    return draw(0, 40) == 0 ? kExtreme[draw(0, 6)] : draw(low, high);
  };
  const std::vector<LibraryOperator>& operators = LibraryOperators();
  int accepted = 0;
  for (int round = 0; round < 100000; ++round) {
    const LibraryOperator& op = operators[static_cast<size_t>(draw(0, operators.size() - 1))];
    const std::vector<Parameter>& parameters = op.signature.parameters();
    std::vector<resident_ops_argument> arguments;
    // Dimensions of one size fit most signatures.
    const int64_t common = draw(0, 4);
    const int32_t rank = static_cast<int32_t>(draw(0, 4));
    for (const Parameter& parameter : parameters) {
      resident_ops_argument argument;
      std::memset(&argument, 0, sizeof(argument));
      const bool odd = draw(0, 60) == 0;
      argument.kind = odd                            ? static_cast<int32_t>(draw(-1, 4))
                      : !parameter.scalar()          ? RESIDENT_OPS_TENSOR
                      : IsFloat(parameter.dtypes[0]) ? RESIDENT_OPS_REAL
                                                     : RESIDENT_OPS_INTEGER;
      argument.real = static_cast<double>(draw(-2, 2));
      argument.integer = size(0, 3);
      argument.dtype = draw(0, 60) == 0 ? static_cast<int32_t>(draw(-1, 11))
                                        : static_cast<int32_t>(parameter.dtypes[0]);
      const auto low = static_cast<int32_t>(parameter.min_rank);
      argument.rank = draw(0, 60) == 0 ? static_cast<int32_t>(draw(-2, 10))
                                       : std::clamp(rank, low, std::max(low, 4));
      argument.data = reinterpret_cast<void*>(draw(0, 60) == 0   ? uint64_t{0} - 64
                                              : draw(0, 60) == 0 ? 0
                                                                 : 4096 + 4 * draw(0, 600));
      argument = [&] {
        resident_ops_argument dense = argument;
        int64_t stride = 1;
        for (int32_t d = std::min(argument.rank, 8); d-- > 0;) {
          dense.shape[d] = size(common, common);
          dense.strides[d] = draw(0, 10) == 0 ? size(-3, 9) : stride;
          stride *= std::max<int64_t>(common, 1);
        }
        return dense;
      }();
      arguments.push_back(argument);
    }
    if (draw(0, 20) == 0) arguments.resize(static_cast<size_t>(draw(0, parameters.size())));
    CheckedCall call;
    const absl::Status status = CheckCall(op, arguments, call);
    if (!status.ok()) {
      ASSERT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
      ASSERT_NE(status.message().find("Fix: "), std::string::npos) << status;
      continue;
    }
    ++accepted;
    ASSERT_EQ(call.argument_count, parameters.size());
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (parameters[i].scalar()) continue;
      const TensorArgument& tensor = call.arguments[i].tensor;
      ASSERT_EQ(tensor.address % SizeOf(tensor.dtype), 0u);
      const auto empty = [](const TensorArgument& t) {
        return std::find(t.shape, t.shape + t.rank, 0) != t.shape + t.rank;
      };
      if (empty(tensor)) continue;
      ASSERT_NE(tensor.address, 0u);
      if (parameters[i].kind == ParameterKind::kInput) continue;
      for (size_t k = 0; k < parameters.size(); ++k) {
        if (k == i || parameters[k].scalar() || empty(call.arguments[k].tensor)) continue;
        const TensorArgument& other = call.arguments[k].tensor;
        ASSERT_TRUE(!MayOverlap(tensor, other) || (op.in_place && tensor.address == other.address))
            << op.name;
      }
    }
  }
  EXPECT_GT(accepted, 5000);
}

}  // namespace
}  // namespace resident
