#include "runtime/graph/fuse.h"

#include <algorithm>
#include <array>
#include <bit>
#include <iterator>
#include <utility>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "kernels/ops/activation.h"
#include "kernels/ops/fused_operators.h"
#include "runtime/graph/calls.h"
#include "runtime/graph/limits.h"
#include "runtime/graph/region.h"
#include "runtime/graph/values.h"
#include "runtime/model/dtype.h"

namespace resident::graph {
namespace {

// In the order of kNames.
enum class Op : uint8_t {
  kAdd,
  kGelu,
  kGemv,
  kGemvQuant,
  kGemvQuantBias,
  kGemvSiluMul,
  kLinear,
  kMul,
  kRelu,
  kRmsnorm,
  kRmsnormGemv,
  kRmsnormGemvQkv,
  kRmsnormGemvQuant,
  kRmsnormGemvQuantSiluMul,
  kRmsnormGemvSiluMul,
  kRmsnormResidual,
  kSigmoid,
  kSilu,
  kSiluMul,
  kTanh,
  kOther
};
constexpr std::string_view kNames[] = {
    "add",
    "gelu",
    "gemv",
    "gemv_quant",
    "gemv_quant_bias",
    "gemv_silu_mul",
    "linear",
    "mul",
    "relu",
    "rmsnorm",
    "rmsnorm_gemv",
    "rmsnorm_gemv_qkv",
    "rmsnorm_gemv_quant",
    "rmsnorm_gemv_quant_silu_mul",
    "rmsnorm_gemv_silu_mul",
    "rmsnorm_residual",
    "sigmoid",
    "silu",
    "silu_mul",
    "tanh",
};
constexpr size_t kOps = std::size(kNames);
static_assert(kOps == static_cast<size_t>(Op::kOther));
static_assert(kOps <= 32, "Fusion::serving has a bit for each");

// The positions of parameters, as in kernels/ops/builtin_operators.inc:
//
//   add x, y, out, alpha     rmsnorm x, w, out, eps                        silu x, out
//   gemv x, w, bias, out     gemv_quant x, q, scales, zeros, out, group    mul, silu_mul x, y, out
//   rmsnorm_gemv x, norm, w, bias, out, eps          relu, sigmoid, tanh x, out
//   linear x, w, bias, residual, out, activation     gelu x, out, tanh
constexpr uint32_t kAlpha = 3;
constexpr uint32_t kNormOut = 2;
constexpr uint32_t kBias = 2;
constexpr uint32_t kGemvOut = 3;
constexpr uint32_t kResidual = 3;
constexpr uint32_t kLinearOut = 4;
constexpr uint32_t kActivation = 5;
constexpr uint32_t kZeros = 3;
constexpr uint32_t kQuantOut = 4;
constexpr uint32_t kGroup = 5;
constexpr uint32_t kNormedOut = 4;

// Bytes for a use of a tensor, about.
constexpr uint64_t kUseBytes = 32;

using Arguments = absl::InlinedVector<Argument, kMaxArguments>;

// An argument of a node.
struct Use {
  uint32_t node = kNone;
  uint32_t argument = 0;
};

// `node` becomes a call of `op`, and executes the absorbed nodes too.
struct Rewrite {
  uint32_t node = kNone;
  Op op = Op::kOther;
  Arguments arguments;
  absl::InlinedVector<uint32_t, 3> absorbed;
};

Op FindOp(const OperatorInfo& info) {
  if (info.wanted_version != 0) return Op::kOther;
  return static_cast<Op>(std::find(std::begin(kNames), std::end(kNames), info.name) -
                         std::begin(kNames));
}

// By Op: the operator, if its built-in version serves.
using Serving = std::array<std::optional<OperatorInfo>, kOps>;

Serving ListServing(const OperatorCatalog& catalog) {
  Serving serving;
  for (size_t i = 0; i < kOps; ++i) {
    auto info = catalog.Find(std::string(kNames[i]), 0);
    if (info.ok() && info->builtin_serves) serving[i] = *std::move(info);
  }
  return serving;
}

uint32_t ToBits(const Serving& serving) {
  uint32_t bits = 0;
  for (size_t i = 0; i < kOps; ++i) bits |= static_cast<uint32_t>(serving[i].has_value()) << i;
  return bits;
}

class Fuser {
 public:
  // `budget`: has the bytes of the uses.
  Fuser(const Serving& serving, Graph& graph, CheckBudget& budget)
      : serving_(serving), graph_(graph), budget_(budget), removed_(graph.nodes.size()) {
    for (const OperatorInfo& info : graph_.operators) ops_.push_back(FindServingOp(info));
    for (uint32_t node = 0; node < graph_.nodes.size(); ++node) AddUses(node);
  }

