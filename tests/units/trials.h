// A generation for tests of validation: every operator of trials.cc, for any engine.
//
// Thread safety: pure functions.
//
//   auto generation = TrialsGeneration(info.traits.compile_target);
//   ... TrialSlot("twice"), CheckedTrialSlot("twice") ...
#ifndef RESIDENT_TESTS_UNITS_TRIALS_H_
#define RESIDENT_TESTS_UNITS_TRIALS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "runtime/engine/generation.h"

namespace resident::testing {

// Return the slots of an operator's serving build and of its checked build. Exit with an
// error if there is no such operator.
uint32_t TrialSlot(const std::string& name);
uint32_t CheckedTrialSlot(const std::string& name);

// Returns the generation with all of them, for engines with this target. Linked only
// once per process, because linking takes seconds. Exits with an error if it cannot be
// linked.
std::shared_ptr<const Generation> TrialsGeneration(const std::string& compile_target);

}  // namespace resident::testing

#endif  // RESIDENT_TESTS_UNITS_TRIALS_H_
