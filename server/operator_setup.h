// Operators: the manager of the operators' versions, with the state store and the compiler that it
// uses; OperatorOptions: its options, and their flags.
//
// Thread safety: Open and Restore must be called from one thread; for manager(), see
// LiveOperatorManager.
#ifndef RESIDENT_SERVER_OPERATOR_SETUP_H_
#define RESIDENT_SERVER_OPERATOR_SETUP_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/base/command_line.h"
#include "runtime/compile/compiler.h"
#include "runtime/operators/install/live_operator_manager.h"
#include "runtime/state/state_store.h"
#include "server/device_set.h"
#include "server/flags.h"
#include "server/graphs/graphs.h"
#include "server/models/models.h"

namespace resident {

// The flags of `residentd serve` for installed operators: how they are compiled, loaded and
// monitored. AddOperatorFlags has their names, texts and ranges.
//
// Thread safety: a value; a function without state.
struct OperatorOptions {
  // --state_dir; empty: nothing is kept.
  std::string state_dir;
  // --operators_dir; empty: none.
  std::string operators_dir;
  // --compile_*, --host_compiler. cache_dir is set from --state_dir.
  CompilerOptions compiler;
  // --park_deadline, --bake_*, --allow_objects; task_time_limit is set from ServeOptions.
  LiveOperatorManager::Options manager;
};

// Declares the flags, which set the options. The current values of the options are the defaults.
void AddOperatorFlags(Command& serve, OperatorOptions& options);

class Operators {
 public:
  // Opens --state_dir and prepares the compilers. `devices` must outlive the result. Errors: see
  // CheckTrustedFolder, StateStore::Open and Compiler::Create.
  static absl::StatusOr<std::unique_ptr<Operators>> Open(const ServeOptions& options,
                                                         const OperatorOptions& operator_options,
                                                         DeviceSet& devices);

  LiveOperatorManager& manager() { return manager_; }
  std::string node_id() const { return state_->node_id(); }

  // Restores operators, durable buffers, loaded graphs and models from --state_dir, and logs what
  // is wrong with its contents. Errors: see LiveOperatorManager::Restore.
  absl::Status Restore(Graphs& graphs, Models& models);

 private:
  Operators(std::unique_ptr<StateStore> state, std::unique_ptr<Compiler> compiler,
            const LiveOperatorManager::Options& options, DeviceSet& devices,
            std::vector<std::string> warnings)
      : state_(std::move(state)),
        compiler_(std::move(compiler)),
        bake_(options.bake),
        manager_(options,
                 LiveOperatorManager::Sources{&devices.registry(), state_.get(), compiler_.get(),
                                              devices.started(), devices.engines()}),
        warnings_(std::move(warnings)) {}

  const std::unique_ptr<StateStore> state_;
  const std::unique_ptr<Compiler> compiler_;
  const BakeOptions bake_;
  LiveOperatorManager manager_;
  std::vector<std::string> warnings_;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_OPERATOR_SETUP_H_
