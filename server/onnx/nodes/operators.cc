#include "server/onnx/nodes/operators.h"

#include "absl/container/flat_hash_map.h"

namespace resident::onnx {
namespace {

// The function is long because it is the table of all operators.
const absl::flat_hash_map<std::string_view, Map>& Maps() {
  static const auto* const maps = new absl::flat_hash_map<std::string_view, Map>{
      {"Abs", MapUnary},
      {"Add", MapBinary},
      {"And", MapLogical},
      {"ArgMax", MapArg},
      {"ArgMin", MapArg},
      {"Attention", MapAttention},
      {"AveragePool", MapPool},
      {"BatchNormalization", MapBatchNormalization},
      {"Cast", MapCast},
      {"CastLike", MapCast},
      {"Celu", MapActivation},
      {"Clip", MapClip},
      {"Concat", MapConcat},
      {"Conv", MapConv},
      {"ConvTranspose", MapConvTranspose},
      {"Cos", MapUnary},
      {"DepthToSpace", MapDepthAndSpace},
      {"Div", MapBinary},
      {"Dropout", MapIdentity},
      {"Einsum", MapEinsum},
      {"Elu", MapActivation},
      {"Exp", MapUnary},
      {"Expand", MapExpand},
      {"Flatten", MapReshape},
      {"Gather", MapGather},
      {"Gelu", MapActivation},
      {"Gemm", MapGemm},
      {"GlobalAveragePool", MapGlobalPool},
      {"GlobalMaxPool", MapGlobalPool},
      {"GroupNormalization", MapGroupNormalization},
      {"HardSigmoid", MapActivation},
      {"HardSwish", MapUnary},
      {"Identity", MapIdentity},
      {"InstanceNormalization", MapInstanceNormalization},
      {"LayerNormalization", MapLayerNormalization},
      {"LeakyRelu", MapActivation},
      {"Log", MapUnary},
      {"LogSoftmax", MapSoftmax},
      {"LpNormalization", MapLpNormalization},
      {"LpPool", MapPool},
      {"MatMul", MapMatMul},
      {"Max", MapVariadic},
      {"MaxPool", MapPool},
      {"Mean", MapVariadic},
      {"MeanVarianceNormalization", MapMeanVarianceNormalization},
      {"Min", MapVariadic},
      {"Mish", MapComposed},
      {"Mul", MapBinary},
      {"Neg", MapUnary},
      {"Not", MapLogical},
      {"Or", MapLogical},
      {"PRelu", MapComposed},
      {"Pad", MapPad},
      {"Pow", MapPow},
      {"RMSNormalization", MapRmsNormalization},
      {"Reciprocal", MapComposed},
      {"ReduceL1", MapReduce},
      {"ReduceL2", MapReduce},
      {"ReduceLogSum", MapReduce},
      {"ReduceLogSumExp", MapReduce},
      {"ReduceMax", MapReduce},
      {"ReduceMean", MapReduce},
      {"ReduceMin", MapReduce},
      {"ReduceSum", MapReduce},
      {"ReduceSumSquare", MapReduce},
      {"Relu", MapUnary},
      {"Reshape", MapReshape},
      {"Resize", MapResize},
      {"RotaryEmbedding", MapRotaryEmbedding},
      {"Selu", MapActivation},
      {"Shape", MapShape},
      {"Sigmoid", MapUnary},
      {"Sin", MapUnary},
      {"Size", MapShape},
      {"Slice", MapSlice},
      {"Softmax", MapSoftmax},
      {"Softplus", MapActivation},
      {"Softsign", MapComposed},
      {"SpaceToDepth", MapDepthAndSpace},
      {"Split", MapSplit},
      {"Sqrt", MapUnary},
      {"Squeeze", MapSqueeze},
      {"Sub", MapBinary},
      {"Sum", MapVariadic},
      {"Swish", MapComposed},
      {"Tan", MapComposed},
      {"Tanh", MapUnary},
      {"Tile", MapTile},
      {"Transpose", MapTranspose},
      {"Unsqueeze", MapUnsqueeze},
      {"Upsample", MapResize},
      {"Xor", MapLogical},
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
      {"ZipMap", kMaps},
      {"DictVectorizer", kMaps},
      {"CastMap", kMaps},
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
  const auto found = Maps().find(op);
  return found == Maps().end() ? nullptr : found->second;
}

Refusal FindRefusal(std::string_view op) {
  const auto found = Refusals().find(op);
  return found == Refusals().end() ? Refusal{301, "this operator is not supported"} : found->second;
}

}  // namespace resident::onnx
