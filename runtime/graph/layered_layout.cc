#include "runtime/graph/layered_layout.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

namespace resident::graph {
namespace {

constexpr int kOrderSweeps = 12;
constexpr int kPlaceSweeps = 40;
constexpr double kMiddleWeight = 0.25;
// Nodes that a layer may always have.
constexpr uint32_t kMinLayerNodes = 12;
// Exchanges of neighbours are tried in pictures of at most this size.
constexpr size_t kMaxExchanged = 4000;
constexpr int kExchangeRounds = 8;

class Maker {
 public:
  Maker(absl::Span<const double> widths, absl::Span<const LayoutEdge> edges,
        const LayoutOptions& options)
      : node_count_(static_cast<uint32_t>(widths.size())),
        edges_(edges),
        options_(options),
        widths_(widths.begin(), widths.end()) {}

  std::optional<Layout> Make() {
    AssignLayers();
    if (!AddBends()) return std::nullopt;
    OrderLayers();
    PlaceLayers();
    return Draw();
  }

 private:
  // A step of an edge to the next layer. Items are nodes, and then bends.
  struct Link {
    uint32_t from;
    uint32_t to;
    uint32_t group;
  };

  bool IsNode(uint32_t item) const { return item < node_count_; }

  void AssignLayers() {
    layers_.assign(node_count_, 0);
    std::vector<std::vector<uint32_t>> targets(node_count_);
    std::vector<uint32_t> sources(node_count_, 0);
    for (const LayoutEdge& edge : edges_) {
      assert(edge.from < edge.to);
      assert(edge.from < edge.to);
      targets[edge.from].push_back(edge.to);
      ++sources[edge.to];
    }
    // Nodes of each layer.
    std::vector<uint32_t> used;
    const auto is_full = [&](uint32_t layer) {
      if (used.size() <= layer) used.resize(layer + 1, 0);
      return used[layer] >= MaxLayerNodes();
    };
    for (uint32_t n = 0; n < node_count_; ++n) {
      while (is_full(layers_[n])) ++layers_[n];
      ++used[layers_[n]];
      for (const uint32_t to : targets[n]) layers_[to] = std::max(layers_[to], layers_[n] + 1);
    }
    // A node with fewer edges from above than to below moves down as far as it can.
    for (uint32_t n = node_count_; n-- > 0;) {
      if (targets[n].empty() || (sources[n] > 0 && sources[n] >= targets[n].size())) continue;
      uint32_t layer = ~uint32_t{0};
      for (const uint32_t to : targets[n]) layer = std::min(layer, layers_[to] - 1);
      while (layer > layers_[n] && is_full(layer)) --layer;
      if (layer <= layers_[n]) continue;
      --used[layers_[n]];
      ++used[layer];
      layers_[n] = layer;
    }
    // Layers that have become empty are left out.
    uint32_t next = 0;
    std::vector<uint32_t> numbers;
    numbers.reserve(used.size());
    for (const uint32_t nodes : used) numbers.push_back(nodes > 0 ? next++ : next);
    for (uint32_t& layer : layers_) layer = numbers[layer];
  }

  // So that many nodes without an order do not make a picture that is only wide.
  uint32_t MaxLayerNodes() const {
    const auto side = static_cast<uint32_t>(std::sqrt(2.0 * node_count_));
    return std::max<uint32_t>(kMinLayerNodes, side);
  }

