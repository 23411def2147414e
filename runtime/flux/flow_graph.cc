#include "runtime/flux/flow_graph.h"

#include <algorithm>
#include <map>
#include <utility>

#include "kernels/flux/interpreter.h"

namespace resident::flux {
namespace {

using Flow = FlowGraph::Flow;

Flow FindFlow(uint32_t word) {
  switch (word & 0xff) {
    case kDiv:
    case kMod:
      return Flow::kDivision;
    case kPush:
      return Flow::kPush;
    case kPop:
      return Flow::kPop;
    case kJz:
    case kJnz:
    case kJlt:
    case kJgt:
    case kLoop:
      return Flow::kCondition;
    case kJmp:
      return Flow::kJump;
    case kCall:
      return Flow::kCall;
    case kRet:
      return Flow::kReturn;
    case kHalt:
      return Flow::kHalt;
    case kStopOperation:
      return Flow::kError;
    case kEndOperation:
      return Flow::kEnd;
    default:
      return Flow::kStraight;
  }
}

// Distance from a branch to its target.
int64_t Distance(uint32_t word) {
  switch (word & 0xff) {
    case kJmp:
    case kCall:
      return static_cast<int32_t>(word) >> 16;
    case kLoop:
      return -static_cast<int64_t>(word >> 16);
    default:
      return static_cast<int8_t>(word >> 16);
  }
}

}  // namespace

// Explores one form. An object is used once.
class FlowGraph::Explorer {
 public:
  Explorer(std::string_view bytecode, bool unknown_nop, const FlowLimits& limits, Form form,
           uint32_t max_nodes)
      : bytecode_(bytecode), unknown_nop_(unknown_nop), limits_(limits), max_nodes_(max_nodes) {
    graph_.form_ = form;
  }

  std::optional<FlowGraph> Run() {
    Visit(0, {});
    graph_.nodes_[0].block = true;
    // Nodes are added while they are expanded.
    for (size_t i = 0; i < graph_.nodes_.size(); ++i) {
      Expand(static_cast<int>(i));
      if (impossible_ || graph_.nodes_.size() > max_nodes_) return std::nullopt;
    }
    if (returns_) {
      for (const int site : sites_) graph_.return_sites_.push_back(site);
      graph_.returns_to_values_ = pushes_;
    }
    MarkJoins();
    return std::move(graph_);
  }

 private:
  bool known() const { return graph_.form_ == Form::kKnownStack; }
  bool IsInside(int64_t address) const {
    return address >= 0 && address <= static_cast<int64_t>(bytecode_.size());
  }

  int Visit(uint32_t address, std::vector<int32_t> stack) {
    const auto [at, added] =
        index_.try_emplace({address, stack}, static_cast<int>(graph_.nodes_.size()));
    if (added) graph_.nodes_.push_back(MakeNode(address, std::move(stack)));
    return at->second;
  }

  Node MakeNode(uint32_t address, std::vector<int32_t> stack) {
    const auto remaining = static_cast<uint32_t>(bytecode_.size()) - address;
    uint32_t bytes = 0;
    for (uint32_t i = 0; i < 4 && i < remaining; ++i) {
      bytes |= uint32_t{static_cast<uint8_t>(bytecode_[address + i])} << 8 * i;
    }
    Node node;
    node.address = address;
    node.stack = std::move(stack);
    node.word = Decode(bytes, remaining, unknown_nop_);
    node.flow = FindFlow(node.word);
    if (node.flow == Flow::kError || node.flow == Flow::kEnd) node.error = node.word >> 16;
    // A no-op is decoded as a jump to the instruction behind it.
    node.no_op = node.flow == Flow::kJump && (bytes & 0xff) != kJmp;
    if (node.no_op) node.flow = Flow::kStraight;
    if (remaining != 0 && !IsValid(bytes & 0xff) && LengthOf(bytes & 0xff) <= remaining) {
      graph_.has_unknown_opcode_ = true;
    }
    return node;
  }

