// Links the units of this folder into modules.
#ifndef RESIDENT_TESTS_UNITS_LINK_UNITS_H_
#define RESIDENT_TESTS_UNITS_LINK_UNITS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace resident::testing {

// Prints the reason and exits with status 1.
[[noreturn]] void ExitWithError(const std::string& why);

// The GPU's architecture of a compile target (EngineTraits::compile_target), such as 90; 0 for the
// host's processor. Exits with an error if there is no such target.
uint32_t FindArchitecture(const std::string& compile_target);

// Returns the module of a unit (a cubin, or PTX) that defines the operators `symbols`, for
// an architecture such as 90. Exits with an error if it cannot be linked, for example in a
// build without CUDA.
std::shared_ptr<const std::string> LinkUnit(const std::vector<std::string>& symbols,
                                            const std::string& unit, uint32_t architecture);

}  // namespace resident::testing

#endif  // RESIDENT_TESTS_UNITS_LINK_UNITS_H_
