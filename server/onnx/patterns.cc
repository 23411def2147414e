#include "server/onnx/patterns.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstdint>
#include <memory>
#include <numbers>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "server/onnx/nodes/operators.h"

namespace resident::onnx {
namespace {

// Weights of one model that are put beside each other, at most.
constexpr int64_t kMaxMergedBytes = int64_t{512} << 20;
// Relative difference of a constant from the root that a pattern has, such as 1.41421.
constexpr double kRootTolerance = 1e-4;

class Patterns {
 public:
  Patterns(absl::flat_hash_map<std::string, Constant>* constants, GraphProto* graph)
      : constants_(*constants), graph_(*graph) {
    for (int i = 0; i < graph_.node_size(); ++i) {
      for (const std::string& output : graph_.node(i).output()) {
        if (output.empty()) continue;
        assert(!writers_.contains(output));
        writers_[output] = i;
      }
    }
    CountReaders(graph_);
  }

  // From the last node on, so that a bias is found before the product without it.
  void Replace() {
    for (int i = graph_.node_size(); i-- > 0;) {
      NodeProto& node = *graph_.mutable_node(i);
      if (const auto x = FindGelu(node); x.has_value()) {
        Become("Gelu", {*x}, {}, &node);
      } else if (const auto norm = FindNorm(node); norm.has_value()) {
        AttributeProto epsilon;
        epsilon.set_name("epsilon");
        epsilon.set_type(1);
        epsilon.set_f(static_cast<float>(norm->epsilon));
        std::vector<std::string> inputs = {norm->x, norm->weight};
        if (!norm->bias.empty()) inputs.push_back(norm->bias);
        Become("LayerNormalization", inputs, {epsilon}, &node);
      } else if (const auto scores = FindScores(node); scores.has_value()) {
        AttributeProto scale;
        scale.set_name("scale");
        scale.set_type(1);
        scale.set_f(static_cast<float>(scores->scale));
        std::vector<std::string> inputs = {scores->q, scores->k, node.input(1)};
        if (!scores->mask.empty()) inputs.push_back(scores->mask);
        std::vector<AttributeProto> attributes = {scale};
        if (IsMovedBack(node.output(0))) {
          attributes.push_back(scale);
          attributes.back().set_name(kHeadsLastAttribute);
          attributes.back().set_type(2);
          attributes.back().clear_f();
          attributes.back().set_i(1);
        }
        const std::string values = node.input(1);
        Become("Attention", inputs, attributes, &node);
        MergeProducts({scores->q, scores->transposed_keys, values});
      }
    }
    Insert();
  }

 private:
  struct Norm {
    std::string x;
    std::string weight;
    std::string bias;
    double epsilon = 0;
  };

  // Of attention: softmax(scale * q k^T + mask).
  struct Scores {
    std::string q;
    std::string k;
    std::string transposed_keys;  // k^T.
    std::string mask;             // Empty: there is none.
    double scale = 1;
  };

  // x times a weight, and a bias.
  struct Product {
    int matmul = 0;  // Its node.
    int add = -1;    // -1: there is no bias.
    std::string weight;
    bool transposed = false;  // The weight is to be transposed.
    std::string bias;
    std::string result;
  };

  static void Become(const std::string& op, const std::vector<std::string>& inputs,
                     const std::vector<AttributeProto>& attributes, NodeProto* node) {
    node->set_op_type(op);
    node->clear_domain();
    node->mutable_input()->Assign(inputs.begin(), inputs.end());
    node->mutable_attribute()->Assign(attributes.begin(), attributes.end());
  }

