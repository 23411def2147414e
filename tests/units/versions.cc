// A unit of 64 operators, compiled like other units but at build time. Function
// resident_op_version_K writes K into every element of its output. The functions can serve
// as distinguishable versions of one slot or of several slots.
//
//   "out: out f32[*S]"
#include "kernels/sdk/operator.h"

#if RESIDENT_GPU
#define VERSION_FUNCTION extern "C" __device__
#else
#define VERSION_FUNCTION extern "C"
#endif

namespace {

RESIDENT_DEVICE void Answer(resident::Block& block, const resident::Args& args, float version) {
  auto out = args.tensor<float>(0);
  block.for_each(block.share(out.size()), [&](resident::i64 i) { out[i] = version; });
}

}  // namespace

#define VERSION(k)                                                     \
  RESIDENT_OPERATOR_ABI VERSION_FUNCTION void resident_op_version_##k( \
      resident::BlockState* state) {                                   \
    resident::Block block(state);                                      \
    const resident::Args args(state);                                  \
    Answer(block, args, k##.0f);                                       \
  }
#define EIGHT(d) \
  VERSION(d##0)  \
  VERSION(d##1) VERSION(d##2) VERSION(d##3) VERSION(d##4) VERSION(d##5) VERSION(d##6) VERSION(d##7)
// Two decimal digits, the second from 0 to 7: 10 to 17, 20 to 27, ... 80 to 87.
EIGHT(1) EIGHT(2) EIGHT(3) EIGHT(4) EIGHT(5) EIGHT(6) EIGHT(7) EIGHT(8)