  void Expand(int index) {
    // A copy, because Visit may move the nodes.
    const Node node = graph_.nodes_[index];
    const uint32_t length =
        node.flow == Flow::kEnd ? 0 : LengthOf(static_cast<uint8_t>(bytecode_[node.address]));
    const uint32_t behind = node.address + length;
    std::vector<int32_t> stack = node.stack;
    int next = kNone;
    int target = kNone;
    switch (node.flow) {
      case Flow::kStraight:
      case Flow::kDivision:
        next = Visit(behind, std::move(stack));
        break;
      case Flow::kPush:
        pushes_ = true;
        if (known()) Grow(stack, kValue);
        if (!impossible_) next = Visit(behind, std::move(stack));
        break;
      case Flow::kPop:
        if (known() && stack.empty()) break;
        if (known()) stack.pop_back();
        next = Visit(behind, std::move(stack));
        break;
      case Flow::kCondition:
        next = Visit(behind, stack);
        target = VisitTarget(node, std::move(stack));
        break;
      case Flow::kJump:
        target = VisitTarget(node, std::move(stack));
        break;
      case Flow::kCall:
        if (known()) {
          Grow(stack, static_cast<int32_t>(behind));
        } else {
          calls_.push_back(behind);
          if (returns_) VisitReturnSites();
        }
        if (!impossible_) target = VisitTarget(node, std::move(stack));
        break;
      case Flow::kReturn:
        if (!known()) {
          returns_ = true;
          VisitReturnSites();
        } else if (!stack.empty()) {
          const int32_t to = stack.back();
          impossible_ = to == kValue;
          stack.pop_back();
          if (!impossible_) target = Visit(static_cast<uint32_t>(to), std::move(stack));
        }
        break;
      case Flow::kHalt:
      case Flow::kError:
      case Flow::kEnd:
        break;
    }
    graph_.nodes_[index].next = next;
    graph_.nodes_[index].target = target;
    if (target != kNone) graph_.nodes_[target].block = true;
    if (next != kNone && node.flow == Flow::kCondition) graph_.nodes_[next].block = true;
  }

  int VisitTarget(const Node& node, std::vector<int32_t> stack) {
    const int64_t target = node.address + Distance(node.word);
    return IsInside(target) ? Visit(static_cast<uint32_t>(target), std::move(stack)) : kNone;
  }

  void Grow(std::vector<int32_t>& stack, int32_t slot) {
    stack.push_back(slot);
    impossible_ = stack.size() > limits_.max_known_depth;
  }

  void VisitReturnSites() {
    for (const uint32_t behind : calls_) {
      const int site = Visit(behind, {});
      graph_.nodes_[site].block = true;
      if (std::find(sites_.begin(), sites_.end(), site) == sites_.end()) sites_.push_back(site);
    }
    calls_.clear();
  }

  void MarkJoins() {
    std::vector<int> predecessors(graph_.nodes_.size());
    for (const Node& node : graph_.nodes_) {
      if (node.next != kNone && ++predecessors[node.next] > 1)
        graph_.nodes_[node.next].block = true;
    }
  }

  const std::string_view bytecode_;
  const bool unknown_nop_;
  const FlowLimits limits_;
  const uint32_t max_nodes_;
  FlowGraph graph_;
  std::map<std::pair<uint32_t, std::vector<int32_t>>, int> index_;
  bool impossible_ = false;  // This form does not exist.
  bool pushes_ = false;
  bool returns_ = false;
  std::vector<uint32_t> calls_;  // Addresses behind CALLs that are not yet return sites.
  std::vector<int> sites_;
};

std::optional<FlowGraph> FlowGraph::Explore(std::string_view bytecode, bool unknown_nop,
                                            const FlowLimits& limits) {
  // Stacks of different depth at one address, as in a loop that pushes, end the first form early.
  constexpr size_t kNodesOfByte = 4;
  constexpr size_t kMinNodes = 64;
  const size_t few = std::min<size_t>(limits.max_nodes, kNodesOfByte * bytecode.size() + kMinNodes);
  auto graph =
      Explorer(bytecode, unknown_nop, limits, Form::kKnownStack, static_cast<uint32_t>(few)).Run();
  if (graph.has_value()) return graph;
  return Explorer(bytecode, unknown_nop, limits, Form::kAnyStack, limits.max_nodes).Run();
}

}  // namespace resident::flux