  // Whether nodes were fused. Those that are not executed any more are still in the graph.
  bool FuseAll() {
    struct Pattern {
      Op last;  // That of its last node, or of its first one for FuseNorm.
      bool (Fuser::*fuse)(uint32_t node);
    };
    constexpr Pattern kPatterns[] = {{Op::kMul, &Fuser::FuseSiluMul},
                                     {Op::kSiluMul, &Fuser::FuseGated},
                                     {Op::kAdd, &Fuser::FuseSum},
                                     {Op::kRelu, &Fuser::FuseActivation},
                                     {Op::kGelu, &Fuser::FuseActivation},
                                     {Op::kSilu, &Fuser::FuseActivation},
                                     {Op::kSigmoid, &Fuser::FuseActivation},
                                     {Op::kTanh, &Fuser::FuseActivation},
                                     {Op::kRmsnorm, &Fuser::FuseResidualNorm},
                                     {Op::kAdd, &Fuser::FuseResidual},
                                     {Op::kSiluMul, &Fuser::FuseQuantizedGated},
                                     {Op::kRmsnorm, &Fuser::FuseNorm},
                                     {Op::kRmsnormGemv, &Fuser::FuseThree}};
    bool any = false;
    for (const Pattern& pattern : kPatterns) {
      for (uint32_t node = 0; node < graph_.nodes.size(); ++node) {
        if (!budget_.BeginNode(node)) return false;
        if (Is(node, pattern.last)) any |= (this->*pattern.fuse)(node);
      }
    }
    return any;
  }

  // Removes the absorbed nodes, and the operators that no node calls.
  Fusion Finish() {
    Fusion fusion;
    fusion.written_nodes = static_cast<uint32_t>(graph_.nodes.size());
    std::vector<Node> nodes;
    for (uint32_t node = 0; node < graph_.nodes.size(); ++node) {
      if (removed_[node]) continue;
      if (const auto found = absorbed_.find(node); found != absorbed_.end()) {
        std::vector<uint32_t> written = std::move(found->second);
        written.push_back(node);
        std::sort(written.begin(), written.end());
        written.erase(std::unique(written.begin(), written.end()), written.end());
        Fusion::Fused& fused = fusion.fused.emplace_back();
        fused.node = static_cast<uint32_t>(nodes.size());
        for (const uint32_t each : written) {
          fused.written.push_back({each, graph_.nodes[each].name});
        }
      }
      fusion.written.push_back(node);
      nodes.push_back(graph_.nodes[node]);
    }
    std::vector<uint32_t> rows(graph_.operators.size(), kNone);
    std::vector<OperatorInfo> operators;
    for (Node& node : nodes) {
      if (rows[node.op] == kNone) {
        rows[node.op] = static_cast<uint32_t>(operators.size());
        operators.push_back(graph_.operators[node.op]);
      }
      node.op = rows[node.op];
    }
    graph_.nodes = std::move(nodes);
    graph_.operators = std::move(operators);
    return fusion;
  }

 private:
  // --- The graph ---------------------------------------------------------------

  Op FindServingOp(const OperatorInfo& info) const {
    const Op op = FindOp(info);
    return op != Op::kOther && serving_[static_cast<size_t>(op)].has_value() ? op : Op::kOther;
  }

  // Whether the node calls the operator and may be fused.
  bool Is(uint32_t node, Op op) const {
    if (node == kNone || removed_[node]) return false;
    const Node& call = graph_.nodes[node];
    return ops_[call.op] == op && call.wait_count == 0 && call.signals == kNone &&
           call.block == kNone;
  }
  absl::Span<const Argument> ArgumentsOf(uint32_t node) const {
    return graph_.ArgumentsOf(graph_.nodes[node]);
  }
  ParameterKind FindParameterKind(const Use& use) const {
    const OperatorInfo& op = graph_.operators[graph_.nodes[use.node].op];
    return op.signature.parameters()[use.argument].kind;
  }
  bool Writes(const Use& use) const { return FindParameterKind(use) != ParameterKind::kInput; }
  uint32_t RootOf(const Argument& argument) const { return graph_.tensors[argument.tensor].root; }
  // Whether nodes may write its memory.
  bool MayChange(const Argument& argument) const {
    return argument.kind == Argument::Kind::kTensor &&
           !IsReadOnly(graph_.tensors[RootOf(argument)].kind);
  }

  void AddUses(uint32_t node) {
    for (const Argument& argument : ArgumentsOf(node)) {
      if (MayChange(argument)) uses_[RootOf(argument)].insert(node);
    }
  }
  void DropUses(uint32_t index, const Node& node) {
    for (const Argument& argument : graph_.ArgumentsOf(node)) {
      if (MayChange(argument)) uses_[RootOf(argument)].erase(index);
    }
  }