  bool AddBends() {
    if (node_count_ > kMaxLayoutItems) return false;
    std::map<std::pair<uint32_t, uint32_t>, std::vector<uint32_t>> routes;
    for (const LayoutEdge& edge : edges_) routes[{edge.from, edge.group}].push_back(edge.to);
    for (const auto& [route, targets] : routes) {
      const auto [from, group] = route;
      uint32_t last = 0;
      for (const uint32_t to : targets) last = std::max(last, layers_[to]);
      // The item of the route in each layer from that of the node on.
      std::vector<uint32_t> chain = {from};
      for (uint32_t layer = layers_[from] + 1; layer < last; ++layer) {
        if (layers_.size() == kMaxLayoutItems) return false;
        const uint32_t bend = static_cast<uint32_t>(layers_.size());
        layers_.push_back(layer);
        widths_.push_back(0);
        links_.push_back({chain.back(), bend, group});
        chain.push_back(bend);
      }
      for (const uint32_t to : targets) {
        links_.push_back({chain[layers_[to] - 1 - layers_[from]], to, group});
      }
    }
    above_.resize(layers_.size());
    below_.resize(layers_.size());
    for (const Link& link : links_) {
      above_[link.to].push_back(link.from);
      below_[link.from].push_back(link.to);
    }
    uint32_t count = 0;
    for (const uint32_t layer : layers_) count = std::max(count, layer + 1);
    order_.resize(count);
    for (uint32_t item = 0; item < layers_.size(); ++item) order_[layers_[item]].push_back(item);
    position_.resize(layers_.size());
    for (uint32_t layer = 0; layer < count; ++layer) SetPositions(layer);
    return true;
  }

  void SetPositions(uint32_t layer) {
    for (size_t i = 0; i < order_[layer].size(); ++i) {
      position_[order_[layer][i]] = static_cast<uint32_t>(i);
    }
  }

  // Crossings between a layer and the next one: pairs of links in opposite orders.
  uint64_t CountCrossings(uint32_t layer) const {
    const size_t size = layer + 1 < order_.size() ? order_[layer + 1].size() : 0;
    std::vector<uint32_t> tree(size + 1, 0);
    uint64_t crossings = 0;
    uint64_t before = 0;
    std::vector<uint32_t> ends;
    for (const uint32_t item : order_[layer]) {
      ends.clear();
      for (const uint32_t to : below_[item]) ends.push_back(position_[to]);
      for (const uint32_t end : ends) {
        uint64_t not_right = 0;
        for (size_t i = end + 1; i > 0; i &= i - 1) not_right += tree[i];
        crossings += before - not_right;
      }
      for (const uint32_t end : ends) {
        for (size_t i = end + 1; i <= size; i += i & (~i + 1)) ++tree[i];
      }
      before += ends.size();
    }
    return crossings;
  }

  uint64_t CountCrossings() const {
    uint64_t crossings = 0;
    for (uint32_t layer = 0; layer + 1 < order_.size(); ++layer) {
      crossings += CountCrossings(layer);
    }
    return crossings;
  }

