// The role `residentd engine`: the process that owns a device.
//
//   residentd engine --engine=NAME --device=N --parent=PID
//       serves the control protocol on the descriptors that it inherits (engine_fds.h), until a
//       shutdown request, until its parent has ended or until the control connection has ended
//   residentd engine --list_devices=NAME
//       prints a line "OK" and then the name of each device that the engine can use; or one line
//       with the reason why there are none
//
// NAME is a row of runtime/engine/engines.h. An unknown one ends the process with status 2. The
// engine does not use N, the number of the device: it identifies the process in lists of processes.
//
// Started by the supervisor (runtime/device); not meant to be started by users.
#ifndef RESIDENT_RUNTIME_ENGINE_CONTROL_ENGINE_MAIN_H_
#define RESIDENT_RUNTIME_ENGINE_CONTROL_ENGINE_MAIN_H_

namespace resident {

// `argc` and `argv` are those of main(): argv[1] is "engine". Call it before anything
// else, because it configures the allocator. Returns the exit status.
int EngineMain(int argc, char** argv);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_ENGINE_CONTROL_ENGINE_MAIN_H_
