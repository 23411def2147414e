// The differences between the compilers of operators (nvcc, NVRTC, the host's compiler):
// fixed-size integers and function qualifiers.
//
// No standard header is included, so that NVRTC needs no include path.
#ifndef RESIDENT_KERNELS_LAYOUT_PLATFORM_H_
#define RESIDENT_KERNELS_LAYOUT_PLATFORM_H_

#if defined(__CUDACC__)
#define RESIDENT_GPU 1
#define RESIDENT_DEVICE __device__ __forceinline__
#define RESIDENT_HOST_DEVICE __host__ __device__ __forceinline__
// Before a loop: how often a GPU's compiler unrolls it. 1 is used for loops that run rarely,
// because small code compiles faster.
#define RESIDENT_UNROLL(count) RESIDENT_PRAGMA(unroll count)
#define RESIDENT_PRAGMA(text) _Pragma(#text)
#else
#define RESIDENT_GPU 0
#define RESIDENT_DEVICE inline
#define RESIDENT_HOST_DEVICE inline
#define RESIDENT_UNROLL(count)
#endif

namespace resident {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i8 = signed char;
using i32 = int;
using i64 = long long;

static_assert(sizeof(u16) == 2 && sizeof(u32) == 4 && sizeof(u64) == 8, "unexpected integer sizes");

}  // namespace resident

#endif  // RESIDENT_KERNELS_LAYOUT_PLATFORM_H_
