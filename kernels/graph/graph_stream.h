// Streams of a graph's image: the matrices of nodes, divided into pages, which each member of a
// gang copies to fast memory ahead of the nodes that multiply by them
// (kernels/resident/stream_ring.cuh).
//
// A node has a stream if its operator is one of kStreamOperators with one vector, its matrices have
// a form that is described here, no node writes them, and all members of the gang execute it. Each
// member then has the same streams, in the order of the nodes, and a share of the pages of each.
//
// In a quantum either all nodes that have a stream are executed from pages, or none, whose
// operators are then called as those of other nodes: if the engine copies no pages, or if the table
// of operators says of one of them that it takes none, because another version of it is called.
#ifndef RESIDENT_KERNELS_GRAPH_GRAPH_STREAM_H_
#define RESIDENT_KERNELS_GRAPH_GRAPH_STREAM_H_

#include "kernels/layout/platform.h"

namespace resident {

// A page has whole rows of bfloat16, of one of these lengths.
inline constexpr u32 kStreamPageBytes = 16384;
inline constexpr u32 kStreamColumns = 2048;
inline constexpr u32 kStreamWideColumns = 8192;
// Of the address of a matrix.
inline constexpr u32 kStreamAlignment = 16;
// Rows of its matrices, at most.
inline constexpr u64 kMaxStreamRows = u64{1} << 30;
// Nodes that a node with a stream waits for, at most.
inline constexpr u32 kMaxStreamWaits = 32;

// The matrices of a node, and how their rows are divided into pages.
enum class StreamForm : u32 {
  kPlain = 0,
  // Two matrices: a page has rows of the first one, and behind them the same rows of the second
  // one.
  kGated = 1,
  // Three matrices: the pages of one are behind those of the one before.
  kStacked = 2,
};
RESIDENT_HOST_DEVICE constexpr u32 CountMatrices(StreamForm form) {
  return form == StreamForm::kPlain ? 1 : form == StreamForm::kGated ? 2 : 3;
}

struct GraphStream {
  // Addresses.
  u64 matrices[3];
  // kStacked: the first pages of the second and third matrix.
  u32 ends[2];
  StreamForm form;
  // Whether the vector is normalized before.
  u32 normalized;
  // kStreamColumns or kStreamWideColumns.
  u32 columns;
  // The member with rank r has the pages p, p + gang, p + 2 * gang, ... with
  // p = (r + rotation) % gang: `base` of them, and one more if p < extra. Streams differ in it, so
  // that the members have about the same number of pages in a step.
  u32 rotation;
  u32 base;
  u32 extra;
  // GraphNode::op of its node.
  u32 op;
  u32 reserved;
};
static_assert(sizeof(GraphStream) == 64, "");
static_assert(__builtin_offsetof(GraphStream, matrices) == 0, "");
static_assert(__builtin_offsetof(GraphStream, ends) == 24, "");
static_assert(__builtin_offsetof(GraphStream, form) == 32, "");
static_assert(__builtin_offsetof(GraphStream, normalized) == 36, "");
static_assert(__builtin_offsetof(GraphStream, columns) == 40, "");
static_assert(__builtin_offsetof(GraphStream, rotation) == 44, "");
static_assert(__builtin_offsetof(GraphStream, base) == 48, "");
static_assert(__builtin_offsetof(GraphStream, extra) == 52, "");
static_assert(__builtin_offsetof(GraphStream, op) == 56, "");

// The pages of a member.
struct StreamShare {
  u32 first;
  u32 count;
};
RESIDENT_HOST_DEVICE constexpr StreamShare ShareOf(const GraphStream& stream, u32 rank, u32 gang) {
  const u32 page = rank + stream.rotation;
  const u32 first = page < gang ? page : page - gang;
  return {first, stream.base + (first < stream.extra ? 1u : 0u)};
}

// A built-in operator whose nodes may have a stream. Its arguments are the vector, with
// `normalized` the weights of the norm, the matrices, for each of them a bias unless it is kGated,
// the results, and with `normalized` eps.
struct StreamOperator {
  const char* name;
  StreamForm form;
  bool normalized;
};
inline constexpr StreamOperator kStreamOperators[] = {
    {"gemv", StreamForm::kPlain, false},
    {"gemv_silu_mul", StreamForm::kGated, false},
    {"rmsnorm_gemv", StreamForm::kPlain, true},
    {"rmsnorm_gemv_qkv", StreamForm::kStacked, true},
    {"rmsnorm_gemv_silu_mul", StreamForm::kGated, true},
};

}  // namespace resident

#endif  // RESIDENT_KERNELS_GRAPH_GRAPH_STREAM_H_
