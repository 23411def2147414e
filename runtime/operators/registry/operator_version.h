// Operator and OperatorVersion: what a task needs to know of what it calls.
//
// Both are immutable once others can see them, but for counters and `state`. A version
// that somebody holds is pinned: its slot, its counters and its payload stay as they are,
// also after the operator was removed. Batches pin their version (Batch::keep_alive).
//
// Thread safety: all members may be read from any thread.
#ifndef RESIDENT_RUNTIME_OPERATORS_REGISTRY_OPERATOR_VERSION_H_
#define RESIDENT_RUNTIME_OPERATORS_REGISTRY_OPERATOR_VERSION_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "runtime/model/signature.h"
#include "runtime/model/split_rule.h"
#include "runtime/model/version_spec.h"
#include "runtime/model/version_state.h"
#include "runtime/queue/operator_stats.h"

namespace resident {

// In the reason of a quarantine: from here on it tells the arguments of the task that was
// guilty, which only an admin may see.
inline constexpr char kArgumentsOfReason[] = "; its arguments: ";
// What everybody may be told of it.
inline std::string PublicReason(const std::string& reason) {
  return reason.substr(0, reason.find(kArgumentsOfReason));
}

class SlotPool;

// What all versions of an operator have in common.
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

// Counters of a version, by device index. They outlive the version, for who reads them.
using VersionStats = std::vector<std::shared_ptr<OperatorStats>>;

class OperatorVersion {
 public:
  OperatorVersion() = default;
  // Gives the slot back and notifies `drained`.
  ~OperatorVersion();
  OperatorVersion(const OperatorVersion&) = delete;
  OperatorVersion& operator=(const OperatorVersion&) = delete;

  std::shared_ptr<const Operator> op;
  // 0 until it is staged.
  uint32_t version = 0;
  uint32_t slot = kNoSlot;
  bool builtin = false;
  // Its stores are known to stay in its tensors, so that a fault can never be its own: a
  // task of it may be completed ahead of its fence (kTaskDeviceOutputs). False for what
  // others wrote: there, the completion waits until the stores have gone through.
  bool trusted = false;
  VersionSpec spec;
  SplitRule split;
  VersionStats stats;  // Empty until it is staged.
  std::shared_ptr<const VersionPayload> payload;
  // For who looks; nothing is decided by it on the way of a task.
  mutable std::atomic<VersionState> state{VersionState::kValidated};
  // Notified once the version is in nobody's use.
  std::shared_ptr<absl::Notification> drained = std::make_shared<absl::Notification>();

  std::shared_ptr<SlotPool> slots;  // Where `slot` goes back to; null if it does not.
};

// A version, pinned.
struct ResolvedOperator {
  std::shared_ptr<const OperatorVersion> version;
  // That of `version`.
  const Operator* op = nullptr;
  // Run this version beside it on the same inputs, and compare; mostly null.
  std::shared_ptr<const OperatorVersion> shadow;

  // REQUIRES: device < Registry::Options::devices.
  OperatorStats* stats(uint32_t device) const { return version->stats[device].get(); }
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_OPERATORS_REGISTRY_OPERATOR_VERSION_H_