  // Null: the value is computed, or given by a request.
  const Constant* FindConstant(const std::string& name) const {
    const auto found = constants_.find(name);
    return found == constants_.end() ? nullptr : &found->second;
  }
  // Whether it is this operator of the standard, with so many inputs and one output.
  static bool Is(const NodeProto* node, const char* op, int inputs) {
    return node != nullptr && node->op_type() == op &&
           (node->domain().empty() || node->domain() == "ai.onnx") &&
           node->input_size() == inputs && node->output_size() == 1;
  }
  // The node that writes a value; null: it is not of this form.
  const NodeProto* Writer(const std::string& name, const char* op, int inputs) const {
    const auto found = writers_.find(name);
    if (found == writers_.end()) return nullptr;
    const NodeProto* const node = &graph_.node(found->second);
    return Is(node, op, inputs) ? node : nullptr;
  }
  // The number that a constant of one element is.
  std::optional<double> Number(const std::string& name) const {
    const Constant* const constant = FindConstant(name);
    // Results of 16 bits would be rounded after each node.
    if (constant == nullptr || constant->type != ElementType::kFloat) return std::nullopt;
    if (constant->elements() != 1 || constant->shape.size() > 1) return std::nullopt;
    return constant->Real(0);
  }
  bool IsNumber(const std::string& name, double value) const { return Number(name) == value; }
  // Of the factors, only the roots are rounded by exporters.
  bool IsFactor(const std::string& name, double factor) const {
    if (factor == 0.5 || factor == 2) return IsNumber(name, factor);
    const std::optional<double> number = Number(name);
    return number.has_value() && std::abs(*number - factor) <= kRootTolerance * factor;
  }
  // Calls find(a, b) with the inputs of a commutative node, in both orders, until it returns a
  // value.
  template <typename Find>
  static auto Both(const NodeProto& node, Find find) -> decltype(find("", "")) {
    auto found = find(node.input(0), node.input(1));
    return found.has_value() ? found : find(node.input(1), node.input(0));
  }
  using Name = std::optional<std::string>;

  // x, if the value is x times this number, or divided by its inverse.
  Name FindScaled(const std::string& name, double factor) const {
    if (const NodeProto* const div = Writer(name, "Div", 2)) {
      return IsFactor(div->input(1), 1 / factor) ? Name(div->input(0)) : std::nullopt;
    }
    const NodeProto* const mul = Writer(name, "Mul", 2);
    if (mul == nullptr) return std::nullopt;
    return Both(*mul, [&](const std::string& x, const std::string& number) {
      return IsFactor(number, factor) ? Name(x) : std::nullopt;
    });
  }
  // x, if the value is 1 + Erf(x / sqrt(2)).
  Name FindTwicePhi(const std::string& name) const {
    const NodeProto* const add = Writer(name, "Add", 2);
    if (add == nullptr) return std::nullopt;
    return Both(*add, [&](const std::string& value, const std::string& number) -> Name {
      const NodeProto* const erf = Writer(value, "Erf", 1);
      if (erf == nullptr || !IsNumber(number, 1)) return std::nullopt;
      return FindScaled(erf->input(0), 1 / std::numbers::sqrt2);
    });
  }
  // x, if the value is x * (1 + Erf(x / sqrt(2))).
  Name FindTwiceGelu(const std::string& name) const {
    const NodeProto* const mul = Writer(name, "Mul", 2);
    if (mul == nullptr) return std::nullopt;
    return Both(*mul, [&](const std::string& x, const std::string& phi) {
      return FindTwicePhi(phi) == x ? Name(x) : std::nullopt;
    });
  }
  // The x of Gelu(x), if that is what the node computes.
  Name FindGelu(const NodeProto& node) const {
    if (Is(&node, "Div", 2)) {
      return IsNumber(node.input(1), 2) ? FindTwiceGelu(node.input(0)) : std::nullopt;
    }
    if (!Is(&node, "Mul", 2)) return std::nullopt;
    return Both(node, [&](const std::string& a, const std::string& b) -> Name {
      if (IsNumber(b, 0.5)) return FindTwiceGelu(a);
      // One of the factors is halved.
      if (const Name x = FindTwicePhi(b); x.has_value()) {
        return FindScaled(a, 0.5) == x ? x : std::nullopt;
      }
      const Name phi = FindScaled(b, 0.5);
      return phi.has_value() && FindTwicePhi(*phi) == a ? Name(a) : std::nullopt;
    });
  }

