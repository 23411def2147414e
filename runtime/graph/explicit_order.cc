#include "runtime/graph/explicit_order.h"

#include <algorithm>
#include <cassert>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "runtime/graph/limits.h"

namespace resident::graph {
namespace {

using absl::StrCat;

// Lists of numbers by index, in one vector.
class Lists {
 public:
  // `pairs`: index and number, in any order.
  Lists(size_t count, const std::vector<std::pair<uint32_t, uint32_t>>& pairs)
      : ends_(count + 1, 0), numbers_(pairs.size()) {
    for (const auto& [index, number] : pairs) ++ends_[index + 1];
    for (size_t i = 0; i < count; ++i) ends_[i + 1] += ends_[i];
    std::vector<uint32_t> at(ends_.begin(), ends_.end() - 1);
    for (const auto& [index, number] : pairs) numbers_[at[index]++] = number;
  }
  absl::Span<const uint32_t> operator[](size_t index) const {
    return absl::MakeConstSpan(numbers_).subspan(ends_[index], ends_[index + 1] - ends_[index]);
  }

 private:
  std::vector<uint32_t> ends_;
  std::vector<uint32_t> numbers_;
};

std::vector<uint32_t> CountProducers(const Graph& graph) {
  std::vector<uint32_t> producers(graph.counters.size(), 0);
  for (const Node& node : graph.nodes) {
    if (node.signals != kNone) ++producers[node.signals];
  }
  return producers;
}

// Nodes that are the same to the order: vertex i of the order is one of them, or several.
// The graph of vertices and counters: vertex -> counter that it signals -> vertices that wait.
// With blocks each node is a vertex, and has the next node of its block as another successor.
class Order {
 public:
  explicit Order(const Graph& graph) : graph_(graph), vertex_of_(graph.nodes.size()) {
    if (graph.blocks > 0) {
      for (uint32_t n = 0; n < graph.nodes.size(); ++n) vertex_of_[n] = n;
      first_node_ = vertex_of_;
    } else {
      FormClasses();
    }
    std::vector<std::pair<uint32_t, uint32_t>> waiting;
    std::vector<std::pair<uint32_t, uint32_t>> signalling;
    for (uint32_t v = 0; v < vertices(); ++v) {
      const Node& node = graph.nodes[first_node_[v]];
      for (const Wait& wait : graph.WaitsOf(node)) waiting.emplace_back(wait.counter, v);
      if (node.signals != kNone) signalling.emplace_back(node.signals, v);
    }
    waiting_ = std::make_unique<Lists>(graph.counters.size(), waiting);
    signalling_ = std::make_unique<Lists>(graph.counters.size(), signalling);
    next_in_block_.assign(vertices(), kNone);
    before_in_block_.assign(vertices(), kNone);
    std::vector<uint32_t> last(graph.blocks, kNone);
    for (uint32_t n = 0; n < graph.nodes.size() && graph.blocks > 0; ++n) {
      uint32_t& before = last[graph.nodes[n].block];
      before_in_block_[n] = before;
      if (before != kNone) next_in_block_[before] = n;
      before = n;
    }
  }

  uint32_t vertices() const { return static_cast<uint32_t>(first_node_.size()); }
  uint32_t vertex_of(uint32_t node) const { return vertex_of_[node]; }
  uint32_t first_node(uint32_t vertex) const { return first_node_[vertex]; }
  const Node& node(uint32_t vertex) const { return graph_.nodes[first_node_[vertex]]; }
  absl::Span<const uint32_t> Producers(uint32_t counter) const { return (*signalling_)[counter]; }
  uint32_t before_in_block(uint32_t vertex) const { return before_in_block_[vertex]; }

