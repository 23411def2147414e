// Each code is found in a graph that has exactly one thing wrong, and the graph without it is
// accepted.
#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/graph/finding.h"
#include "runtime/graph/limits.h"
#include "tests/graph/graph_maker.h"

namespace resident::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Codes that a test of this program has found, for the last test.
std::set<int>& Found() {
  static std::set<int>* const found = new std::set<int>;
  return *found;
}

// Expects exactly this code, and that every message says what to do. Returns the first finding.
v1::GraphFinding ExpectOnly(const GraphMaker& g, int code, const graph::DeviceLimit& limit = {}) {
  const v1::GraphReport report = g.Validate(/*dependencies=*/false, limit);
  EXPECT_THAT(ErrorCodes(report), ElementsAre(code)) << FindingsText(report);
  EXPECT_FALSE(report.accepted());
  for (const v1::GraphFinding& finding : report.findings()) {
    EXPECT_THAT(finding.message(), HasSubstr("Fix: "));
  }
  Found().insert(code);
  return report.findings_size() > 0 ? report.findings(0) : v1::GraphFinding();
}

void ExpectAccepted(const GraphMaker& g, const graph::DeviceLimit& limit = {}) {
  const v1::GraphReport report = g.Validate(/*dependencies=*/false, limit);
  EXPECT_THAT(ErrorCodes(report), IsEmpty()) << FindingsText(report);
  EXPECT_TRUE(report.accepted());
}

// y = relu(x), through an activation.
GraphMaker Chain() {
  GraphMaker g;
  g.Input("x", {4, 8}).Activation("a", {4, 8}).Output("y", {4, 8});
  g.Call("relu", {"x", "a"}).Call("silu", {"a", "y"});
  return g;
}

// One step of a decoder's attention over a cache.
GraphMaker Decode() {
  GraphMaker g;
  g.Scalar("pos", 0, 15);
  g.Input("q", {1, 2, 1, 4}).Input("new", {1, 2, 1, 4}).State("cache", {1, 2, 16, 4});
  g.Tensor(v1::GraphTensor::KIND_OUTPUT, "y", {1, 2, 1, 4});
  g.Call("kv_append", {"new", "cache", S("pos")});
  g.Call("attention", {"q", "cache", "cache", None(), "y", F(0.5), I(0), S("pos", 1, 1)});
  return g;
}

TEST(GraphCodesTest, ChainAndDecodeStepAreAccepted) {
  ExpectAccepted(Chain());
  ExpectAccepted(Decode());
}

TEST(GraphCodesTest, FormatVersion) {
  GraphMaker g = Chain();
  g.graph.set_format(2);
  ExpectOnly(g, 102);
}

TEST(GraphCodesTest, DuplicateNames) {
  GraphMaker tensors = Chain();
  tensors.Input("x", {1});
  EXPECT_THAT(ExpectOnly(tensors, 103).message(), HasSubstr("tensors 0 and 3"));
  GraphMaker nodes = Chain();
  nodes.node(1).set_name(nodes.node(0).name());
  ExpectOnly(nodes, 103);
  GraphMaker scalars = Chain();
  scalars.Scalar("s", 0, 1).Scalar("s", 0, 1);
  ExpectOnly(scalars, 103);
}

TEST(GraphCodesTest, UnknownNames) {
  GraphMaker tensor = Chain();
  tensor.node(1).mutable_arguments(0)->mutable_tensor()->set_name("b");
  EXPECT_EQ(ExpectOnly(tensor, 104).node(), "silu1");
  GraphMaker op = Chain();
  op.node(0).set_operator_("rellu");
  ExpectOnly(op, 104);
  GraphMaker version = Chain();
  version.node(0).set_version(7);
  EXPECT_THAT(ExpectOnly(version, 104).message(), HasSubstr("version 7"));
  GraphMaker scalar = Decode();
  scalar.node(0).mutable_arguments(2)->mutable_scalar()->set_name("position");
  ExpectOnly(scalar, 104);
  GraphMaker counter = Chain();
  counter.Signal(3);
  ExpectOnly(counter, 104);
  GraphMaker dtype = Chain();
  dtype.tensor(1).set_dtype(static_cast<v1::DType>(99));
  ExpectOnly(dtype, 104);
  GraphMaker kind = Chain();
  kind.tensor(1).clear_kind();
  ExpectOnly(kind, 104);
}

