// ExampleRunner: runs one version of an operator on one example in every way that it
// could be run, and looks at what it did (validation.h says what is looked for).
//
// Thread safety: one thread.
//
//   ExampleRunner runner(job, &tasks, staging);
//   absl::Status status = runner.Run(0, example, /*generated=*/false);
#ifndef RESIDENT_RUNTIME_OPERATORS_VALIDATION_EXAMPLE_RUNNER_H_
#define RESIDENT_RUNTIME_OPERATORS_VALIDATION_EXAMPLE_RUNNER_H_

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/operators/validation/example.h"
#include "runtime/operators/validation/guarded_tensors.h"
#include "runtime/operators/validation/task_runner.h"
#include "runtime/operators/validation/validation.h"

namespace resident {

class ExampleRunner {
 public:
  // All must outlive the object.
  ExampleRunner(const ValidationJob& job, TaskRunner* tasks, const ValidationStaging& staging);

  // INVALID_ARGUMENT: what the version did wrong. After that the engine may be gone.
  absl::Status Run(size_t index, const Example& example, bool generated);

  uint32_t tasks_run() const { return tasks_run_; }

 private:
  // One way of running an example.
  struct Way {
    std::string name;  // For people: "checked build", "in 3 chunks".
    uint32_t slot = 0;
    uint64_t chunks = 1;
    bool checked = false;
    bool shifted = false;
    bool may_be_compact = false;
    uint8_t poison = 0;
  };
  // The elements of each output, in the order of outputs_.
  using Outputs = std::vector<std::string>;
  struct Result {
    bool refused = false;  // A generated example that the operator does not take.
    Outputs outputs;
  };
  struct Subject {
    size_t index;
    const Example& example;
    bool generated;
  };

  absl::StatusOr<Result> RunOnce(const Subject& subject, const Way& way);
  absl::StatusOr<Result> Judge(const Subject& subject, const Way& way,
                               const GuardedTensors& tensors, const TaskEnd& end) const;
  TaskDescriptor MakeTask(const Way& way, const GuardedTensors& tensors) const;
  absl::Status CheckWritten(const Subject& subject, const Way& way, const Result& first,
                            const Result& second) const;
  // What the outputs are held against, and what that is called.
  struct Reference {
    Outputs outputs;
    std::string name;
    // The example's tolerance is widened by this.
    double slack = 1;
  };
  absl::Status CheckEqual(const Subject& subject, const Way& way, const Result& result,
                          const Reference& reference) const;
  absl::StatusOr<Reference> FindReference(const Subject& subject, const Way& way,
                                          const Result& first);
  uint64_t NaturalChunks(const Example& example) const;

  const ValidationJob& job_;
  TaskRunner* const tasks_;
  const ValidationStaging staging_;
  const std::chrono::milliseconds time_limit_;
  std::vector<size_t> outputs_;  // Parameters that are written.
  uint32_t tasks_run_ = 0;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_OPERATORS_VALIDATION_EXAMPLE_RUNNER_H_
