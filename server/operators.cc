#include "server/operators.h"

#include "absl/memory/memory.h"
#include "runtime/base/log.h"
#include "runtime/base/sandbox/sandbox.h"
#include "runtime/base/status_macros.h"
#include "server/auth/trusted_file.h"

namespace resident {

absl::StatusOr<std::unique_ptr<Operators>> Operators::Open(const ServeOptions& options,
                                                           const OperatorOptions& operator_options,
                                                           DeviceSet& devices) {
  std::vector<std::string> warnings;
  CompilerOptions compiling = operator_options.compiler;
  if (!operator_options.state_dir.empty()) {
    RETURN_IF_ERROR(CheckTrustedFolder(operator_options.state_dir, &warnings));
    compiling.cache_dir = operator_options.state_dir + "/cache";
  }
  ASSIGN_OR_RETURN(auto state, StateStore::Open({.directory = operator_options.state_dir}));
  for (const DeviceControl* device : devices.started()) {
    compiling.ahead.push_back(device->snapshot().info.traits.compile_target);
  }
  ASSIGN_OR_RETURN(auto compiler, Compiler::Create(compiling));
  for (const std::string& warning : state->warnings()) warnings.push_back(warning);
  for (std::string& open : DescribeSandbox().missing) warnings.push_back(std::move(open));
  LiveOperatorManager::Options manager = operator_options.manager;
  manager.task_time_limit = options.task_time_limit;
  if (!operator_options.state_dir.empty()) {
    manager.native_quarantine_file = operator_options.state_dir + "/native_quarantine";
  }
  return absl::WrapUnique(
      new Operators(std::move(state), std::move(compiler), manager, devices, std::move(warnings)));
}

absl::Status Operators::Restore(Graphs& graphs) {
  Core& core = graphs.core;
  const absl::Status restored = manager_.Restore(&warnings_);
  for (std::string& warning : core.buffers.Load(state_.get())) {
    warnings_.push_back(std::move(warning));
  }
  for (std::string& warning : graphs.store.Restore(state_.get())) {
    warnings_.push_back(std::move(warning));
  }
  for (Device* device : core.devices) {
    if (const auto session = device->session()) core.RestoreBuffers(*device, *session);
  }
  for (const std::string& warning : warnings_) LogWarning(warning);
  warnings_.clear();
  return restored;
}

}  // namespace resident