  // The vertices so that each comes after those that it waits for. Those on a cycle, and after one,
  // are missing.
  std::vector<uint32_t> Sort(bool with_blocks) const {
    std::vector<uint32_t> open(vertices(), 0);
    std::vector<uint32_t> producers(graph_.counters.size());
    for (uint32_t c = 0; c < producers.size(); ++c) {
      producers[c] = static_cast<uint32_t>((*signalling_)[c].size());
    }
    std::vector<uint32_t> sorted;
    sorted.reserve(vertices());
    for (uint32_t v = 0; v < vertices(); ++v) {
      open[v] = static_cast<uint32_t>(graph_.WaitsOf(node(v)).size()) +
                (with_blocks && before_in_block_[v] != kNone ? 1 : 0);
      if (open[v] == 0) sorted.push_back(v);
    }
    for (size_t i = 0; i < sorted.size(); ++i) {
      const uint32_t v = sorted[i];
      const auto release = [&](uint32_t vertex) {
        if (--open[vertex] == 0) sorted.push_back(vertex);
      };
      const uint32_t counter = node(v).signals;
      if (counter != kNone && --producers[counter] == 0) {
        for (const uint32_t waiting : (*waiting_)[counter]) release(waiting);
      }
      if (with_blocks && next_in_block_[v] != kNone) release(next_in_block_[v]);
    }
    return sorted;
  }

  // A cycle as text; empty if the check has ended. REQUIRES: Sort(with_blocks) returned `sorted`,
  // and vertices are missing.
  std::string FindWitness(const std::vector<uint32_t>& sorted, bool with_blocks,
                          CheckBudget& budget) const {
    std::vector<bool> done(vertices(), false);
    for (const uint32_t v : sorted) done[v] = true;
    uint32_t at = 0;
    while (done[at]) ++at;
    // Each vertex that is not done waits for another one: go back until one repeats. Of each
    // counter the producers are searched once.
    std::vector<uint32_t> open_producer(graph_.counters.size(), kNone);
    for (uint32_t c = 0; c < open_producer.size(); ++c) {
      for (const uint32_t producer : (*signalling_)[c]) {
        if (!budget.Take()) return "";
        if (!done[producer]) open_producer[c] = producer;
      }
    }
    std::vector<uint32_t> path;
    std::vector<uint32_t> position(vertices(), kNone);
    while (position[at] == kNone) {
      position[at] = static_cast<uint32_t>(path.size());
      path.push_back(at);
      if (!budget.Take(1 + graph_.WaitsOf(node(at)).size())) return "";
      uint32_t before = kNone;
      for (const Wait& wait : graph_.WaitsOf(node(at))) {
        if (open_producer[wait.counter] != kNone) before = open_producer[wait.counter];
      }
      if (with_blocks && before_in_block_[at] != kNone && !done[before_in_block_[at]]) {
        before = before_in_block_[at];
      }
      at = before;
    }
    std::string text = graph_.NodeName(first_node(at));
    constexpr size_t kMaxShown = 16;
    const size_t length = path.size() - position[at];
    for (size_t i = 1; i <= length; ++i) {
      const uint32_t vertex = i == length ? at : path[position[at] + i];
      if (i < kMaxShown || i == length) {
        absl::StrAppend(&text, " after ", graph_.NodeName(first_node(vertex)));
      } else if (i == kMaxShown) {
        absl::StrAppend(&text, " after ... ", length - kMaxShown, " more ...");
      }
    }
    return text;
  }

 private:
  void FormClasses() {
    // Sorted waits and the signal, as numbers.
    absl::flat_hash_map<std::vector<uint32_t>, uint32_t> classes;
    std::vector<uint32_t> key;
    std::vector<uint32_t> counters;
    for (uint32_t n = 0; n < graph_.nodes.size(); ++n) {
      const Node& node = graph_.nodes[n];
      counters.clear();
      for (const Wait& wait : graph_.WaitsOf(node)) counters.push_back(wait.counter);
      std::sort(counters.begin(), counters.end());
      counters.erase(std::unique(counters.begin(), counters.end()), counters.end());
      key.assign(1, node.signals);
      key.insert(key.end(), counters.begin(), counters.end());
      const auto [found, is_new] =
          classes.try_emplace(key, static_cast<uint32_t>(first_node_.size()));
      if (is_new) first_node_.push_back(n);
      vertex_of_[n] = found->second;
    }
  }

