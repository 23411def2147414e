#include "tests/graph/walk_image.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "kernels/graph/chunk_rule.h"

namespace resident::testing {
namespace {

constexpr u32 kArguments = 3;
// Of a node whose tensor has no fixed size; the others have the last two.
constexpr u32 kPatches = 4;

}  // namespace

WalkImage::WalkImage(std::mt19937& random, const WalkImageOptions& options)
    // One chunk; one for each element; one for two elements, and at most two. The first and the
    // last one may be started early.
    : operators_{{10, -1, 0, 1, 1, kMaxTaskChunks, 0, 0, 0, 0},
                 {11, 0, 0, 0, 1, kMaxTaskChunks, 0, 0, 0, 0},
                 {12, 0, 0, 1, 2, 2, 0, 0, 0, 0}} {
  const u32 nodes = 1 + static_cast<u32>(random()) % options.max_nodes;
  predecessors_.resize(nodes);
  u32 dependencies = 0;
  for (u32 node = 1; node < nodes; ++node) {
    for (u32 i = random() % 4; i > 0; --i) {
      const u32 before = static_cast<u32>(random()) % node;
      std::vector<u32>& of_node = predecessors_[node];
      if (std::find(of_node.begin(), of_node.end(), before) != of_node.end()) continue;
      of_node.push_back(before);
      ++dependencies;
    }
  }
  u64 at = sizeof(GraphImage);
  const auto place = [&](u64 bytes) {
    const u64 begin = (at + 63) / 64 * 64;
    at = begin + bytes;
    return begin;
  };
  GraphImage header{};
  header.magic = kGraphMagic;
  header.layout_hash = GraphLayoutHash();
  header.nodes = nodes;
  header.scalars = 2;
  header.updates = 2;
  header.operators = static_cast<u32>(operators_.size());
  header.gang = options.gang;
  header.nodes_at = place(nodes * sizeof(GraphNode));
  header.arguments_at = place(nodes * kArguments * sizeof(Argument));
  header.patches_at = place(nodes * kPatches * sizeof(GraphPatch));
  header.successors_at = place(dependencies * sizeof(u32));
  header.roots_at = place(nodes * sizeof(u32));
  header.updates_at = place(2 * sizeof(GraphUpdate));
  // One value, which tests set.
  header.stop_values_at = place(sizeof(i64));
  header.gang_nodes_at = place(nodes * sizeof(GangNode));
  header.waits_at = place(dependencies * sizeof(GangWait));
  header.list_begins_at = place((options.gang + 1) * sizeof(u32));
  header.lists_at = place(u64{options.gang} * nodes * sizeof(u32));
  header.streams_at = place(nodes * sizeof(GraphStream));
  header.bytes = at;
  lines_.resize(at / sizeof(Line) + 1);
  std::memcpy(lines_.data(), &header, sizeof(header));
  AddNodes(random);
  Part<GraphUpdate>(header.updates_at)[0] = {0, 0, 1, 2, 0, 1e15};
  Part<GraphUpdate>(header.updates_at)[1] = {1, 0, -1, 6, 0, 6};
  if (options.gang != 0) AddGang(random, options.all_signal);
  if (options.streams) AddStreams(random);
}

void WalkImage::AddNodes(std::mt19937& random) {
  GraphImage& image = header();
  std::vector<std::vector<u32>> successors(image.nodes);
  for (u32 node = 0; node < image.nodes; ++node) {
    for (const u32 before : predecessors_[node]) successors[before].push_back(node);
  }
  u32 total = 0;
  u32 patches = 0;
  const auto add_patch = [&](const GraphPatch& patch) {
    Part<GraphPatch>(image.patches_at)[patches++] = patch;
  };
  for (u32 node = 0; node < image.nodes; ++node) {
    GraphNode& record = Part<GraphNode>(image.nodes_at)[node];
    record.op = static_cast<u32>(random() % operators_.size());
    record.first_argument = node * kArguments;
    record.arguments = kArguments;
    record.first_patch = patches;
    record.first_successor = total;
    record.successors = static_cast<u32>(successors[node].size());
    record.predecessors = static_cast<u32>(predecessors_[node].size());
    for (const u32 after : successors[node]) Part<u32>(image.successors_at)[total++] = after;
    if (record.predecessors == 0) Part<u32>(image.roots_at)[image.roots++] = node;

    Argument* const arguments = Part<Argument>(image.arguments_at) + record.first_argument;
    for (const u32 a : {0, 2}) {
      TensorArgument& tensor = arguments[a].tensor;
      tensor.dtype = DType::kF64;
      tensor.rank = 1;
      tensor.shape[0] = a == 0 ? 1 + random() % kMaxChunks : 1;
      tensor.strides[0] = 1;
    }
    resized_.push_back(random() % 2 == 0);
    if (resized_[node]) {
      add_patch({GraphPatchKind::kSize, 0, 0, DType::kF64, 1, 1, 0});
      add_patch({GraphPatchKind::kStrides, 0, 0, DType::kF64, 0, 1, 0});
    }
    add_patch({GraphPatchKind::kValue, 1, 0, DType::kF64, 0, 3, static_cast<double>(node)});
    add_patch({GraphPatchKind::kRecord, 2, 0, DType::kF64, 0, 1, 8.0 * node});
    record.patches = static_cast<u16>(patches - record.first_patch);
  }
}

void WalkImage::AddStreams(std::mt19937& random) {
  GraphImage& image = header();
  for (GraphOperator& op : operators_) {
    if (op.starts_early != 0) op.starts_early |= kTakesPages;
  }
  auto* const streams = Part<GraphStream>(image.streams_at);
  for (u32 node = 0; node < image.nodes; ++node) {
    GraphNode& record = Part<GraphNode>(image.nodes_at)[node];
    const GangNode& members = gang_node(node);
    // A member of one lane waits for one node (host_gang.h).
    if (members.ranks != image.gang || members.starts_early == 0 || record.predecessors > 1 ||
        (operators_[record.op].starts_early & kTakesPages) == 0 || random() % 4 == 0) {
      continue;
    }
    GraphStream& stream = streams[image.streams++];
    stream.op = record.op;
    stream.rotation = static_cast<u32>(random()) % image.gang;
    stream.base = static_cast<u32>(random()) % 3;
    stream.extra = static_cast<u32>(random()) % image.gang;
    record.stream = image.streams;
  }
}

void WalkImage::AddGang(std::mt19937& random, bool all_signal) {
  const GraphImage& image = header();
  const u32 gang = image.gang;
  auto* const members = Part<GangNode>(image.gang_nodes_at);
  // In one of three graphs some members have no nodes.
  const u32 used = random() % 3 == 0 ? 1 + static_cast<u32>(random()) % gang : gang;
  const u32 rotation = static_cast<u32>(random()) % gang;
  for (u32 node = 0; node < image.nodes; ++node) {
    const u32 max_ranks = random() % 2 == 0 ? 1 : used;
    const u32 ranks = 1 + static_cast<u32>(random()) % max_ranks;
    const u32 first =
        static_cast<u32>(random()) % (used == gang ? gang : used - ranks + 1) + rotation;
    members[node].first = static_cast<u16>(first % gang);
    members[node].ranks = static_cast<u16>(ranks);
    members[node].signals = all_signal ? 1 : 0;
    members[node].starts_early = random() % 2;
  }
  u32 waits = 0;
  for (u32 node = 0; node < image.nodes; ++node) {
    members[node].first_wait = waits;
    for (const u32 before : predecessors_[node]) {
      GangNode& its = members[before];
      Part<GangWait>(image.waits_at)[waits++] = {before, its.first, its.ranks};
      // A member waits for the others that execute the predecessor, if there are any.
      for (const u32 rank : FindMembers(node)) {
        if (its.ranks != 1 || its.first != rank) its.signals = 1;
      }
    }
  }
  auto* const begins = Part<u32>(image.list_begins_at);
  u32 total = 0;
  for (u32 rank = 0; rank < gang; ++rank) {
    begins[rank] = total;
    for (u32 node = 0; node < image.nodes; ++node) {
      const std::vector<u32> ranks = FindMembers(node);
      if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) continue;
      Part<u32>(image.lists_at)[total++] = node;
    }
  }
  begins[gang] = total;
}

