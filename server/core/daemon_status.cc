#include "server/core/daemon_status.h"

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <memory>

#include "server/core/version.h"

namespace resident {
namespace {

// Enough to distinguish sessions, too few to use one.
constexpr size_t kShownSessionChars = 8;

void DescribeDevice(const Core& core, Device& device, const Viewer& viewer, v1::DeviceStatus* out) {
  const Device::Snapshot snapshot = device.snapshot();
  const EngineInfo& info = snapshot.info;
  out->set_device(device.index());
  out->set_name(info.name);
  out->set_engine(info.traits.engine);
  out->set_uuid(info.uuid);
  out->set_state(static_cast<v1::DeviceStatus::State>(snapshot.state));
  // The detail can name others' operators, and contains text from an engine, which is not trusted.
  if (viewer.sees_others) out->set_detail(snapshot.detail);
  out->set_engine_pid(snapshot.engine_pid);
  out->set_spare_engine_pid(snapshot.spare_pid);
  out->set_generation(info.generation);
  out->set_parks(snapshot.parks);
  out->set_resumes(snapshot.resumes);
  uint64_t restarts = 0;
  for (const auto& [reason, count] : snapshot.restarts_by_reason) restarts += count;
  out->set_restarts(restarts);
  out->mutable_ring()->set_slots(snapshot.queue.ring_slots);
  out->mutable_ring()->set_in_flight(snapshot.queue.in_flight);
  out->mutable_ring()->set_next_sequence(snapshot.queue.next_sequence);
  out->set_queued_tasks(snapshot.queue.queued_tasks);
  out->set_completed_tasks(snapshot.queue.completed_tasks);
  out->set_memory_total_bytes(info.memory_bytes);
  out->set_memory_used_bytes(snapshot.memory_used_bytes);
  out->set_buffers(core.buffers.CountOn(device.index()));
  out->set_blocks(info.workers);
  out->set_threads_per_block(info.threads_per_block);
}

void DescribeClient(const Core& core, const DaemonFacts& facts, const Client& client,
                    v1::ClientStatus* out) {
  // Only a part of a session's id, because the id gives access to the session's buffers.
  out->set_id(client.is_session() ? client.session().substr(0, kShownSessionChars) : client.peer());
  out->set_name(client.name());
  out->set_peer(client.peer());
  uint64_t queued = 0;
  uint64_t completed = 0;
  for (Device* device : core.devices) {
    for (const ClientId id : {client.id(), client.transfer_id()}) {
      const DeviceQueue::ClientCounters counters = device->queue().client_counters(id);
      queued += counters.queued_tasks;
      completed += counters.completed_tasks;
    }
  }
  out->set_queued_tasks(queued);
  out->set_completed_tasks(completed);
  const BufferTable::Usage usage = core.buffers.usage(client.id());
  out->set_buffers(usage.buffers);
  out->set_buffer_bytes(usage.bytes);
  if (facts.lanes) facts.lanes(client.id(), out);
}

}  // namespace

void FillStatus(const Core& core, const DaemonFacts& facts, const Viewer& viewer,
                v1::StatusResponse* out) {
  out->set_version(kVersion);
  out->set_uptime_ms(
      std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - facts.started).count());
  out->set_pid(getpid());
  out->set_draining(core.gate.draining());
  out->set_metrics_address(facts.metrics_address);
  out->set_local_address(core.local_address);
  out->set_node_id(core.node.id);
  out->set_node_name(core.node.name);
  out->set_gpu_unavailable_reason(facts.gpu_unavailable_reason);
  if (facts.operators_dir) {
    *out->mutable_operators_dir() = facts.operators_dir();
    if (!viewer.sees_others) {
      out->mutable_operators_dir()->clear_error();
      out->mutable_operators_dir()->clear_next_error();
    }
  }
  for (Device* device : core.devices) {
    DescribeDevice(core, *device, viewer, out->add_devices());
  }
  for (const auto& client : core.clients.List()) {
    if (!viewer.Sees(client->account().name())) continue;
    DescribeClient(core, facts, *client, out->add_clients());
  }
}

}  // namespace resident