  const Graph& graph_;
  std::vector<uint32_t> vertex_of_;
  std::vector<uint32_t> first_node_;
  std::unique_ptr<Lists> waiting_;
  std::unique_ptr<Lists> signalling_;
  std::vector<uint32_t> next_in_block_;
  std::vector<uint32_t> before_in_block_;
};

// Numbers of a row or clock that are joined in the time of one step.
constexpr uint64_t kNumbersInAStep = 8;

// Answers whether one node always ends before another one starts. If the check ended while it was
// made, it must not be asked.
class Before {
 public:
  virtual ~Before() = default;
  virtual bool operator()(uint32_t first, uint32_t second) const = 0;
};

// Without blocks: a row of bits for each class, the classes before it.
class ClassRows final : public Before {
 public:
  ClassRows(const Graph& graph, const Order& order, const std::vector<uint32_t>& sorted,
            CheckBudget& budget)
      : order_(order), words_((order.vertices() + 63) / 64) {
    const uint64_t row_steps = 1 + words_ / kNumbersInAStep;
    if (!budget.Hold(words_ * order.vertices() * sizeof(uint64_t))) return;
    bits_.assign(words_ * order.vertices(), 0);
    // The union of what is before the producers of a counter, and these.
    absl::flat_hash_map<uint32_t, std::vector<uint64_t>> of_counter;
    for (const uint32_t v : sorted) {
      uint64_t* const row = &bits_[words_ * v];
      for (const Wait& wait : graph.WaitsOf(order.node(v))) {
        if (!budget.Take(row_steps)) return;
        std::vector<uint64_t>& joined = of_counter[wait.counter];
        if (joined.empty()) {
          const uint64_t producers = order.Producers(wait.counter).size();
          if (!budget.Hold(words_ * sizeof(uint64_t)) || !budget.Take(producers * row_steps))
            return;
          joined.resize(words_, 0);
          for (const uint32_t producer : order.Producers(wait.counter)) {
            const uint64_t* const before = &bits_[words_ * producer];
            for (size_t w = 0; w < words_; ++w) joined[w] |= before[w];
            joined[producer / 64] |= uint64_t{1} << (producer % 64);
          }
        }
        for (size_t w = 0; w < words_; ++w) row[w] |= joined[w];
      }
    }
  }
  bool operator()(uint32_t first, uint32_t second) const override {
    const uint32_t a = order_.vertex_of(first);
    return (bits_[words_ * order_.vertex_of(second) + a / 64] >> (a % 64) & 1) != 0;
  }

 private:
  const Order& order_;
  const size_t words_;
  std::vector<uint64_t> bits_;
};

// With blocks: a vector clock for each node.
class VectorClocks final : public Before {
 public:
  VectorClocks(const Graph& graph, const Order& order, const std::vector<uint32_t>& sorted,
               CheckBudget& budget)
      : graph_(graph), blocks_(graph.blocks), position_(graph.nodes.size()) {
    const uint64_t clock_steps = 1 + blocks_ / kNumbersInAStep;
    if (!budget.Hold(graph.nodes.size() * blocks_ * sizeof(uint32_t))) return;
    clocks_.assign(graph.nodes.size() * blocks_, 0);
    std::vector<uint32_t> length(blocks_, 0);
    for (uint32_t n = 0; n < graph.nodes.size(); ++n) {
      position_[n] = length[graph.nodes[n].block]++;
    }
    absl::flat_hash_map<uint32_t, std::vector<uint32_t>> of_counter;
    for (const uint32_t n : sorted) {
      uint32_t* const clock = &clocks_[static_cast<size_t>(n) * blocks_];
      const auto join = [&](const uint32_t* other, std::vector<uint32_t>* into) {
        uint32_t* const to = into == nullptr ? clock : into->data();
        for (uint32_t b = 0; b < blocks_; ++b) to[b] = std::max(to[b], other[b]);
      };
      // What is before a node, and the node itself.
      const auto join_node = [&](uint32_t node, std::vector<uint32_t>* into) {
        join(&clocks_[static_cast<size_t>(node) * blocks_], into);
        uint32_t& own = (into == nullptr ? clock : into->data())[graph.nodes[node].block];
        own = std::max(own, position_[node] + 1);
      };
      if (!budget.Take(clock_steps)) return;
      if (order.before_in_block(n) != kNone) join_node(order.before_in_block(n), nullptr);
      for (const Wait& wait : graph.WaitsOf(graph.nodes[n])) {
        const absl::Span<const uint32_t> producers = order.Producers(wait.counter);
        if (!budget.Take(clock_steps)) return;
        if (producers.size() == 1) {
          join_node(producers[0], nullptr);
          continue;
        }
        std::vector<uint32_t>& joined = of_counter[wait.counter];
        if (joined.empty()) {
          if (!budget.Hold(blocks_ * sizeof(uint32_t)) ||
              !budget.Take(producers.size() * clock_steps)) {
            return;
          }
          joined.resize(blocks_, 0);
          for (const uint32_t producer : producers) join_node(producer, &joined);
        }
        join(joined.data(), nullptr);
      }
    }
  }
  bool operator()(uint32_t first, uint32_t second) const override {
    return clocks_[static_cast<size_t>(second) * blocks_ + graph_.nodes[first].block] >
           position_[first];
  }

