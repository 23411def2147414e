// Operator and OperatorVersion: what a task needs of the operator that it calls.
//
// Both are immutable once they are published, except for the counters and `state`. A
// version with a reference to it is pinned: its slot, its counters and its payload do not
// change, even after the operator was removed. Batches pin their version
// (Batch::keep_alive).
//
// Thread safety: all members may be read from any thread.
#ifndef RESIDENT_RUNTIME_OPERATORS_REGISTRY_OPERATOR_VERSION_H_
#define RESIDENT_RUNTIME_OPERATORS_REGISTRY_OPERATOR_VERSION_H_

#include <atomic>
#include <cassert>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "runtime/model/cost_rule.h"
#include "runtime/model/signature.h"
#include "runtime/model/split_rule.h"
#include "runtime/model/version_spec.h"
#include "runtime/model/version_state.h"
#include "runtime/operators/registry/native_form.h"
#include "runtime/queue/operator_stats.h"

namespace resident {

// Separates the public part of a quarantine reason from the arguments of the task that was
// at fault. Only an admin may see the arguments.
inline constexpr char kArgumentsOfReason[] = "; its arguments: ";
// The part of the reason that every caller may see.
inline std::string PublicReason(const std::string& reason) {
  return reason.substr(0, reason.find(kArgumentsOfReason));
}

class SlotPool;

// What all versions of an operator share.
class Operator {
 public:
  // Bytecode has no signature.
  Operator(std::string name, std::string signature_text, Signature signature, bool bytecode)
      : name_(std::move(name)),
        signature_text_(std::move(signature_text)),
        signature_(std::move(signature)),
        bytecode_(bytecode) {}

  const std::string& name() const { return name_; }
  const std::string& signature_text() const { return signature_text_; }
  const Signature& signature() const { return signature_; }
  // Called with programs (FLUX) and not with tasks.
  bool bytecode() const { return bytecode_; }

 private:
  const std::string name_;
  const std::string signature_text_;
  const Signature signature_;
  const bool bytecode_;
};

// Counters of a version, by device index. They can be read after the version was destroyed.
using VersionStats = std::vector<std::shared_ptr<OperatorStats>>;

class OperatorVersion {
 public:
  OperatorVersion() = default;
  // Releases the slot and notifies `drained`.
  ~OperatorVersion();
  OperatorVersion(const OperatorVersion&) = delete;
  OperatorVersion& operator=(const OperatorVersion&) = delete;

  std::shared_ptr<const Operator> op;
  // 0 until it is loaded.
  uint32_t version = 0;
  uint32_t slot = kNoSlot;
  bool builtin = false;
  // Of a built-in operator that a graph may start before its inputs are ready: bit i if it reads
  // the elements of argument i then (kernels/ops/early_operators.h).
  std::optional<uint32_t> early_reads;
  // Its stores are known to stay within its tensors, so that it can never cause a fault:
  // its task may be completed before its fence (kTaskDeviceOutputs). False for installed
  // operators and test operators: there, the completion waits until the stores are visible.
  bool trusted = false;
  VersionSpec spec;
  SplitRule split;
  VersionStats stats;  // Empty until it is loaded.
  std::shared_ptr<const VersionPayload> payload;
  // Running a task does not read it. The generation loader does: it leaves quarantined versions out
  // of the generations of new engines.
  mutable std::atomic<VersionState> state{VersionState::kValidated};
  // Notified when no reference to the version is left.
  std::shared_ptr<absl::Notification> drained = std::make_shared<absl::Notification>();

  // Bytecode: its native code. Null otherwise.
  std::shared_ptr<NativeForm> native;
  // The form that this version is the code of; empty if it is none's.
  std::weak_ptr<NativeForm> native_of;

  std::shared_ptr<SlotPool> slots;  // The pool that `slot` returns to; null if it does not return.

  CostRule cost;  // Of a built-in operator; the others have none.
};

// A pinned version.
struct ResolvedOperator {
  std::shared_ptr<const OperatorVersion> version;
  // The operator of `version`.
  const Operator* op = nullptr;
  // Also run this version on the same inputs, and compare; usually null.
  std::shared_ptr<const OperatorVersion> shadow;
  // A share of the requests that name no version goes to another version: the next Resolve may
  // return that one.
  bool on_trial = false;

  // REQUIRES: device < Registry::Options::devices.
  OperatorStats* stats(uint32_t device) const {
    assert(device < version->stats.size());
    return version->stats[device].get();
  }
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_OPERATORS_REGISTRY_OPERATOR_VERSION_H_