std::vector<u32> WalkImage::FindMembers(u32 node) const {
  std::vector<u32> ranks;
  for (u32 i = 0; i < gang_node(node).ranks; ++i) {
    ranks.push_back((gang_node(node).first + i) % header().gang);
  }
  return ranks;
}

void WalkImage::SetScalars(u64 step, double* scalars) {
  scalars[0] = 2 * static_cast<double>(step);
  scalars[1] = step % 2 == 0 ? 1 : 5;
}

u32 WalkImage::CountChunks(u32 node, u64 step) const {
  const GraphOperator& op = operators_[this->node(node).op];
  if (HasStream(node)) return gang_node(node).ranks;  // Each member has its pages.
  if (op.split_parameter < 0) return 1;
  double scalars[2];
  SetScalars(step, scalars);
  const i64 fixed =
      Part<Argument>(header().arguments_at)[this->node(node).first_argument].tensor.shape[0];
  const auto items = static_cast<u64>(resized_[node] ? scalars[1] : static_cast<double>(fixed));
  const u64 chunks = resident::CountChunks(items, op.grain, op.limit, kWorkers);
  if (header().gang == 0) return static_cast<u32>(chunks);
  return static_cast<u32>(CountGangChunks(chunks, op.limit, gang_node(node).ranks));
}

