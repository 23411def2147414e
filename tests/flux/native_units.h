// Native code of FLUX programs for an engine in the test's own process: compiles sources of
// operators (runtime/flux/translator.h) to a generation, as a daemon does, but in this process and
// on all of its processors.
//
//   EngineHarness harness(options);   // With options.engine.start_parked.
//   auto generation = NativeGeneration({NativeOperatorSource(kNativeFunction, *translation)},
//                                      harness.info().traits.compile_target);
//   if (generation.ok()) harness.Launch(*generation);   // The program is in NativeSlot(0).
//
// Thread safety: pure functions.
#ifndef RESIDENT_TESTS_FLUX_NATIVE_UNITS_H_
#define RESIDENT_TESTS_FLUX_NATIVE_UNITS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/engine/generation.h"
#include "runtime/flux/translator.h"

namespace resident::flux {

// The NAME of each source's RESIDENT_OPERATOR(NAME).
inline constexpr char kNativeFunction[] = "native_flux";

// Source of an operator that contains many programs, because a compiler needs longer to start than
// for a program. The bytecode's last byte, behind the program that the offsets end at, is the
// number of the program. REQUIRES: at most 256 programs.
std::string ManyProgramsSource(const std::vector<Translation>& translations);

// The slot of the operator with this number.
uint32_t NativeSlot(size_t number);

// Returns a generation with the operators of `sources`, for engines with this target
// (EngineTraits::compile_target). UNAVAILABLE: this machine has no compiler for the target.
// INVALID_ARGUMENT: a source does not compile, with the compiler's output, or its unit is refused.
absl::StatusOr<std::shared_ptr<const Generation>> NativeGeneration(
    const std::vector<std::string>& sources, const std::string& compile_target);

}  // namespace resident::flux

#endif  // RESIDENT_TESTS_FLUX_NATIVE_UNITS_H_
