// The memory of a device that a run of a graph needs.
//
// Thread safety: functions without state; MemorySum is a plain value.
//
//   MemorySum sum;
//   sum.Add("activations", 4096);
//   if (sum.total() > limit) ... DescribeShortage(sum, "device 0", limit) ...
#ifndef RESIDENT_RUNTIME_GRAPH_MEMORY_H_
#define RESIDENT_RUNTIME_GRAPH_MEMORY_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/graph/finding.h"
#include "runtime/graph/graph.h"

namespace resident::graph {

// The most that a run can get.
struct DeviceLimit {
  // Memory for buffers of the device that has most of it.
  uint64_t bytes = UINT64_MAX;
  // Whether memory that a client shares with the daemon, and that is no part of `bytes`, can be
  // bound to tensors.
  bool shared_memory = true;
};

// Amounts by what they are for.
class MemorySum {
 public:
  // `what`: "activations".
  void Add(std::string_view what, uint64_t bytes);
  void Add(TensorKind kind, uint64_t bytes);

  uint64_t total() const;
  // "4096 bytes for activations, 256 bytes for states".
  std::string Text() const;

 private:
  std::vector<std::pair<std::string, uint64_t>> parts_;
};

// By tensor: bytes that a run allocates for a root without memory of its own, a multiple of the
// distance that such tensors need; 0 for an alias. Each record is sent before the next one is
// written, so that a stream needs memory for one. REQUIRES: the graph has no errors of 1xx to 3xx.
std::vector<uint64_t> RunBytes(const Graph& graph);

// `where`: "device 0". `sum`: above `limit`. Ends with "Fix: ...".
std::string DescribeShortage(const MemorySum& sum, const std::string& where, uint64_t limit);

// Adds 701 if no run fits. What a run can bind to shared memory is not counted, and neither are
// weights, constants and inputs, which can have one buffer together: a run knows what is bound, and
// is checked again when it starts. REQUIRES: as for RunBytes.
void CheckMemory(const Graph& graph, const DeviceLimit& limit, Findings* findings);

}  // namespace resident::graph

#endif  // RESIDENT_RUNTIME_GRAPH_MEMORY_H_