  // Sorts a layer by the mean position of the neighbours. Items without neighbours stay.
  void SortLayer(uint32_t layer, const std::vector<std::vector<uint32_t>>& neighbours) {
    std::vector<std::pair<double, uint32_t>> sorted;
    std::vector<uint32_t> alone(order_[layer].size(), ~uint32_t{0});
    for (const uint32_t item : order_[layer]) {
      if (neighbours[item].empty()) {
        alone[position_[item]] = item;
        continue;
      }
      double sum = 0;
      for (const uint32_t other : neighbours[item]) sum += position_[other];
      sorted.emplace_back(sum / static_cast<double>(neighbours[item].size()), item);
    }
    std::stable_sort(sorted.begin(), sorted.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    size_t next = 0;
    for (size_t i = 0; i < alone.size(); ++i) {
      order_[layer][i] = alone[i] != ~uint32_t{0} ? alone[i] : sorted[next++].second;
    }
    SetPositions(layer);
  }

  void OrderLayers() {
    std::vector<std::vector<uint32_t>> best = order_;
    uint64_t fewest = CountCrossings();
    const auto keep = [&] {
      const uint64_t crossings = CountCrossings();
      if (crossings >= fewest) return;
      fewest = crossings;
      best = order_;
    };
    for (int sweep = 0; sweep < kOrderSweeps && fewest > 0; ++sweep) {
      for (uint32_t layer = 1; layer < order_.size(); ++layer) SortLayer(layer, above_);
      keep();
      for (size_t layer = order_.size(); layer-- > 1;) {
        SortLayer(static_cast<uint32_t>(layer - 1), below_);
      }
      keep();
    }
    order_ = std::move(best);
    for (uint32_t layer = 0; layer < order_.size(); ++layer) SetPositions(layer);
    if (layers_.size() <= kMaxExchanged) ExchangeNeighbours();
  }

  // Crossings of the links of two neighbours, if `left` is left of `right`.
  uint64_t PairCrossings(uint32_t left, uint32_t right,
                         const std::vector<std::vector<uint32_t>>& neighbours) const {
    uint64_t crossings = 0;
    for (const uint32_t a : neighbours[left]) {
      for (const uint32_t b : neighbours[right]) crossings += position_[a] > position_[b];
    }
    return crossings;
  }

  void ExchangeNeighbours() {
    bool changed = true;
    for (int round = 0; round < kExchangeRounds && changed; ++round) {
      changed = false;
      for (std::vector<uint32_t>& layer : order_) {
        for (size_t i = 0; i + 1 < layer.size(); ++i) {
          const uint32_t a = layer[i], b = layer[i + 1];
          const uint64_t now = PairCrossings(a, b, above_) + PairCrossings(a, b, below_);
          const uint64_t then = PairCrossings(b, a, above_) + PairCrossings(b, a, below_);
          if (then >= now) continue;
          std::swap(layer[i], layer[i + 1]);
          std::swap(position_[a], position_[b]);
          changed = true;
        }
      }
    }
  }

  // Distance between the middles of two neighbours of a layer.
  double Separation(uint32_t left, uint32_t right) const {
    const double gap = IsNode(left) && IsNode(right) ? options_.node_gap : options_.bend_gap;
    return widths_[left] / 2 + gap + widths_[right] / 2;
  }

  // Moves the items of a layer as near to their wishes as order and gaps allow: the least weighted
  // sum of squares (pool adjacent violators).
  void PlaceLayer(uint32_t layer, const std::vector<double>& wish,
                  const std::vector<double>& weight) {
    struct Pool {
      double sum;
      double weight;
      size_t count;
      double value() const { return sum / weight; }
    };
    const std::vector<uint32_t>& items = order_[layer];
    std::vector<Pool> pools;
    std::vector<double> shift(items.size(), 0);
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) shift[i] = shift[i - 1] + Separation(items[i - 1], items[i]);
      const double w = weight[items[i]];
      pools.push_back({w * (wish[items[i]] - shift[i]), w, 1});
      while (pools.size() > 1 && pools[pools.size() - 2].value() >= pools.back().value()) {
        const Pool last = pools.back();
        pools.pop_back();
        pools.back().sum += last.sum;
        pools.back().weight += last.weight;
        pools.back().count += last.count;
      }
    }
    size_t i = 0;
    for (const Pool& pool : pools) {
      for (size_t k = 0; k < pool.count; ++k, ++i) x_[items[i]] = pool.value() + shift[i];
    }
  }

  // How much an edge should be vertical. Long edges become straight, and do not pull chains of
  // nodes to the side.
  double Weight(uint32_t a, uint32_t b) const {
    if (IsNode(a) && IsNode(b)) return 4;
    return IsNode(a) || IsNode(b) ? 0.5 : 8;
  }

  void PlaceLayers() {
    x_.assign(layers_.size(), 0);
    std::vector<double> wish(layers_.size(), 0);
    std::vector<double> weight(layers_.size(), 1);
    for (uint32_t layer = 0; layer < order_.size(); ++layer) PlaceLayer(layer, wish, weight);
    for (int sweep = 0; sweep < kPlaceSweeps; ++sweep) {
      const bool down = sweep % 2 == 0;
      // The last sweeps look at both sides.
      const bool both = sweep >= kPlaceSweeps - 8;
      for (size_t i = 0; i < order_.size(); ++i) {
        const uint32_t layer = static_cast<uint32_t>(down ? i : order_.size() - 1 - i);
        for (const uint32_t item : order_[layer]) {
          double sum = 0;
          // The middle of the picture attracts nodes a little, so that chains do not drift away.
          double total = IsNode(item) ? kMiddleWeight : 0;
          const auto add = [&](const std::vector<uint32_t>& neighbours) {
            for (const uint32_t other : neighbours) {
              const double w = Weight(item, other);
              sum += w * x_[other];
              total += w;
            }
          };
          if (down || both) add(above_[item]);
          if (!down || both) add(below_[item]);
          wish[item] = total > 0 ? sum / total : x_[item];
          weight[item] = total > 0 ? total : kMiddleWeight;
        }
        PlaceLayer(layer, wish, weight);
      }
    }
  }

