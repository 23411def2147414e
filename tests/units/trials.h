// A generation for tests of validations: every operator of trials.cc, for any engine.
//
// Thread safety: pure functions.
//
//   auto generation = TrialsGeneration(info.architecture);
//   ... TrialSlot("twice"), CheckedTrialSlot("twice") ...
#ifndef RESIDENT_TESTS_UNITS_TRIALS_H_
#define RESIDENT_TESTS_UNITS_TRIALS_H_

#include <cstdint>
#include <memory>
#include <string>

#include "runtime/engine/generation.h"

namespace resident::testing {

// Slots of an operator as it would serve, and of its checked build. Ends the test program
// if there is no such operator.
uint32_t TrialSlot(const std::string& name);
uint32_t CheckedTrialSlot(const std::string& name);

// All of them; `architecture` 0: for the CPU engine. Linked once in a process: that takes
// seconds. Ends the test program if it cannot be linked.
std::shared_ptr<const Generation> TrialsGeneration(uint32_t architecture);

}  // namespace resident::testing

#endif  // RESIDENT_TESTS_UNITS_TRIALS_H_