  // Whether two views are the same elements in the same shape.
  bool SameView(const Argument& a, const Argument& b) const {
    return a.kind == Argument::Kind::kTensor && b.kind == a.kind && RootOf(a) == RootOf(b) &&
           a.view.offset == b.view.offset && a.view.dtype == b.view.dtype &&
           SameAxes(a.view, b.view, /*strides=*/true);
  }
  bool SameAxes(const View& a, const View& b, bool strides) const {
    const auto of_a = graph_.AxesOf(a);
    const auto of_b = graph_.AxesOf(b);
    return std::equal(
        of_a.begin(), of_a.end(), of_b.begin(), of_b.end(), [&](const Axis& x, const Axis& y) {
          return x.size == y.size && x.scalar == y.scalar && (!strides || x.stride == y.stride);
        });
  }
  // Whether they may have a byte in common. REQUIRES: both are tensors.
  bool MayOverlap(const Argument& a, const Argument& b) const {
    if (RootOf(a) != RootOf(b)) return false;
    const std::optional<ByteRange> of_a = FindRange(a.view);
    const std::optional<ByteRange> of_b = FindRange(b.view);
    return !of_a.has_value() || !of_b.has_value() ||
           (of_a->low < of_b->high && of_b->low < of_a->high);
  }
  std::optional<ByteRange> FindRange(const View& view) const {
    return FindHull(MaxExtents(graph_, view), view.offset, SizeOf(view.dtype));
  }
  // The node's arguments that may share memory with a tensor.
  template <typename Visit>
  void ForEachOverlap(uint32_t node, const Argument& tensor, Visit visit) const {
    const auto arguments = ArgumentsOf(node);
    for (uint32_t i = 0; i < arguments.size(); ++i) {
      if (arguments[i].kind != Argument::Kind::kTensor) continue;
      if (MayOverlap(arguments[i], tensor)) visit(Use{node, i});
    }
  }

  // The nodes between two others that access the memory of a tensor, in their order, until
  // visit(node) returns false. False: it did, or the check has ended.
  template <typename Visit>
  bool ForEachUser(const Argument& tensor, uint32_t after, uint32_t before, Visit visit) {
    const auto found = uses_.find(RootOf(tensor));
    if (found == uses_.end()) return true;
    for (auto it = found->second.upper_bound(after); it != found->second.end() && *it < before;
         ++it) {
      if (!budget_.Take() || !visit(*it)) return false;
    }
    return true;
  }

  // The node whose output an argument is, without a change by other nodes; kNone: there is none.
  uint32_t FindWriter(const Use& reader) {
    const Argument& value = ArgumentsOf(reader.node)[reader.argument];
    if (!MayChange(value)) return kNone;
    const absl::btree_set<uint32_t>& users = uses_.at(RootOf(value));
    auto it = users.lower_bound(reader.node);
    while (it != users.begin()) {
      --it;
      if (!budget_.Take()) return kNone;
      bool writes = false;
      bool is_output = false;
      ForEachOverlap(*it, value, [&](const Use& use) {
        if (!Writes(use)) return;
        is_output = !writes && FindParameterKind(use) == ParameterKind::kOutput &&
                    SameView(ArgumentsOf(use.node)[use.argument], value);
        writes = true;
      });
      if (writes) return is_output ? *it : kNone;
    }
    return kNone;
  }

  // All that reads the output of a node, if it may remain unwritten and is always read in the same
  // form; otherwise nothing.
  absl::InlinedVector<Use, 4> FindReaders(uint32_t writer, uint32_t out) {
    const Argument value = ArgumentsOf(writer)[out];
    const uint32_t root = RootOf(value);
    if (graph_.tensors[root].kind != TensorKind::kActivation || value.view.dtype != DType::kF32) {
      return {};
    }
    if (graph_.loop.has_value() && graph_.loop->stop_tensor != kNone &&
        graph_.tensors[graph_.loop->stop_tensor].root == root) {
      return {};
    }
    absl::InlinedVector<Use, 4> readers;
    bool same = true;
    bool ends = false;  // Once it is overwritten in full.
    const bool all = ForEachUser(value, writer, kNone, [&](uint32_t node) {
      ForEachOverlap(node, value, [&](const Use& use) {
        same &= SameView(ArgumentsOf(node)[use.argument], value);
        if (!Writes(use)) return readers.push_back(use);
        same &= FindParameterKind(use) == ParameterKind::kOutput;
        ends = true;
      });
      return same && !ends;
    });
    if (!same || (!all && !ends)) return {};
    return readers;
  }
  bool IsOnlyReader(uint32_t writer, uint32_t out, const Use& reader) {
    const auto readers = FindReaders(writer, out);
    return readers.size() == 1 && readers[0].node == reader.node &&
           readers[0].argument == reader.argument;
  }

  // Whether the inputs of a node have the same elements when a later node reads them in its place,
  // and that one does not overwrite them.
  bool CanReadLater(uint32_t node, uint32_t later) {
    const auto arguments = ArgumentsOf(node);
    for (uint32_t i = 0; i < arguments.size(); ++i) {
      if (!MayChange(arguments[i]) || Writes({node, i})) continue;
      const bool unchanged = ForEachUser(arguments[i], node, later + 1, [&](uint32_t user) {
        bool writes = false;
        ForEachOverlap(user, arguments[i], [&](const Use& use) { writes |= Writes(use); });
        return !writes;
      });
      if (!unchanged) return false;
    }
    return true;
  }

