// ValidationEngine: a throw-away engine process in which a new version of an operator is
// tried, so that what it does wrong is done there and not where it would hurt.
//
// The version is run on each example, in turn
//
//   checked      its checked build (kernels/sdk/checks.h), where there is one;
//   as it would  the unit that is to serve, in the form and split in which it would serve,
//   serve        twice, with its outputs poisoned by two patterns;
//   split        if it can be wide: as one block, and in an odd number of chunks.
//
// Every tensor stands between red zones in the engine's staging memory, which is shared memory,
// so that nothing is copied. After each task: its status is OK, red zones and inputs are
// what they were, every element of every output was written, and outputs agree with what
// the example expects, or else with the active version's, or else among themselves.
//
// Examples that an install does not give are made from its signature
// (generated_examples.h); outputs are then held against nothing but themselves, and a
// task that refuses its arguments (INVALID_ARGUMENT) has done nothing wrong.
//
// What it does not see: a stray access through a raw pointer that lands in the engine's
// own memory, off the red zones; an input that no example has.
//
//   Start ──▶ starting ──▶ Run ──▶ ended          The engine comes up in the background
//                └────────────────────▲           (a few milliseconds for the device's spare;
//                     ~ValidationEngine               200 for a new GPU context): start it before
//                                                 the compiler. It is good for one Run.
//
// Thread safety: Start from any thread; the other members from one at a time, but
// Cancel(), which may be called at any time.
//
//   std::unique_ptr<ValidationEngine> validation = ValidationEngine::Start({.engine = choice});
//   ... compile, link ...
//   ValidationReport report = validation->Run(job);
//   if (!report.status.ok()) return report.status;
#ifndef RESIDENT_RUNTIME_OPERATORS_VALIDATION_VALIDATION_H_
#define RESIDENT_RUNTIME_OPERATORS_VALIDATION_VALIDATION_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "runtime/engine/engine_type.h"
#include "runtime/model/signature.h"
#include "runtime/model/split_rule.h"
#include "runtime/operators/validation/example.h"

namespace resident {

class SpareEngine;  // runtime/device/spare_engine.h
struct Generation;  // runtime/engine/generation.h

struct ValidationOptions {
  // The engine and the device that the version is for.
  EngineChoice engine;
  // As the device has them (EngineOptions).
  uint32_t threads_per_block = 0;
  // The device's spare engine, which is taken if there is one (spare_engine.h); may be null.
  std::shared_ptr<SpareEngine> spare;
  // The engine may take this long to come up.
  std::chrono::milliseconds start_limit{30'000};
  // Program to run as `PROGRAM engine ...`; default: this one (/proc/self/exe).
  std::string engine_program;
};

struct ValidationJob {
  std::string operator_name;
  // What the engine loads: the version's unit in `slot`, and in slots of their own its
  // checked build and the version that is active, if there are such.
  std::shared_ptr<const Generation> generation;
  uint32_t slot = 0;
  std::optional<uint32_t> checked_slot;
  std::optional<uint32_t> active_slot;

  Signature signature;
  SplitRule split;
  // Checked by CheckExamples. None: they are made from the signature.
  std::vector<Example> examples;
  // A task that runs longer never returns. 0: no limit but
  // kValidationTaskLimitMs (runtime/base/limits.h).
  std::chrono::milliseconds task_time_limit{0};
};

struct ValidationReport {
  // INVALID_ARGUMENT: what the version did. UNAVAILABLE: the engine did not start, which
  // says nothing of the version. CANCELLED. Otherwise OK.
  absl::Status status;
  uint32_t examples = 0;  // Begun.
  uint32_t tasks = 0;
  // Waited for the engine to be up; loading the generation; running tasks.
  std::chrono::nanoseconds start_wait{0};
  std::chrono::nanoseconds load{0};
  std::chrono::nanoseconds run{0};
};

class ValidationEngine {
 public:
  // Returns at once; what goes wrong is reported by Run.
  static std::unique_ptr<ValidationEngine> Start(const ValidationOptions& options);

  // Kills the engine, if it still runs. It is reaped in the background, which takes a GPU's
  // 100 ms.
  virtual ~ValidationEngine() = default;

  // Once. Kills the engine before it returns.
  virtual ValidationReport Run(const ValidationJob& job) = 0;

  // Ends the engine; Run returns CANCELLED.
  virtual void Cancel() = 0;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_OPERATORS_VALIDATION_VALIDATION_H_
