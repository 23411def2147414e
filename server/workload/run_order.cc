#include "server/workload/run_order.h"

#include <algorithm>
#include <cstring>

namespace resident {

std::vector<uint32_t> OrderByProgram(std::span<const uint32_t> index, uint32_t programs) {
  if (std::is_sorted(index.begin(), index.end())) return {};
  // The position of the next run of each program.
  std::vector<uint32_t> next(size_t{programs} + 1);
  for (const uint32_t program : index) ++next[program + 1];
  for (size_t p = 1; p < next.size(); ++p) next[p] += next[p - 1];
  std::vector<uint32_t> order(index.size());
  for (uint32_t run = 0; run < index.size(); ++run) order[next[index[run]]++] = run;
  return order;
}

void GatherRows(std::span<const uint32_t> order, const void* from, size_t row_bytes, void* to) {
  for (size_t p = 0; p < order.size(); ++p) {
    std::memcpy(static_cast<char*>(to) + p * row_bytes,
                static_cast<const char*>(from) + order[p] * row_bytes, row_bytes);
  }
}

void ScatterRows(std::span<const uint32_t> order, const void* from, size_t row_bytes, void* to) {
  for (size_t p = 0; p < order.size(); ++p) {
    std::memcpy(static_cast<char*>(to) + order[p] * row_bytes,
                static_cast<const char*>(from) + p * row_bytes, row_bytes);
  }
}

}  // namespace resident
