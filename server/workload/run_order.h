// The order in which the runs of a batch execute that selects programs by index: runs of the same
// program are adjacent, so that the lanes of a warp, and the runs that a thread executes at a time,
// take the same path. The client sees its own order.
//
// Thread safety: pure functions.
//
//   const std::vector<uint32_t> order = OrderByProgram(index, programs);
//   if (!order.empty()) GatherRows(order, inputs, row_bytes, staged);
//   ...
//   if (!order.empty()) ScatterRows(order, outputs, row_bytes, answer);
#ifndef RESIDENT_SERVER_WORKLOAD_RUN_ORDER_H_
#define RESIDENT_SERVER_WORKLOAD_RUN_ORDER_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace resident {

// The run at each position; runs of the same program keep their order. Empty: the runs are in this
// order already. `programs`: every element of `index` is below it.
std::vector<uint32_t> OrderByProgram(std::span<const uint32_t> index, uint32_t programs);

// Copies the row of run order[p], of `row_bytes` bytes, to position p of `to`; and back.
void GatherRows(std::span<const uint32_t> order, const void* from, size_t row_bytes, void* to);
void ScatterRows(std::span<const uint32_t> order, const void* from, size_t row_bytes, void* to);

}  // namespace resident

#endif  // RESIDENT_SERVER_WORKLOAD_RUN_ORDER_H_
