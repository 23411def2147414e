// ExampleRunner: runs one version of an operator on one example in every variant in which
// it could be run, and checks the effects (see validation.h for the list of checks).
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
  // All arguments must outlive the object.
  ExampleRunner(const ValidationJob& job, TaskRunner* tasks, const ValidationStaging& staging);

  // INVALID_ARGUMENT: describes the violation of the version; the engine may have ended.
  absl::Status Run(size_t index, const Example& example, bool generated);

  uint32_t tasks_run() const { return tasks_run_; }

 private:
  // One variant of running an example.
  struct Variant {
    std::string name;  // For messages: "checked build", "in 3 chunks".
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
    bool refused = false;  // The operator refused a generated example.
    Outputs outputs;
  };
  struct Case {
    size_t index;
    const Example& example;
    bool generated;
  };

  absl::StatusOr<Result> RunOnce(const Case& test_case, const Variant& variant);
  absl::StatusOr<Result> Evaluate(const Case& test_case, const Variant& variant,
                                  const GuardedTensors& tensors, const TaskEnd& end) const;
  TaskDescriptor MakeTask(const Variant& variant, const GuardedTensors& tensors) const;
  absl::Status CheckWritten(const Case& test_case, const Variant& variant, const Result& first,
                            const Result& second) const;
  // The expected outputs, and their name for messages.
  struct Reference {
    Outputs outputs;
    std::string name;
    // The example's tolerance is multiplied by this.
    double tolerance_scale = 1;
  };
  absl::Status CheckEqual(const Case& test_case, const Variant& variant, const Result& result,
                          const Reference& reference) const;
  absl::StatusOr<Reference> FindReference(const Case& test_case, const Variant& variant,
                                          const Result& first);
  uint64_t CountChunks(const Example& example) const;

  const ValidationJob& job_;
  TaskRunner* const tasks_;
  const ValidationStaging staging_;
  const std::chrono::milliseconds time_limit_;
  std::vector<size_t> outputs_;  // Parameters that the operator writes.
  uint32_t tasks_run_ = 0;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_OPERATORS_VALIDATION_EXAMPLE_RUNNER_H_
