// What the units of this folder become modules with.
#ifndef RESIDENT_TESTS_UNITS_LINK_UNITS_H_
#define RESIDENT_TESTS_UNITS_LINK_UNITS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace resident::testing {

// Ends the test program.
[[noreturn]] void Die(const std::string& why);

// The module of a unit (a cubin, or PTX) that defines the operators `symbols`, for an
// architecture as in 90. Ends the test program if it cannot be linked, as in a build
// without CUDA.
std::shared_ptr<const std::string> LinkUnit(const std::vector<std::string>& symbols,
                                            const std::string& unit, uint32_t architecture);

}  // namespace resident::testing

#endif  // RESIDENT_TESTS_UNITS_LINK_UNITS_H_
