#include "runtime/engine/control/engine_messages.h"

#include <chrono>
#include <string>

namespace resident {

internal::StartRequest ToMessage(const EngineOptions& options) {
  internal::StartRequest message;
  message.set_memory_bytes(options.memory_bytes);
  message.set_threads_per_block(options.threads_per_block);
  message.set_blocks_per_sm(options.blocks_per_sm);
  message.set_sms_free(options.sms_free);
  message.set_cpu_workers(options.cpu_workers);
  message.set_test_operators(options.test_operators);
  message.set_max_blocks(options.max_blocks);
  message.set_start_parked(options.start_parked);
  message.set_beat_every_ms(static_cast<uint32_t>(options.beat_every.count()));
  message.set_task_time_limit_ms(static_cast<uint64_t>(options.task_time_limit.count()));
  message.set_memory_wait_ms(static_cast<uint32_t>(options.memory_wait.count()));
  return message;
}

EngineOptions FromMessage(const internal::StartRequest& message) {
  EngineOptions options;
  options.memory_bytes = message.memory_bytes();
  options.threads_per_block = message.threads_per_block();
  options.blocks_per_sm = message.blocks_per_sm();
  options.sms_free = message.sms_free();
  options.cpu_workers = message.cpu_workers();
  options.test_operators = message.test_operators();
  options.max_blocks = message.max_blocks();
  options.start_parked = message.start_parked();
  options.beat_every = std::chrono::milliseconds(message.beat_every_ms());
  options.task_time_limit = std::chrono::milliseconds(message.task_time_limit_ms());
  options.memory_wait = std::chrono::milliseconds(message.memory_wait_ms());
  return options;
}

google::protobuf::RepeatedPtrField<internal::OperatorResources> ToMessage(
    const std::vector<OperatorResources>& operators) {
  google::protobuf::RepeatedPtrField<internal::OperatorResources> messages;
  for (const OperatorResources& resources : operators) {
    internal::OperatorResources* added = messages.Add();
    added->set_operator_slot(resources.operator_slot);
    added->set_registers(resources.registers);
    added->set_stack_bytes(resources.stack_bytes);
    added->set_shared_bytes(resources.shared_bytes);
    added->set_code_bytes(resources.code_bytes);
  }
  return messages;
}

std::vector<OperatorResources> FromMessage(
    const google::protobuf::RepeatedPtrField<internal::OperatorResources>& messages) {
  std::vector<OperatorResources> operators;
  for (const internal::OperatorResources& resources : messages) {
    operators.push_back({resources.operator_slot(), resources.registers(), resources.stack_bytes(),
                         resources.shared_bytes(), resources.code_bytes()});
  }
  return operators;
}

google::protobuf::RepeatedPtrField<internal::EnginePhase> ToMessage(
    const std::vector<EnginePhase>& phases) {
  google::protobuf::RepeatedPtrField<internal::EnginePhase> messages;
  for (const EnginePhase& phase : phases) {
    internal::EnginePhase* added = messages.Add();
    added->set_name(phase.name);
    added->set_ns(phase.took.count());
  }
  return messages;
}

std::vector<EnginePhase> FromMessage(
    const google::protobuf::RepeatedPtrField<internal::EnginePhase>& messages) {
  std::vector<EnginePhase> phases;
  for (const internal::EnginePhase& phase : messages) {
    phases.push_back({phase.name(), std::chrono::nanoseconds(phase.ns())});
  }
  return phases;
}

internal::SwitchResponse ToMessage(const SwitchTimes& times) {
  internal::SwitchResponse message;
  message.set_park_ns(times.park.count());
  message.set_load_ns(times.load.count());
  message.set_launch_ns(times.launch.count());
  return message;
}

SwitchTimes FromMessage(const internal::SwitchResponse& message) {
  return {std::chrono::nanoseconds(message.park_ns()), std::chrono::nanoseconds(message.load_ns()),
          std::chrono::nanoseconds(message.launch_ns())};
}

internal::EngineTraits ToMessage(const EngineTraits& traits) {
  internal::EngineTraits message;
  message.set_engine(traits.engine);
  message.set_compile_target(traits.compile_target);
  message.set_work_units(traits.work_units);
  message.set_instructions_per_ms(traits.instructions_per_ms);
  message.set_run_instructions_per_ms(traits.run_instructions_per_ms);
  message.set_lockstep_runs(traits.lockstep_runs);
  message.set_divergence_slowdown(traits.divergence_slowdown);
  message.set_max_operations_per_ms(traits.max_operations_per_ms);
  message.set_max_elements_per_ms(traits.max_elements_per_ms);
  message.set_max_scattered_elements_per_ms(traits.max_scattered_elements_per_ms);
  message.set_units_share_task(traits.units_share_task);
  message.set_executes_graphs(traits.executes_graphs);
  message.set_graph_workers(traits.graph_workers);
  message.set_maps_device_memory(traits.maps_device_memory);
  message.set_max_task_time_ms(static_cast<uint32_t>(traits.max_task_time.count()));
  return message;
}

EngineTraits FromMessage(const internal::EngineTraits& message) {
  EngineTraits traits;
  traits.engine = message.engine();
  traits.compile_target = message.compile_target();
  traits.work_units = message.work_units();
  traits.instructions_per_ms = message.instructions_per_ms();
  traits.run_instructions_per_ms = message.run_instructions_per_ms();
  traits.lockstep_runs = message.lockstep_runs();
  traits.divergence_slowdown = message.divergence_slowdown();
  traits.max_operations_per_ms = message.max_operations_per_ms();
  traits.max_elements_per_ms = message.max_elements_per_ms();
  traits.max_scattered_elements_per_ms = message.max_scattered_elements_per_ms();
  traits.units_share_task = message.units_share_task();
  traits.executes_graphs = message.executes_graphs();
  traits.graph_workers = message.graph_workers();
  traits.maps_device_memory = message.maps_device_memory();
  traits.max_task_time = std::chrono::milliseconds(message.max_task_time_ms());
  return traits;
}

internal::StartResponse ToMessage(const EngineInfo& info) {
  internal::StartResponse message;
  *message.mutable_traits() = ToMessage(info.traits);
  message.set_name(info.name);
  message.set_detail(info.detail);
  message.set_uuid(info.uuid);
  message.set_layout_hash(info.layout_hash);
  message.set_generation(info.generation);
  message.set_region_address(info.region_address);
  message.set_memory_address(info.memory_address);
  message.set_memory_bytes(info.memory_bytes);
  message.set_workers(info.workers);
  message.set_threads_per_block(info.threads_per_block);
  *message.mutable_operators() = ToMessage(info.operators);
  *message.mutable_phases() = ToMessage(info.phases);
  return message;
}

EngineInfo FromMessage(const internal::StartResponse& message) {
  EngineInfo info;
  info.traits = FromMessage(message.traits());
  info.name = message.name();
  info.detail = message.detail();
  info.uuid = message.uuid();
  info.layout_hash = message.layout_hash();
  info.generation = message.generation();
  info.region_address = message.region_address();
  info.memory_address = message.memory_address();
  info.memory_bytes = message.memory_bytes();
  info.workers = message.workers();
  info.threads_per_block = message.threads_per_block();
  info.operators = FromMessage(message.operators());
  info.phases = FromMessage(message.phases());
  return info;
}

}  // namespace resident
