// The role `residentd engine`: the process that owns a device.
//
//   residentd engine --engine=NAME --device=N --parent=PID
//       serves the control protocol on the descriptors that it inherits (kEngineControlFd), until a
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

// Numbers of the descriptors that an engine process inherits.

// The shared region (runtime/ring/shared_region.h).
inline constexpr int kEngineRegionFd = 3;
// The control protocol (proto/resident/internal/engine.proto): a stream socket.
inline constexpr int kEngineControlFd = 4;

// A socket without messages: its other end becomes readable when the process ends. The number is
// above those of the descriptors that a driver opens. A process that ends closes its descriptors
// in ascending order, and the system releases them in the reverse order: this one at once, those of
// a GPU only when the driver has destroyed the context, which takes 60 to 700 ms
// (docs/gpu_facts.md).
inline constexpr int kEngineLifelineFd = 250;

// `argc` and `argv` are those of main(): argv[1] is "engine". Call it before anything
// else, because it configures the allocator. Returns the exit status.
int EngineMain(int argc, char** argv);

}  // namespace resident

#endif  // RESIDENT_RUNTIME_ENGINE_CONTROL_ENGINE_MAIN_H_
