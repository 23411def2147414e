// InstallRun: one install, from the request to the version in its slot.
//
//   Prepare ─▶ Compile ─▶ (inspected) ─▶ Validation ─▶ Load ─▶ Activate
//      │          │                         │         │
//      └──────────┴───────── rejected ◀─────┴─────────┘
//
// Bytecode has neither a unit nor a slot: it is checked, run on the host, and loaded
// without a generation.
//
// Thread safety: an object belongs to one thread.
#ifndef RESIDENT_RUNTIME_OPERATORS_INSTALL_INSTALL_RUN_H_
#define RESIDENT_RUNTIME_OPERATORS_INSTALL_INSTALL_RUN_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "runtime/operators/install/live_operator_manager.h"
#include "runtime/operators/install/operator_manager.h"
#include "runtime/operators/install/version_builder.h"
#include "runtime/operators/install/version_validation.h"

namespace resident {

class InstallRun {
 public:
  InstallRun(LiveOperatorManager& manager, const InstallRequest& request,
             const std::function<void(const InstallProgress&)>& progress,
             const std::function<bool()>& withdrawn)
      : manager_(manager), request_(request), progress_(progress), withdrawn_(withdrawn) {}

  // Errors: see OperatorManager::Install.
  absl::Status Run();

 private:
  using Clock = std::chrono::steady_clock;

  absl::Status RunSteps();
  absl::Status Prepare();
  absl::Status RunNative();
  absl::Status RunBytecode();
  absl::Status Compile();
  absl::Status Validate();
  absl::Status Load();
  // If the install waits for native code, returns a note for the progress.
  std::string AwaitNativeForm();
  // Stores what the version was built from, so that a restarted daemon can build it.
  absl::Status KeepContent(VersionContent* content) const;
  absl::Status Activate();
  // CANCELLED if the install was withdrawn.
  absl::Status CheckWithdrawn() const;
  // Reports a state, with the time since the previous one.
  void Report(InstallProgress progress);
  void ReportRejected(const absl::Status& why);

  LiveOperatorManager& manager_;
  const InstallRequest& request_;
  const std::function<void(const InstallProgress&)>& progress_;
  const std::function<bool()>& withdrawn_;

  Clock::time_point step_began_ = Clock::now();
  BuildRequest build_;
  VersionSpec spec_;
  bool trying_ = false;    // It is being compiled or validated.
  uint64_t expected_ = 0;  // Revision that the operator must still have at the end.
  std::unique_ptr<VersionValidation> validation_;
  BuiltVersion built_;
  uint32_t version_ = 0;
  std::shared_ptr<NativeForm> native_;  // Bytecode, once it is loaded.
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_OPERATORS_INSTALL_INSTALL_RUN_H_
