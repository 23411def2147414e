#include "runtime/graph/schedule.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <optional>
#include <utility>

namespace resident::graph {
namespace {

// What a chunk costs beside its work, what one member reads and computes, and the time from the end
// of a node until a member that waits for it continues. For operations this is a guess between what
// products reach on a member: 30 a nanosecond in float32, 900 with tensor cores (docs/benchmarks,
// "gemm").
constexpr double kChunkNs = 1000;
constexpr double kBytesPerNs = 33;
constexpr double kOperationsPerNs = 50;
constexpr double kSignalNs = 1050;

// Of one member.
double WorkNs(const NodeEstimate& node) {
  return std::max(node.bytes / kBytesPerNs, node.operations / kOperationsPerNs);
}

double DurationNs(const NodeEstimate& node, uint32_t ranks) {
  return kChunkNs + WorkNs(node) / ranks;
}

uint32_t CountRanks(const NodeEstimate& node, uint32_t gang) {
  return static_cast<uint32_t>(std::min<uint64_t>(node.chunks, gang));
}

// Wide nodes that take longer than this on the whole gang are executed one after the other: what a
// node costs beside its traffic is then small, and so may be what a wrong estimate costs.
constexpr double kMaxSharedNs = 20'000;

// The number of nodes, from node `first` on, that could divide the gang among themselves: wide
// nodes that wait for none of each other, and for the same latest node. At least 1. `predecessors`:
// of these nodes.
size_t CountSiblings(absl::Span<const NodeEstimate> nodes, absl::Span<const uint32_t> predecessors,
                     size_t first, uint32_t gang) {
  const auto latest = [](absl::Span<const uint32_t> of) -> int64_t {
    return of.empty() ? -1 : int64_t{*std::max_element(of.begin(), of.end())};
  };
  const int64_t awaited = latest(predecessors.first(nodes[first].predecessors));
  size_t count = 0;
  size_t at = 0;
  while (first + count < nodes.size()) {
    const NodeEstimate& node = nodes[first + count];
    const int64_t own = latest(predecessors.subspan(at, node.predecessors));
    if (node.chunks == 1 || own != awaited || own >= static_cast<int64_t>(first) ||
        DurationNs(node, CountRanks(node, gang)) > kMaxSharedNs) {
      break;
    }
    at += node.predecessors;
    ++count;
  }
  return std::max<size_t>(count, 1);
}

// The number of members of each of some nodes that CountSiblings has counted. If they would occupy
// the same members one after the other, they divide the gang by their work.
std::vector<uint32_t> CountRanksOfSiblings(absl::Span<const NodeEstimate> nodes, uint32_t gang) {
  std::vector<uint32_t> ranks;
  uint64_t chunks = 0;
  for (const NodeEstimate& node : nodes) {
    ranks.push_back(CountRanks(node, gang));
    chunks += node.chunks;
  }
  if (nodes.size() < 2 || nodes.size() > gang || chunks <= gang) return ranks;
  const auto work_of = [](const NodeEstimate& node) { return std::max(WorkNs(node), 1.0); };
  double work = 0;
  for (const NodeEstimate& node : nodes) work += work_of(node);
  std::vector<std::pair<double, size_t>> rests;
  int64_t left = gang;
  for (size_t i = 0; i < nodes.size(); ++i) {
    const double share = gang * work_of(nodes[i]) / work;
    ranks[i] = std::max(static_cast<uint32_t>(share), 1u);
    rests.emplace_back(share - std::floor(share), i);
    left -= ranks[i];
  }
  for (; left < 0; ++left) --*std::max_element(ranks.begin(), ranks.end());
  std::sort(rests.rbegin(), rests.rend());
  for (size_t i = 0; i < rests.size() && left > 0; ++i, --left) ++ranks[rests[i].second];
  for (size_t i = 0; i < nodes.size(); ++i) {
    ranks[i] = std::min(ranks[i], CountRanks(nodes[i], gang));
  }
  return ranks;
}

// The members that are busy at one time if each node begins as soon as it can, at most `workers`.
uint32_t CountUsable(absl::Span<const NodeEstimate> nodes, absl::Span<const uint32_t> predecessors,
                     uint32_t workers) {
  std::vector<double> ends(nodes.size());
  // Changes of the number of busy members; at the same time, ends are before beginnings.
  std::vector<std::pair<double, int64_t>> changes;
  changes.reserve(2 * nodes.size());
  size_t first = 0;
  for (size_t i = 0; i < nodes.size(); ++i) {
    double begin = 0;
    for (const uint32_t before : predecessors.subspan(first, nodes[i].predecessors)) {
      begin = std::max(begin, ends[before]);
    }
    first += nodes[i].predecessors;
    const uint32_t ranks = CountRanks(nodes[i], workers);
    ends[i] = begin + DurationNs(nodes[i], ranks);
    changes.emplace_back(begin, ranks);
    changes.emplace_back(ends[i], -int64_t{ranks});
  }
  std::sort(changes.begin(), changes.end());
  int64_t busy = 0;
  int64_t max = 1;
  for (const auto& [at, change] : changes) max = std::max(max, busy += change);
  return static_cast<uint32_t>(std::min<int64_t>(max, workers));
}

// Places one node after the other.
class Placer {
 public:
  Placer(size_t nodes, uint32_t gang) : ends_(nodes), free_at_(gang) { placed_.reserve(nodes); }