  // x, if the value is the mean of x over the last dimension, which is kept.
  Name FindMean(const std::string& name) const {
    const auto found = writers_.find(name);
    if (found == writers_.end()) return std::nullopt;
    const NodeProto& mean = graph_.node(found->second);
    if (!Is(&mean, "ReduceMean", 1) && !Is(&mean, "ReduceMean", 2)) return std::nullopt;
    std::vector<int64_t> axes;
    for (const AttributeProto& attribute : mean.attribute()) {
      if (attribute.name() == "axes") axes.assign(attribute.ints().begin(), attribute.ints().end());
      if (attribute.name() == "keepdims" && attribute.i() != 1) return std::nullopt;
    }
    if (mean.input_size() == 2) {
      const Constant* const constant = FindConstant(mean.input(1));
      if (constant == nullptr || constant->type != ElementType::kInt64) return std::nullopt;
      axes = constant->AllIntegers();
    }
    return axes == std::vector<int64_t>{-1} ? Name(mean.input(0)) : std::nullopt;
  }
  // x, if the value is the square of x.
  Name FindSquare(const std::string& name) const {
    if (const NodeProto* const pow = Writer(name, "Pow", 2)) {
      return IsNumber(pow->input(1), 2) ? Name(pow->input(0)) : std::nullopt;
    }
    const NodeProto* const mul = Writer(name, "Mul", 2);
    return mul != nullptr && mul->input(0) == mul->input(1) ? Name(mul->input(0)) : std::nullopt;
  }
  // The root of the mean of the squares of x and an epsilon.
  std::optional<double> FindEpsilon(const std::string& root, const std::string& x) const {
    const NodeProto* const sqrt = Writer(root, "Sqrt", 1);
    const NodeProto* const add = sqrt == nullptr ? nullptr : Writer(sqrt->input(0), "Add", 2);
    if (add == nullptr) return std::nullopt;
    return Both(*add,
                [&](const std::string& mean, const std::string& eps) -> std::optional<double> {
                  const std::optional<double> epsilon = Number(eps);
                  const Name squares = FindMean(mean);
                  if (!epsilon.has_value() || !(*epsilon >= 0) || !squares.has_value()) {
                    return std::nullopt;
                  }
                  return FindSquare(*squares) == x ? epsilon : std::nullopt;
                });
  }
  // A weight or bias: one number for each element of the last dimension.
  bool IsRow(const std::string& name) const {
    const Constant* const constant = FindConstant(name);
    return constant != nullptr && constant->type == ElementType::kFloat &&
           constant->shape.size() == 1 && constant->elements() > 1;
  }
  std::optional<Norm> FindNormOfProduct(const NodeProto& mul) const {
    return Both(
        mul, [&](const std::string& weight, const std::string& value) -> std::optional<Norm> {
          const NodeProto* const div = Writer(value, "Div", 2);
          if (div == nullptr || !IsRow(weight)) return std::nullopt;
          const NodeProto* const sub = Writer(div->input(0), "Sub", 2);
          if (sub == nullptr || FindMean(sub->input(1)) != sub->input(0)) return std::nullopt;
          const std::optional<double> epsilon = FindEpsilon(div->input(1), div->input(0));
          if (!epsilon.has_value()) return std::nullopt;
          return Norm{.x = sub->input(0), .weight = weight, .bias = "", .epsilon = *epsilon};
        });
  }
  std::optional<Norm> FindNorm(const NodeProto& node) const {
    if (Is(&node, "Mul", 2)) return FindNormOfProduct(node);
    if (!Is(&node, "Add", 2)) return std::nullopt;
    return Both(node, [&](const std::string& bias, const std::string& value) {
      const NodeProto* const mul = Writer(value, "Mul", 2);
      std::optional<Norm> norm;
      if (mul == nullptr || !IsRow(bias)) return norm;
      norm = FindNormOfProduct(*mul);
      if (norm.has_value()) norm->bias = bias;
      // Both have as many numbers.
      if (norm.has_value() &&
          FindConstant(bias)->elements() != FindConstant(norm->weight)->elements()) {
        norm.reset();
      }
      return norm;
    });
  }

