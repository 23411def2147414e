// Environment variables that a process which opens the CUDA driver or the CUDA toolkit gets from
// the front end: those of the driver, and those of the loader for its libraries.
#ifndef RESIDENT_RUNTIME_IMAGE_GPU_VARIABLES_H_
#define RESIDENT_RUNTIME_IMAGE_GPU_VARIABLES_H_

namespace resident {

// For PickEnvironment (runtime/base/process/child_process.h).
inline constexpr const char* kGpuVariables[] = {"CUDA_*", "NVIDIA_*", "LD_LIBRARY_PATH",
                                                "RESIDENT_LINK_FROM_PTX"};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_IMAGE_GPU_VARIABLES_H_