  // `ranks`: the members that execute the node.
  void Place(const NodeEstimate& node, absl::Span<const uint32_t> predecessors, uint32_t ranks) {
    const auto gang = static_cast<uint32_t>(free_at_.size());
    const uint32_t rank = node.chunks == 1 ? ChooseRank(predecessors) : next_wide_;
    const double duration = DurationNs(node, ranks);
    const double ready = ReadyAt(predecessors, ranks == 1 ? std::optional(rank) : std::nullopt);
    double end = 0;
    for (uint32_t i = 0, at = rank; i < ranks; ++i, at = at + 1 == gang ? 0 : at + 1) {
      free_at_[at] = std::max(free_at_[at], ready) + duration;
      end = std::max(end, free_at_[at]);
      members_ = std::max(members_, at + 1);
    }
    // Behind the last chunk, which a member may have beside another one.
    const uint64_t chunks = ranks == CountRanks(node, gang) ? node.chunks : ranks;
    if (node.chunks > 1) next_wide_ = static_cast<uint32_t>((rank + chunks) % gang);
    ends_[placed_.size()] = end;
    placed_.push_back({.first_wait = 0,
                       .first = static_cast<u16>(rank),
                       .ranks = static_cast<u16>(ranks),
                       .signals = 0,
                       .starts_early = 0});
  }

  // The number of members that have a node.
  uint32_t members() const { return members_; }
  std::vector<GangNode> TakeNodes() { return std::move(placed_); }

 private:
  bool IsOnlyOn(uint32_t node, uint32_t rank) const {
    return placed_[node].ranks == 1 && placed_[node].first == rank;
  }

  // When a member that has nothing else to do can begin. `rank`: that of the member, if there is
  // only one; it needs no signals for what it has executed alone.
  double ReadyAt(absl::Span<const uint32_t> predecessors, std::optional<uint32_t> rank) const {
    double ready = 0;
    for (const uint32_t before : predecessors) {
      const bool own = rank.has_value() && IsOnlyOn(before, *rank);
      ready = std::max(ready, ends_[before] + (own ? 0 : kSignalNs));
    }
    return ready;
  }

