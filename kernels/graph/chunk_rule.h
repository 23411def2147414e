// The number of chunks of a wide task: the arithmetic of SplitRule (runtime/model/split_rule.h),
// for host and device.
//
// Thread safety: pure functions.
//
//   const u64 chunks = CountChunks(/*items=*/1 << 20, /*grain=*/32768, kMaxTaskChunks, workers);
#ifndef RESIDENT_KERNELS_GRAPH_CHUNK_RULE_H_
#define RESIDENT_KERNELS_GRAPH_CHUNK_RULE_H_

#include "kernels/layout/platform.h"
#include "kernels/layout/task.h"

namespace resident {

// Of a task whose chunks are equal, for each worker but one.
inline constexpr u64 kChunksOfWorker = 2;

// One chunk for every `grain` items, at least one and at most `limit`. With a limit the chunks of a
// large task are equal, and there are not more than kChunksOfWorker for each of the `workers` but
// one (0: unknown). REQUIRES: grain and limit are at least 1.
RESIDENT_HOST_DEVICE constexpr u64 CountChunks(u64 items, u64 grain, u64 limit, u64 workers) {
  // Not (items + grain - 1) / grain: an installed grain may be near 2^64.
  const u64 chunks = items / grain + (items % grain == 0 ? 0 : 1);
  u64 max = limit;
  if (limit != kMaxTaskChunks && workers > 1 && kChunksOfWorker * (workers - 1) < max) {
    max = kChunksOfWorker * (workers - 1);
  }
  return chunks < 1 ? 1 : chunks > max ? max : chunks;
}

// The chunks of a node of a graph of which there would be `chunks` as a task, if `ranks` members of
// a gang execute it. With a limit the chunks are equal, and no other block comes to help: each
// member has at most one. REQUIRES: limit is at least 1.
RESIDENT_HOST_DEVICE constexpr u64 CountGangChunks(u64 chunks, u64 limit, u64 ranks) {
  return limit != kMaxTaskChunks && chunks > ranks ? ranks : chunks;
}

}  // namespace resident

#endif  // RESIDENT_KERNELS_GRAPH_CHUNK_RULE_H_
