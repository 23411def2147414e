// Generations for tests, made of the versions in versions.cc, for any engine.
//
// Thread safety: pure functions.
//
//   auto next = VersionsGeneration(2, info.traits.compile_target, {{kFirstFreeSlot, 3}});
//   device.LoadGeneration(next, ...);   // Slot kFirstFreeSlot returns VersionAnswer(3).
#ifndef RESIDENT_TESTS_UNITS_VERSIONS_H_
#define RESIDENT_TESTS_UNITS_VERSIONS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "kernels/ops/builtin.h"
#include "runtime/engine/generation.h"

namespace resident::testing {

inline constexpr uint32_t kVersions = 64;
// Above the built-in and the test operators.
inline constexpr uint32_t kFirstFreeSlot = kFirstInstalledSlot;

// The function of version k, 0 <= k < kVersions, and the value that it writes.
std::string VersionSymbol(uint32_t k);
float VersionAnswer(uint32_t k);

// Returns the unit: a relocatable cubin for the architecture, or a shared object for
// architecture 0. Returns an empty string if the build has no unit for this architecture.
std::string VersionsUnit(uint32_t architecture);

// Returns a generation with version `k` in `slot` for each entry, for engines with this target
// (EngineTraits::compile_target). Exits with an error if it
// cannot be linked.
std::shared_ptr<const Generation> VersionsGeneration(uint64_t number,
                                                     const std::string& compile_target,
                                                     const std::map<uint32_t, uint32_t>& versions);

}  // namespace resident::testing

#endif  // RESIDENT_TESTS_UNITS_VERSIONS_H_