  // All of them, or none.
  bool Apply(absl::Span<const Rewrite> rewrites) {
    const size_t arguments = graph_.arguments.size();
    absl::InlinedVector<Node, 4> before;
    bool accepted = true;
    for (const Rewrite& rewrite : rewrites) {
      const uint32_t row = FindRow(rewrite.op);
      if (row == kNone) {
        accepted = false;
        break;
      }
      Node& node = graph_.nodes[rewrite.node];
      before.push_back(node);
      node.op = row;
      node.first_argument = static_cast<uint32_t>(graph_.arguments.size());
      node.argument_count = static_cast<uint16_t>(rewrite.arguments.size());
      graph_.arguments.insert(graph_.arguments.end(), rewrite.arguments.begin(),
                              rewrite.arguments.end());
      Findings findings;
      CheckCall(graph_, rewrite.node, &findings, budget_);
      accepted = findings.errors() == 0 && !budget_.ended();
      if (!accepted) break;
    }
    if (!accepted) {
      for (size_t i = 0; i < before.size(); ++i) graph_.nodes[rewrites[i].node] = before[i];
      graph_.arguments.resize(arguments);
      return false;
    }
    for (size_t i = 0; i < rewrites.size(); ++i) {
      DropUses(rewrites[i].node, before[i]);
      AddUses(rewrites[i].node);
      std::vector<uint32_t>& absorbed = absorbed_[rewrites[i].node];
      for (const uint32_t node : rewrites[i].absorbed) {
        absorbed.push_back(node);
        if (const auto of_node = absorbed_.find(node); of_node != absorbed_.end()) {
          absorbed.insert(absorbed.end(), of_node->second.begin(), of_node->second.end());
        }
      }
    }
    for (const Rewrite& rewrite : rewrites) {
      for (const uint32_t node : rewrite.absorbed) {
        DropUses(node, graph_.nodes[node]);
        removed_[node] = true;
      }
    }
    return true;
  }

  // Its row of Graph::operators, which is added; kNone: its built-in version does not serve.
  uint32_t FindRow(Op op) {
    const auto found = std::find(ops_.begin(), ops_.end(), op);
    if (found != ops_.end()) return static_cast<uint32_t>(found - ops_.begin());
    const std::optional<OperatorInfo>& info = serving_[static_cast<size_t>(op)];
    if (!info.has_value()) return kNone;
    graph_.operators.push_back(*info);
    ops_.push_back(op);
    return static_cast<uint32_t>(ops_.size() - 1);
  }

  // --- Limits ------------------------------------------------------------------

  const Axis& LastAxis(const Argument& argument) const {
    return graph_.AxesOf(argument.view).back();
  }
  // The number of vectors in x; nullopt: it depends on a scalar.
  std::optional<int64_t> CountVectors(const Argument& x) const {
    int64_t vectors = 1;
    for (const Axis& axis : graph_.AxesOf(x.view)) {
      if (axis.scalar != kNone) return std::nullopt;
      vectors *= axis.size;
    }
    return vectors / LastAxis(x).size;
  }

  bool IsFast(Op op, const Argument& x, const Argument& w) const {
    const FusedOperator& limits = FindFusedOperator(kNames[static_cast<size_t>(op)]);
    const std::optional<int64_t> vectors = CountVectors(x);
    if (!vectors.has_value() || *vectors > limits.max_vectors) return false;
    if (x.view.dtype != DType::kF32) return false;
    const int64_t columns = LastAxis(x).size;
    if (*vectors == 1) {
      return (w.view.dtype == DType::kF16 || w.view.dtype == DType::kBF16) &&
             columns <= limits.max_columns_of_one;
    }
    return w.view.dtype == DType::kBF16 && x.view.rank == 2 && columns % kColumnsOfUnit == 0 &&
           columns <= limits.max_columns_of_several;
  }
  // The same for the arguments of gemv_quant.
  bool IsFastQuantized(Op op, const Argument& x, absl::Span<const Argument> quant) const {
    const FusedOperator& limits = FindFusedOperator(kNames[static_cast<size_t>(op)]);
    const std::optional<int64_t> vectors = CountVectors(x);
    return vectors == 1 && x.view.dtype == DType::kF32 &&
           LastAxis(x).size <= limits.max_columns_of_one &&
           quant[kZeros].kind == Argument::Kind::kNoTensor;
  }
  // Behind a norm. `group`: the argument.
  bool IsFastGroup(const Argument& x, const Argument& q, const Argument& group) const {
    if (group.kind != Argument::Kind::kInteger) return false;
    const int64_t columns = LastAxis(x).size;
    const int64_t of_byte = LastAxis(q).size == columns ? 1 : 2;
    if (group.integer >= columns) return true;
    return group.integer >= kMinGroupBytes * of_byte &&
           std::has_single_bit(static_cast<uint64_t>(group.integer));
  }
  static bool HasAlphaOne(absl::Span<const Argument> add) {
    return add.size() <= kAlpha ||
           (add[kAlpha].kind == Argument::Kind::kFloat && add[kAlpha].number == 1);
  }

