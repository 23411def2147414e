// What a version of an operator needs of the device it runs on, as inspection found it.
#ifndef RESIDENT_RUNTIME_COMPILE_RESOURCE_USE_H_
#define RESIDENT_RUNTIME_COMPILE_RESOURCE_USE_H_

#include <cstdint>

namespace resident {

struct ResourceUse {
  // Of a thread; 0 for a CPU.
  uint32_t registers = 0;
  // The deepest chain of calls below the operator, and the operator's own frame.
  uint32_t stack_bytes = 0;
  // Static shared memory: 0, or the version was refused.
  uint32_t shared_bytes = 0;
  uint32_t code_bytes = 0;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_COMPILE_RESOURCE_USE_H_