TEST(GraphCodesTest, IdThatIsNotTheIndex) {
  GraphMaker g = Chain();
  g.node(1).set_id(2);
  ExpectOnly(g, 105);
  g.node(1).set_id(1);
  g.tensor(2).set_id(2);
  ExpectAccepted(g);
  g.tensor(2).set_id(0);
  ExpectOnly(g, 105);
}

TEST(GraphCodesTest, OverALimit) {
  GraphMaker rank = Chain();
  for (int i = 0; i < 9; ++i) rank.tensor(0).add_shape()->set_size(1);
  ExpectOnly(rank, 106);
  GraphMaker name = Chain();
  name.graph.mutable_nodes(0)->set_name(std::string(graph::kMaxNameBytes + 1, 'n'));
  ExpectOnly(name, 106);
  GraphMaker scalars = Chain();
  for (uint32_t i = 0; i <= graph::kMaxScalars; ++i) scalars.Scalar("s" + std::to_string(i), 0, 1);
  ExpectOnly(scalars, 106);
}

// A graph whose accesses are too many to look at is refused as a whole, not checked in part.
TEST(GraphCodesTest, TooManyPiecesOfMemory) {
  GraphMaker g;
  g.Input("x", {1 << 27, 2}).Output("y", {1 << 27});
  g.Call("relu", {View("x", {1 << 27}, 0, {2}), "y"});
  ExpectAccepted(g);  // An input needs no history.
  g.tensor(0).set_kind(v1::GraphTensor::KIND_STATE);
  ExpectOnly(g, 106);
}

TEST(GraphCodesTest, Empty) {
  ExpectOnly(GraphMaker(), 107);
  GraphMaker name = Chain();
  name.Input("", {1});
  ExpectOnly(name, 107);
  GraphMaker loop = Chain();
  loop.graph.mutable_loop();
  ExpectOnly(loop, 107);
}

TEST(GraphCodesTest, FieldThatTheDaemonDoesNotKnow) {
  GraphMaker g = Chain();
  std::string bytes = g.graph.nodes(0).SerializeAsString();
  bytes += "\xf8\x06\x01";  // Field 111 with the value 1.
  ASSERT_TRUE(g.node(0).ParseFromString(bytes));
  EXPECT_THAT(ExpectOnly(g, 108).message(), HasSubstr("111"));
}

TEST(GraphCodesTest, ZeroOrNegativeDimension) {
  for (const int64_t size : {int64_t{0}, int64_t{-1}, std::numeric_limits<int64_t>::min()}) {
    GraphMaker g = Chain();
    g.tensor(0).mutable_shape(0)->set_size(size);
    EXPECT_EQ(ExpectOnly(g, 201).tensor(), "x");
  }
  GraphMaker both = Chain();
  both.Scalar("n", 1, 4);
  both.tensor(0).mutable_shape(0)->set_scalar("n");
  ExpectOnly(both, 201);
  GraphMaker zero = Chain();
  zero.Scalar("n", 0, 4);
  zero.tensor(0).mutable_shape(0)->clear_size();
  zero.tensor(0).mutable_shape(0)->set_scalar("n");
  ExpectOnly(zero, 201);
}

TEST(GraphCodesTest, SizeThatOverflows) {
  for (const int64_t size : {std::numeric_limits<int64_t>::max(), int64_t{1} << 59}) {
    GraphMaker g = Chain();
    g.tensor(0).mutable_shape(0)->set_size(size);
    ExpectOnly(g, 202);
  }
  GraphMaker strides = Chain();
  strides.tensor(0).add_strides(std::numeric_limits<int64_t>::max());
  strides.tensor(0).add_strides(1);
  ExpectOnly(strides, 202);
  GraphMaker sum = Chain();
  for (int i = 0; i < 20; ++i) sum.Input("huge" + std::to_string(i), {int64_t{1} << 55});
  ExpectOnly(sum, 202);
}

TEST(GraphCodesTest, ViewOutsideOfItsTensor) {
  const auto with_view = [](Arg view) {
    GraphMaker g;
    g.Input("x", {4, 8}).Output("y", {2, 8});
    g.Call("relu", {std::move(view), "y"});
    return g;
  };
  ExpectAccepted(with_view(View("x", {2, 8}, 16)));
  ExpectOnly(with_view(View("x", {2, 8}, 17)), 203);
  ExpectOnly(with_view(View("x", {2, 8}, -1)), 203);
  ExpectOnly(with_view(View("x", {2, 8}, 0, {25, 1})), 203);
  ExpectAccepted(with_view(View("x", {2, 8}, 31, {-8, -1})));
  ExpectOnly(with_view(View("x", {2, 8}, 14, {-8, -1})), 203);
  ExpectOnly(with_view(View("x", {2, 8}, std::numeric_limits<int64_t>::max())), 203);
  ExpectOnly(with_view(View("x", {2, 8}, std::numeric_limits<int64_t>::min())), 203);
}

