#include "tests/graph/random_graph.h"

#include <string>
#include <utility>
#include <vector>

#include "tests/graph/graph_maker.h"

namespace resident::testing {
namespace {

using Kind = v1::GraphTensor::Kind;

class Maker {
 public:
  explicit Maker(std::mt19937_64& random) : random_(random) {}

  v1::Graph Make() {
    if (Chance(6)) g_.Scalar("n", 1, kRows);
    if (Chance(6)) g_.Scalar("pos", 0, kCacheRows - 1);
    g_.Input("input", {kRows, kColumns});
    AddTensor(v1::GraphTensor::KIND_STATE, "state");
    AddTensor(v1::GraphTensor::KIND_STATE, "state2");
    const int activations = 1 + Below(3);
    for (int i = 0; i < activations; ++i) {
      AddTensor(v1::GraphTensor::KIND_ACTIVATION, "a" + std::to_string(i));
    }
    if (Chance(2)) AddTensor(v1::GraphTensor::KIND_OUTPUT, "output");
    if (Chance(3)) {
      // Of the lower half, so that it overlaps the rest of its tensor in part.
      g_.Alias(v1::GraphTensor::KIND_STATE, "alias", "state", {kRows / 2, kColumns},
               Chance(2) ? 0 : 4 * kColumns);
      tensors_.push_back({"alias", kRows / 2, v1::GraphTensor::KIND_STATE});
    }
    g_.State("cache", {1, 1, kCacheRows, 2}).Input("rows", {1, 1, 1, 2});
    g_.Input("query", {1, 1, 1, 2}).State("attended", {1, 1, 1, 2});
    for (const Tensor& tensor : tensors_) {
      // Usually memory gets a value first.
      if (tensor.kind == v1::GraphTensor::KIND_STATE || Chance(5)) continue;
      g_.Call("relu", {"input", tensor.name});
    }
    const int nodes = 2 + Below(6);
    for (int i = 0; i < nodes; ++i) AddNode();
    return std::move(g_.graph);
  }

 private:
  static constexpr int64_t kRows = 4;
  static constexpr int64_t kColumns = 4;
  static constexpr int64_t kCacheRows = 4;

  struct Tensor {
    std::string name;
    int64_t rows;
    Kind kind;
  };

  int Below(int n) { return static_cast<int>(random_() % static_cast<uint64_t>(n)); }
  bool Chance(int of) { return Below(of) == 0; }
  bool HasScalar(const char* name) const {
    for (const v1::GraphScalar& scalar : g_.graph.scalars()) {
      if (scalar.name() == name) return true;
    }
    return false;
  }

  void AddTensor(Kind kind, const std::string& name) {
    g_.Tensor(kind, name, {kRows, kColumns});
    tensors_.push_back({name, kRows, kind});
  }

  // A box of a tensor with this shape, at a random place and, if it is only read, in a random
  // direction.
  Arg MakeView(const Tensor& tensor, int64_t rows, int64_t columns, bool dynamic, bool read) {
    const int64_t row = Below(static_cast<int>(tensor.rows - rows + 1));
    const int64_t column = Below(static_cast<int>(kColumns - columns + 1));
    if (dynamic) return View(tensor.name, {D("n"), columns}, column);
    if (read && Chance(6)) {
      return View(tensor.name, {rows, columns}, (row + rows - 1) * kColumns + column + columns - 1,
                  {-kColumns, -1});
    }
    return View(tensor.name, {rows, columns}, row * kColumns + column);
  }

  const Tensor& Any() {
    return tensors_[static_cast<size_t>(Below(static_cast<int>(tensors_.size())))];
  }

