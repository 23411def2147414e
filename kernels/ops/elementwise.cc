// Element-wise operators: copy, fill, add, sub, mul, div, scale, relu, silu.
#include "kernels/sdk/map.h"
#include "kernels/sdk/operator.h"

#if !RESIDENT_GPU
#include <cmath>
#endif

namespace {

using resident::Args;
using resident::Block;
using resident::Map;

template <typename F>
RESIDENT_DEVICE void Unary(Block& block, const Args& args, F f) {
  const float* in[] = {args.tensor<const float>(0).data()};
  Map<1>(block, args.tensor<float>(1), in, [f](const float* v) { return f(v[0]); });
}

template <typename F>
RESIDENT_DEVICE void Binary(Block& block, const Args& args, F f) {
  const float* in[] = {args.tensor<const float>(0).data(), args.tensor<const float>(1).data()};
  Map<2>(block, args.tensor<float>(2), in, [f](const float* v) { return f(v[0], v[1]); });
}

}  // namespace

RESIDENT_OPERATOR(copy)(Block& block, const Args& args) {
  Unary(block, args, [](float x) { return x; });
}

RESIDENT_OPERATOR(fill)(Block& block, const Args& args) {
  auto out = args.tensor<float>(0);
  const float value = args.scalar<float>(1);
  block.for_each(block.share(out.size(), resident::kMapStep),
                 [&](resident::i64 i) { out[i] = value; });
}

RESIDENT_OPERATOR(add)(Block& block, const Args& args) {
  const float alpha = args.scalar<float>(3);
  Binary(block, args, [alpha](float x, float y) { return x + alpha * y; });
}

RESIDENT_OPERATOR(sub)(Block& block, const Args& args) {
  const float alpha = args.scalar<float>(3);
  Binary(block, args, [alpha](float x, float y) { return x - alpha * y; });
}

RESIDENT_OPERATOR(mul)(Block& block, const Args& args) {
  Binary(block, args, [](float x, float y) { return x * y; });
}

RESIDENT_OPERATOR(div)(Block& block, const Args& args) {
  Binary(block, args, [](float x, float y) { return x / y; });
}

RESIDENT_OPERATOR(scale)(Block& block, const Args& args) {
  const float s = args.scalar<float>(2);
  Unary(block, args, [s](float x) { return s * x; });
}

RESIDENT_OPERATOR(relu)(Block& block, const Args& args) {
  // Not fmaxf, which would turn NaN into 0.
  Unary(block, args, [](float x) { return x < 0.0f ? 0.0f : x; });
}

RESIDENT_OPERATOR(silu)(Block& block, const Args& args) {
  // exp(-x) overflows to infinity for x below -88, and x / infinity is -0, which is correct
  // for every finite x. -inf / inf would be NaN.
  Unary(block, args, [](float x) {
    const float e = expf(-x);
    return x == -INFINITY ? -0.0f : x / (1.0f + e);
  });
}
