// The oracle: executes a graph on tagged memory and reports what goes wrong.
//
// It knows nothing of regions, histories or proofs. Each byte of memory has a tag: the number of
// writes so far, the last writer, and the set of nodes that have read it since. Nodes are executed
// element by element. First in their order: that gives, for each byte, the accesses that are right.
// Then in random orders that the rules permit (derived dependencies, or counters and blocks that
// are simulated with their real values): every byte must see the same accesses in the same order,
// except that reads between two writes may be exchanged.
//
// Only for graphs that GraphBuilder accepts, with small tensors.
//
//   const Oracle oracle(graph, values);
//   oracle.missing();  // "node 3 reads byte 5, which has no value", or "".
//   oracle.TryDerived(dependencies, 10, random);  // "node 4 overwrites byte 7 before it was read".
#ifndef RESIDENT_TESTS_GRAPH_ORACLE_H_
#define RESIDENT_TESTS_GRAPH_ORACLE_H_

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "runtime/graph/dataflow.h"
#include "runtime/graph/graph.h"

namespace resident::testing {

class Oracle {
 public:
  // `values` of the scalars, by index.
  Oracle(const graph::Graph& graph, const std::vector<double>& values)
      : Oracle(graph, std::vector<std::vector<double>>(graph.nodes.size() + 1, values)) {}
  // By node, with values of its own, and after the last node those for the outputs. No run is like
  // this, but the order of a graph must be right whatever values the scalars have in each node.
  Oracle(const graph::Graph& graph, const std::vector<std::vector<double>>& values);

  // The first read of a byte without a value, or an output that is not written in full; empty:
  // none.
  const std::string& missing() const { return missing_; }

  // Executes in `count` random orders that `order` permits, chunk by chunk: a node is some chunks,
  // each with a part of its accesses. Empty: every byte saw the right accesses.
  std::string TryDerived(const graph::Dependencies& order, int count,
                         std::mt19937_64& random) const;
  // The same with counters and blocks. A deadlock is an error as well.
  std::string TryExplicit(int count, std::mt19937_64& random) const;

  // Whether two nodes must be ordered: they access a common byte, and one of them writes it.
  bool Conflict(uint32_t a, uint32_t b) const;

 private:
  struct ByteAccess {
    int64_t byte;
    bool write;
  };
  // What a byte sees, in this order: writers, and with each the readers since the one before.
  struct Tag {
    int32_t writer = -1;
    uint32_t writes = 0;
  };

  void ListNode(uint32_t node, const std::vector<double>& values);
  // Executes chunks of nodes. `ready(node)`: it may start; `done(node)`: it has ended.
  template <typename Ready, typename Done>
  std::string Run(std::mt19937_64& random, Ready ready, Done done) const;

  const graph::Graph& graph_;
  // By node.
  std::vector<std::vector<ByteAccess>> accesses_;
  // By node and access: the tag that the access must meet.
  std::vector<std::vector<Tag>> expected_;
  // By node and access, of writes: the reads since the last write that must have happened.
  std::vector<std::vector<uint32_t>> expected_reads_;
  int64_t bytes_ = 0;
  std::string missing_;
};

}  // namespace resident::testing

#endif  // RESIDENT_TESTS_GRAPH_ORACLE_H_
