// Numbers of the descriptors that an engine process is born with.
#ifndef RESIDENT_RUNTIME_ENGINE_CONTROL_ENGINE_FDS_H_
#define RESIDENT_RUNTIME_ENGINE_CONTROL_ENGINE_FDS_H_

namespace resident {

// The shared region (runtime/ring/shared_region.h).
inline constexpr int kEngineRegionFd = 3;
// The control plane: a stream socket that speaks gRPC.
inline constexpr int kEngineControlFd = 4;
// Descriptors that go with MapShared calls (descriptor_channel.h).
inline constexpr int kEngineDescriptorFd = 5;

// Exit status of an engine that ended itself because its device's context is gone;
// ControlBlock::last_words says why.
inline constexpr int kEngineFaultStatus = 3;

}  // namespace resident

#endif  // RESIDENT_RUNTIME_ENGINE_CONTROL_ENGINE_FDS_H_