TEST(GraphCodesTest, AliasOutsideOfItsTensor) {
  GraphMaker g = Chain();
  g.Alias(v1::GraphTensor::KIND_ACTIVATION, "low", "a", {2, 8}, 64);
  ExpectAccepted(g);
  g.tensor(3).set_offset(68);
  ExpectOnly(g, 203);
  GraphMaker negative = Chain();
  negative.tensor(0).add_strides(-8);
  negative.tensor(0).add_strides(1);
  ExpectOnly(negative, 203);
  negative.tensor(0).set_offset(3 * 8 * 4);
  ExpectAccepted(negative);
}

TEST(GraphCodesTest, PositionAtOrBeyondTheCapacity) {
  GraphMaker g = Decode();
  g.graph.mutable_scalars(0)->set_most(16);
  EXPECT_EQ(ExpectOnly(g, 203).tensor(), "cache");
  GraphMaker constant = Decode();
  constant.node(0).mutable_arguments(2)->set_i64(16);
  ExpectOnly(constant, 203);
  constant.node(0).mutable_arguments(2)->set_i64(-1);
  ExpectOnly(constant, 203);
}

TEST(GraphCodesTest, MisalignedOffset) {
  GraphMaker g = Chain();
  g.tensor(0).set_offset(2);
  ExpectOnly(g, 204);
  GraphMaker stream;
  stream.Input("x", {4}).Tensor(v1::GraphTensor::KIND_STREAM, "s", {8, 4});
  stream.Call("relu", {"x", "s"});
  ExpectAccepted(stream);
  stream.tensor(1).set_offset(8);
  ExpectOnly(stream, 204);
}

TEST(GraphCodesTest, DTypeThatTheOperatorDoesNotTake) {
  GraphMaker g = Chain();
  g.tensor(1).set_dtype(v1::DTYPE_I32);
  EXPECT_THAT(ExpectOnly(g, 205).message(), HasSubstr("i32"));
}

TEST(GraphCodesTest, NumberOfDimensions) {
  GraphMaker g;
  g.Input("a", {4}).Input("b", {4, 4}).Output("c", {4, 4});
  g.Call("gemm", {"a", "b", "c"});
  ExpectOnly(g, 206);
  GraphMaker strides = Chain();
  strides.tensor(0).add_strides(1);
  ExpectOnly(strides, 206);
}

TEST(GraphCodesTest, ShapeThatDisagreesWithTheSignature) {
  GraphMaker g;  // K is larger than the input.
  g.Input("x", {1, 8}).Weight("w", {16, 12}).Output("y", {1, 16});
  g.Call("gemv", {"x", "w", None(), "y"});
  EXPECT_THAT(ExpectOnly(g, 207).message(), HasSubstr("K"));
  g.tensor(1).mutable_shape(1)->set_size(8);
  ExpectAccepted(g);
  g.tensor(1).add_strides(1);  // Not dense.
  g.tensor(1).add_strides(16);
  ExpectOnly(g, 207);
}

TEST(GraphCodesTest, DynamicDimensionAgreesOnlyAtItsBound) {
  GraphMaker g;
  g.Scalar("n", 1, 4).Input("x", {D("n"), 8}).Output("y", {4, 8}).Call("relu", {"x", "y"});
  EXPECT_THAT(ExpectOnly(g, 207).message(), HasSubstr("largest values"));
  g.tensor(1).mutable_shape(0)->clear_size();
  g.tensor(1).mutable_shape(0)->set_scalar("n");
  ExpectAccepted(g);
}

TEST(GraphCodesTest, ElementsOfAnOutputThatCoincide) {
  GraphMaker g;
  g.Input("x", {4, 8}).Output("y", {4, 8});
  g.Call("relu", {"x", View("y", {4, 8}, 0, {0, 1})});
  ExpectOnly(g, 208);
  // Interleaved strides, with and without a common element: tasks are refused for both.
  GraphMaker interleaved;
  interleaved.Input("x", {2, 3}).State("y", {8});
  interleaved.Call("relu", {"x", View("y", {2, 3}, 0, {3, 2})});
  ExpectOnly(interleaved, 208);
  interleaved.node(0).mutable_arguments(1)->mutable_tensor()->set_strides(0, 2);
  ExpectOnly(interleaved, 208);
  interleaved.node(0).mutable_arguments(1)->mutable_tensor()->set_strides(0, 4);
  interleaved.node(0).mutable_arguments(1)->mutable_tensor()->set_strides(1, 1);
  ExpectAccepted(interleaved);
}

