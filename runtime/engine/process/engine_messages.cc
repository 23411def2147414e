#include "runtime/engine/process/engine_messages.h"

#include <string>

namespace resident {

internal::StartRequest ToMessage(bool cuda, const EngineOptions& options) {
  internal::StartRequest message;
  message.set_kind(cuda ? internal::StartRequest::KIND_CUDA : internal::StartRequest::KIND_CPU);
  message.set_ordinal(options.ordinal);
  message.set_memory_bytes(options.memory_bytes);
  message.set_blocks_per_sm(options.blocks_per_sm);
  message.set_sms_free(options.sms_free);
  message.set_cpu_workers(options.cpu_workers);
  message.set_test_operators(options.test_operators);
  return message;
}

EngineOptions FromMessage(const internal::StartRequest& message) {
  EngineOptions options;
  options.ordinal = message.ordinal();
  options.memory_bytes = message.memory_bytes();
  options.blocks_per_sm = message.blocks_per_sm();
  options.sms_free = message.sms_free();
  options.cpu_workers = message.cpu_workers();
  options.test_operators = message.test_operators();
  return options;
}

internal::StartResponse ToMessage(const EngineInfo& info) {
  internal::StartResponse message;
  message.set_kind(info.kind);
  message.set_name(info.name);
  message.set_detail(info.detail);
  message.set_layout_hash(info.layout_hash);
  message.set_generation(info.generation);
  message.set_region_address(info.region_address);
  message.set_memory_address(info.memory_address);
  message.set_memory_bytes(info.memory_bytes);
  message.set_workers(info.workers);
  message.set_threads_per_block(info.threads_per_block);
  for (const OperatorResources& resources : info.operators) {
    internal::OperatorResources* added = message.add_operators();
    added->set_operator_slot(resources.operator_slot);
    added->set_registers(resources.registers);
    added->set_stack_bytes(resources.stack_bytes);
    added->set_shared_bytes(resources.shared_bytes);
    added->set_code_bytes(resources.code_bytes);
  }
  return message;
}

EngineInfo FromMessage(const internal::StartResponse& message) {
  EngineInfo info;
  info.kind = message.kind();
  info.name = message.name();
  info.detail = message.detail();
  info.layout_hash = message.layout_hash();
  info.generation = message.generation();
  info.region_address = message.region_address();
  info.memory_address = message.memory_address();
  info.memory_bytes = message.memory_bytes();
  info.workers = message.workers();
  info.threads_per_block = message.threads_per_block();
  for (const internal::OperatorResources& resources : message.operators()) {
    info.operators.push_back({resources.operator_slot(), resources.registers(),
                              resources.stack_bytes(), resources.shared_bytes(),
                              resources.code_bytes()});
  }
  return info;
}

grpc::Status ToControlStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

absl::Status FromControlStatus(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

}  // namespace resident
