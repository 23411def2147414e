
#include "server/graphs/graph_memory.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/status_macros.h"
#include "server/buffers/buffers.h"
#include "server/graphs/errors.h"

namespace resident {
namespace {

constexpr uint64_t kUnknown = UINT64_MAX;

// Memory for buffers.
uint64_t MemoryBytes(const Device& device) {
  const auto session = device.session();
  return session == nullptr ? kUnknown : session->info().memory_bytes;
}

}  // namespace

graph::DeviceLimit FindDeviceLimit(const Buffers& buffers) {
  uint64_t max = 0;
  for (const Device* const device : buffers.core.devices) max = std::max(max, MemoryBytes(*device));
  return {.bytes = max, .shared_memory = buffers.allow_shared_memory};
}

void AddBoundBuffers(const Core& core, const Client& client, absl::Span<const GraphPlace> places,
                     graph::MemorySum* needs) {
  absl::flat_hash_set<uint64_t> seen;
  for (const GraphPlace& place : places) {
    if (place.buffer == 0 || !seen.insert(place.buffer).second) continue;
    // An error is reported when the buffer is used.
    const auto buffer = core.buffers.Find(client.id(), place.buffer);
    if (buffer.ok() && (*buffer)->place == Buffer::Place::kDevice)
      needs->Add("bound buffers", (*buffer)->size_bytes);
  }
}

absl::Status CheckDeviceMemory(const Buffers& buffers, std::optional<uint32_t> device,
                               const graph::MemorySum& needs) {
  uint64_t limit = kUnknown;
  if (!device.has_value()) {
    limit = FindDeviceLimit(buffers).bytes;
  } else if (*device < buffers.core.devices.size()) {
    limit = MemoryBytes(*buffers.core.devices[*device]);
  }
  if (needs.total() <= limit) return absl::OkStatus();
  const std::string where =
      device.has_value() ? absl::StrCat("device ", *device) : "the largest device";
  return errors::GraphRefused(absl::StrCat(graph::CodeName(graph::Code::kDeviceMemory), ": ",
                                           graph::DescribeShortage(needs, where, limit)),
                              /*others=*/0);
}

absl::StatusOr<std::shared_ptr<const Buffer>> AllocateTensors(Core& core, const Client& client,
                                                              std::optional<uint32_t> device,
                                                              absl::Span<const uint32_t> tensors,
                                                              absl::Span<const uint64_t> bytes,
                                                              std::vector<GraphPlace>* places) {
  assert(!tensors.empty());
  uint64_t total = 0;
  for (const uint32_t i : tensors) {
    (*places)[i].offset = total;
    total += bytes[i];
  }
  BufferSpec spec;
  spec.dtype = DType::kU8;
  spec.shape = {static_cast<int64_t>(total)};
  ASSIGN_OR_RETURN(auto buffer, AllocateBuffer(core, client, device, spec));
  for (const uint32_t i : tensors) (*places)[i].buffer = buffer->id;
  return buffer;
}

}  // namespace resident
