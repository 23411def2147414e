// The operator SDK: the only header that an operator needs to include.
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
// The same source is compiled for the GPU and for the CPU engine. Its signature is a text that is
// written next to it (see runtime/model/signature.h):
//
//   "x: in f32[*S], y: inout f32[*S], a: scalar f32"
//
// Rules of an operator:
//   * Arguments have been checked against the signature before it is called.
//   * It returns. An operator that does not return can only be stopped by ending the engine.
//   * It accesses only its argument tensors, block.memory() and block.scratch().
//   * All threads of a block reach every (collective) call.
#ifndef RESIDENT_KERNELS_SDK_OPERATOR_H_
#define RESIDENT_KERNELS_SDK_OPERATOR_H_

#include "kernels/sdk/atomic.h"
#include "kernels/sdk/block.h"
#include "kernels/sdk/element.h"
#include "kernels/sdk/elementwise.h"
#include "kernels/sdk/half.h"
#include "kernels/sdk/math.h"

// Incremented when a change of the SDK makes compiled operators invalid.
#define RESIDENT_SDK_VERSION 3

// The name of the function of operator `name`. It has C linkage, so that the jump table can refer
// to it.
#define RESIDENT_OPERATOR_SYMBOL(name) resident_operator_##name
#if RESIDENT_GPU
#define RESIDENT_EXPORT extern "C" __device__
#else
#define RESIDENT_EXPORT extern "C" __attribute__((visibility("default")))
#endif
// The function of operator `name`, for which RESIDENT_OPERATOR defines it, and for jump tables.
#define RESIDENT_OPERATOR_ENTRY(name)                                        \
  RESIDENT_OPERATOR_ABI RESIDENT_EXPORT void RESIDENT_OPERATOR_SYMBOL(name)( \
      ::resident::BlockState * state)
// What the author of an operator writes is the body of a function that is part of the entry, so
// that the compiler has `block` and `args` in registers. The comparison keeps an operator that
// never returns from becoming a function without a return, which ptxas 13.0 does not accept
// together with RESIDENT_OPERATOR_ABI.
#define RESIDENT_OPERATOR(name)                                                              \
  namespace {                                                                                \
  struct ResidentOperator_##name {                                                           \
    static RESIDENT_DEVICE void Run(::resident::Block& block, const ::resident::Args& args); \
  };                                                                                         \
  }                                                                                          \
  RESIDENT_OPERATOR_ENTRY(name);                                                             \
  RESIDENT_OPERATOR_ENTRY(name) {                                                            \
    ::resident::Block block(state);                                                          \
    const ::resident::Args args(state);                                                      \
    if (state != nullptr) ResidentOperator_##name::Run(block, args);                         \
  }                                                                                          \
  RESIDENT_DEVICE void ResidentOperator_##name::Run

// A table of constants, outside of functions: `RESIDENT_CONSTANT(float, kWeights, {0.5f,
// 0.25f});` is `const float kWeights[] = {0.5f, 0.25f};`. On a GPU it is in global memory,
// because only the kernel uses constant memory.
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

// A *unit* is one operator that is compiled separately and loaded together with others, whose
// sources may use the same names. It is compiled with RESIDENT_UNIT, 16 unique hex digits, and
// with resident_operator_NAME as a macro for resident_op_<the digits>. The name of a function in
// its object contains the version of the SDK.
#if defined(RESIDENT_UNIT)
#define RESIDENT_SDK_MARK_NAMED(version, unit) resident_sdk_##version##_##unit
#define RESIDENT_SDK_MARK(version, unit) RESIDENT_SDK_MARK_NAMED(version, unit)
RESIDENT_EXPORT void RESIDENT_SDK_MARK(RESIDENT_SDK_VERSION, RESIDENT_UNIT)() {}
#endif

#endif  // RESIDENT_KERNELS_SDK_OPERATOR_H_