void WalkImage::ExpectArguments(u32 node, u64 step, u64 record, const ArgumentBlock& block) const {
  double scalars[2];
  SetScalars(step, scalars);
  if (resized_[node]) {
    EXPECT_EQ(block.arguments[0].tensor.shape[0], static_cast<i64>(scalars[1])) << "node " << node;
  }
  const double value = 3 * scalars[0] + node;
  EXPECT_EQ(block.arguments[1].scalar_bits, __builtin_bit_cast(u64, value))
      << "node " << node << " in step " << step;
  EXPECT_EQ(block.arguments[2].tensor.address, record + u64{8} * node)
      << "node " << node << " in step " << step;
}

ExecutionRecord::ExecutionRecord(const WalkImage& image)
    : image_(image), executed_(image.nodes()), ended_(image.nodes()), chunks_(image.nodes()) {
  // Each member executes a chunk of a node with a stream.
  const u32 size = std::max<u32>(WalkImage::kMaxChunks, image.header().gang);
  for (auto& chunks : chunks_) chunks = std::vector<Chunk>(size);
}

void ExecutionRecord::Execute(u32 node, u32 chunk, u32 chunks, u64 step) {
  constexpr auto kNoOrder = std::memory_order_relaxed;
  ASSERT_EQ(chunks, image_.CountChunks(node, step)) << "node " << node << " in step " << step;
  ASSERT_LT(chunk, chunks);
  for (const u32 before : image_.predecessors(node)) {
    EXPECT_EQ(ended_[before].load(kNoOrder), step + 1) << "node " << node << " after " << before;
    const u32 results = image_.CountChunks(before, step);
    for (u32 c = 0; c < results; ++c) {
      EXPECT_EQ(chunks_[before][c].result, step + 1) << "node " << node << " after " << before;
    }
  }
  EXPECT_LE(chunks_[node][chunk].step.exchange(step + 1, kNoOrder), step)
      << "node " << node << ", chunk " << chunk;
  chunks_[node][chunk].result = step + 1;
  if (executed_[node].fetch_add(1, kNoOrder) + 1 != chunks) return;
  executed_[node].store(0, kNoOrder);
  EXPECT_EQ(ended_[node].exchange(step + 1, kNoOrder), step) << "node " << node;
}

void ExecutionRecord::ExpectSteps(u64 steps) const {
  for (u32 node = 0; node < image_.nodes(); ++node) {
    EXPECT_EQ(ended_[node], steps) << "node " << node;
    EXPECT_EQ(executed_[node], 0u) << "node " << node;
  }
}

}  // namespace resident::testing
