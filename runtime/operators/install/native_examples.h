// MakeNativeExamples: the inputs with which native code of a FLUX program is compared with flux.run
// before it serves: the examples of the install, 256 more inputs, and limits of cycles at which
// a run is cut off in different places. They have no expected outputs; the operator flux.run gives
// them on the same engine.
//
// Thread safety: a pure function; the same arguments give the same examples.
#ifndef RESIDENT_RUNTIME_OPERATORS_INSTALL_NATIVE_EXAMPLES_H_
#define RESIDENT_RUNTIME_OPERATORS_INSTALL_NATIVE_EXAMPLES_H_

#include <string>
#include <vector>

#include "runtime/operators/validation/example.h"

namespace resident {

// `installed`: the examples of the install (bytecode_validation.h). `seed`: any number.
std::vector<Example> MakeNativeExamples(const std::string& program, bool unknown_nop,
                                        const std::vector<Example>& installed, uint64_t seed);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_OPERATORS_INSTALL_NATIVE_EXAMPLES_H_
