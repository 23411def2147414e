// NativeForm: the native code of a version that is bytecode: whether it exists, and the slot that
// has it.
//
//                        Begin            Serve             Evict
//   off, evicted, refused ─────▶ compiling ─────▶ serving ─────────▶ evicted
//                                    │               │                  │
//                             Refuse │               └── Quarantine ────┘
//                                    ▼                       ▼
//                                 refused               quarantined
//
// The form is not a version: results name the bytecode's version for each of its forms, and
// the tasks are counted there. Its code is an OperatorVersion with a slot of its own, which the
// form owns; a batch that uses it pins it, so it may be evicted or quarantined at any time. It is
// destroyed with the bytecode version. While no form serves, the interpreter does.
//
// Thread safety: all members may be called from any thread.
#ifndef RESIDENT_RUNTIME_OPERATORS_REGISTRY_NATIVE_FORM_H_
#define RESIDENT_RUNTIME_OPERATORS_REGISTRY_NATIVE_FORM_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace resident {

class OperatorVersion;

class NativeForm {
 public:
  // The values are those of resident.v1.NativeForm.State.
  enum class State : uint8_t {
    kOff = 1,
    kCompiling = 2,
    kServing = 3,
    kRefused = 4,
    kQuarantined = 5,
    kEvicted = 6,
  };
  struct View {
    State state = State::kOff;
    std::string reason;  // kRefused, kQuarantined.
  };

  View view() const;

  // The code to run instead of the interpreter; null: there is none for batches with this meaning
  // of unknown opcodes. `compare`: this batch, one of kUsesOfComparison, should also run on the
  // interpreter.
  struct Used {
    std::shared_ptr<const OperatorVersion> code;
    bool compare = false;
  };
  static constexpr uint64_t kUsesOfComparison = 10'000;
  Used Use(bool unknown_nop);
  // When Use last returned code, or the code began to serve.
  absl::Time last_use() const;

  // off, evicted, refused -> compiling. False: it has another state.
  bool Begin();
  // compiling -> serving. `mode`: the only meaning of unknown opcodes that the code serves.
  void Serve(std::shared_ptr<const OperatorVersion> code, std::optional<bool> mode);
  // compiling -> refused.
  void Refuse(std::string reason);
  // serving -> evicted. False: it has another state.
  bool Evict();
  // serving, evicted -> quarantined. False: it has another state.
  bool Quarantine(std::string reason);

  // Waits until it is not compiling. False: the deadline has passed.
  bool WaitUntilDecided(absl::Time deadline) const;

 private:
  // Changes the state; returns the code that no longer serves, which is destroyed without the lock.
  std::shared_ptr<const OperatorVersion> Enter(State state, std::string reason)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  mutable absl::Mutex mu_;
  View view_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<const OperatorVersion> code_ ABSL_GUARDED_BY(mu_);
  std::optional<bool> mode_ ABSL_GUARDED_BY(mu_);
  absl::Time last_use_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  uint64_t uses_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_OPERATORS_REGISTRY_NATIVE_FORM_H_