  // For a node of one chunk.
  uint32_t ChooseRank(absl::Span<const uint32_t> predecessors) const {
    const double elsewhere = ReadyAt(predecessors, std::nullopt);
    uint32_t best = 0;
    double best_begin = 0;
    bool found = false;
    if (!predecessors.empty()) {
      const uint32_t last =
          *std::max_element(predecessors.begin(), predecessors.end(),
                            [&](uint32_t a, uint32_t b) { return ends_[a] < ends_[b]; });
      found = placed_[last].ranks == 1;
      best = placed_[last].first;
      best_begin = std::max(free_at_[best], ReadyAt(predecessors, best));
    }
    if (found && best_begin <= elsewhere) return best;
    // The first member that is idle then, so that no more members are used than necessary, or the
    // one that is idle first.
    for (uint32_t rank = 0; rank < free_at_.size(); ++rank) {
      const double begin = std::max(free_at_[rank], elsewhere);
      if (found && begin >= best_begin) continue;
      best = rank;
      best_begin = begin;
      found = true;
      if (begin == elsewhere) break;
    }
    return best;
  }

  std::vector<GangNode> placed_;
  // By node: when it ends. By rank: when its last node ends.
  std::vector<double> ends_;
  std::vector<double> free_at_;
  uint32_t next_wide_ = 0;
  uint32_t members_ = 1;
};

// Calls visit(rank) for each member that executes the node.
template <typename Visit>
void ForEachRank(const GangNode& node, uint32_t gang, const Visit& visit) {
  const uint32_t wrapped = node.first + node.ranks > gang ? node.first + node.ranks - gang : 0;
  for (uint32_t rank = 0; rank < wrapped; ++rank) visit(rank);
  for (uint32_t rank = node.first; rank < node.first + node.ranks - wrapped; ++rank) visit(rank);
}

}  // namespace

Schedule ComputeSchedule(absl::Span<const NodeEstimate> nodes,
                         absl::Span<const uint32_t> predecessors, uint32_t workers) {
  assert(workers >= 1);
  const uint32_t gang = CountUsable(nodes, predecessors, std::min(workers, kMaxGang));
  Placer placer(nodes.size(), gang);
  size_t first = 0;
  for (size_t i = 0; i < nodes.size();) {
    const size_t siblings = CountSiblings(nodes, predecessors.subspan(first), i, gang);
    if (siblings == 1) {
      placer.Place(nodes[i], predecessors.subspan(first, nodes[i].predecessors),
                   CountRanks(nodes[i], gang));
      first += nodes[i].predecessors;
      ++i;
      continue;
    }
    for (const uint32_t each : CountRanksOfSiblings(nodes.subspan(i, siblings), gang)) {
      placer.Place(nodes[i], predecessors.subspan(first, nodes[i].predecessors), each);
      first += nodes[i].predecessors;
      ++i;
    }
  }

  Schedule schedule;
  // A node whose ranks go beyond the last one and continue with 0 makes all of them members.
  schedule.gang = placer.members();
  schedule.nodes = placer.TakeNodes();
  schedule.waits.reserve(predecessors.size());
  for (size_t i = 0; i < nodes.size(); ++i) {
    GangNode& node = schedule.nodes[i];
    node.first_wait = static_cast<u32>(schedule.waits.size());
    for (const uint32_t before : predecessors.subspan(node.first_wait, nodes[i].predecessors)) {
      GangNode& other = schedule.nodes[before];
      schedule.waits.push_back({before, other.first, other.ranks});
      const bool same = node.ranks == 1 && other.ranks == 1 && node.first == other.first;
      if (!same) other.signals = 1;
    }
  }
  schedule.list_begins.resize(schedule.gang + 1);
  for (const GangNode& node : schedule.nodes) {
    ForEachRank(node, schedule.gang, [&](uint32_t rank) { ++schedule.list_begins[rank + 1]; });
  }
  std::partial_sum(schedule.list_begins.begin(), schedule.list_begins.end(),
                   schedule.list_begins.begin());
  schedule.lists.resize(schedule.list_begins.back());
  std::vector<u32> ends(schedule.list_begins.begin(), schedule.list_begins.end() - 1);
  for (u32 i = 0; i < schedule.nodes.size(); ++i) {
    ForEachRank(schedule.nodes[i], schedule.gang,
                [&](uint32_t rank) { schedule.lists[ends[rank]++] = i; });
  }
  return schedule;
}

}  // namespace resident::graph
