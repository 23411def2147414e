// The role `residentd engine`: the process that owns a device.
//
//   residentd engine --kind=cpu --parent=PID   serves the control plane on the
//                                              descriptors it was born with
//                                              (engine_fds.h), until told to stop or
//                                              its parent is gone
//   residentd engine --list_devices            prints the CUDA devices, one name a
//                                              line, after a line "OK"; or one line
//                                              with the reason why there are none
//
// Started by the supervisor (runtime/device); of no use by hand.
#ifndef RESIDENT_RUNTIME_ENGINE_CONTROL_ENGINE_MAIN_H_
#define RESIDENT_RUNTIME_ENGINE_CONTROL_ENGINE_MAIN_H_

namespace resident {

// `argc` and `argv` as main() has them: argv[1] is "engine". Call it before anything
// else: it sets the allocator up. Returns the exit status.
int EngineMain(int argc, char** argv);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_ENGINE_CONTROL_ENGINE_MAIN_H_
