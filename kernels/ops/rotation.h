// The rotation of a pair of elements by a rotary position's angle.
#ifndef RESIDENT_KERNELS_OPS_ROTATION_H_
#define RESIDENT_KERNELS_OPS_ROTATION_H_

#include "kernels/sdk/operator.h"

namespace resident {

struct Rotation {
  float cosine;
  float sine;
};
[[maybe_unused]] RESIDENT_NOINLINE float CosineOf(float angle) { return math::cos(angle); }
[[maybe_unused]] RESIDENT_NOINLINE float SineOf(float angle) { return math::sin(angle); }
[[maybe_unused]] RESIDENT_NOINLINE Rotation RotationBy(float angle) {
  return {math::cos(angle), math::sin(angle)};
}

}  // namespace resident

#endif  // RESIDENT_KERNELS_OPS_ROTATION_H_