TEST(GraphCodesTest, NegativeStrideOfAnOutput) {
  GraphMaker g;
  g.Input("x", {4, 8}).Output("y", {4, 8});
  g.Call("relu", {"x", View("y", {4, 8}, 24, {-8, 1})});
  EXPECT_THAT(ExpectOnly(g, 213).message(), HasSubstr("stride -8"));
  // An input may be read backwards.
  GraphMaker reversed;
  reversed.Input("x", {4, 8}).Output("y", {4, 8});
  reversed.Call("relu", {View("x", {4, 8}, 24, {-8, 1}), "y"});
  ExpectAccepted(reversed);
}

TEST(GraphCodesTest, AliasOfAnotherKind) {
  GraphMaker g = Chain();
  g.Alias(v1::GraphTensor::KIND_STATE, "s", "a", {4});
  ExpectOnly(g, 209);
  GraphMaker twice = Chain();
  twice.Alias(v1::GraphTensor::KIND_ACTIVATION, "b", "a", {4})
      .Alias(v1::GraphTensor::KIND_ACTIVATION, "c", "b", {4});
  ExpectOnly(twice, 209);
  GraphMaker itself = Chain();
  itself.Alias(v1::GraphTensor::KIND_ACTIVATION, "b", "b", {4});
  ExpectOnly(itself, 209);
}

TEST(GraphCodesTest, DynamicDimensionWithoutBound) {
  GraphMaker g;
  g.Scalar("n", 1, std::numeric_limits<double>::infinity());
  g.Input("x", {D("n")}).Output("y", {D("n")}).Call("relu", {"x", "y"});
  ExpectOnly(g, 210);
}

TEST(GraphCodesTest, NotANumber) {
  GraphMaker g;
  g.Input("x", {4}).Output("y", {4}).Call("scale", {"x", "y", F(std::nan(""))});
  ExpectOnly(g, 211);
  GraphMaker scalar = Chain();
  scalar.Scalar("s", std::nan(""), 1);
  ExpectOnly(scalar, 211);
  GraphMaker factor = Decode();
  factor.node(0).mutable_arguments(2)->mutable_scalar()->set_factor(
      std::numeric_limits<double>::infinity());
  ExpectOnly(factor, 211);
}

TEST(GraphCodesTest, ScalarOutsideOfItsRange) {
  GraphMaker g = Chain();
  g.Scalar("s", 0, 7);
  g.graph.mutable_scalars(0)->set_initial(8);
  ExpectOnly(g, 212);
  GraphMaker exchanged = Chain();
  exchanged.Scalar("s", 7, 0);
  ExpectOnly(exchanged, 212);
  GraphMaker fraction = Chain();
  fraction.Scalar("s", 0, 1.5);
  ExpectOnly(fraction, 212);
  GraphMaker fits;
  fits.Input("x", {4}).Output("y", {4}).Call("scale", {"x", "y", F(1e300)});
  ExpectOnly(fits, 212);
  GraphMaker half = Decode();
  half.node(0).mutable_arguments(2)->mutable_scalar()->set_factor(0.5);
  ExpectOnly(half, 212);
}

TEST(GraphCodesTest, NumberOfArguments) {
  GraphMaker few = Chain();
  few.node(0).mutable_arguments()->RemoveLast();
  ExpectOnly(few, 301);
  GraphMaker many = Chain();
  *many.node(0).add_arguments() = Arg("x").message;
  ExpectOnly(many, 301);
}

TEST(GraphCodesTest, ArgumentThatIsMissingOrUnknown) {
  GraphMaker g;
  g.Input("x", {4}).Input("y", {4}).Output("z", {4});
  g.Call("add", {"x", Named("out", "z"), Named("y", "y"), Named("alpha", F(2))});
  ExpectAccepted(g);
  g.node(0).mutable_arguments(1)->set_parameter("output");
  ExpectOnly(g, 302);
  g.node(0).mutable_arguments(1)->set_parameter("x");
  ExpectOnly(g, 302);
  GraphMaker kind;
  kind.Input("x", {4}).Output("y", {4}).Call("scale", {"x", "y", "x"});
  ExpectOnly(kind, 302);
  GraphMaker tensor = Chain();
  *tensor.node(0).mutable_arguments(0) = F(1).message;
  ExpectOnly(tensor, 302);
  *tensor.node(0).mutable_arguments(0) = None().message;
  ExpectOnly(tensor, 302);
}