  // --- Patterns: whether the node was fused with those before it -----------------

  // silu(x) * y.
  bool FuseSiluMul(uint32_t mul) {
    for (const uint32_t i : {0u, 1u}) {
      const uint32_t silu = FindWriter({mul, i});
      if (!Is(silu, Op::kSilu) || !IsOnlyReader(silu, 1, {mul, i}) || !CanReadLater(silu, mul)) {
        continue;
      }
      const auto product = ArgumentsOf(mul);
      return Apply(
          {{mul, Op::kSiluMul, {ArgumentsOf(silu)[0], product[1 - i], product[2]}, {silu}}});
    }
    return false;
  }

  // The products of gate and up, if silu_mul alone reads them, both are made by `op`, and from one
  // x.
  std::optional<std::pair<uint32_t, uint32_t>> FindGatedProducts(uint32_t silu_mul, Op op,
                                                                 uint32_t out) {
    const uint32_t gate = FindWriter({silu_mul, 0});
    const uint32_t up = FindWriter({silu_mul, 1});
    if (gate == up || !Is(gate, op) || !Is(up, op)) return std::nullopt;
    if (!IsOnlyReader(gate, out, {silu_mul, 0}) || !IsOnlyReader(up, out, {silu_mul, 1})) {
      return std::nullopt;
    }
    if (!SameView(ArgumentsOf(gate)[0], ArgumentsOf(up)[0])) return std::nullopt;
    if (!CanReadLater(gate, silu_mul) || !CanReadLater(up, silu_mul)) return std::nullopt;
    return std::pair(gate, up);
  }

  // silu(x * gate) * (x * up).
  bool FuseGated(uint32_t silu_mul) {
    const auto products = FindGatedProducts(silu_mul, Op::kGemv, kGemvOut);
    if (!products.has_value()) return false;
    const auto [first, second] = *products;
    const auto gate = ArgumentsOf(first);
    const auto up = ArgumentsOf(second);
    if (gate[kBias].kind != Argument::Kind::kNoTensor) return false;
    if (up[kBias].kind != Argument::Kind::kNoTensor) return false;
    if (gate[1].view.dtype != up[1].view.dtype) return false;
    if (!IsFast(Op::kGemvSiluMul, gate[0], gate[1])) return false;
    return Apply({{silu_mul,
                   Op::kGemvSiluMul,
                   {gate[0], gate[1], up[1], ArgumentsOf(silu_mul)[2]},
                   {first, second}}});
  }

  // A product and what is added to it: one row for all vectors, or a residual.
  bool FuseSum(uint32_t add) {
    if (!HasAlphaOne(ArgumentsOf(add))) return false;
    for (const uint32_t i : {0u, 1u}) {
      const uint32_t product = FindWriter({add, i});
      const bool quantized = Is(product, Op::kGemvQuant);
      if (!quantized && !Is(product, Op::kGemv)) continue;
      if (!IsOnlyReader(product, quantized ? kQuantOut : kGemvOut, {add, i})) continue;
      if (!CanReadLater(product, add)) continue;
      const auto sum = ArgumentsOf(add);
      const auto of = ArgumentsOf(product);
      const std::optional<Argument> bias = FindBias(of[0], sum[1 - i], sum[2]);
      if (!bias.has_value()) continue;
      Rewrite rewrite = {add, Op::kGemv, {of[0], of[1], *bias, sum[2]}, {product}};
      if (quantized) {
        rewrite.op = Op::kGemvQuantBias;
        rewrite.arguments = {of[0], of[1], of[2], of[kZeros], *bias, sum[2], of[kGroup]};
      } else if (of[kBias].kind != Argument::Kind::kNoTensor) {
        continue;
      }
      const bool fast =
          quantized ? IsFastQuantized(rewrite.op, of[0], of) : IsFast(rewrite.op, of[0], of[1]);
      if (fast && Apply({rewrite})) return true;
    }
    return FuseBias(add);
  }

