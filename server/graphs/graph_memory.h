// Device memory of runs of graphs and of graph sessions.
//
// Thread safety: functions without state.
//
//   graph::MemorySum needs;
//   needs.Add(TensorKind::kActivation, bytes[i]);
//   AddBoundBuffers(core, *client, places, &needs);
//   RETURN_IF_ERROR(CheckDeviceMemory(buffers, device, needs));
//   ASSIGN_OR_RETURN(const auto buffer, AllocateTensors(core, *client, device, own, bytes,
//   &places));
#ifndef RESIDENT_SERVER_GRAPHS_GRAPH_MEMORY_H_
#define RESIDENT_SERVER_GRAPHS_GRAPH_MEMORY_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "runtime/graph/memory.h"
#include "server/buffers/buffers.h"
#include "server/core/core.h"
#include "server/graphs/graph_tasks.h"

namespace resident {

// What the devices can give to any run. A device that has no engine now may have any memory.
graph::DeviceLimit FindDeviceLimit(const Buffers& buffers);

// Adds the buffers that the tensors have, each once, except those in memory that a client shares,
// which are not part of a device's memory.
void AddBoundBuffers(const Core& core, const Client& client, absl::Span<const GraphPlace> places,
                     graph::MemorySum* needs);

// INVALID_ARGUMENT (GRAPH_E701): a device does not have so much memory, even if nothing else uses
// it. Nullopt: any device.
absl::Status CheckDeviceMemory(const Buffers& buffers, std::optional<uint32_t> device,
                               const graph::MemorySum& needs);

// Allocates one buffer for `tensors`, which have `bytes[tensor]` bytes each, and sets their places.
// REQUIRES: there is a tensor.
absl::StatusOr<std::shared_ptr<const Buffer>> AllocateTensors(Core& core, const Client& client,
                                                              std::optional<uint32_t> device,
                                                              absl::Span<const uint32_t> tensors,
                                                              absl::Span<const uint64_t> bytes,
                                                              std::vector<GraphPlace>* places);

}  // namespace resident

#endif  // RESIDENT_SERVER_GRAPHS_GRAPH_MEMORY_H_