TEST(GraphCodesTest, ScalarOfTheWrongDType) {
  GraphMaker g;
  g.Input("x", {4}).Output("y", {4}).Call("scale", {"x", "y", I(2)});
  ExpectOnly(g, 303);
  GraphMaker pos = Decode();
  pos.graph.mutable_scalars(0)->set_dtype(v1::DTYPE_F32);
  ExpectOnly(pos, 303);
}

TEST(GraphCodesTest, OperatorThatGraphsCannotCall) {
  GraphMaker g;
  g.Input("x", {4}).Input("y", {4}).Call("compare", {"x", "y"});
  ExpectOnly(g, 304);
}

TEST(GraphCodesTest, ReadBeforeAnyWrite) {
  GraphMaker g = Chain();
  g.graph.mutable_nodes()->SwapElements(0, 1);
  const v1::GraphFinding finding = ExpectOnly(g, 401);
  EXPECT_EQ(finding.node(), "silu1");
  EXPECT_EQ(finding.tensor(), "a");
  // In place on memory without values. kv_append reads nothing, and gemm with beta = 0 neither.
  GraphMaker product;
  product.Input("a", {4, 4}).Output("c", {4, 4}).Call("gemm", {"a", "a", "c"});
  ExpectAccepted(product);
  *product.node(0).add_arguments() = F(1).message;
  *product.node(0).add_arguments() = F(1).message;
  ExpectOnly(product, 401);
}

TEST(GraphCodesTest, WriteToAWeightConstantOrInput) {
  for (const auto kind :
       {v1::GraphTensor::KIND_WEIGHT, v1::GraphTensor::KIND_CONST, v1::GraphTensor::KIND_INPUT}) {
    GraphMaker g = Chain();
    g.Tensor(kind, "r", {4, 8}).Call("relu", {"a", "r"});
    EXPECT_EQ(ExpectOnly(g, 402).tensor(), "r");
  }
}

TEST(GraphCodesTest, OutputThatIsNeverWritten) {
  GraphMaker g = Chain();
  g.Output("z", {4});
  EXPECT_EQ(ExpectOnly(g, 403).tensor(), "z");
}

TEST(GraphCodesTest, TensorWrittenInPart) {
  GraphMaker tiles;  // Four tiles of columns.
  tiles.Input("x", {6, 4}).Output("y", {6, 16});
  for (int64_t t = 0; t < 4; ++t) tiles.Call("relu", {"x", View("y", {6, 4}, 4 * t)});
  ExpectAccepted(tiles);
  tiles.graph.mutable_nodes()->DeleteSubrange(2, 1);
  EXPECT_EQ(ExpectOnly(tiles, 404).tensor(), "y");
  GraphMaker read;
  read.Input("x", {2, 8}).Activation("a", {4, 8}).Output("y", {4, 8});
  read.Call("relu", {"x", View("a", {2, 8})}).Call("silu", {"a", "y"});
  EXPECT_EQ(ExpectOnly(read, 404).node(), "silu1");
}

TEST(GraphCodesTest, DynamicWriteDoesNotCoverAFixedRead) {
  GraphMaker g;
  g.Scalar("n", 1, 4).Input("x", {D("n"), 8}).Activation("a", {4, 8}).Output("y", {4, 8});
  g.Call("relu", {"x", View("a", {D("n"), 8})}).Call("silu", {"a", "y"});
  EXPECT_THAT(ExpectOnly(g, 404).message(), HasSubstr("n = 1"));
}

TEST(GraphCodesTest, OneNodeWritesTwice) {
  GraphMaker g;
  g.Input("x", {4, 8}).Input("r", {4, 8}).Weight("w", {8}).State("s", {4, 8}).State("h", {4, 8});
  g.Call("rmsnorm_residual", {"x", "r", "w", "s", "h", F(1e-5)});
  ExpectAccepted(g);
  g.node(0).mutable_arguments(4)->mutable_tensor()->set_name("s");
  ExpectOnly(g, 405);
}

TEST(GraphCodesTest, InPlaceWhereTheOperatorForbidsIt) {
  GraphMaker g;
  g.State("s", {4, 8}).Call("relu", {"s", "s"});
  ExpectOnly(g, 406);
  GraphMaker halves;  // Two tiles of columns of one tensor.
  halves.State("s", {4, 8}).Call("relu", {View("s", {4, 4}), View("s", {4, 4}, 4)});
  ExpectAccepted(halves);
  halves.node(0).mutable_arguments(1)->mutable_tensor()->set_offset(3);
  ExpectOnly(halves, 406);
}

