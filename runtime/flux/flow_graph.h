// FlowGraph: the instructions of a FLUX program that a run can reach, and their successors. The
// translator (translator.h) makes native code of it.
//
// There are two forms:
//
//   kKnownStack   A node is an address and the stack there, where each slot is a return address
//                 that is known, or a value. CALL and RET are then jumps between nodes, PUSH and
//                 POP are moves, and overflow and underflow are known. Exists only if exploration
//                 ends within limits, and if no RET takes a value.
//   kAnyStack     A node is an address; the stack is in memory. A RET may continue after each CALL.
//
// Explore tries the first form and then the second one.
//
// Thread safety: immutable after Explore.
#ifndef RESIDENT_RUNTIME_FLUX_FLOW_GRAPH_H_
#define RESIDENT_RUNTIME_FLUX_FLOW_GRAPH_H_

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace resident::flux {

struct FlowLimits {
  // Nodes of the graph. An address with several stacks is several nodes.
  uint32_t max_nodes = 1000;
  // Slots of a known stack.
  uint32_t max_known_depth = 24;
};

class FlowGraph {
 public:
  enum class Form : uint8_t { kKnownStack, kAnyStack };

  // What an instruction does with control. Everything that is not listed continues with `next`.
  enum class Flow : uint8_t {
    kStraight,   // Also a no-op.
    kDivision,   // DIV, MOD: may fail.
    kPush,       // May fail in kAnyStack.
    kPop,        // May fail; in kKnownStack it always does if the stack is empty.
    kCondition,  // JZ, JNZ, JLT, JGT, LOOP: `target` if it is taken.
    kJump,       // JMP: `target`.
    kCall,       // `target`.
    kReturn,     // kKnownStack: `target`, or underflow if the stack is empty.
    kHalt,
    kError,  // Counts, and ends the run with `error`.
    kEnd,    // The end of the code, or a truncated instruction: does not count.
  };

  // A slot of a known stack that holds a value, not a return address.
  static constexpr int32_t kValue = -1;
  static constexpr int kNone = -1;

  struct Node {
    uint32_t address = 0;
    std::vector<int32_t> stack;  // kKnownStack: kValue or a return address, the top last.
    uint32_t word = 0;           // The decoded instruction (kernels/flux/interpreter.h).
    Flow flow = Flow::kStraight;
    bool no_op = false;
    uint32_t error = 0;  // Of kError and kEnd.
    int next = kNone;    // Index of the following node.
    int target = kNone;  // kNone for a branch: it leaves the code.
    bool block = false;  // Begins a block: it is the start, a target, or has two predecessors.
  };

  // nullopt: both forms have more than limits.max_nodes nodes.
  static std::optional<FlowGraph> Explore(std::string_view bytecode, bool unknown_nop,
                                          const FlowLimits& limits = {});

  Form form() const { return form_; }
  // The first one is the start.
  const std::vector<Node>& nodes() const { return nodes_; }
  // kAnyStack: the nodes that a RET may continue with.
  const std::vector<int>& return_sites() const { return return_sites_; }
  // Whether a RET may take a value that was pushed, and so continue anywhere.
  bool returns_to_values() const { return returns_to_values_; }
  // Whether an opcode is reachable that does not exist, so that the graph depends on `unknown_nop`.
  bool has_unknown_opcode() const { return has_unknown_opcode_; }

 private:
  class Explorer;

  Form form_ = Form::kKnownStack;
  std::vector<Node> nodes_;
  std::vector<int> return_sites_;
  bool returns_to_values_ = false;
  bool has_unknown_opcode_ = false;
};

}  // namespace resident::flux

#endif  // RESIDENT_RUNTIME_FLUX_FLOW_GRAPH_H_