  static std::vector<int64_t> Permutation(const NodeProto& transpose) {
    for (const AttributeProto& attribute : transpose.attribute()) {
      if (attribute.name() == "perm") return {attribute.ints().begin(), attribute.ints().end()};
    }
    return {};
  }
  // The Transpose that makes a value of four dimensions; null: another node does.
  const NodeProto* FindHeads(const std::string& name) const {
    const NodeProto* const transpose = Writer(name, "Transpose", 1);
    return transpose != nullptr && Permutation(*transpose).size() == 4 ? transpose : nullptr;
  }
  // The keys, of which the value is the matrices transposed.
  Name FindKeys(const std::string& name) {
    const NodeProto* const transpose = FindHeads(name);
    if (transpose == nullptr) return std::nullopt;
    std::vector<int64_t> order = Permutation(*transpose);
    if (order == std::vector<int64_t>{0, 1, 3, 2} && FindHeads(transpose->input(0)) != nullptr) {
      return transpose->input(0);
    }
    const std::string keys = name + "/keys";
    if (inserted_.contains(name)) return keys;
    if (writers_.contains(keys)) return std::nullopt;
    std::swap(order[2], order[3]);
    NodeProto node = *transpose;
    node.set_name(transpose->name().empty() ? "" : transpose->name() + "/keys");
    node.set_output(0, keys);
    for (AttributeProto& attribute : *node.mutable_attribute()) {
      attribute.mutable_ints()->Assign(order.begin(), order.end());
    }
    inserted_[name] = std::move(node);
    return keys;
  }
  // The product of queries and keys, if the value is that, or that times a number.
  std::optional<Scores> FindProduct(const std::string& name) {
    Scores scores;
    const NodeProto* product = Writer(name, "MatMul", 2);
    if (const NodeProto* const div = Writer(name, "Div", 2)) {
      const std::optional<double> number = Number(div->input(1));
      if (!number.has_value() || *number == 0) return std::nullopt;
      scores.scale = 1 / *number;
      product = Writer(div->input(0), "MatMul", 2);
    } else if (const NodeProto* const mul = Writer(name, "Mul", 2)) {
      const auto found = Both(*mul,
                              [&](const std::string& value,
                                  const std::string& number) -> std::optional<const NodeProto*> {
                                const std::optional<double> scale = Number(number);
                                if (!scale.has_value()) return std::nullopt;
                                scores.scale = *scale;
                                return Writer(value, "MatMul", 2);
                              });
      product = found.value_or(nullptr);
    } else {
      // Without a number, nothing says that these are float32.
      return std::nullopt;
    }
    if (product == nullptr || FindHeads(product->input(0)) == nullptr) return std::nullopt;
    const Name keys = FindKeys(product->input(1));
    if (!keys.has_value()) return std::nullopt;
    scores.q = product->input(0);
    scores.k = *keys;
    scores.transposed_keys = product->input(1);
    return scores;
  }
  // If the node is the product of a softmax of scores with values.
  std::optional<Scores> FindScores(const NodeProto& node) {
    if (!Is(&node, "MatMul", 2) || FindHeads(node.input(1)) == nullptr) return std::nullopt;
    const NodeProto* const softmax = Writer(node.input(0), "Softmax", 1);
    if (softmax == nullptr || softmax->attribute_size() != 1 ||
        softmax->attribute(0).name() != "axis" ||
        (softmax->attribute(0).i() != -1 && softmax->attribute(0).i() != 3)) {
      return std::nullopt;
    }
    const NodeProto* const add = Writer(softmax->input(0), "Add", 2);
    if (add == nullptr) return FindProduct(softmax->input(0));
    return Both(*add, [&](const std::string& value, const std::string& mask) {
      std::optional<Scores> scores = FindProduct(value);
      if (scores.has_value()) scores->mask = mask;
      return scores;
    });
  }
  void CountReaders(const GraphProto& graph) {
    for (const ValueInfoProto& output : graph.output()) ++readers_[output.name()];
    for (const NodeProto& node : graph.node()) {
      for (const std::string& input : node.input()) ++readers_[input];
      for (const AttributeProto& attribute : node.attribute()) {
        if (attribute.has_g()) CountReaders(attribute.g());
      }
    }
  }
  bool HasOneReader(const std::string& name) const {
    const auto found = readers_.find(name);
    return found != readers_.end() && found->second == 1;
  }
  // Whether all that reads these heads moves them behind each other.
  bool IsMovedBack(const std::string& heads) const {
    if (!HasOneReader(heads)) return false;
    for (const NodeProto& node : graph_.node()) {
      if (node.input_size() == 0 || node.input(0) != heads) continue;
      return Is(&node, "Transpose", 1) && Permutation(node) == std::vector<int64_t>{0, 2, 1, 3};
    }
    return false;
  }