TEST(GraphCodesTest, StateReadAheadOfItsRow) {
  GraphMaker g = Decode();
  g.graph.mutable_nodes()->SwapElements(0, 1);
  const v1::GraphFinding finding = ExpectOnly(g, 407);
  EXPECT_EQ(finding.node(), "attention1");
  EXPECT_EQ(finding.tensor(), "cache");
  // Rows of earlier steps only.
  g.node(0).mutable_arguments(7)->mutable_scalar()->set_addend(0);
  ExpectAccepted(g);
}

TEST(GraphCodesTest, DeadNodeIsAWarning) {
  GraphMaker g = Chain();
  g.Activation("unused", {4, 8}).Call("neg", {"x", "unused"});
  const v1::GraphReport report = g.Validate();
  EXPECT_TRUE(report.accepted());
  EXPECT_THAT(WarningCodes(report), ElementsAre(408)) << FindingsText(report);
  EXPECT_EQ(report.findings(0).node(), "neg2");
  Found().insert(408);
}

// x -> a -> y with counter 0 between the two nodes.
GraphMaker Counted() {
  GraphMaker g = Chain();
  g.Counters(2).Wait(0);
  g.node(0).set_signals(0);
  return g;
}

TEST(GraphCodesTest, CycleOfWaits) {
  GraphMaker g = Counted();
  ExpectAccepted(g);
  g.node(0).add_waits()->set_counter(1);
  g.node(0).mutable_waits(0)->set_threshold(1);
  g.node(1).set_signals(1);
  EXPECT_THAT(ExpectOnly(g, 501).message(), HasSubstr("relu0 after silu1 after relu0"));
}

TEST(GraphCodesTest, WaitWithoutProducer) {
  GraphMaker g = Counted();
  g.Wait(1);
  ExpectOnly(g, 502);
}

TEST(GraphCodesTest, ThresholdAboveTheProducers) {
  GraphMaker g = Counted();
  g.node(1).mutable_waits(0)->set_threshold(2);
  ExpectOnly(g, 503);
}

// Two tiles that signal one counter, and their reader.
GraphMaker SharedCounter() {
  GraphMaker g;
  g.Input("x", {4, 4}).Activation("a", {4, 8}).Output("y", {4, 8}).Counters(1);
  g.Call("relu", {"x", View("a", {4, 4})}).Signal(0);
  g.Call("relu", {"x", View("a", {4, 4}, 4)}).Signal(0);
  g.Call("silu", {"a", "y"}).Wait(0, 2);
  return g;
}

TEST(GraphCodesTest, PartialWait) {
  GraphMaker g = SharedCounter();
  ExpectAccepted(g);
  g.node(2).mutable_waits(0)->set_threshold(1);
  ExpectOnly(g, 504);
}

TEST(GraphCodesTest, WaitForItself) {
  GraphMaker g = Counted();
  g.Wait(1).Signal(1);
  ExpectOnly(g, 505);
}

TEST(GraphCodesTest, CounterThatStartsAboveZero) {
  GraphMaker g = Counted();
  g.graph.mutable_counters(0)->set_initial(1);
  ExpectOnly(g, 506);
}

TEST(GraphCodesTest, ReadThatIsNotOrdered) {
  GraphMaker g = Counted();
  g.node(1).clear_waits();
  EXPECT_EQ(ExpectOnly(g, 507).node(), "silu1");
}

TEST(GraphCodesTest, OverwriteThatIsNotOrdered) {
  GraphMaker g;
  g.Input("x", {4}).State("s", {4}).Output("y", {4}).Counters(1);
  g.Call("relu", {"s", "y"}).Signal(0).Call("silu", {"x", "s"}).Wait(0);
  ExpectAccepted(g);
  g.node(1).clear_waits();
  ExpectOnly(g, 508);
}

TEST(GraphCodesTest, WritesThatAreNotOrdered) {
  GraphMaker g;
  g.Input("x", {4}).State("s", {4}).Counters(1);
  g.Call("relu", {"x", "s"}).Signal(0).Call("silu", {"x", "s"}).Wait(0);
  ExpectAccepted(g);
  g.node(1).clear_waits();
  ExpectOnly(g, 509);
  // More than 8,000 of them, all in one class: every pair is found.
  for (int i = 0; i < 9000; ++i) g.Call("silu", {"x", "s"});
  const v1::GraphReport report = g.Validate();
  EXPECT_THAT(ErrorCodes(report), ElementsAre(509));
  EXPECT_EQ(report.errors(), 9001u);
  EXPECT_EQ(report.findings_size(), 100);
}

