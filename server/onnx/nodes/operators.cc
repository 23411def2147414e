#include "server/onnx/nodes/operators.h"

#include "absl/container/flat_hash_map.h"

namespace resident::onnx {
namespace {

using Table = absl::flat_hash_map<std::string_view, Map>;

// The function is long because it is the table of all element-wise operators.
const Table& ElementwiseMaps() {
  static const auto* const maps = new Table{
      {"Abs", MapUnary},
      {"Acos", MapFunction},
      {"Acosh", MapFunction},
      {"Add", MapBinary},
      {"And", MapLogical},
      {"Asin", MapFunction},
      {"Asinh", MapFunction},
      {"Atan", MapFunction},
      {"Atanh", MapFunction},
      {"BitShift", MapLogical},
      {"BitwiseAnd", MapLogical},
      {"BitwiseNot", MapLogical},
      {"BitwiseOr", MapLogical},
      {"BitwiseXor", MapLogical},
      {"Cast", MapCast},
      {"CastLike", MapCast},
      {"Ceil", MapFunction},
      {"Celu", MapActivation},
      {"Clip", MapClip},
      {"Cos", MapUnary},
      {"Cosh", MapFunction},
      {"Div", MapBinary},
      {"Elu", MapActivation},
      {"Equal", MapComparison},
      {"Erf", MapFunction},
      {"Exp", MapUnary},
      {"Floor", MapFunction},
      {"Gelu", MapActivation},
      {"Greater", MapComparison},
      {"GreaterOrEqual", MapComparison},
      {"HardSigmoid", MapComposed},
      {"HardSwish", MapUnary},
      {"IsInf", MapComposed},
      {"IsNaN", MapComposed},
      {"LeakyRelu", MapActivation},
      {"Less", MapComparison},
      {"LessOrEqual", MapComparison},
      {"Log", MapUnary},
      {"Max", MapVariadic},
      {"Mean", MapVariadic},
      {"Min", MapVariadic},
      {"Mish", MapComposed},
      {"Mod", MapMod},
      {"Mul", MapBinary},
      {"Neg", MapUnary},
      {"Not", MapLogical},
      {"OneHot", MapOneHot},
      {"Or", MapLogical},
      {"PRelu", MapComposed},
      {"Pow", MapPow},
      {"Reciprocal", MapFunction},
      {"Relu", MapUnary},
      {"Round", MapFunction},
      {"Selu", MapActivation},
      {"Shrink", MapComposed},
      {"Sigmoid", MapUnary},
      {"Sign", MapFunction},
      {"Sin", MapUnary},
      {"Sinh", MapFunction},
      {"Softplus", MapActivation},
      {"Softsign", MapComposed},
      {"Sqrt", MapUnary},
      {"Sub", MapBinary},
      {"Sum", MapVariadic},
      {"Swish", MapComposed},
      {"Tan", MapFunction},
      {"Tanh", MapUnary},
      {"ThresholdedRelu", MapComposed},
      {"Trilu", MapTrilu},
      {"Where", MapWhere},
      {"Xor", MapLogical},
  };
  return *maps;
}

// The function is long because it is the table of all other operators.
const Table& OtherMaps() {
  static const auto* const maps = new Table{
      {"ArgMax", MapArg},
      {"ArgMin", MapArg},
      {"Attention", MapAttention},
      {"AveragePool", MapPool},
      {"BatchNormalization", MapBatchNormalization},
      {"Concat", MapConcat},
      {"Conv", MapConv},
      {"ConvTranspose", MapConvTranspose},
      {"DepthToSpace", MapDepthAndSpace},
      {"Dropout", MapIdentity},
      {"Einsum", MapEinsum},
      {"Expand", MapExpand},
      {"EyeLike", MapEyeLike},
      {"Flatten", MapReshape},
      {"Gather", MapGather},
      {"GatherElements", MapGatherElements},
      {"GatherND", MapGatherNd},
      {"Gemm", MapGemm},
      {"GlobalAveragePool", MapGlobalPool},
      {"GlobalMaxPool", MapGlobalPool},
      {"GroupNormalization", MapGroupNormalization},
      {"Identity", MapIdentity},
      {"InstanceNormalization", MapInstanceNormalization},
      {"LayerNormalization", MapLayerNormalization},
      {"LogSoftmax", MapSoftmax},
      {"LpNormalization", MapLpNormalization},
      {"LpPool", MapPool},
      {"MatMul", MapMatMul},
      {"MaxPool", MapPool},
      {"MeanVarianceNormalization", MapMeanVarianceNormalization},
      {"Pad", MapPad},
      {"RMSNormalization", MapRmsNormalization},
      {"ReduceL1", MapReduce},
      {"ReduceL2", MapReduce},
      {"ReduceLogSum", MapReduce},
      {"ReduceLogSumExp", MapReduce},
      {"ReduceMax", MapReduce},
      {"ReduceMean", MapReduce},
      {"ReduceMin", MapReduce},
      {"ReduceSum", MapReduce},
      {"ReduceSumSquare", MapReduce},
      {"Reshape", MapReshape},
      {"Resize", MapResize},
      {"RotaryEmbedding", MapRotaryEmbedding},
      {"Shape", MapShape},
      {"Size", MapShape},
      {"Slice", MapSlice},
      {"Softmax", MapSoftmax},
      {"SpaceToDepth", MapDepthAndSpace},
      {"Split", MapSplit},
      {"Squeeze", MapSqueeze},
      {"Tile", MapTile},
      {"Transpose", MapTranspose},
      {"Unsqueeze", MapUnsqueeze},
      {"Upsample", MapResize},
      {"ai.onnx.ml.ArrayFeatureExtractor", MapArrayFeatureExtractor},
      {"ai.onnx.ml.Binarizer", MapBinarizer},
      {"ai.onnx.ml.Imputer", MapImputer},
      {"ai.onnx.ml.LinearClassifier", MapLinearModel},
      {"ai.onnx.ml.LinearRegressor", MapLinearModel},
      {"ai.onnx.ml.Normalizer", MapNormalizer},
      {"ai.onnx.ml.Scaler", MapScaler},
  };
  return *maps;
}

const absl::flat_hash_map<std::string_view, Refusal>& Refusals() {
  constexpr Refusal kSequence = {202, "sequences and optional values are not supported"};
  constexpr Refusal kMaps = {202,
                             "maps are not supported. Fix: convert with options={'zipmap': False}"};
  constexpr Refusal kIntegers = {203,
                                 "products of integers are not executed. Fix: export in float32"};
  constexpr Refusal kDependsOnValues = {401, "the shape of its output depends on values"};
  constexpr Refusal kLoops = {403, "loops are not supported. Fix: export with the loop unrolled"};
  static const auto* const refusals = new absl::flat_hash_map<std::string_view, Refusal>{
      {"ai.onnx.ml.ZipMap", kMaps},
      {"ai.onnx.ml.DictVectorizer", kMaps},
      {"ai.onnx.ml.CastMap", kMaps},
      {"SequenceAt", kSequence},
      {"SequenceConstruct", kSequence},
      {"SequenceEmpty", kSequence},
      {"SequenceErase", kSequence},
      {"SequenceInsert", kSequence},
      {"SequenceLength", kSequence},
      {"SequenceMap", kSequence},
      {"SplitToSequence", kSequence},
      {"ConcatFromSequence", kSequence},
      {"Optional", kSequence},
      {"OptionalGetElement", kSequence},
      {"OptionalHasElement", kSequence},
      {"ConvInteger", kIntegers},
      {"DynamicQuantizeLinear", kIntegers},
      {"MatMulInteger", kIntegers},
      {"QLinearConv", kIntegers},
      {"QLinearMatMul", kIntegers},
      {"Compress", kDependsOnValues},
      {"NonMaxSuppression", kDependsOnValues},
      {"NonZero", kDependsOnValues},
      {"Unique", kDependsOnValues},
      {"Loop", kLoops},
      {"Scan", kLoops},
  };
  return *refusals;
}

}  // namespace

Map FindMap(std::string_view op) {
  for (const Table* const table : {&ElementwiseMaps(), &OtherMaps()}) {
    const auto found = table->find(op);
    if (found != table->end()) return found->second;
  }
  return nullptr;
}

Refusal FindRefusal(std::string_view op) {
  const auto found = Refusals().find(op);
  return found == Refusals().end() ? Refusal{301, "this operator is not supported"} : found->second;
}

}  // namespace resident::onnx