  // The product of which a value has the columns as heads.
  std::optional<Product> FindProjection(std::string name) const {
    while (const NodeProto* const transpose = FindHeads(name)) name = transpose->input(0);
    const NodeProto* const reshape = Writer(name, "Reshape", 2);
    if (reshape == nullptr) return std::nullopt;
    Product product;
    product.result = reshape->input(0);
    std::string value = product.result;
    if (const NodeProto* const add = Writer(value, "Add", 2)) {
      product.add = writers_.at(value);
      const bool first = IsRow(add->input(0));
      product.bias = add->input(first ? 0 : 1);
      value = add->input(first ? 1 : 0);
      if (!IsRow(product.bias) || !HasOneReader(value)) return std::nullopt;
    }
    const NodeProto* const matmul = Writer(value, "MatMul", 2);
    if (matmul == nullptr) return std::nullopt;
    product.matmul = writers_.at(value);
    product.weight = matmul->input(1);
    if (const NodeProto* const transpose = Writer(product.weight, "Transpose", 1)) {
      const std::vector<int64_t> order = Permutation(*transpose);
      if (order != std::vector<int64_t>{1, 0}) return std::nullopt;
      product.weight = transpose->input(0);
      product.transposed = true;
    }
    const Constant* const weight = FindConstant(product.weight);
    if (weight == nullptr || weight->type != ElementType::kFloat || weight->shape.size() != 2) {
      return std::nullopt;
    }
    if (!product.bias.empty() &&
        FindConstant(product.bias)->elements() != weight->shape[product.transposed ? 0 : 1]) {
      return std::nullopt;
    }
    return product;
  }

  static NodeProto MakeNode(const std::string& op, const std::vector<std::string>& inputs,
                            const std::vector<std::string>& outputs) {
    NodeProto node;
    node.set_op_type(op);
    node.set_name(outputs[0]);
    node.mutable_input()->Assign(inputs.begin(), inputs.end());
    node.mutable_output()->Assign(outputs.begin(), outputs.end());
    return node;
  }
  // A constant with those of one shape behind each other along an axis.
  void AddMerged(const std::string& name, const std::vector<std::string>& parts, size_t axis) {
    Constant merged = *FindConstant(parts[0]);
    // Bytes of a part between two of another one.
    uint64_t piece = sizeof(float);
    for (size_t d = axis; d < merged.shape.size(); ++d) {
      piece *= static_cast<uint64_t>(merged.shape[d]);
    }
    std::string bytes;
    bytes.reserve(parts.size() * merged.bytes->size());
    for (uint64_t from = 0; from < merged.bytes->size(); from += piece) {
      for (const std::string& part : parts) bytes.append(*FindConstant(part)->bytes, from, piece);
    }
    merged.shape[axis] *= static_cast<int64_t>(parts.size());
    merged.bytes = std::make_shared<const std::string>(std::move(bytes));
    merged.name = name;
    merged.content_hash.clear();
    constants_[name] = std::move(merged);
  }

