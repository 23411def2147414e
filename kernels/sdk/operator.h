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
// text that stands beside it (see runtime/registry/signature.h):
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

#include "kernels/sdk/block.h"
#include "kernels/sdk/element.h"
#include "kernels/sdk/elementwise.h"
#include "kernels/sdk/half.h"
#include "kernels/sdk/math.h"

// Raised when a change of the SDK makes compiled operators invalid.
#define RESIDENT_SDK_VERSION 1

// Names the function of operator `name`. Has C linkage: the jump table finds it.
#define RESIDENT_OPERATOR_SYMBOL(name) resident_operator_##name
#if RESIDENT_GPU
#define RESIDENT_OPERATOR(name) extern "C" __device__ void RESIDENT_OPERATOR_SYMBOL(name)
#else
#define RESIDENT_OPERATOR(name) extern "C" void RESIDENT_OPERATOR_SYMBOL(name)
#endif

#endif  // RESIDENT_KERNELS_SDK_OPERATOR_H_
