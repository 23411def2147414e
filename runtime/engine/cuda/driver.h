// The CUDA driver, opened at run time, so that one binary starts on
// machines with and without a GPU.
//
//   absl::StatusOr<const Driver*> driver = Driver::Get();   // UNAVAILABLE: why.
//   absl::Status made = (*driver)->Check((*driver)->cuStreamCreate(&stream, 0), "cuStreamCreate");
//
// Thread safety: Get() from any thread; a Driver is immutable.
#ifndef RESIDENT_RUNTIME_ENGINE_CUDA_DRIVER_H_
#define RESIDENT_RUNTIME_ENGINE_CUDA_DRIVER_H_

#include <cuda.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace resident {

// Every driver call that residentd and libresident_ops make. Only those at the end may wait for a
// resident kernel.
#define RESIDENT_DRIVER_CALLS(X)                 \
  X(cuInit)                                      \
  X(cuGetErrorName)                              \
  X(cuGetErrorString)                            \
  X(cuDriverGetVersion)                          \
  X(cuDeviceGet)                                 \
  X(cuDeviceGetAttribute)                        \
  X(cuDeviceGetCount)                            \
  X(cuDeviceGetName)                             \
  X(cuDeviceGetUuid)                             \
  X(cuDeviceGetDevResource)                      \
  X(cuDevSmResourceSplitByCount)                 \
  X(cuDevResourceGenerateDesc)                   \
  X(cuGreenCtxCreate)                            \
  X(cuGreenCtxStreamCreate)                      \
  X(cuDevicePrimaryCtxRetain)                    \
  X(cuCtxSetCurrent)                             \
  X(cuCtxSetLimit)                               \
  X(cuCtxGetLimit)                               \
  X(cuCtxPushCurrent)                            \
  X(cuCtxPopCurrent)                             \
  X(cuFuncGetAttribute)                          \
  X(cuFuncSetAttribute)                          \
  X(cuOccupancyMaxActiveBlocksPerMultiprocessor) \
  X(cuStreamCreate)                              \
  X(cuStreamQuery)                               \
  X(cuLaunchKernel)                              \
  X(cuMemGetInfo)                                \
  X(cuMemGetAddressRange)                        \
  X(cuIpcOpenMemHandle)                          \
  X(cuMemImportFromShareableHandle)              \
  X(cuMemGetAllocationPropertiesFromHandle)      \
  X(cuMemAddressReserve)                         \
  X(cuMemMap)                                    \
  X(cuMemSetAccess)                              \
  X(cuMemUnmap)                                  \
  X(cuMemRelease)                                \
  X(cuMemAddressFree)                            \
  X(cuMemAlloc)                                  \
  X(cuMemHostRegister)                           \
  X(cuMemHostGetDevicePointer)                   \
  X(cuMemcpyHtoDAsync)                           \
  X(cuMemsetD8Async)                             \
  /* Only while no kernel is resident: */        \
  X(cuModuleLoadData)                            \
  X(cuModuleGetFunction)                         \
  X(cuModuleGetGlobal)                           \
  X(cuModuleUnload)                              \
  X(cuMemcpyDtoH)                                \
  X(cuMemHostAlloc)                              \
  X(cuMemFreeHost)                               \
  X(cuMemFree)                                   \
  X(cuIpcCloseMemHandle)                         \
  X(cuDevicePrimaryCtxRelease)                   \
  X(cuMemHostUnregister)

struct Driver {
#define DECLARE(call) decltype(&::call) call;  // NOLINT(bugprone-macro-parentheses): a name.
  RESIDENT_DRIVER_CALLS(DECLARE)
#undef DECLARE

  // Returns the driver of this machine. UNAVAILABLE: there is none, or it is too old; the message
  // says what to do.
  static absl::StatusOr<const Driver*> Get();

  // Returns OK, or an error with the call and the driver's error.
  absl::Status Check(CUresult result, const char* call) const;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_ENGINE_CUDA_DRIVER_H_