  Layout Draw() {
    Layout layout;
    double left = 0, right = 0;
    bool first = true;
    for (uint32_t item = 0; item < layers_.size(); ++item) {
      const double low = x_[item] - widths_[item] / 2, high = x_[item] + widths_[item] / 2;
      left = first ? low : std::min(left, low);
      right = first ? high : std::max(right, high);
      first = false;
    }
    for (double& x : x_) x -= left;
    layout.width = right - left;
    const double pitch = options_.node_height + options_.layer_gap;
    layout.height =
        order_.empty() ? 0 : static_cast<double>(order_.size()) * pitch - options_.layer_gap;
    for (uint32_t n = 0; n < node_count_; ++n) layout.nodes.push_back({x_[n], Top(n)});
    for (uint32_t item = node_count_; item < layers_.size(); ++item) {
      layout.segments.push_back(
          {{x_[item], Top(item)}, {x_[item], Top(item) + options_.node_height}, 0, false});
    }
    for (const Link& link : links_) {
      if (!IsNode(link.to)) {
        layout.segments[link.to - node_count_].group = link.group;
      }
    }
    AddLinks(layout);
    return layout;
  }

  double Top(uint32_t item) const {
    return layers_[item] * (options_.node_height + options_.layer_gap);
  }

  // Where links meet a node: side by side, in the order of their other ends.
  void AddLinks(Layout& layout) const {
    std::vector<double> from(links_.size()), to(links_.size());
    std::vector<std::vector<uint32_t>> leaving(node_count_), entering(node_count_);
    for (uint32_t l = 0; l < links_.size(); ++l) {
      from[l] = x_[links_[l].from];
      to[l] = x_[links_[l].to];
      if (IsNode(links_[l].from)) leaving[links_[l].from].push_back(l);
      if (IsNode(links_[l].to)) entering[links_[l].to].push_back(l);
    }
    for (uint32_t n = 0; n < node_count_; ++n) {
      // Links of one group leave at one place.
      std::vector<uint32_t> groups;
      for (const uint32_t l : leaving[n]) groups.push_back(links_[l].group);
      std::sort(groups.begin(), groups.end());
      groups.erase(std::unique(groups.begin(), groups.end()), groups.end());
      for (const uint32_t l : leaving[n]) {
        const size_t place = static_cast<size_t>(
            std::lower_bound(groups.begin(), groups.end(), links_[l].group) - groups.begin());
        from[l] += Port(n, place, groups.size());
      }
      std::vector<uint32_t>& list = entering[n];
      std::stable_sort(list.begin(), list.end(), [&](uint32_t a, uint32_t b) {
        return x_[links_[a].from] < x_[links_[b].from];
      });
      for (size_t i = 0; i < list.size(); ++i) to[list[i]] += Port(n, i, list.size());
    }
    for (uint32_t l = 0; l < links_.size(); ++l) {
      layout.segments.push_back({{from[l], Top(links_[l].from) + options_.node_height},
                                 {to[l], Top(links_[l].to)},
                                 links_[l].group,
                                 IsNode(links_[l].to)});
    }
  }

  double Port(uint32_t node, size_t place, size_t places) const {
    const double pitch = std::min(16.0, widths_[node] * 0.8 / static_cast<double>(places));
    return (static_cast<double>(place) - static_cast<double>(places - 1) / 2) * pitch;
  }

  const uint32_t node_count_;
  const absl::Span<const LayoutEdge> edges_;
  const LayoutOptions& options_;
  // By item.
  std::vector<double> widths_;
  std::vector<uint32_t> layers_;
  std::vector<uint32_t> position_;
  std::vector<double> x_;
  std::vector<std::vector<uint32_t>> above_;
  std::vector<std::vector<uint32_t>> below_;
  std::vector<Link> links_;
  // By layer: its items from left to right.
  std::vector<std::vector<uint32_t>> order_;
};

}  // namespace

std::optional<Layout> LayOut(absl::Span<const double> widths, absl::Span<const LayoutEdge> edges,
                             const LayoutOptions& options) {
  return Maker(widths, edges, options).Make();
}

}  // namespace resident::graph