  // The arguments of linear that compute what a product of float32 does; none: it is another node.
  Arguments FindLayer(uint32_t node) const {
    const bool linear = Is(node, Op::kLinear);
    if (!linear && !Is(node, Op::kGemv)) return {};
    const auto of = ArgumentsOf(node);
    if (of[0].view.dtype != DType::kF32 || of[1].view.dtype != DType::kF32) return {};
    Arguments layer(of.begin(), of.end());
    if (!linear) layer.insert(layer.begin() + kResidual, Absent());
    if (layer.size() <= kActivation) layer.push_back(Integer(0));
    return layer;
  }
  // The same for the node that writes an argument, which alone reads it, and may compute it.
  Arguments FindLayerBefore(const Use& reader, uint32_t* product) {
    *product = FindWriter(reader);
    Arguments layer = FindLayer(*product);
    if (layer.empty() || layer[kResidual].kind != Argument::Kind::kNoTensor) return {};
    const uint32_t out = Is(*product, Op::kLinear) ? kLinearOut : kGemvOut;
    if (!IsOnlyReader(*product, out, reader) || !CanReadLater(*product, reader.node)) return {};
    return layer;
  }
  static bool HasNoActivation(absl::Span<const Argument> layer) {
    return layer[kActivation].kind == Argument::Kind::kInteger && layer[kActivation].integer == 0;
  }

  // A product of float32 and its bias: one row for all vectors.
  bool FuseBias(uint32_t add) {
    for (const uint32_t i : {0u, 1u}) {
      uint32_t product = kNone;
      Arguments layer = FindLayerBefore({add, i}, &product);
      if (layer.empty() || !HasNoActivation(layer)) continue;
      if (layer[kBias].kind != Argument::Kind::kNoTensor) continue;
      const auto sum = ArgumentsOf(add);
      const Argument& added = sum[1 - i];
      if (added.kind != Argument::Kind::kTensor || added.view.rank != 1) continue;
      if (LastAxis(added).size != LastAxis(sum[2]).size || LastAxis(added).scalar != kNone)
        continue;
      if (!SameAxes(layer[kLinearOut].view, sum[2].view, /*strides=*/false)) continue;
      layer[kBias] = added;
      layer[kLinearOut] = sum[2];
      if (Apply({{add, Op::kLinear, layer, {product}}})) return true;
    }
    return false;
  }

  // activation(x * w + bias).
  bool FuseActivation(uint32_t node) {
    uint32_t product = kNone;
    Arguments layer = FindLayerBefore({node, 0}, &product);
    if (layer.empty() || !HasNoActivation(layer)) return false;
    const auto of = ArgumentsOf(node);
    Activation activation = Activation::kRelu;
    if (Is(node, Op::kSilu)) activation = Activation::kSilu;
    if (Is(node, Op::kSigmoid)) activation = Activation::kSigmoid;
    if (Is(node, Op::kTanh)) activation = Activation::kTanh;
    if (Is(node, Op::kGelu)) {
      activation = Activation::kGelu;
      if (of.size() > 2) {
        if (of[2].kind != Argument::Kind::kInteger || (of[2].integer | 1) != 1) return false;
        if (of[2].integer == 1) activation = Activation::kGeluTanh;
      }
    }
    layer[kLinearOut] = of[1];
    layer[kActivation] = Integer(static_cast<int64_t>(activation));
    return Apply({{node, Op::kLinear, layer, {product}}});
  }

  // A layer and what is added to it, for each of its results.
  bool FuseResidual(uint32_t add) {
    if (!HasAlphaOne(ArgumentsOf(add))) return false;
    for (const uint32_t i : {0u, 1u}) {
      uint32_t product = kNone;
      Arguments layer = FindLayerBefore({add, i}, &product);
      if (layer.empty()) continue;
      const auto sum = ArgumentsOf(add);
      const Argument& added = sum[1 - i];
      if (added.kind != Argument::Kind::kTensor) continue;
      if (!SameAxes(layer[kLinearOut].view, sum[2].view, /*strides=*/false)) continue;
      if (!SameAxes(added.view, sum[2].view, /*strides=*/false)) continue;
      layer[kResidual] = added;
      layer[kLinearOut] = sum[2];
      if (Apply({{add, Op::kLinear, layer, {product}}})) return true;
    }
    return false;
  }
  // What is added to a product as a bias. It has the shape of a row, which the only vector's also
  // gets, or that of the result.
  std::optional<Argument> FindBias(const Argument& x, const Argument& added,
                                   const Argument& out) const {
    if (added.kind != Argument::Kind::kTensor || added.view.rank == 0 || out.view.rank == 0) {
      return std::nullopt;
    }
    if (CountVectors(x) != 1 && added.view.rank != 1) {
      return SameAxes(added.view, out.view, /*strides=*/false) ? std::optional(added)
                                                               : std::nullopt;
    }
    if (LastAxis(added).size != LastAxis(out).size) return std::nullopt;
    Argument row = added;
    for (; row.view.rank > 1; --row.view.rank, ++row.view.first_axis) {
      const Axis& axis = graph_.axes[row.view.first_axis];
      if (axis.size != 1 || axis.scalar != kNone) return std::nullopt;
    }
    return row;
  }

