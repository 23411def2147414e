// The arguments of a task as text: part of the message about a task that was running when its
// engine was lost.
//
// Thread safety: a pure function.
//
//   ArgumentsText(task);  // "n=1024, 0x7f00, 0x3f800000", "f32[3, 4] at 0x7f00, 0x2a"
#ifndef RESIDENT_RUNTIME_DEVICE_ARGUMENTS_TEXT_H_
#define RESIDENT_RUNTIME_DEVICE_ARGUMENTS_TEXT_H_

#include <string>

#include "runtime/queue/device_queue.h"

namespace resident {

// For a compact task: its length and all its words, even if the operator has fewer arguments. For
// other tasks: dtype, shape and address of a tensor, the bits of a scalar.
std::string ArgumentsText(const RunningTask& task);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_DEVICE_ARGUMENTS_TEXT_H_
