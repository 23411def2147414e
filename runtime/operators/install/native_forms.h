// NativeForms: gives installed FLUX programs native code (native_form.h), one after the other, on a
// thread in the background.
//
//   Request ─▶ translate ─▶ compile, inspect ─▶ compare with flux.run ─▶ load ─▶ serve
//                  │              │                     │                  │
//                  └──────────────┴───── refused ◀──────┴──────────────────┘
//
// Nothing waits for a form, except an install that asked for it: until it serves, and after it was
// refused, evicted or quarantined, the interpreter runs the program, with the same results. A form
// is built again after a restart, from the cache of compiled code.
//
// At most Options::max_forms serve; the one that was used least recently makes room for the next.
//
// Thread safety: all members may be called from any thread.
#ifndef RESIDENT_RUNTIME_OPERATORS_INSTALL_NATIVE_FORMS_H_
#define RESIDENT_RUNTIME_OPERATORS_INSTALL_NATIVE_FORMS_H_

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "runtime/base/limits.h"
#include "runtime/operators/install/generation_loader.h"
#include "runtime/operators/install/version_builder.h"
#include "runtime/operators/install/version_validation.h"
#include "runtime/operators/registry/registry.h"
#include "runtime/operators/validation/example.h"

namespace resident {

// FormQuarantine: the native forms that were quarantined, by content hash, in a file of the state
// folder. A hash contains the translator's version, so that a corrected translator is tried again.
//
// Thread safety: all members may be called from any thread.
class FormQuarantine {
 public:
  // The oldest entries are dropped.
  static constexpr size_t kMaxEntries = 1024;

  // Reads the file, if there is one. Empty: nothing is kept.
  explicit FormQuarantine(std::string path);

  // Why the form was quarantined; empty: it was not.
  std::string Reason(const std::string& hash) const;
  // Adds the form and writes the file. An error is logged: the form stays quarantined until
  // the daemon ends.
  void Add(const std::string& hash, const std::string& reason);

 private:
  const std::string path_;
  mutable absl::Mutex mu_;
  std::deque<std::pair<std::string, std::string>> entries_ ABSL_GUARDED_BY(mu_);
};

class NativeForms {
 public:
  struct Options {
    // --flux_native: whether installed programs get native code.
    bool enabled = true;
    std::chrono::milliseconds park_deadline{2'000};
    // File of the quarantined forms; empty: they are forgotten when the daemon ends.
    std::string quarantine_file;
    size_t max_forms = kMaxNativeForms;
  };
  struct Sources {
    Registry* registry;
    GenerationLoader* loader;
    VersionValidation::Setup validation;
  };

  NativeForms(const Options& options, const Sources& sources);
  // Stops.
  ~NativeForms();

  // Begins to build the form of `program`, unless it exists, was quarantined, or is off.
  // `examples`: of the install (bytecode_validation.h). It is refused if many wait already.
  void Request(const std::shared_ptr<const OperatorVersion>& program,
               std::vector<Example> examples);

  // Takes `code`, and the forms of all equal programs, out of service, and does not build them
  // again.
  void Quarantine(const OperatorVersion& code, const std::string& reason);

  // The result of a comparison of `code` with the interpreter, in service.
  void RecordComparison(const OperatorVersion& code, uint64_t mismatches);

  // Ends what is being built, and refuses the forms that wait.
  void Stop();

  OperatorManager::NativeCounters counters() const;

 private:
  // It does not pin the program, which can be removed meanwhile.
  struct Job {
    std::weak_ptr<const OperatorVersion> program;
    std::shared_ptr<const std::string> bytecode;
    std::shared_ptr<NativeForm> form;
    std::vector<Example> examples;
  };

  void Work();
  // Builds the form and lets it serve. The error is the reason why it is refused.
  absl::Status Build(const Job& job);
  absl::StatusOr<BuiltVersion> Compile(const std::string& hash, const std::string& source) const;
  // Also compares the code with flux.run, on another engine.
  absl::StatusOr<BuiltVersion> CompileAndValidate(const Job& job, const std::string& hash,
                                                  const std::string& source);
  absl::Status Load(const Job& job, const std::string& hash, const BuiltVersion& built,
                    std::optional<bool> mode);
  // Evicts the form that was used least recently if more serve than may.
  void MakeRoom();
  bool stopping() const { return stopping_.load(); }

  const Options options_;
  const Sources sources_;
  FormQuarantine quarantine_;
  std::atomic<bool> stopping_{false};
  std::atomic<uint64_t> comparisons_{0};
  std::atomic<uint64_t> mismatches_{0};
  std::atomic<uint64_t> quarantined_{0};
  mutable absl::Mutex mu_;
  std::deque<Job> jobs_ ABSL_GUARDED_BY(mu_);
  // The forms that serve, and some that do not any more.
  struct Made {
    std::weak_ptr<NativeForm> form;
    std::string hash;  // Of its code; equal programs have the same.
  };
  std::vector<Made> forms_ ABSL_GUARDED_BY(mu_);
  std::thread worker_;  // Last: it uses the members above.
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_OPERATORS_INSTALL_NATIVE_FORMS_H_
