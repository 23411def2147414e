// OperatorView: a snapshot of an operator and its versions, for listings. It pins nothing.
#ifndef RESIDENT_RUNTIME_OPERATORS_REGISTRY_OPERATOR_VIEW_H_
#define RESIDENT_RUNTIME_OPERATORS_REGISTRY_OPERATOR_VIEW_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/operators/registry/operator_version.h"

namespace resident {

struct VersionView {
  uint32_t version = 0;
  VersionState state = VersionState::kLoaded;
  uint32_t slot = kNoSlot;  // kNoSlot: bytecode, or not in the kernel.
  bool builtin = false;
  std::optional<uint32_t> early_reads;
  VersionSpec spec;
  std::string label;  // Empty: none.
  // Since it became active, or was restored as the active version; 0: it is not active.
  std::chrono::nanoseconds active_for{0};
  SplitRule split;
  std::string quarantine_reason;
  std::optional<NativeForm::View> native;  // Bytecode, if it can be called.
  VersionStats stats;

  // Over all devices: tasks that ended, and those of them that did not end OK.
  uint64_t tasks() const {
    uint64_t sum = 0;
    for (const auto& of_device : stats) sum += of_device->all_tasks();
    return sum;
  }
  uint64_t failed_tasks() const {
    uint64_t sum = 0;
    for (const auto& of_device : stats) sum += of_device->failed_tasks();
    return sum;
  }
};

// A standby version that receives a share of the traffic.
struct TrialView {
  uint32_t version = 0;  // 0: no trial is running.
  double traffic_percent = 0;
  double shadow_percent = 0;
};

struct OperatorView {
  std::shared_ptr<const Operator> op;
  // Summary of the active version, or of the newest one if none is active.
  std::string summary;
  bool wide = false;
  // Columns of the table of built-in operators (kernels/ops/builtin_operators.inc); empty if it is
  // installed.
  std::string family;
  std::string notes;
  std::string example;
  std::string cost;
  uint64_t revision = 0;  // 0: built in.
  // 0: none.
  uint32_t active_version = 0;
  uint32_t standby_version = 0;
  TrialView trial;
  // Ascending; includes the last few retired versions.
  std::vector<VersionView> versions;

  // Null if there is no such version.
  const VersionView* Find(uint32_t version) const {
    for (const VersionView& candidate : versions) {
      if (candidate.version == version) return &candidate;
    }
    return nullptr;
  }
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_OPERATORS_REGISTRY_OPERATOR_VIEW_H_
