// Generations for tests of canaries: of the operators in trials.cc, for any engine.
//
// Thread safety: pure functions.
//
//   auto generation = TrialsGeneration(info.architecture, {{64, "twice"}},
//                                      /*checked=*/{{65, "twice"}});
#ifndef RESIDENT_TESTS_UNITS_TRIALS_H_
#define RESIDENT_TESTS_UNITS_TRIALS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "runtime/engine/generation.h"

namespace resident::testing {

// Operators by slot: as they would serve, and their checked builds. `architecture` 0: for
// the CPU engine. Ends the test program if the generation cannot be linked.
std::shared_ptr<const Generation> TrialsGeneration(uint32_t architecture,
                                                   const std::map<uint32_t, std::string>& serving,
                                                   const std::map<uint32_t, std::string>& checked);

}  // namespace resident::testing

#endif  // RESIDENT_TESTS_UNITS_TRIALS_H_
