// Numbers of the descriptors that an engine process inherits.
#ifndef RESIDENT_RUNTIME_ENGINE_CONTROL_ENGINE_FDS_H_
#define RESIDENT_RUNTIME_ENGINE_CONTROL_ENGINE_FDS_H_

namespace resident {

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

}  // namespace resident

#endif  // RESIDENT_RUNTIME_ENGINE_CONTROL_ENGINE_FDS_H_
