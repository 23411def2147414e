// An operator that is installed as an object. It is compiled with
//   -rdc=true -DRESIDENT_UNIT=00112233445566ff
//   -Dresident_operator_axpy=resident_op_00112233445566ff
#include "kernels/sdk/operator.h"

RESIDENT_OPERATOR(axpy)(resident::Block& block, const resident::Args& args) {
  auto x = args.tensor<const float>(0);
  auto y = args.tensor<float>(1);
  const float a = args.scalar<float>(2);
  block.for_each(block.share(x.size()), [&](resident::i64 i) { y[i] += a * x[i]; });
}