 private:
  const Graph& graph_;
  const size_t blocks_;
  std::vector<uint32_t> position_;
  std::vector<uint32_t> clocks_;
};

void CheckDependencies(const Graph& graph, const Dependencies& order, const Before& before,
                       Findings& findings, CheckBudget& budget) {
  for (uint32_t n = 0; n < graph.nodes.size(); ++n) {
    if (!budget.BeginNode(n, 1 + order.Of(n).size())) return;
    for (const Dependency& dependency : order.Of(n)) {
      if (before(dependency.after, n)) continue;
      if (!findings.keeps_errors()) {
        findings.CountError();
        continue;
      }
      const std::string other = graph.NodeName(dependency.after);
      const bool read = dependency.kind == DependencyKind::kReadAfterWrite;
      const bool overwrite = dependency.kind == DependencyKind::kWriteAfterRead;
      findings.Add(read        ? Code::kReadNotOrdered
                   : overwrite ? Code::kOverwriteNotOrdered
                               : Code::kWritesNotOrdered,
                   {.node = graph.NodeName(n)},
                   StrCat("it ",
                          read        ? "reads what node "
                          : overwrite ? "overwrites what node "
                                      : "writes the memory that node ",
                          other,
                          overwrite ? " reads"
                          : read    ? " writes"
                                    : " writes before it",
                          ", and no counter or block orders it after that node. Fix: let it wait "
                          "for a counter that ",
                          other, " signals"));
    }
  }
}

// 601: a node of a step may run before a node of the step before it has ended, with which it
// conflicts. Within a block one step follows the other, so a node comes after all of block b of the
// step before if it comes after the first node of block b.
void CheckSteps(const Graph& graph, const Dependencies& step_order, const Before& before,
                Findings& findings, CheckBudget& budget) {
  std::vector<uint32_t> first_of_block(graph.blocks, kNone);
  for (uint32_t n = static_cast<uint32_t>(graph.nodes.size()); n-- > 0 && graph.blocks > 0;) {
    first_of_block[graph.nodes[n].block] = n;
  }
  for (uint32_t n = 0; n < graph.nodes.size(); ++n) {
    if (!budget.BeginNode(n, 1 + step_order.Of(n).size())) return;
    for (const Dependency& dependency : step_order.Of(n)) {
      if (graph.blocks > 0) {
        const uint32_t block = graph.nodes[dependency.after].block;
        if (graph.nodes[n].block == block || before(first_of_block[block], n)) continue;
      }
      if (!findings.keeps_errors()) {
        findings.CountError();
        continue;
      }
      const std::string other = graph.NodeName(dependency.after);
      findings.Add(
          Code::kStepEdge, {.node = graph.NodeName(n)},
          StrCat("it may run before node ", other,
                 " of the step before has ended, and both access the same memory. Fix: let "
                 "it run in the block of ",
                 other, ", or after the first node of that block"));
    }
  }
}

}  // namespace

void CheckCounters(const Graph& graph, Findings* findings, CheckBudget& budget) {
  if (!budget.Take(graph.nodes.size() + graph.counters.size())) return;
  const std::vector<uint32_t> producers = CountProducers(graph);
  for (uint32_t c = 0; c < graph.counters.size(); ++c) {
    if (graph.counters[c].initial == 0) continue;
    findings->Add(
        Code::kCounterStart, {},
        StrCat("counter ", c, " '", std::string(graph.counters[c].name), "' starts at ",
               graph.counters[c].initial, ", so that waits end early. Fix: start it at 0"));
  }
  for (uint32_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    if (!budget.BeginNode(n, 1 + node.wait_count)) return;
    for (const Wait& wait : graph.WaitsOf(node)) {
      const uint32_t count = producers[wait.counter];
      const auto add = [&](Code code, const std::string& text) {
        if (!findings->keeps_errors()) return findings->CountError();
        findings->Add(code, {.node = graph.NodeName(n)},
                      StrCat("it waits for counter ", wait.counter, " ", text));
      };
      if (node.signals == wait.counter) {
        add(Code::kSelfWait, "and signals it itself. Fix: signal another counter");
      } else if (count == 0) {
        add(Code::kNoProducer, "that no node signals. Fix: remove the wait, or signal the counter");
      } else if (wait.threshold > count) {
        add(Code::kThreshold, StrCat("to reach ", wait.threshold, ", and ", count,
                                     " nodes signal it. Fix: use ", count));
      } else if (wait.threshold < count) {
        add(Code::kPartialWait,
            StrCat("to reach ", wait.threshold, ", and ", count,
                   " nodes signal it: which of them have ended is unknown. Fix: use ", count,
                   ", or a counter for each"));
      }
    }
  }
}

void CheckExplicitOrder(const Graph& graph, const Dependencies& order,
                        const Dependencies* step_order, Findings* findings, CheckBudget& budget) {
  assert(findings->errors() == 0);
  // Lists of waits and signals, and of each vertex what is before it.
  const uint64_t listed = graph.nodes.size() + graph.counters.size() + graph.waits.size();
  if (!budget.Take(4 * listed) || !budget.Hold(64 * listed)) return;
  const Order explicit_order(graph);
  const std::vector<uint32_t> by_waits = explicit_order.Sort(/*with_blocks=*/false);
  if (by_waits.size() < explicit_order.vertices()) {
    const std::string witness = explicit_order.FindWitness(by_waits, false, budget);
    if (budget.ended()) return;
    findings->Add(Code::kCycle, {},
                  StrCat("the waits form a cycle: ", witness, ". Fix: remove one of these waits"));
    return;
  }
  std::unique_ptr<Before> before;
  if (graph.blocks > 0) {
    const std::vector<uint32_t> sorted = explicit_order.Sort(/*with_blocks=*/true);
    if (sorted.size() < explicit_order.vertices()) {
      const std::string witness = explicit_order.FindWitness(sorted, true, budget);
      if (budget.ended()) return;
      findings->Add(Code::kJointCycle, {},
                    StrCat("the waits and the order of the blocks form a cycle: ", witness,
                           ". Fix: exchange nodes of one block, or move one to another block"));
      return;
    }
    const uint64_t bytes = static_cast<uint64_t>(graph.nodes.size()) * graph.blocks * 4;
    if (bytes > kMaxClockBytes) {
      findings->Add(
          Code::kOverLimit, {},
          StrCat("the proof of the order needs ", bytes, " bytes for ", graph.nodes.size(),
                 " nodes in ", graph.blocks, " blocks, and may use ", kMaxClockBytes,
                 ". Fix: use fewer blocks, or remove counters and blocks"));
      return;
    }
    before = std::make_unique<VectorClocks>(graph, explicit_order, sorted, budget);
  } else {
    if (explicit_order.vertices() > kMaxClasses) {
      findings->Add(Code::kOverLimit, {},
                    StrCat("the nodes have ", explicit_order.vertices(),
                           " different groups of waits and signals, and the proof of the order may "
                           "use ",
                           kMaxClasses, ". Fix: assign blocks, or remove the counters"));
      return;
    }
    before = std::make_unique<ClassRows>(graph, explicit_order, by_waits, budget);
  }
  if (budget.ended()) return;
  CheckDependencies(graph, order, *before, *findings, budget);
  if (step_order != nullptr) CheckSteps(graph, *step_order, *before, *findings, budget);
}

}  // namespace resident::graph
