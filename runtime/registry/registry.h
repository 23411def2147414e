// Registry: the operators of this daemon, their versions and slots.
//
// Resolves a name and version to what a task needs: the jump-table slot, the
// signature, how a wide task is split, and where it is counted. It knows no gRPC and
// no CUDA.
//
// Each operator owns two slots of the jump table: one for the active version, one
// standby. Slot of built-in operator i: 2 * i; test operators follow the built-ins.
//
// Thread safety: all members may be called from any thread. Operators are never
// removed; pointers stay valid as long as the registry.
//
//   ASSIGN_OR_RETURN(std::unique_ptr<Registry> registry, Registry::Create({.devices = 1}));
//   ASSIGN_OR_RETURN(ResolvedOperator add, registry->Resolve("add", /*version=*/0));
//   task.operator_slot = add.version->slot;
#ifndef RESIDENT_RUNTIME_REGISTRY_REGISTRY_H_
#define RESIDENT_RUNTIME_REGISTRY_REGISTRY_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "runtime/executor/operator_stats.h"
#include "runtime/registry/signature.h"

namespace resident {

// Names of built-in operators that the daemon itself runs.
inline constexpr char kCopyBytesOperator[] = "copy_bytes";
inline constexpr char kFluxRunOperator[] = "flux.run";

// How a task is split into chunks: "parameter[/1] grain" (kernels/ops/builtin.h).
struct SplitRule {
  // Index of the parameter that decides; -1: never split.
  int parameter = -1;
  // Count indices of the first dimension instead of elements.
  bool by_first_dim = false;
  uint64_t grain = 0;

  // Chunks of a task whose deciding argument has this shape; at least 1.
  uint64_t Chunks(absl::Span<const int64_t> shape) const;
};

struct OperatorVersion {
  uint32_t version = 1;
  uint32_t slot = 0;
  bool builtin = false;
  // Its stores are known to stay in its tensors, so that a fault can never be its own: a
  // task of it may be completed ahead of its fence (kTaskDeviceOutputs). False for what
  // others wrote: there, the completion waits until the stores have gone through.
  bool trusted = false;
  // By device index.
  std::vector<std::unique_ptr<OperatorStats>> stats;
};

class Operator {
 public:
  const std::string& name() const { return name_; }
  const std::string& summary() const { return summary_; }
  const std::string& signature_text() const { return signature_text_; }
  const Signature& signature() const { return signature_; }
  const SplitRule& split() const { return split_; }
  const std::vector<std::unique_ptr<OperatorVersion>>& versions() const { return versions_; }
  const OperatorVersion& active() const {
    return *versions_[active_.load(std::memory_order_acquire)];
  }

 private:
  friend class Registry;
  std::string name_;
  std::string summary_;
  std::string signature_text_;
  Signature signature_;
  SplitRule split_;
  std::vector<std::unique_ptr<OperatorVersion>> versions_;
  std::atomic<uint32_t> active_{0};  // Index in versions_.
};

struct ResolvedOperator {
  const Operator* op = nullptr;
  const OperatorVersion* version = nullptr;

  // REQUIRES: device < Options::devices.
  OperatorStats* stats(uint32_t device) const { return version->stats[device].get(); }
};

class Registry {
 public:
  struct Options {
    // Devices that tasks are counted for; their indices are 0 to devices - 1.
    uint32_t devices = 1;
    // Also register the operators that exist to go wrong.
    bool test_operators = false;
  };

  // The built-in operators. INTERNAL: a built-in's signature or split is not valid.
  static absl::StatusOr<std::unique_ptr<Registry>> Create(const Options& options);

  // `version` 0: the active one. NOT_FOUND: names the nearest match, or the versions
  // there are.
  absl::StatusOr<ResolvedOperator> Resolve(const std::string& name, uint32_t version) const;

  // All operators, by name.
  std::vector<const Operator*> List() const;

  // The operator whose version has this slot; null if none has.
  const Operator* FindBySlot(uint32_t slot) const;

  // Calls `visit` for the counters of every operator version on every device.
  void ForEachStats(
      const std::function<void(uint32_t device, const OperatorStats& stats)>& visit) const;

 private:
  Registry() = default;
  absl::Status Add(const Options& options, const char* name, const char* summary,
                   const char* signature, const char* split, uint32_t slot, bool trusted);

  absl::flat_hash_map<std::string, std::unique_ptr<Operator>> operators_;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_REGISTRY_REGISTRY_H_