  // The norm of a sum, which is also written.
  bool FuseResidualNorm(uint32_t norm) {
    const uint32_t add = FindWriter({norm, 0});
    if (!Is(add, Op::kAdd) || !CanReadLater(add, norm)) return false;
    const auto sum = ArgumentsOf(add);
    if (!HasAlphaOne(sum) || sum[2].view.dtype != DType::kF32) return false;
    // The sum is written later.
    const bool unread = ForEachUser(sum[2], add, norm, [&](uint32_t user) {
      bool overlaps = false;
      ForEachOverlap(user, sum[2], [&](const Use&) { overlaps = true; });
      return !overlaps;
    });
    if (!unread) return false;
    const auto of = ArgumentsOf(norm);
    Rewrite rewrite = {
        norm, Op::kRmsnormResidual, {sum[0], sum[1], of[1], of[kNormOut], sum[2]}, {add}};
    AppendEps(of, rewrite.arguments);
    return Apply({rewrite});
  }

  // silu(y * gate) * (y * up) with quantized weights, and the norm y in front. There is no such
  // operator without the norm.
  bool FuseQuantizedGated(uint32_t silu_mul) {
    const auto products = FindGatedProducts(silu_mul, Op::kGemvQuant, kQuantOut);
    if (!products.has_value()) return false;
    const auto [first, second] = *products;
    const uint32_t norm = FindWriter({first, 0});
    if (!Is(norm, Op::kRmsnorm) || !CanReadLater(norm, silu_mul)) return false;
    const auto readers = FindReaders(norm, kNormOut);
    if (readers.size() != 2) return false;
    for (const Use& reader : readers) {
      if ((reader.node != first && reader.node != second) || reader.argument != 0) return false;
    }
    const auto of = ArgumentsOf(norm);
    const auto gate = ArgumentsOf(first);
    const auto up = ArgumentsOf(second);
    for (const auto& product : {gate, up}) {
      if (!IsFastNormalized(Op::kRmsnormGemvQuantSiluMul, of, product)) return false;
    }
    if (gate[kGroup].integer != up[kGroup].integer) return false;
    Rewrite rewrite = {silu_mul,
                       Op::kRmsnormGemvQuantSiluMul,
                       {of[0], of[1], gate[1], gate[2], gate[kZeros], up[1], up[2], up[kZeros],
                        ArgumentsOf(silu_mul)[2], gate[kGroup]},
                       {norm, first, second}};
    AppendEps(of, rewrite.arguments);
    return Apply({rewrite});
  }
  // Whether a product of quantized weights and a norm is fast. `norm`, `quant`: their arguments.
  bool IsFastNormalized(Op op, absl::Span<const Argument> norm,
                        absl::Span<const Argument> quant) const {
    return norm[1].view.dtype != DType::kF32 && IsFastQuantized(op, norm[0], quant) &&
           IsFastGroup(norm[0], quant[1], quant.back());
  }

  // A norm, in each product that reads it.
  bool FuseNorm(uint32_t norm) {
    const auto of = ArgumentsOf(norm);
    std::vector<Rewrite> rewrites;
    for (const Use& reader : FindReaders(norm, kNormOut)) {
      if (!budget_.Take()) return false;
      if (reader.argument != 0 || !CanReadLater(norm, reader.node)) return false;
      Rewrite rewrite = {reader.node, Op::kOther, {of[0], of[1]}, {norm}};
      const auto product = ArgumentsOf(reader.node);
      if (Is(reader.node, Op::kGemv) || Is(reader.node, Op::kGemvSiluMul)) {
        rewrite.op = Is(reader.node, Op::kGemv) ? Op::kRmsnormGemv : Op::kRmsnormGemvSiluMul;
        rewrite.arguments.insert(rewrite.arguments.end(), product.begin() + 1, product.end());
        if (of[1].view.dtype != product[1].view.dtype) return false;
        if (!IsFast(rewrite.op, of[0], product[1])) return false;
      } else if (Is(reader.node, Op::kGemvQuant) || Is(reader.node, Op::kGemvQuantBias)) {
        rewrite.op = Op::kRmsnormGemvQuant;
        rewrite.arguments.insert(rewrite.arguments.end(), product.begin() + 1, product.end());
        if (Is(reader.node, Op::kGemvQuant)) {
          rewrite.arguments.insert(rewrite.arguments.begin() + kZeros + 2, Absent());
        }
        if (!IsFastNormalized(rewrite.op, of, product)) return false;
      } else {
        return false;
      }
      AppendEps(of, rewrite.arguments);
      rewrites.push_back(std::move(rewrite));
    }
    return !rewrites.empty() && Apply(rewrites);
  }

