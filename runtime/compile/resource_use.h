// Resources that a version of an operator needs on its device, as measured by inspection.
#ifndef RESIDENT_RUNTIME_COMPILE_RESOURCE_USE_H_
#define RESIDENT_RUNTIME_COMPILE_RESOURCE_USE_H_

#include <cstdint>

namespace resident {

struct ResourceUse {
  // Registers of a thread; 0 for a CPU.
  uint32_t registers = 0;
  // Frames of the operator and of its deepest chain of calls.
  uint32_t stack_bytes = 0;
  // Static shared memory. It is 0, because inspection refuses other values.
  uint32_t shared_bytes = 0;
  uint32_t code_bytes = 0;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_COMPILE_RESOURCE_USE_H_