// The waits alone and the blocks alone are possible, but not both.
TEST(GraphCodesTest, JointCycleOfWaitsAndBlocks) {
  GraphMaker g;
  g.Input("x", {4}).Output("a", {4}).Output("b", {4}).Counters(1);
  g.Call("relu", {"x", "a"}).Wait(0).Block(0).Call("relu", {"x", "b"}).Signal(0).Block(1);
  g.graph.set_blocks(2);
  ExpectAccepted(g);
  g.node(1).set_block(0);
  EXPECT_THAT(ExpectOnly(g, 510).message(), HasSubstr("relu0 after relu1"));
}

TEST(GraphCodesTest, BlockOutOfRange) {
  GraphMaker g = Chain();
  g.graph.set_blocks(2);
  g.node(0).set_block(0);
  g.node(1).set_block(0);
  ExpectAccepted(g);  // One block executes in order.
  g.node(1).set_block(2);
  ExpectOnly(g, 511);
  g.node(1).clear_block();
  ExpectOnly(g, 511);
  g.graph.set_blocks(0);
  ExpectOnly(g, 511);
}

TEST(GraphCodesTest, TooManyWaits) {
  GraphMaker g = Counted();
  for (int i = 0; i < 8; ++i) g.Wait(0);
  ExpectOnly(g, 512);
}

TEST(GraphCodesTest, StepThatIsNotOrderedAfterTheStepBefore) {
  GraphMaker g = Chain();  // Two blocks: relu0 may overwrite `a` while silu1 still reads it.
  g.Counters(1);
  g.graph.set_blocks(2);
  g.graph.mutable_loop()->set_max_steps(8);
  g.node(0).set_signals(0);
  g.node(0).set_block(0);
  g.node(1).set_block(1);
  g.Wait(0);
  EXPECT_EQ(ExpectOnly(g, 601).node(), "relu0");
  g.graph.clear_loop();
  ExpectAccepted(g);
  g.graph.mutable_loop()->set_max_steps(8);
  g.node(1).set_block(0);
  ExpectAccepted(g);
}

// The first write of a step conflicts with the last one of the step before, although neither
// depends on the other within a step.
TEST(GraphCodesTest, StepEdgeBetweenTheFirstAndTheLastOfThreeWriters) {
  GraphMaker g;
  g.Input("x", {4}).State("s", {4}).Counters(2);
  g.Call("relu", {"x", "s"}).Signal(0).Block(0);
  g.Call("silu", {"x", "s"}).Wait(0).Signal(1).Block(0);
  g.Call("neg", {"x", "s"}).Wait(1).Block(1);
  g.graph.set_blocks(2);
  ExpectAccepted(g);
  g.graph.mutable_loop()->set_max_steps(2);
  EXPECT_EQ(ExpectOnly(g, 601).node(), "relu0");
}

GraphMaker Sampling() {
  GraphMaker g;
  g.Input("logits", {1, 32}).Tensor(v1::GraphTensor::KIND_STREAM, "token", {16, 1}, v1::DTYPE_I64);
  g.Call("sample", {"logits", "token", F(0), I(1), I(0)});
  g.graph.mutable_loop()->set_max_steps(16);
  g.graph.mutable_loop()->mutable_stop()->set_tensor("token");
  g.graph.mutable_loop()->mutable_stop()->add_values(2);
  return g;
}

TEST(GraphCodesTest, StopThatIsNotAToken) {
  ExpectAccepted(Sampling());
  GraphMaker input = Sampling();
  input.graph.mutable_loop()->mutable_stop()->set_tensor("logits");
  ExpectOnly(input, 602);
  GraphMaker written = Sampling();
  written.Tensor(v1::GraphTensor::KIND_STATE, "flag", {}, v1::DTYPE_I64);
  written.graph.mutable_loop()->mutable_stop()->set_tensor("flag");
  EXPECT_THAT(ExpectOnly(written, 602).message(), HasSubstr("no node writes"));
}