  // Makes the products of one x with weights of one shape one product, at the place of the first.
  void MergeProducts(const std::vector<std::string>& heads) {
    std::vector<Product> products;
    for (const std::string& each : heads) {
      const std::optional<Product> product = FindProjection(each);
      if (!product.has_value() || dropped_.contains(product->matmul)) return;
      products.push_back(*product);
    }
    const Product& first = products[0];
    const std::string& x = graph_.node(first.matmul).input(0);
    const Sizes64& shape = FindConstant(first.weight)->shape;
    std::vector<std::string> weights, biases, results;
    int at = first.matmul;
    for (const Product& each : products) {
      if (graph_.node(each.matmul).input(0) != x || each.transposed != first.transposed ||
          FindConstant(each.weight)->shape != shape || each.bias.empty() != first.bias.empty() ||
          std::ranges::find(results, each.result) != results.end()) {
        return;
      }
      weights.push_back(each.weight);
      biases.push_back(each.bias);
      results.push_back(each.result);
      at = std::min(at, each.matmul);
    }
    const int64_t bytes = 3 * shape[0] * shape[1] * static_cast<int64_t>(sizeof(float));
    if (merged_bytes_ + bytes > kMaxMergedBytes) return;
    const std::string name = first.result + "/merged";
    std::string all = name + "/weights";
    for (const char* const part : {"", "/weights", "/transposed", "/biases", "/product"}) {
      const std::string value = name + part;
      if (writers_.contains(value) || readers_.contains(value) || FindConstant(value) != nullptr) {
        return;
      }
    }
    merged_bytes_ += bytes;
    std::vector<NodeProto>& nodes = before_[at];
    AddMerged(all, weights, first.transposed ? 0 : 1);
    if (first.transposed) {
      NodeProto transpose = MakeNode("Transpose", {all}, {name + "/transposed"});
      AttributeProto& order = *transpose.add_attribute();
      order.set_name("perm");
      order.set_type(7);
      order.add_ints(1);
      order.add_ints(0);
      nodes.push_back(std::move(transpose));
      all = name + "/transposed";
    }
    const bool adds = !first.bias.empty();
    nodes.push_back(MakeNode("MatMul", {x, all}, {adds ? name + "/product" : name}));
    if (adds) {
      AddMerged(name + "/biases", biases, 0);
      nodes.push_back(MakeNode("Add", {name + "/product", name + "/biases"}, {name}));
    }
    NodeProto& split = nodes.emplace_back(MakeNode("Split", {name}, results));
    AttributeProto& axis = *split.add_attribute();
    axis.set_name("axis");
    axis.set_type(2);
    axis.set_i(-1);
    for (const Product& each : products) {
      dropped_.insert(each.matmul);
      if (adds) dropped_.insert(each.add);
    }
  }

  // Puts the nodes that were made behind those whose results they resemble, and those of merged
  // products in their place.
  void Insert() {
    if (inserted_.empty() && before_.empty()) return;
    GraphProto all;
    for (int i = 0; i < graph_.node_size(); ++i) {
      NodeProto& node = *graph_.mutable_node(i);
      if (const auto merged = before_.find(i); merged != before_.end()) {
        for (NodeProto& each : merged->second) *all.add_node() = std::move(each);
      }
      if (dropped_.contains(i)) continue;
      const auto found = node.output_size() == 1 ? inserted_.find(node.output(0)) : inserted_.end();
      *all.add_node() = std::move(node);
      if (found != inserted_.end()) *all.add_node() = std::move(found->second);
    }
    graph_.mutable_node()->Swap(all.mutable_node());
  }

  absl::flat_hash_map<std::string, Constant>& constants_;
  GraphProto& graph_;
  // By the value of the node in front of it.
  absl::flat_hash_map<std::string, NodeProto> inserted_;
  // By value: the index of its node.
  absl::flat_hash_map<std::string, int> writers_;
  // How many nodes and outputs read a value.
  absl::flat_hash_map<std::string, int> readers_;
  // Nodes in front of others, and nodes that are left out, by index.
  absl::flat_hash_map<int, std::vector<NodeProto>> before_;
  absl::flat_hash_set<int> dropped_;
  int64_t merged_bytes_ = 0;
};

}  // namespace

void ReplacePatterns(absl::flat_hash_map<std::string, Constant>* constants, GraphProto* graph) {
  Patterns(constants, graph).Replace();
}

}  // namespace resident::onnx
