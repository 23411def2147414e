// The activations of the operator linear: the values of its argument.
#ifndef RESIDENT_KERNELS_OPS_ACTIVATION_H_
#define RESIDENT_KERNELS_OPS_ACTIVATION_H_

namespace resident {

enum class Activation : unsigned {
  kNone = 0,
  kRelu = 1,
  kGelu = 2,
  kGeluTanh = 3,
  kSilu = 4,
  kSigmoid = 5,
  kTanh = 6,
};
inline constexpr int kActivations = 7;

}  // namespace resident

#endif  // RESIDENT_KERNELS_OPS_ACTIVATION_H_