  // Three products of one norm, such as the queries, keys and values of a layer. `last` and the two
  // before it, which others may be between.
  bool FuseThree(uint32_t last) {
    constexpr int kMaxNodesBetween = 16;
    absl::InlinedVector<uint32_t, 3> products = {last};
    int left = kMaxNodesBetween;
    for (uint32_t node = last; node-- > 0 && products.size() < 3 && left > 0;) {
      if (!budget_.Take()) return false;
      if (removed_[node]) continue;
      --left;
      if (HasSameNorm(node, last)) products.insert(products.begin(), node);
    }
    if (products.size() < 3) return false;
    for (const uint32_t product : products) {
      const auto of = ArgumentsOf(product);
      if (!IsFast(Op::kRmsnormGemvQkv, of[0], of[2])) return false;
      if (product != last && !CanWriteLater(product, kNormedOut, last)) return false;
    }
    const auto of = ArgumentsOf(last);
    Rewrite rewrite = {last, Op::kRmsnormGemvQkv, {of[0], of[1]}, {products[0], products[1]}};
    for (const uint32_t argument : {2u, 3u, kNormedOut}) {
      for (const uint32_t product : products) {
        rewrite.arguments.push_back(ArgumentsOf(product)[argument]);
      }
    }
    if (of.size() > kNormedOut + 1) rewrite.arguments.push_back(of.back());
    return Apply({rewrite});
  }
  // Whether both are products of the same norm, with weights of one dtype.
  bool HasSameNorm(uint32_t node, uint32_t other) const {
    if (!Is(node, Op::kRmsnormGemv)) return false;
    const auto a = ArgumentsOf(node);
    const auto b = ArgumentsOf(other);
    if (!SameView(a[0], b[0]) || !SameView(a[1], b[1])) return false;
    if (a[2].view.dtype != b[2].view.dtype || a.size() != b.size()) return false;
    return a.size() <= kNormedOut + 1 ||
           (a.back().kind == Argument::Kind::kFloat && b.back().kind == Argument::Kind::kFloat &&
            a.back().number == b.back().number);
  }
  // Whether a later node can compute what a node does: it reads the same, and no node up to it
  // accesses the output.
  bool CanWriteLater(uint32_t node, uint32_t out, uint32_t later) {
    if (!CanReadLater(node, later)) return false;
    const Argument& value = ArgumentsOf(node)[out];
    bool overlaps = false;
    const auto look = [&](uint32_t user) {
      ForEachOverlap(user, value, [&](const Use&) { overlaps = true; });
      return !overlaps;
    };
    return ForEachUser(value, node, later, look) && look(later);
  }

  static Argument Integer(int64_t value) {
    Argument integer;
    integer.kind = Argument::Kind::kInteger;
    integer.integer = value;
    return integer;
  }
  static Argument Absent() {
    Argument none;
    none.kind = Argument::Kind::kNoTensor;
    return none;
  }
  // All operators with a norm have the same default.
  static void AppendEps(absl::Span<const Argument> norm, Arguments& arguments) {
    if (norm.size() > kNormOut + 1) arguments.push_back(norm[kNormOut + 1]);
  }

  const Serving& serving_;
  Graph& graph_;
  CheckBudget& budget_;
  // By row of Graph::operators; kOther also for one whose built-in version does not serve.
  std::vector<Op> ops_;
  std::vector<bool> removed_;
  // By node that remains: those that it executes, too.
  absl::flat_hash_map<uint32_t, std::vector<uint32_t>> absorbed_;
  // By root that nodes may write: the nodes that access it.
  absl::flat_hash_map<uint32_t, absl::btree_set<uint32_t>> uses_;
};

}  // namespace

absl::Span<const std::string_view> FusionOperators() { return kNames; }

bool StaysFused(const Fusion& fusion, const OperatorCatalog& catalog) {
  return !fusion.serving.has_value() || *fusion.serving == ToBits(ListServing(catalog));
}

void Fuse(const OperatorCatalog& catalog, CheckedGraph* checked, CheckBudget* budget) {
  CheckBudget own;
  if (budget == nullptr) {
    budget = &own;
    own.TakeElements(checked->graph.nodes.size() + checked->graph.arguments.size());
  }
  Graph& graph = checked->graph;
  const bool has_candidates =
      std::any_of(graph.operators.begin(), graph.operators.end(),
                  [](const OperatorInfo& info) { return FindOp(info) != Op::kOther; });
  if (!graph.fuse || !has_candidates || graph.nodes.size() > kMaxRunNodes) return;
  const Serving serving = ListServing(catalog);
  checked->fusion.serving = ToBits(serving);
  HeldBytes held(*budget);
  if (!held.Hold(graph.arguments.size() * kUseBytes + graph.nodes.size() * 2 * sizeof(Node)))
    return;
  const size_t arguments = graph.arguments.size();
  std::vector<Node> nodes = graph.nodes;
  std::vector<OperatorInfo> operators = graph.operators;
  Fuser fuser(serving, graph, *budget);
  if (fuser.FuseAll()) {
    Fusion fusion = fuser.Finish();
    Findings findings;
    GraphCheck check = CheckGraph(graph, &findings, {}, budget);
    if (check.accepted) {
      fusion.operators = std::move(operators);
      fusion.serving = checked->fusion.serving;
      checked->fusion = std::move(fusion);
      checked->order = *std::move(check.order);
      return;
    }
  }
  graph.nodes = std::move(nodes);
  graph.operators = std::move(operators);
  graph.arguments.resize(arguments);
}

}  // namespace resident::graph