TEST(GraphCodesTest, UpdateThatLeavesTheRange) {
  const auto loop = [](uint64_t steps, std::optional<double> initial) {
    GraphMaker g = Decode();
    g.graph.mutable_loop()->set_max_steps(steps);
    v1::GraphUpdate& update = *g.graph.mutable_loop()->add_updates();
    update.set_scalar("pos");
    update.set_addend(1);
    if (initial.has_value()) g.graph.mutable_scalars(0)->set_initial(*initial);
    return g;
  };
  ExpectAccepted(loop(16, 0));
  EXPECT_THAT(ExpectOnly(loop(16, 1), 603).message(), HasSubstr("after 15 updates"));
  ExpectAccepted(loop(16, std::nullopt));
  ExpectOnly(loop(17, std::nullopt), 603);
  ExpectOnly(loop(uint64_t{1} << 20, std::nullopt), 603);
}

TEST(GraphCodesTest, MoreStepsThanRecords) {
  GraphMaker g = Sampling();
  g.graph.mutable_loop()->set_max_steps(17);
  ExpectOnly(g, 604);
}

// Tensors begin at multiples of 256 bytes.
TEST(GraphCodesTest, MoreMemoryThanADeviceHas) {
  GraphMaker g = Chain();
  g.Activation("b", {100}).Call("fill", {"b", F(1)}).Call("relu", {View("b", {4, 8}), "y"});
  ExpectAccepted(g, {.bytes = 256 + 512});
  EXPECT_THAT(ExpectOnly(g, 701, {.bytes = 256 + 511}).message(),
              AllOf(HasSubstr("needs 768 bytes"), HasSubstr("768 bytes for activations"),
                    HasSubstr("the largest device has 767 bytes")));
  // An alias needs no memory.
  g.Alias(v1::GraphTensor::KIND_ACTIVATION, "c", "b", {50});
  ExpectAccepted(g, {.bytes = 768});
  // Whatever the number of steps is, a stream needs memory for one record.
  GraphMaker stream;
  stream.Tensor(v1::GraphTensor::KIND_STREAM, "s", {1000, 64}).Call("fill", {"s", F(1)});
  ExpectAccepted(stream, {.bytes = 256});
  EXPECT_THAT(ExpectOnly(stream, 701, {.bytes = 255}).message(),
              HasSubstr("256 bytes for records of streams"));
}

// A run may bind them to memory that is not the device's.
TEST(GraphCodesTest, StatesAndOutputsCountUnlessTheyMayBeShared) {
  GraphMaker g;
  g.Input("x", {1024}).State("s", {64}).Output("y", {64}).Activation("a", {64});
  g.Call("relu", {View("x", {64}), "a"}).Call("copy", {"a", "s"}).Call("copy", {"a", "y"});
  ExpectAccepted(g, {.bytes = 256, .shared_memory = true});
  ExpectAccepted(g, {.bytes = 768, .shared_memory = false});
  EXPECT_THAT(ExpectOnly(g, 701, {.bytes = 767, .shared_memory = false}).message(),
              AllOf(HasSubstr("256 bytes for states"), HasSubstr("256 bytes for outputs")));
}

TEST(GraphCodesTest, FindingsAreLimitedAndCounted) {
  GraphMaker g;
  g.Input("x", {4});
  for (int i = 0; i < 1000; ++i) g.Call("relu", {"x", "x"});
  const v1::GraphReport report = g.Validate();
  EXPECT_EQ(report.findings_size(), 100);
  EXPECT_GE(report.errors(), 1000u);
}

TEST(GraphCodesTest, DocumentDescribesEveryCode) {
  std::ifstream file("docs/graph_format.md");
  ASSERT_TRUE(file) << "run it from the repository's root";
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  for (const graph::CodeInfo& info : graph::CodeTable()) {
    EXPECT_THAT(text, HasSubstr("\n| " + graph::CodeName(info.code) + " | " + info.title + " | "));
  }
  size_t rows = 0;
  for (size_t at = text.find("\n| GRAPH_E"); at != std::string::npos;
       at = text.find("\n| GRAPH_E", at + 1)) {
    ++rows;
  }
  EXPECT_EQ(rows, graph::CodeTable().size());
}

// 101 belongs to files, and is tested with residentctl; 704 belongs to loaded graphs, and is tested
// in graph_store_test.cc. Runs last.
TEST(GraphCodesTest, ZEveryCodeWasTested) {
  if (::testing::UnitTest::GetInstance()->test_to_run_count() <
      ::testing::UnitTest::GetInstance()->total_test_count()) {
    GTEST_SKIP() << "only some of the tests run";
  }
  for (const graph::CodeInfo& info : graph::CodeTable()) {
    if (info.code == graph::Code::kUnparsable || info.code == graph::Code::kStale) continue;
    EXPECT_TRUE(Found().contains(static_cast<int>(info.code))) << graph::CodeName(info.code);
  }
}

}  // namespace
}  // namespace resident::testing
