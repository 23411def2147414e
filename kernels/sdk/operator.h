// The operator SDK: all that an operator includes.
//
//   #include "kernels/sdk/operator.h"
//
//   RESIDENT_OPERATOR(axpy)(resident::Block& block, const resident::Args& args) {
//     auto x = args.tensor<const float>(0);
//     auto y = args.tensor<float>(1);
//     const float a = args.scalar<float>(2);
//     block.for_each(block.share(x.size()), [&](resident::i64 i) { y[i] += a * x[i]; });
//   }
//
// The same source compiles for the GPU and for the CPU engine. Its signature is
// text that stands beside it (see runtime/model/signature.h):
//
//   "x: in f32[*S], y: inout f32[*S], a: scalar f32"
//
// Rules of an operator:
//   * Arguments have been checked against the signature before it is called.
//   * It returns. There is no way to stop one that does not but to end the engine.
//   * It touches the tensors it was given, block.memory() and block.scratch() only.
//   * All threads of a block reach every (collective) call.
#ifndef RESIDENT_KERNELS_SDK_OPERATOR_H_
#define RESIDENT_KERNELS_SDK_OPERATOR_H_

#include "kernels/sdk/atomic.h"
#include "kernels/sdk/block.h"
#include "kernels/sdk/element.h"
#include "kernels/sdk/elementwise.h"
#include "kernels/sdk/half.h"
#include "kernels/sdk/math.h"

// Raised when a change of the SDK makes compiled operators invalid.
#define RESIDENT_SDK_VERSION 2

// Names the function of operator `name`. Has C linkage: the jump table finds it.
#define RESIDENT_OPERATOR_SYMBOL(name) resident_operator_##name
#if RESIDENT_GPU
#define RESIDENT_EXPORT extern "C" __device__
#else
#define RESIDENT_EXPORT extern "C" __attribute__((visibility("default")))
#endif
#define RESIDENT_OPERATOR(name) RESIDENT_EXPORT void RESIDENT_OPERATOR_SYMBOL(name)

// A table of constants, outside of functions: `RESIDENT_CONSTANT(float, kWeights, {0.5f,
// 0.25f});` is `const float kWeights[] = {0.5f, 0.25f};`. On a GPU it stands in global
// memory: constant memory is the kernel's.
#if RESIDENT_GPU
#define RESIDENT_CONSTANT_MEMORY static __device__ const
#else
#define RESIDENT_CONSTANT_MEMORY static const
#endif
#define RESIDENT_CONSTANT(type, name, ...)                             \
  namespace resident_constants {                                       \
  [[maybe_unused]] RESIDENT_CONSTANT_MEMORY type name[] = __VA_ARGS__; \
  }                                                                    \
  using resident_constants::name

// A *unit* is one operator compiled by itself, to be loaded beside others whose sources have
// the same names: with RESIDENT_UNIT, 16 hex digits of its own, and
// resident_operator_NAME as a macro that is resident_op_<the digits>. Its object says by
// the name of a function which SDK it was compiled with.
#if defined(RESIDENT_UNIT)
#define RESIDENT_SDK_MARK_NAMED(version, unit) resident_sdk_##version##_##unit
#define RESIDENT_SDK_MARK(version, unit) RESIDENT_SDK_MARK_NAMED(version, unit)
RESIDENT_EXPORT void RESIDENT_SDK_MARK(RESIDENT_SDK_VERSION, RESIDENT_UNIT)() {}
#endif

#endif  // RESIDENT_KERNELS_SDK_OPERATOR_H_
