#include "server/core/listings.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>

#include "server/core/version.h"
#include "server/operators/operator_messages.h"

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

void DescribeClient(const Core& core, const Client& client, v1::ClientStatus* out) {
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
}

}  // namespace

bool MaySeeOthers(const Identity& caller) {
  return caller.Has(Role::kAdmin, "resident.v1.Operators/Audit").ok();
}

Viewer Viewer::Of(const Identity& caller) {
  return {.sees_others = MaySeeOthers(caller), .name = caller.name()};
}

void FillStatus(const Core& core, const DaemonFacts& facts, const Viewer& viewer,
                v1::StatusResponse* out) {
  out->set_version(kVersion);
  out->set_uptime_ms(
      std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - facts.started).count());
  out->set_pid(getpid());
  out->set_draining(core.gate.draining());
  out->set_metrics_address(facts.metrics_address);
  out->set_local_address(core.local_address);
  out->set_gpu_unavailable_reason(facts.gpu_unavailable_reason);
  for (Device* device : core.devices) {
    DescribeDevice(core, *device, viewer, out->add_devices());
  }
  for (const auto& client : core.clients.List()) {
    if (viewer.Sees(client->account().name())) DescribeClient(core, *client, out->add_clients());
  }
}

std::vector<OperatorResources> CollectResources(const Core& core) {
  for (const Device* device : core.devices) {
    const EngineInfo info = device->snapshot().info;
    if (!info.operators.empty()) return info.operators;
  }
  return {};
}

void FillOperator(const OperatorView& op, const Core& core,
                  const std::vector<OperatorResources>& resources, const Viewer& viewer,
                  v1::Operator* out) {
  out->set_name(op.op->name());
  out->set_summary(op.summary);
  out->set_active_version(op.active_version);
  out->set_wide(op.wide);
  out->set_revision(op.revision);
  out->set_signature(op.op->signature_text());
  out->set_family(op.family);
  out->set_notes(op.notes);
  out->set_example(op.example);
  out->set_cost(op.cost);
  for (const Parameter& parameter : op.op->signature().parameters()) {
    DescribeParameter(parameter, op.op->signature(), out->add_parameters());
  }
  for (const VersionView& version : op.versions) {
    v1::OperatorVersion* v = out->add_versions();
    v->set_version(version.version);
    v->set_state(VersionStateName(version.state));
    v->set_state_code(static_cast<v1::VersionState>(version.state));
    v->set_slot(version.slot == kNoSlot ? 0 : version.slot);
    v->set_builtin(version.builtin);
    if (viewer.sees_others) {
      v->set_content_hash(version.spec.content_hash);
      v->set_installed_by(version.spec.installed_by);
      v->set_quarantine_reason(version.quarantine_reason);
    }
    v->set_installed_ms(version.spec.installed_ms);
    v->set_tasks(version.tasks());
    v->set_failed_tasks(version.failed_tasks());
    v->set_kind(OperatorKindName(version.spec.kind));
    if (version.native.has_value()) {
      v->mutable_native()->set_state(static_cast<v1::NativeForm::State>(version.native->state));
      v->mutable_native()->set_reason(ToUtf8(version.native->reason));
    }
    for (const OperatorResources& use : resources) {
      if (version.slot == kNoSlot || use.operator_slot != version.slot) continue;
      v->mutable_resources()->set_registers(use.registers);
      v->mutable_resources()->set_stack_bytes(use.stack_bytes);
      v->mutable_resources()->set_shared_bytes(use.shared_bytes);
      v->mutable_resources()->set_code_bytes(use.code_bytes);
    }
  }
  if (op.trial.version != 0) {
    v1::Trial* trial = out->mutable_trial();
    trial->set_version(op.trial.version);
    trial->set_shadow_percent(op.trial.shadow_percent);
    trial->set_traffic_percent(op.trial.traffic_percent);
    const OperatorManager::TrialCounters found = core.operators.trial_counters(op.op->name());
    trial->set_shadow_tasks(found.shadow_tasks);
    trial->set_shadow_mismatches(found.shadow_mismatches);
    trial->set_latency_ratio(found.latency_ratio);
  }
}

void HideFrom(const Viewer& viewer, OperatorEvent* event) {
  if (viewer.sees_others) return;
  event->actor.clear();
  event->content_hash.clear();
  event->message.clear();
}

void FillLoadedGraph(const Core& core, LoadedGraph& graph, const Viewer& viewer,
                     v1::LoadedGraph* out) {
  out->set_graph_id(graph.id());
  out->set_name(graph.name());
  out->set_state(graph.FindState(core.registry));
  int64_t loaded_ms = INT64_MAX;
  for (const auto& [name, time_ms] : core.graphs.Holders(graph.id())) {
    loaded_ms = std::min(loaded_ms, time_ms);
    if (viewer.Sees(name)) out->add_holders(name);
  }
  if (loaded_ms != INT64_MAX) out->set_loaded_ms(loaded_ms);
  out->set_nodes(graph.nodes());
  out->set_size_bytes(graph.content().size());
  out->set_memory_bytes(graph.memory_bytes());
  out->set_runs(graph.runs.load(std::memory_order_relaxed));
  out->set_steps(graph.steps.load(std::memory_order_relaxed));
  out->set_sessions(graph.sessions.load(std::memory_order_relaxed));
}

}  // namespace resident
