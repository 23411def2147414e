// What the generations of this folder are linked with.
#ifndef RESIDENT_TESTS_UNITS_LINK_UNITS_H_
#define RESIDENT_TESTS_UNITS_LINK_UNITS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/engine/generation.h"
#include "runtime/engine/image/generation_objects.h"

namespace resident::testing {

// Ends the test program.
[[noreturn]] void Die(const std::string& why);

// The generation's image, of the kernel and of `units`, for an architecture as in 90. Ends
// the test program if it cannot be linked, as in a build without CUDA.
std::shared_ptr<const std::string> LinkUnits(const Generation& generation, uint32_t architecture,
                                             const std::vector<LinkInput>& units);

}  // namespace resident::testing

#endif  // RESIDENT_TESTS_UNITS_LINK_UNITS_H_
