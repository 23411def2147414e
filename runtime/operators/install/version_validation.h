// VersionValidation: tries a version on a throw-away engine for each target.
//
// The engines are started when it is made, so that they come up while the compiler works.
// What has passed once passes again without an engine (validation_verdicts.h).
//
// Thread safety: an object belongs to one thread.
#ifndef RESIDENT_RUNTIME_OPERATORS_INSTALL_VERSION_VALIDATION_H_
#define RESIDENT_RUNTIME_OPERATORS_INSTALL_VERSION_VALIDATION_H_

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "runtime/device/device.h"
#include "runtime/operators/install/operator_manager.h"
#include "runtime/operators/install/validation_verdicts.h"
#include "runtime/operators/install/version_builder.h"
#include "runtime/operators/registry/operator_version.h"
#include "runtime/operators/validation/validation.h"

namespace resident {

class VersionValidation {
 public:
  struct Setup {
    const VersionBuilder* builder;
    ValidationVerdicts* verdicts;
    std::vector<Device*> devices;       // Those that started with the daemon.
    std::vector<EngineChoice> engines;  // By the devices' index().
    std::string engine_program;
  };
  struct Subject {
    std::string operator_name;
    std::string content_hash;
    Signature signature;
    SplitRule split;
    const std::vector<Example>* examples;
    std::chrono::milliseconds task_time_limit{0};
    // Serves now; null: none does. Expected outputs that examples leave out are its.
    std::shared_ptr<const OperatorVersion> active;
  };
  using Steps = std::vector<std::pair<std::string, std::chrono::nanoseconds>>;

  VersionValidation(const Setup& setup, Subject subject);
  ~VersionValidation();

  // INVALID_ARGUMENT: what the version did, and on which target. UNAVAILABLE: an engine
  // did not start. CANCELLED: `withdrawn` said so, which is asked from another thread too.
  absl::Status Run(const BuiltVersion& built, const std::function<bool()>& withdrawn, Steps* steps);

  // Whether all targets' verdicts were there already.
  bool cached() const { return trials_.empty(); }

 private:
  struct Trial {
    std::string target;
    std::string key;  // Of the verdict.
    std::unique_ptr<ValidationEngine> engine;
  };

  absl::Status RunOn(Trial& trial, const BuiltVersion& built,
                     const std::function<bool()>& withdrawn, Steps* steps) const;

  const Setup setup_;
  const Subject subject_;
  std::vector<Trial> trials_;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_OPERATORS_INSTALL_VERSION_VALIDATION_H_
