// ValidationEngine: a temporary engine process in which a new version of an operator is
// run, so that its faults do not affect the live engine.
//
// The version is run on each example in these variants:
//
//   checked      its checked build (kernels/sdk/checks.h), if it has one;
//   as served    the unit, form and split that will serve,
//                twice, with its outputs filled with two poison patterns;
//   split        if it can be wide: on one block, and in an odd number of chunks.
//
// Every tensor is between red zones in the engine's staging memory, which is shared memory,
// so that nothing is copied. Checks after each task: its status is OK, red zones and inputs
// are unchanged, every element of every output was written, and the outputs agree with the
// example's expected data; if it has none, with the active version's outputs; if there are
// none, with the outputs of the other variants.
//
// If an install has no examples, they are generated from its signature
// (GenerateExamples). Their outputs are only compared among the variants, and a task
// that refuses its arguments (INVALID_ARGUMENT) passes.
//
// Not detected: a stray access through a raw pointer to the engine's own memory outside of
// the red zones; errors for inputs that no example has.
//
//   Start ──▶ starting ──▶ Run ──▶ ended          The engine starts in the background
//                └────────────────────▲           (a few milliseconds for the device's spare;
//                     ~ValidationEngine               200 for a new GPU context): call Start before
//                                                 the compilation. It serves one Run.
//
// Thread safety: call Start from any thread, and the other members from one thread at a
// time, except Cancel(), which may be called at any time.
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
  // The engine and the device for which the version is validated.
  EngineChoice engine;
  // Threads of a GPU's block, as the device has them (EngineOptions).
  uint32_t threads_per_block = 0;
  // The device's spare engine, which is used if there is one (spare_engine.h); may be null.
  std::shared_ptr<SpareEngine> spare;
  // Time limit for the start of the engine.
  std::chrono::milliseconds start_limit{30'000};
  // Program to run as `PROGRAM engine ...`; empty: this program (/proc/self/exe).
  std::string engine_program;
};

struct ValidationJob {
  std::string operator_name;
  // What the engine loads: the version's unit in `slot`, and, if they exist, its checked
  // build and the active version in slots of their own.
  std::shared_ptr<const Generation> generation;
  uint32_t slot = 0;
  std::optional<uint32_t> checked_slot;
  std::optional<uint32_t> active_slot;

  Signature signature;
  SplitRule split;
  // Checked by CheckExamples. Empty: they are generated from the signature.
  std::vector<Example> examples;
  // A task that runs longer is considered to never return. 0: only kValidationTaskLimitMs
  // applies (runtime/base/limits.h).
  std::chrono::milliseconds task_time_limit{0};
};

struct ValidationReport {
  // INVALID_ARGUMENT: describes the version's violation. UNAVAILABLE: the engine did not
  // start, or was killed twice, which is not the version's fault. CANCELLED. Otherwise OK.
  absl::Status status;
  uint32_t examples = 0;  // Number of examples that were begun.
  uint32_t tasks = 0;
  // Time to wait for the engine's start, to load the generation, and to run the tasks.
  std::chrono::nanoseconds start_wait{0};
  std::chrono::nanoseconds load{0};
  std::chrono::nanoseconds run{0};
};

class ValidationEngine {
 public:
  // Returns immediately; errors are reported by Run.
  static std::unique_ptr<ValidationEngine> Start(const ValidationOptions& options);

  // Kills the engine, if it still runs. It is reaped in the background, which takes 100 ms
  // for a GPU's engine.
  virtual ~ValidationEngine() = default;

  // Call it once. If the engine is killed, runs everything again in another one. Kills the engine
  // before it returns.
  virtual ValidationReport Run(const ValidationJob& job) = 0;

  // Ends the engine; Run returns CANCELLED.
  virtual void Cancel() = 0;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_OPERATORS_VALIDATION_VALIDATION_H_
