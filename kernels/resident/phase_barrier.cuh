// Barriers in shared memory (mbarrier) that the threads of a block wait for by phases: phase n ends
// with the last of `count` arrivals behind phase n - 1, and a wait for the parity of n ends when n
// has. What a thread wrote before its arrival is visible to those that have waited.
#ifndef RESIDENT_KERNELS_RESIDENT_PHASE_BARRIER_CUH_
#define RESIDENT_KERNELS_RESIDENT_PHASE_BARRIER_CUH_

#include "kernels/layout/platform.h"

namespace resident {

__device__ __forceinline__ u32 SharedAddress(const void* at) {
  return static_cast<u32>(__cvta_generic_to_shared(at));
}

// `barrier`: a shared address of 8 bytes.
__device__ __forceinline__ void InitializePhases(u32 barrier, u32 count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
// Before it is initialized again. REQUIRES: no thread waits for it.
__device__ __forceinline__ void InvalidatePhases(u32 barrier) {
  asm volatile("mbarrier.inval.shared.b64 [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void ArriveAtPhase(u32 barrier) {
  asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}" ::"r"(barrier)
               : "memory");
}

// Whether the phase has ended. May suspend the thread for a while if it has not.
__device__ __forceinline__ bool TestPhase(u32 barrier, u32 parity) {
  u32 ended;
  asm volatile(
      "{\n.reg .pred p;\n"
#if __CUDA_ARCH__ >= 900
      "mbarrier.try_wait.parity.shared.b64 p, [%1], %2;\n"
#else
      "mbarrier.test_wait.parity.shared.b64 p, [%1], %2;\n"
#endif
      "selp.u32 %0, 1, 0, p;\n}"
      : "=r"(ended)
      : "r"(barrier), "r"(parity)
      : "memory");
  return ended != 0;
}
// The same, and the thread is suspended for about `ns` nanoseconds unless it ends before.
__device__ __forceinline__ bool TestPhaseFor(u32 barrier, u32 parity, u32 ns) {
#if __CUDA_ARCH__ >= 900
  u32 ended;
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier.try_wait.parity.shared.b64 p, [%1], %2, %3;\n"
      "selp.u32 %0, 1, 0, p;\n}"
      : "=r"(ended)
      : "r"(barrier), "r"(parity), "r"(ns)
      : "memory");
  return ended != 0;
#else
  constexpr u32 kPauseNs = 64;
  for (u32 waited = 0; waited < ns; waited += kPauseNs) {
    if (TestPhase(barrier, parity)) return true;
    __nanosleep(kPauseNs);
  }
  return TestPhase(barrier, parity);
#endif
}
// A short wait.
__device__ __forceinline__ void AwaitPhase(u32 barrier, u32 parity) {
  asm volatile(
      "{\n.reg .pred p;\n"
      "again:\n"
#if __CUDA_ARCH__ >= 900
      "mbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n"
#else
      "mbarrier.test_wait.parity.shared.b64 p, [%0], %1;\n"
#endif
      "@!p bra again;\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
// A wait that may be long: the other block of the SM needs the cycles.
__device__ __forceinline__ void AwaitPhaseRelaxed(u32 barrier, u32 parity) {
#if __CUDA_ARCH__ >= 900
  constexpr u32 kSuspendNs = 1'000'000;
  asm volatile(
      "{\n.reg .pred p;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared.b64 p, [%0], %1, %2;\n"
      "@!p bra again;\n}" ::"r"(barrier),
      "r"(parity), "r"(kSuspendNs)
      : "memory");
#else
  for (u32 polls = 0; !TestPhase(barrier, parity); ++polls) {
    if (polls > 64) asm volatile("nanosleep.u32 64;");
  }
#endif
}

}  // namespace resident

#endif  // RESIDENT_KERNELS_RESIDENT_PHASE_BARRIER_CUH_