  void AddNode() {
    switch (Below(10)) {
      case 0: {
        const Arg pos = HasScalar("pos") && Chance(2) ? S("pos") : I(Below(kCacheRows));
        g_.Call("kv_append", {"rows", "cache", pos});
        return;
      }
      case 1: {
        const Arg length =
            HasScalar("pos") && Chance(2) ? S("pos", 1, Below(2)) : I(Below(kCacheRows + 2) - 1);
        g_.Call("attention", {"query", "cache", "cache", None(), "attended", F(1), I(0), length});
        return;
      }
      case 2: {
        // c = a * b + beta * c
        const Tensor& c = Any();
        if (c.rows < 2) return AddNode();
        g_.Call("gemm", {View("input", {2, 2}, Below(2)), View("input", {2, 2}, 8),
                         MakeView(c, 2, 2, false, false), F(1), F(Below(2))});
        return;
      }
      default:
        break;
    }
    const Tensor& to = Any();
    const bool dynamic = HasScalar("n") && to.rows == kRows && Chance(3);
    const int64_t rows = dynamic ? kRows : 1 + Below(static_cast<int>(to.rows));
    const int64_t columns = Chance(2) ? kColumns : 1 + Below(kColumns);
    std::vector<Arg> arguments;
    const bool add = Chance(3);
    for (int i = 0; i < (add ? 2 : 1); ++i) {
      const Tensor* from = &Any();
      if (from->rows < rows || Chance(6)) {
        const Tensor input{"input", kRows, v1::GraphTensor::KIND_INPUT};
        arguments.push_back(MakeView(input, rows, columns, dynamic, true));
      } else {
        arguments.push_back(MakeView(*from, rows, columns, dynamic, true));
      }
    }
    arguments.push_back(MakeView(to, rows, columns, dynamic, false));
    g_.Call(add ? "add" : "relu", std::move(arguments));
  }

  std::mt19937_64& random_;
  GraphMaker g_;
  std::vector<Tensor> tensors_;
};

}  // namespace

v1::Graph MakeRandomGraph(std::mt19937_64& random) { return Maker(random).Make(); }

void AddExplicitOrder(const graph::Dependencies& dependencies, std::mt19937_64& random,
                      v1::Graph* graph) {
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<uint64_t>(n)); };
  const int nodes = graph->nodes_size();
  const bool blocks = below(2) == 0;
  if (blocks) graph->set_blocks(static_cast<uint32_t>(1 + below(3)));
  // Sometimes neighbours share a counter, and each node that waits for one waits for both.
  const bool shared = below(3) == 0;
  const auto counter_of = [&](uint32_t n) { return shared ? n / 2 : n; };
  for (int n = 0; n < nodes; ++n) graph->add_counters();
  std::vector<uint32_t> producers(static_cast<size_t>(nodes), 0);
  for (int n = 0; n < nodes; ++n) {
    v1::GraphNode& node = *graph->mutable_nodes(n);
    node.set_signals(counter_of(static_cast<uint32_t>(n)));
    ++producers[node.signals()];
    if (blocks) node.set_block(static_cast<uint32_t>(below(static_cast<int>(graph->blocks()))));
  }
  for (int n = 0; n < nodes; ++n) {
    v1::GraphNode& node = *graph->mutable_nodes(n);
    for (const graph::Dependency& dependency : dependencies.Of(static_cast<uint32_t>(n))) {
      const v1::GraphNode& other = graph->nodes(static_cast<int>(dependency.after));
      if (blocks && other.block() == node.block() && below(2) == 0) continue;
      if (node.waits_size() == 8) continue;
      v1::GraphWait& wait = *node.add_waits();
      wait.set_counter(other.signals());
      wait.set_threshold(producers[other.signals()]);
    }
  }
  const int changes = below(3) == 0 ? 0 : 1 + below(2);
  for (int c = 0; c < changes; ++c) {
    v1::GraphNode& node = *graph->mutable_nodes(below(nodes));
    switch (below(6)) {
      case 0:
      case 1:
        if (node.waits_size() > 0)
          node.mutable_waits()->DeleteSubrange(below(node.waits_size()), 1);
        break;
      case 2: {
        const uint32_t counter = static_cast<uint32_t>(below(nodes));
        if (node.waits_size() == 8) break;
        node.add_waits()->set_counter(counter);
        node.mutable_waits(node.waits_size() - 1)->set_threshold(producers[counter]);
        break;
      }
      case 3:
        if (node.waits_size() > 0) {
          v1::GraphWait& wait = *node.mutable_waits(below(node.waits_size()));
          wait.set_threshold(wait.threshold() + (below(2) == 0 ? 1u : ~0u));
        }
        break;
      case 4:
        if (blocks) {
          node.set_block(static_cast<uint32_t>(below(static_cast<int>(graph->blocks()))));
        }
        break;
      default:
        node.clear_signals();
        break;
    }
  }
}

}  // namespace resident::testing
