// CudaCalls: the driver calls of the baselines, which use no code of the engine. The driver is
// opened at run time, as in the engine (runtime/engine/cuda/driver.h).
//
//   const CudaCalls& cuda = GetCudaCalls();
//   RUN_CUDA(cuStreamSynchronize, stream);
//
// Thread safety: immutable.
#ifndef RESIDENT_TESTS_GPU_CUDA_CALLS_H_
#define RESIDENT_TESTS_GPU_CUDA_CALLS_H_

#include <cuda.h>

namespace resident::testing {

// clang-format off
#define RESIDENT_BASELINE_CALLS(X) \
  X(cuInit) X(cuGetErrorName) X(cuDeviceGet) X(cuDeviceGetAttribute) X(cuDevicePrimaryCtxRetain) \
  X(cuCtxSetCurrent) X(cuModuleLoadData) X(cuModuleGetFunction) X(cuLaunchKernel) \
  X(cuOccupancyMaxActiveBlocksPerMultiprocessor) X(cuStreamCreate) X(cuStreamSynchronize) \
  X(cuStreamDestroy) X(cuMemAlloc) X(cuMemFree) X(cuMemsetD8) X(cuMemHostAlloc) \
  X(cuMemsetD8Async) X(cuMemcpyHtoD) X(cuFuncSetAttribute) \
  X(cuMemHostGetDevicePointer) X(cuMemFreeHost) X(cuMemcpyDtoH) X(cuMemcpyDtoDAsync) \
  X(cuGraphCreate) X(cuGraphAddKernelNode) X(cuGraphAddNode) X(cuGraphInstantiateWithFlags) \
  X(cuGraphLaunch) X(cuModuleUnload) X(cuCtxSynchronize) X(cuMemsetD32) X(cuMemGetInfo) \
  X(cuMemGetAllocationGranularity) X(cuMemCreate) X(cuMemExportToShareableHandle) \
  X(cuMemAddressReserve) X(cuMemMap) X(cuMemSetAccess) X(cuMemUnmap) X(cuMemRelease) \
  X(cuMemAddressFree) X(cuIpcGetMemHandle) X(cuMemsetD32Async) X(cuMemcpyDtoHAsync) \
  X(cuStreamBeginCapture) X(cuStreamEndCapture) X(cuGraphDestroy)
// clang-format on

struct CudaCalls {
#define RESIDENT_DECLARE_CALL(call) decltype(&::call) call;
  RESIDENT_BASELINE_CALLS(RESIDENT_DECLARE_CALL)
#undef RESIDENT_DECLARE_CALL
};

// Opens the driver and initializes it. Ends the program with a message if it cannot.
const CudaCalls& GetCudaCalls();

// Ends the program if `result` is an error. `what`: the call.
void CheckCuda(CUresult result, const char* what);

#define RUN_CUDA(call, ...) \
  ::resident::testing::CheckCuda(::resident::testing::GetCudaCalls().call(__VA_ARGS__), #call)

}  // namespace resident::testing

#endif  // RESIDENT_TESTS_GPU_CUDA_CALLS_H_
