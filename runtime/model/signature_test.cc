#include "runtime/model/signature.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/ops/builtin.h"
#include "kernels/ops/early_operators.h"

namespace resident {
namespace {

Signature MustParse(const std::string& text) {
  absl::StatusOr<Signature> signature = Signature::Parse(text);
  EXPECT_TRUE(signature.ok()) << signature.status();
  return signature.ok() ? *signature : Signature();
}

std::string ParseError(const std::string& text) {
  const absl::StatusOr<Signature> signature = Signature::Parse(text);
  EXPECT_FALSE(signature.ok()) << text;
  return std::string(signature.status().message());
}

struct TestArgument {
  bool scalar;
  DType dtype;
  std::vector<int64_t> shape;
};

absl::Status Match(const Signature& signature, const std::vector<TestArgument>& arguments,
                   Bindings* bindings = nullptr) {
  std::vector<ArgumentType> types;
  for (const TestArgument& a : arguments) types.push_back({a.scalar, a.dtype, a.shape});
  return signature.Match("op", types, bindings);
}

TestArgument F32(std::vector<int64_t> shape) { return {false, DType::kF32, std::move(shape)}; }

constexpr char kAdd[] = "x: in f32[*S], y: in f32[*S], out: out f32[*S], alpha: scalar f32 = 1";

TEST(SignatureTest, EveryBuiltinParses) {
  const auto check = [](const BuiltinOperator& op) {
    const auto parsed = Signature::Parse(op.signature);
    EXPECT_TRUE(parsed.ok()) << op.name << ": " << parsed.status();
  };
  for (const BuiltinOperator& op : kBuiltinOperators) check(op);
  for (const BuiltinOperator& op : kTestOperators) check(op);
}

// What they read before their inputs are ready are inputs, or tensors that they themselves extend:
// a graph starts them early only if no other node writes these (LoweringTest).
TEST(SignatureTest, EarlyOperatorsAreBuiltIn) {
  for (const EarlyOperator& early : kEarlyOperators) {
    const auto* const op = std::find_if(
        std::begin(kBuiltinOperators), std::end(kBuiltinOperators),
        [&](const BuiltinOperator& each) { return each.name == std::string_view(early.name); });
    ASSERT_NE(op, std::end(kBuiltinOperators)) << early.name;
    const Signature signature = MustParse(op->signature);
    for (unsigned i = 0; i < 32; ++i) {
      if ((early.reads >> i & 1) == 0) continue;
      ASSERT_LT(i, signature.parameters().size()) << early.name;
      const ParameterKind kind = signature.parameters()[i].kind;
      EXPECT_TRUE(kind == ParameterKind::kInput || kind == ParameterKind::kInOut) << early.name;
    }
  }
}

TEST(SignatureTest, ReadsKindsDTypesDimensionsAndDefaults) {
  const Signature s = MustParse("a: in f32|f16[B, 3, *R], b: inout i64[], c: scalar f32 = 2.5");
  ASSERT_EQ(s.parameters().size(), 3u);
  EXPECT_EQ(s.parameters()[0].dtypes, (std::vector<DType>{DType::kF32, DType::kF16}));
  EXPECT_EQ(s.parameters()[0].min_rank, 2u);
  EXPECT_EQ(s.parameters()[0].max_rank, kMaxRank);
  EXPECT_EQ(s.parameters()[1].kind, ParameterKind::kInOut);
  EXPECT_EQ(s.parameters()[1].max_rank, 0u);
  EXPECT_EQ(s.required_arguments(), 2u);
  float value = 0;
  const uint64_t bits = *s.parameters()[2].default_bits;
  std::memcpy(&value, &bits, 4);
  EXPECT_EQ(value, 2.5f);
  EXPECT_EQ(s.variables(), (std::vector<std::string>{"B", "*R"}));
}

TEST(SignatureTest, DefaultsOutOfRangeAreRefused) {
  for (const char* text :
       {"n: scalar i64 = 99999999999999999999", "n: scalar i64 = -9223372036854775809",
        "n: scalar i32 = 2147483648", "n: scalar u32 = -1", "a: scalar f32 = 1e400",
        "a: scalar f64 = -1e400", "a: scalar f32 = 1e39", "a: scalar f16 = 65520",
        "a: scalar i32 = nan"}) {
    EXPECT_NE(ParseError(text).find("is not a "), std::string::npos) << text;
  }
  for (const char* text :
       {"n: scalar i64 = -9223372036854775808", "n: scalar i64 = 9223372036854775807",
        "n: scalar u32 = 4294967295", "a: scalar f64 = -1.7976931348623157e308",
        "a: scalar f64 = 1e-310", "a: scalar f32 = 1e-400", "a: scalar f32 = inf",
        "a: scalar f32 = nan"}) {
    EXPECT_TRUE(Signature::Parse(text).ok()) << text;
  }
}

TEST(SignatureTest, MalformedTextIsRefusedWithThePosition) {
  for (const char* text : {"",
                           "x",
                           "x:",
                           "x: in",
                           "x: in f32",
                           "x: in f32[",
                           "x: in f32[2",
                           "x: in f33[2]",
                           "x: up f32[]",
                           "x: in f32[*S, *T]",
                           "x: in f32[] y: in f32[]",
                           "x: in f32[], x: in f32[]",
                           "x: scalar f32|f64",
                           "x: scalar i32 = 1.5",
                           "x: scalar u8 = 256",
                           "x: scalar f32 = pi",
                           "x: in f32[3x]",
                           "x: in f32[,]",
                           "x: in f32[1,2,3,4,5,6,7,8,9]",
                           "x: in f32[],"}) {
    const std::string error = ParseError(text);
    EXPECT_NE(error.find("at byte"), std::string::npos) << text << ": " << error;
    EXPECT_NE(error.find("Fix: "), std::string::npos) << text;
  }
}

// Each name is compared with those before it, and none stands in a message as a whole.
TEST(SignatureTest, LongTextIsRefusedWithoutReadingAllOfIt) {
  std::string parameters;
  std::string dims = "x: in f32[";
  for (int i = 0; i < 500'000; ++i) {
    parameters += "a" + std::to_string(i) + ": in f32[N" + std::to_string(i) + "], ";
    dims += "N" + std::to_string(i) + ", ";
  }
  EXPECT_NE(ParseError(parameters).find("more than 14 parameters"), std::string::npos);
  EXPECT_NE(ParseError(dims).find("more than 8 dimensions"), std::string::npos);
  for (const char* before : {"x: in f32[", "x: in ", "x: scalar u8 = ", "x: "}) {
    EXPECT_LT(ParseError(before + std::string(1 << 20, '9')).size(), 1000u) << before;
  }
}

TEST(SignatureTest, RandomTextNeverCrashesTheParser) {
  std::mt19937 random(7);
  const std::string alphabet = "xyS: infouscalr32[]*,|=1 ";
  for (int i = 0; i < 20000; ++i) {
    std::string text(random() % 40, ' ');
    for (char& c : text) c = alphabet[random() % alphabet.size()];
    (void)Signature::Parse(text);
  }
}

TEST(SignatureTest, TrailingScalarsWithDefaultsMayBeOmitted) {
  const Signature add = MustParse(kAdd);
  EXPECT_TRUE(Match(add, {F32({4}), F32({4}), F32({4})}).ok());
  EXPECT_TRUE(Match(add, {F32({4}), F32({4}), F32({4}), {true, DType::kF32, {}}}).ok());
  EXPECT_EQ(Match(add, {F32({4}), F32({4})}).message(),
            "op takes 3 to 4 arguments and got 2. Fix: send one column for each of: x, y, out, "
            "alpha (optional)");
}

TEST(SignatureTest, ShapeMismatchNamesBothSides) {
  const Signature add = MustParse(kAdd);
  EXPECT_EQ(Match(add, {F32({4}), F32({3}), F32({4})}).message(),
            "argument 2 'y' of op: shape [3] does not match S = [4] bound by 'x'. Fix: make 'y' "
            "and 'x' agree in S");
  const Signature rows = MustParse("x: in f32[R, C], out: out f32[R]");
  EXPECT_EQ(Match(rows, {F32({2, 3}), F32({3})}).message(),
            "argument 2 'out' of op: shape [3] does not match R = 2 bound by 'x'. Fix: make 'out' "
            "and 'x' agree in R");
}

TEST(SignatureTest, SameSizeInAnotherShapeDoesNotMatchASpread) {
  EXPECT_FALSE(Match(MustParse(kAdd), {F32({2, 3}), F32({6}), F32({6})}).ok());
}

TEST(SignatureTest, ASpreadMayMatchZeroDimensions) {
  EXPECT_TRUE(Match(MustParse(kAdd), {F32({}), F32({}), F32({})}).ok());
  const Signature s = MustParse("x: in f32[B, *R, C]");
  Bindings bindings;
  ASSERT_TRUE(Match(s, {F32({5, 7})}, &bindings).ok());
  EXPECT_EQ(bindings.values[0], (Shape{5}));
  EXPECT_EQ(bindings.values[1], (Shape{}));
  EXPECT_EQ(bindings.values[2], (Shape{7}));
  ASSERT_TRUE(Match(s, {F32({5, 1, 2, 7})}, &bindings).ok());
  EXPECT_EQ(bindings.values[1], (Shape{1, 2}));
  EXPECT_FALSE(Match(s, {F32({5})}).ok());
}

TEST(SignatureTest, WrongDTypeRankAndKindAreRefused) {
  const Signature add = MustParse(kAdd);
  EXPECT_EQ(Match(add, {{false, DType::kF16, {4}}, F32({4}), F32({4})}).message(),
            "argument 1 'x' of op: dtype f16 is not accepted. Fix: send f32");
  EXPECT_FALSE(Match(add, {{true, DType::kF32, {}}, F32({4}), F32({4})}).ok());
  EXPECT_FALSE(Match(add, {F32({4}), F32({4}), F32({4}), F32({4})}).ok());
  EXPECT_EQ(Match(MustParse("x: in f32[R, C]"), {F32({4})}).message(),
            "argument 1 'x' of op: shape [4] does not have 2 dimensions. Fix: give it 2 "
            "dimensions");
  EXPECT_FALSE(Match(MustParse("x: in f32[2]"), {F32({3})}).ok());
}

TEST(SignatureTest, CompactFormOnlyIfTheRankDoesNotMatter) {
  EXPECT_TRUE(MustParse(kAdd).compact());
  EXPECT_FALSE(MustParse("x: in f32[R, C], out: out f32[R]").compact());
  EXPECT_TRUE(MustParse("x: in f16|f32[*S~], out: out f32[*S]").compact());
  EXPECT_FALSE(MustParse("x: in f16|bf16[*S]").compact());
  EXPECT_FALSE(MustParse("x: in u8[N]").compact());
  EXPECT_TRUE(MustParse("x: in f32[N], y: out f32[M]").compact());
  // The operator compares two shapes.
  EXPECT_FALSE(MustParse("x: in f32[*S], out: out f32[*R], axes: scalar u32").compact());
  EXPECT_FALSE(MustParse("x: in f32[*S], out: out f32[N]").compact());
  EXPECT_FALSE(MustParse("a: in f32[*S], b: in f32[*S], c: in f32[*S], d: in f32[*S], "
                         "e: out f32[*S]")
                   .compact());
}

TEST(SignatureTest, BroadcastAcceptsTheSameShapesAsPyTorch) {
  const Signature s = MustParse("x: in f32[*S~], y: in f32[*S~], out: out f32[*S]");
  const std::vector<std::vector<int64_t>> accepted = {{3, 4}, {1, 4}, {3, 1}, {4}, {1}, {}, {1, 1}};
  for (const auto& shape : accepted) {
    EXPECT_TRUE(Match(s, {F32(shape), F32({4}), F32({3, 4})}).ok()) << ShapeText(shape);
  }
  const std::vector<std::vector<int64_t>> refused = {{3}, {2, 4}, {4, 3}, {1, 3, 4}, {0}, {4, 1}};
  for (const auto& shape : refused) {
    EXPECT_FALSE(Match(s, {F32(shape), F32({4}), F32({3, 4})}).ok()) << ShapeText(shape);
  }
  EXPECT_TRUE(Match(s, {F32({0, 1}), F32({1}), F32({0, 4})}).ok());
  EXPECT_FALSE(Match(s, {F32({5, 4}), F32({1}), F32({0, 4})}).ok());
  EXPECT_EQ(Match(s, {F32({4}), F32({3}), F32({3, 4})}).message(),
            "argument 2 'y' of op: shape [3] does not broadcast to S = [3, 4] of 'out'. Fix: "
            "make each dimension of 'y', counted from the last, 1 or equal to that of 'out'");
}

TEST(SignatureTest, BroadcastNeedsAnotherParameterThatSetsTheShape) {
  for (const char* text : {"x: in f32[*S~], out: out f32[*T]", "x: in f32[*S~], out: out f32[*S~]",
                           "x: inout f32[*S~], out: out f32[*S]", "x: in f32[N~], out: out f32[N]",
                           "x: in f32[*S~~], out: out f32[*S]", "x: in f32[~]"}) {
    EXPECT_NE(ParseError(text).find("Fix: "), std::string::npos) << text;
  }
}

TEST(SignatureTest, BroadcastMayBeCombinedWithOtherDimensions) {
  const Signature s = MustParse("x: in f32[*S~, K], out: out f32[*S]");
  EXPECT_TRUE(Match(s, {F32({1, 5, 9}), F32({4, 5})}).ok());
  EXPECT_TRUE(Match(s, {F32({9}), F32({4, 5})}).ok());
  EXPECT_FALSE(Match(s, {F32({4, 9}), F32({4, 5})}).ok());
  EXPECT_FALSE(Match(s, {F32({}), F32({4, 5})}).ok());
}

TEST(SignatureTest, OnlyAStridedParameterTakesAStridedView) {
  const Signature s = MustParse("x: in strided f32|f16[*S], out: out f32[*S]");
  EXPECT_TRUE(s.parameters()[0].strided);
  EXPECT_FALSE(s.parameters()[1].strided);
  const std::vector<int64_t> shape = {2, 3};
  const ArgumentType dense = ArgumentType::Tensor(DType::kF32, shape);
  const ArgumentType strided = ArgumentType::Tensor(DType::kF32, shape, /*dense=*/false);
  EXPECT_TRUE(s.Match("op", {strided, dense}).ok());
  const absl::Status refused = s.Match("op", {dense, strided});
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(refused.message(),
            "argument 2 'out' of op is a strided view, but the operator accepts only dense tensors "
            "for it. Fix: leave BufferColumn.strides empty, and copy the elements to a dense "
            "buffer first");
}

// Property: for any shapes of a signature's variables, arguments with these shapes match, and
// arguments in which one dimension of a repeated variable is changed do not match.
TEST(SignatureTest, ArgumentsMadeFromBindingsMatchAndOneChangeDoesNot) {
  const Signature s = MustParse("x: in f32[B, *S], y: in f32[*S], out: out f32[B, *S]");
  std::mt19937 random(11);
  for (int i = 0; i < 2000; ++i) {
    std::vector<int64_t> spread(random() % 7, 0);
    for (int64_t& dim : spread) dim = random() % 5;
    std::vector<int64_t> with_batch = spread;
    with_batch.insert(with_batch.begin(), random() % 5);
    std::vector<TestArgument> arguments = {F32(with_batch), F32(spread), F32(with_batch)};
    ASSERT_TRUE(Match(s, arguments).ok());
    std::vector<int64_t>& changed = arguments[1 + random() % 2].shape;
    if (changed.empty()) continue;
    changed[random() % changed.size()] += 1;
    ASSERT_FALSE(Match(s, arguments).ok());
  }
}

TEST(SignatureTest, ElementCountsThatOverflowAreRefused) {
  EXPECT_EQ(ElementCount({}), 1);
  EXPECT_EQ(ElementCount({3, 0, 5}), 0);
  EXPECT_EQ(ElementCount({int64_t{1} << 40, int64_t{1} << 40}), std::nullopt);
  EXPECT_EQ(ElementCount({0, int64_t{1} << 40, int64_t{1} << 40}), std::nullopt);
  EXPECT_EQ(ElementCount({-1}), std::nullopt);
}

TEST(SignatureTest, ScalarsOutOfRangeDoNotFit) {
  EXPECT_FALSE(ScalarFits(DType::kF32, 1e300));
  EXPECT_TRUE(ScalarFits(DType::kF32, std::nan("")));
  EXPECT_TRUE(ScalarFits(DType::kF32, std::numeric_limits<double>::infinity()));
  EXPECT_FALSE(ScalarFits(DType::kU8, int64_t{-1}));
  EXPECT_TRUE(ScalarFits(DType::kU32, int64_t{4294967295}));
  EXPECT_FALSE(ScalarFits(DType::kI32, int64_t{2147483648}));
}

TEST(SignatureTest, HalfScalarsRoundToNearestEven) {
  EXPECT_EQ(ScalarBits(DType::kF16, 1.0), 0x3c00u);
  EXPECT_EQ(ScalarBits(DType::kF16, -2.0), 0xc000u);
  EXPECT_EQ(ScalarBits(DType::kF16, 65504.0), 0x7bffu);
  EXPECT_EQ(ScalarBits(DType::kF16, 1.0 + 1.0 / 2048), 0x3c00u);
  EXPECT_EQ(ScalarBits(DType::kF16, 2047.9999), 0x6800u);  // Carries into the exponent.
  EXPECT_EQ(ScalarBits(DType::kF16, 5.960464477539063e-08), 0x0001u);
  EXPECT_EQ(ScalarBits(DType::kBF16, 1.0), 0x3f80u);
}

}  // namespace
}  // namespace resident
